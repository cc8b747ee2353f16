"""Arrays in, arrays out: counting, ranking, budgets, planning, metrics. Opens no file, imports no torch."""
