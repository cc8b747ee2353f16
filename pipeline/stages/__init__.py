"""The stages of preprocessing, one function each."""
