"""Runs step plans: transfers, lookups and updates of embedding rows."""
