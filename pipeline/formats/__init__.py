"""The content of data files: Arrow batches, tables, ids of samples."""
