"""Predictions, exported models and their changes."""
