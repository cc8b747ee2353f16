"""How many staging slots a byte budget gives to each row width."""

from __future__ import annotations

from collections.abc import Sequence


def share_slots(num_bytes: int, num_rows: Sequence[int], row_bytes: Sequence[int]) -> list[int]:
    """Slots of each width: the budget in proportion to the bytes of the rows they stage.

    Args:
        num_bytes: for all widths together.
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
