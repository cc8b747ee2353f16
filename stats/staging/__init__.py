"""Planners of staging slots: next uses, policies, step plans."""
