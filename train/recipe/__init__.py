"""How a run optimizes: learning rates over its steps, and what is done to gradients."""
