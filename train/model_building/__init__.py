"""From the options of a run to its dense model, a user's own module among them."""
