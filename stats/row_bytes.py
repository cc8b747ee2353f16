"""The bytes of a row, and the rows that a budget holds.

A row is the embedding vector and the state of its optimizer. Both are float32 and always travel together, so
a byte budget counts both. Adagrad and momentum double a row, row-wise Adagrad adds one number to it, Adam
triples it and adds one (the row's own count of steps).
"""

from __future__ import annotations

from collections.abc import Sequence

OPTIMIZERS = ("sgd", "momentum", "adagrad", "rowwise-adagrad", "adam")
_FLOAT32_BYTES = 4


def state_width(embedding_dim: int, optimizer: str) -> int:
    """Return the float32 numbers of optimizer state a row of ``embedding_dim`` columns carries."""
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
    """Return the bytes of a row of ``embedding_dim`` float32 columns with the state of ``optimizer``."""
    if embedding_dim < 1:
        raise ValueError(f"embedding_dim must be 1 or more, got {embedding_dim}")
    return _FLOAT32_BYTES * (embedding_dim + state_width(embedding_dim, optimizer))


def share_slots(num_bytes: int, num_rows: Sequence[int], row_bytes: Sequence[int]) -> list[int]:
    """Return the slots of each width: the budget in proportion to the bytes of the rows they stage.

    Args:
        num_bytes: budget of all widths together.
        num_rows: cold rows of each width.
        row_bytes: bytes of one of them, with its optimizer state.

    Returns:
        At least 1 each, and no more than there are rows.
    """
    total = sum(rows * width for rows, width in zip(num_rows, row_bytes, strict=True))
    shares = [rows * width / max(total, 1) for rows, width in zip(num_rows, row_bytes, strict=True)]
    return [
        max(1, min(int(num_bytes * share) // width, rows))
        for share, rows, width in zip(shares, num_rows, row_bytes, strict=True)
    ]
