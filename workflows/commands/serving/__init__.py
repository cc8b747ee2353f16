"""Commands that use a trained run: its predictions, its export, and changes of an export."""
