"""Measuring: rounds in turn, candidates in fresh processes, and what is said of the machine."""
