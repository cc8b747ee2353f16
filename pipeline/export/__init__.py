"""Shards in the formats of other programs."""
