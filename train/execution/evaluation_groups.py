"""Groups of evaluation batches whose cold rows, which lie in a file, are read together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..data.batch import Batch
from ..rows.tiers import FileTier
from .row_width import RowWidth


def group_evaluation_batches(
    numbers: Iterable[int], read: Callable[[int], Batch], widths: Sequence[RowWidth]
) -> Iterator[tuple[list[int], list[NDArray[np.int64]]]]:
    """Group evaluation batches whose distinct cold rows fit in the memory kept for them.

    Yields:
        The batches of a group, and of each width their rows on the slow tier, ascending.
    """
    # A group grows until one of its widths has no room for another batch.
    group: list[int] = []
    wanted = [np.empty(0, np.int64) for _ in widths]
    for number in numbers:
        batch = read(number)
        own = []
        for width in widths:
            rows_U, _ = width.placement.slow.slots_of(width.read(number, batch).by_row)
            own.append(rows_U[rows_U >= 0])
        joined = [np.union1d(*pair) for pair in zip(wanted, own, strict=True)]
        # A batch that has more by itself is read by itself.
        if group and any(rows.size > _most_read(width) for rows, width in zip(joined, widths, strict=True)):
            yield group, wanted
            group = []
            joined = own
        group.append(number)
        wanted = joined
    if group:
        yield group, wanted


def _most_read(width: RowWidth) -> int:
    assert isinstance(width.executor.slow, FileTier)
    return width.executor.slow.most_read
