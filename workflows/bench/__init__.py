"""Benchmarks against named baselines, which take turns."""
