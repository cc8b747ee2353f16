"""Access frequencies of a preprocessed folder: one file for each series."""
