"""What the models of docs/examples reach."""
