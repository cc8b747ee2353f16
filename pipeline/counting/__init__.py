"""Counts in spans of the log: what the stage `count` is made of."""
