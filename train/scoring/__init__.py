"""Scores of logs with weights, groups or several labels, which other runs do not import."""
