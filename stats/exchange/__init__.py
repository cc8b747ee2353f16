"""Several ranks: which of them use a row in a step, where rows live, and what crosses between them."""
