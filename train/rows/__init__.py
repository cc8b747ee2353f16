"""Embedding rows in tiers: layout, initial values, movement, lookups, optimizer steps."""
