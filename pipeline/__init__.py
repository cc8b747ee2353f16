"""Stages and file formats, from raw logs to shards.

Imports no torch and knows no model.
"""
