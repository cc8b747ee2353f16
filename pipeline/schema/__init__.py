"""Schemas: what a log's columns are, and the files that say so."""
