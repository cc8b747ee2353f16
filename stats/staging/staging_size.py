"""Slots of a staging area and how far transfers run ahead, chosen together.

A transfer that runs P batches ahead may evict none of the rows of P + 1 batches, so with few slots it has to
wait after all (it is shortened), and evicts rows that are needed soon. Measured on one epoch, against Belady
with as many slots and nothing ahead (110,000 samples of Criteo Kaggle in batches of 512; slots in multiples
of the cold rows of the largest batch, at P = 1 and P = 2):

    slots       2x     2.5x    3x     4x     6x     8x
    P = 1     1.25     1.16  1.12   1.08   1.04   1.02    times the bytes
    P = 2     1.25*    1.49* 1.32   1.18   1.09   1.04    * 99 % and 32 % of the transfers shortened

So each batch of depth, and the batch itself, gets slots for twice its rows: at most 1.1 times the bytes, and
no transfer shortened. On 300,000 generated samples in batches of 2,048 the same rule costs 1.03 and 1.02.

The default is both more slots and less depth. On the real sample, slots for as many bytes as its 512 KiB of
hot rows moved 39 MB at P = 2, all of it late, and 32 MB at P = 0, none of it hidden; four batches' rows (958
KiB) move 21 MB at P = 1, on time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ranking.row_bytes import share_slots

LEAST_PREFETCH = 1
"""Batches that transfers run ahead with the default slots at least: with none ahead nothing is hidden."""
MOST_PREFETCH = 2
"""Batches that transfers run ahead at most, unless asked to: further ones hide little more."""
_BATCHES_EACH = 2
"""Largest batches whose rows fit in the slots, for each batch of depth and for the batch itself."""


@dataclass(frozen=True, slots=True)
class WidthSizes:
    """The rows of one width that staging slots are for."""

    num_hot: int
    """Rows that live on the fast tier."""
    num_cold: int
    """Rows that are staged."""
    row_bytes: int
    """Bytes of a row with its optimizer state."""
    num_in_batch: int
    """Distinct cold rows of a large batch."""


def default_staging_bytes(widths: Sequence[WidthSizes], prefetch: int | None) -> int:
    """Return as many bytes as the hot rows take, but enough to run ``prefetch`` batches ahead.

    Args:
        widths: of all tables.
        prefetch: depth that was asked for; None: at least ``LEAST_PREFETCH``.
    """
    depth = LEAST_PREFETCH if prefetch is None else prefetch
    hot_bytes = sum(width.num_hot * width.row_bytes for width in widths)
    cold_bytes = sum(width.num_cold * width.row_bytes for width in widths)
    # Slots are shared out in proportion to all cold bytes, so the width that wants most of its own decides.
    # One byte a width more makes up for rounding.
    wanted = [
        -(-min(_slots_for(depth, width), width.num_cold) * cold_bytes // width.num_cold) + width.row_bytes
        for width in widths
        if width.num_cold and width.num_in_batch
    ]
    return max([hot_bytes, *wanted]) if cold_bytes else hot_bytes


def slots_of_widths(widths: Sequence[WidthSizes], num_bytes: int) -> list[int]:
    """Return the staging slots of each width."""
    return share_slots(num_bytes, [width.num_cold for width in widths], [width.row_bytes for width in widths])


def deepest_prefetch(widths: Sequence[WidthSizes], num_bytes: int) -> int:
    """Return how many batches transfers may run ahead with these slots, ``MOST_PREFETCH`` at most."""
    slots = slots_of_widths(widths, num_bytes)
    for depth in range(MOST_PREFETCH, 0, -1):
        # Where every cold row has a slot nothing is evicted, whatever the depth.
        needed = (min(_slots_for(depth, width), width.num_cold) for width in widths)
        if all(number >= least for number, least in zip(slots, needed, strict=True)):
            return depth
    return 0


def _slots_for(prefetch: int, width: WidthSizes) -> int:
    return _BATCHES_EACH * (prefetch + 1) * width.num_in_batch
