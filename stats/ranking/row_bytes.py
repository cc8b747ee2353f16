"""Bytes one row needs: the embedding vector and, beside it, the state of its optimizer.

Both are float32 and always travel together, so a byte budget counts both. Adagrad and momentum double a
row, row-wise Adagrad adds one number to it, Adam triples it and adds one (the row's own count of steps).
"""

from __future__ import annotations

OPTIMIZERS = ("sgd", "momentum", "adagrad", "rowwise-adagrad", "adam")
_FLOAT32_BYTES = 4


def state_width(embedding_dim: int, optimizer: str) -> int:
    """Float32 numbers of optimizer state a row of ``embedding_dim`` columns carries."""
    widths = {
        "sgd": 0,
        "momentum": embedding_dim,
        "adagrad": embedding_dim,
        "rowwise-adagrad": 1,
        "adam": 2 * embedding_dim + 1,
    }
    if optimizer not in widths:
        raise ValueError(f"no embedding optimizer {optimizer!r}: want one of {', '.join(widths)}")
    return widths[optimizer]


def row_bytes(embedding_dim: int, optimizer: str) -> int:
    """Bytes of a row of ``embedding_dim`` float32 columns with the state of ``optimizer``."""
    if embedding_dim < 1:
        raise ValueError(f"embedding_dim must be 1 or more, got {embedding_dim}")
    return _FLOAT32_BYTES * (embedding_dim + state_width(embedding_dim, optimizer))
