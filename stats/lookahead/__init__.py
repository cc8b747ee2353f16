"""The planner of step plans: next uses, victims and the moves of rows."""
