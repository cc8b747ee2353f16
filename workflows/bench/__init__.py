"""Benchmarks: each against named baselines, interleaved."""
