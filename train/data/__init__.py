"""Shards as batches, in the order they are trained on."""
