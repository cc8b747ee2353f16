"""What a preprocessed folder says of access frequencies: one file for each series."""
