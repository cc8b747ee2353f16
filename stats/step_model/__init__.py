"""The time of a training step: its parts, what they depend on, and how they overlap."""
