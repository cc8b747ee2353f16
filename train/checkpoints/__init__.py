"""Checkpoints of a training run: what they hold, their files, and how they are written during training."""
