"""Kernels of what is shown: coverage, drift, stack distances, metrics."""
