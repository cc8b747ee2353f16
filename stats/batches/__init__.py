"""Kernels on samples and batches: shuffles, bags, distinct rows, slots."""
