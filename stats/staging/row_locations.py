"""The location of a row: the number of its slot, or a number below 0 that tells where else it is.

Kernels read and write locations by these functions alone.
"""

from __future__ import annotations

from ..kernel import kernel

UNSEEN = -1
"""The row was never used in the run."""
WRITTEN_BACK_AT_END = -2
"""It was written back at the end of an epoch."""
PENDING = -(1 << 31)
"""The present item is about to load it."""


@kernel
def is_in_slot(location: int) -> bool:
    return location >= 0


@kernel
def is_unseen(location: int) -> bool:
    """Whether the row was never used in the run, so that it still has its initial values."""
    return location == UNSEEN


@kernel
def is_pending(location: int) -> bool:
    """Whether the present item is about to load the row."""
    return location == PENDING


@kernel
def was_written_back_by_item(location: int) -> bool:
    """Whether the item of a step, of this epoch or an earlier one, wrote the row back; it is not pending."""
    return location < WRITTEN_BACK_AT_END


@kernel
def item_of(location: int) -> int:
    """The item, counted over the run, that wrote the row back."""
    return -3 - location


@kernel
def written_back_by(item: int) -> int:
    """The location of a row that ``item``, counted over the run, writes back."""
    return -3 - item
