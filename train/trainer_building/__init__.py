"""Builds all that a run holds in memory from its shards and settings."""
