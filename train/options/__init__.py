"""Groups of options of a run, as plain data."""
