"""What a run would find, do and need, told before it begins."""
