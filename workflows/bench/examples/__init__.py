"""What the models of docs/examples reach, and runs of two engines beside each other."""
