"""What runs step plans: transfers, look-ups, updates."""
