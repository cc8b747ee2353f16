"""Plans of a training run: the machine as it was measured, and what is fastest on it."""
