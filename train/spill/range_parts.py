"""The rows of one range at the end of a run, a part at a time: initial values, and over them what was stored.

A range has at most the rows of both arenas, in whose memory it is merged, or it is longer and has few rows
that were ever written back: then its records are read once and held, and each part takes its own of them. A
long range of more records than memory has room for, which only a run in very little memory has, is read again
for each part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from .spill_kernels import scatter_records

Block = tuple[NDArray[np.uint32], NDArray[np.float32], int]
"""Words of a block, the same memory as floats, and its records."""


class RangeParts:
    """The parts of a range; iterating yields the first and the last-plus-one row of each.

    Args:
        first: first row of the range.
        stop: the row after its last one.
        part_rows: rows of a part at most.
        read: reads its blocks, of which each is valid until the next.
        held_words: words of a record, where its records are held; else None.
    """

    def __init__(
        self,
        first: int,
        stop: int,
        part_rows: int,
        read: Callable[[], Iterator[Block]],
        held_words: int | None,
    ) -> None:
        self._first = first
        self._stop = stop
        self._part_rows = part_rows
        self._read = read
        self._held: list[Block] | None = None
        if held_words is not None:
            self._held = [_copy(words_V[: count * held_words], count) for words_V, _, count in read()]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for first in range(self._first, self._stop, self._part_rows):
            yield first, min(first + self._part_rows, self._stop)

    def add(self, first: int, weights_ND: NDArray[np.float32], state_NW: NDArray[np.float32]) -> None:
        """Copy stored rows over their initial values.

        Args:
            first: first row of the part.
            weights_ND: weights of the rows from there on, written for those that were ever written back.
            state_NW: their optimizer state, likewise.
        """
        is_there_N = np.zeros(weights_ND.shape[0], np.uint8)
        places = (first - self._first, self._stop - self._first)
        for words_V, values_V, num_records in self._read() if self._held is None else self._held:
            refuse_misplaced(
                scatter_records(words_V, values_V, num_records, *places, weights_ND, state_NW, is_there_N)
            )


def refuse_misplaced(record: int) -> None:
    """Raise RuntimeError where a kernel found a record that is not in its place; -1: it found none."""
    if record >= 0:
        raise RuntimeError(f"record {record} of a block of the spill file is misplaced")


def _copy(words_V: NDArray[np.uint32], num_records: int) -> Block:
    copied_V = words_V.copy()
    return copied_V, copied_V.view(np.float32), num_records
