"""Saves a run to checkpoints, and starts one from saved state."""
