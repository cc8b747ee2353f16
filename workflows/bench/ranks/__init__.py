"""Benchmarks of several ranks."""
