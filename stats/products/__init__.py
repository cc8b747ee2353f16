"""Products of matrices in float32, for processors on which the linear algebra library leaves much behind."""
