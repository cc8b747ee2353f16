"""Cold rows that do not fit in memory: written for the group of batches that uses them next."""
