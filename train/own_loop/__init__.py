"""Embeddings as a torch module, for training loops of one's own."""
