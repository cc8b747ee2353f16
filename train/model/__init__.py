"""DLRM without its tables."""
