"""The stages of preprocessing, one function each, and the run of all of them."""
