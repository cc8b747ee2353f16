"""Modules of torch for training loops of one's own: ``hotset.nn.Embeddings``."""

from .train.own_loop.embedding_module import Embeddings

__all__ = ["Embeddings"]
