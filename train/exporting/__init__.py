"""Export of finished runs: the whole model as one graph, and what changed since another run."""
