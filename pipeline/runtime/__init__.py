"""Tasks, worker processes and memory."""
