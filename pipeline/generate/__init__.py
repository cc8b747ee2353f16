"""Synthetic click logs with the statistics of a real one."""
