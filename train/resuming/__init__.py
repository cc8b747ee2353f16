"""Saves a training run to checkpoints, and starts one from a checkpoint or from another run."""
