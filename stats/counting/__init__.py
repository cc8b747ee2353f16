"""Exact counts of categories: hash tables and merging."""
