"""Dense models without their tables, and the steps that train them."""
