"""Benchmarks of what is read and not trusted: fuzzing, and the cost of hashing and checks."""
