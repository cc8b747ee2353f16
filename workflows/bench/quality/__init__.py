"""Scores over seeds, on a small sample and on the splits of a public leaderboard."""
