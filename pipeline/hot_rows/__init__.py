"""Which rows are hot under a byte budget, and how much that makes hot."""
