"""Criteo's text format to columns: blocks of lines, their fields, and the faults of bad ones."""
