"""What data files hold: Arrow batches, tables, ids of samples."""
