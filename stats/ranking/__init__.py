"""Orders of rows, and the hot rows under a budget."""
