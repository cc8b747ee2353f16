"""Shuffling samples into shards: what the stage `pack` is made of."""
