"""How work is run: tasks, worker processes, memory."""
