"""Checkpoints of a training run: contents, files, and how they are written."""
