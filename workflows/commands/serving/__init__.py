"""Commands that use a trained run: its predictions, and its export."""
