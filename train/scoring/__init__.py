"""Predictions of finished runs: loading a run, and scoring the lines of a log with it."""
