"""Completion in a shell: its scripts, and the options of all commands in a file."""
