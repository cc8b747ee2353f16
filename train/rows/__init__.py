"""Embedding rows in tiers: layout, initial values, movement, optimizer steps."""
