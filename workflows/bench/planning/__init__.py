"""Benchmarks of plans: what was predicted beside what was measured."""
