"""Commands that measure a machine, and that predict and plan training."""
