"""One command for a machine with a GPU: what holds there, and how fast it is."""
