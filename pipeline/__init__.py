"""Stages and file formats, from raw logs to shards. Never imports torch, knows no model."""
