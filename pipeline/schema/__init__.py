"""Schemas: which columns a log has, and the files that describe them."""
