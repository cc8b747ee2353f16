"""The embeddings of one rank of several: its rows, and what it sends to the others and receives."""
