"""The benchmark of a training step, its contestants and the parts of a step."""
