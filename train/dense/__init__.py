"""Dense layers on the host: their products of matrices."""
