"""Counts of ranks over any number of samples: words are sorted in memory, or in parts and merged from a file.

A sample takes 8 bytes: up to 4 million (32 MiB) are sorted in place, more go to a file without a name, in
sorted parts that are merged at the end. The counts are those of one sort, whatever the size of a part.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError
from ...stats.metrics import MOST_SAMPLES, RankCounts, close_tie, count_sorted

_PART_WORDS = 1 << 22
_FEWEST_MERGED = 1 << 9
"""Words of each part that are read at a time, at least."""


class SortedScores:
    """Samples as words, counted in the order of falling logits.

    Args:
        folder: folder of the file, where one is needed; None: that of temporary files.
        part_words: words that are in memory at a time.
    """

    def __init__(self, folder: Path | None = None, part_words: int = _PART_WORDS) -> None:
        self._folder = folder
        self._part_words = part_words
        self._words_N = np.empty(0, np.uint64)
        self._used = 0
        self._file: IO[bytes] | None = None
        self._num_parts = 0

    def add(self, words_N: NDArray[np.uint64]) -> None:
        """Add samples in any order; raises HotsetError where the file cannot be written."""
        while words_N.size:
            # Room grows with the samples, so that a small evaluation takes little memory.
            if self._used == self._words_N.size < self._part_words:
                room = min(self._part_words, max(1 << 12, 2 * self._used, words_N.size))
                self._words_N = np.concatenate([self._words_N, np.empty(room - self._used, np.uint64)])
            taken = words_N[: self._words_N.size - self._used]
            self._words_N[self._used : self._used + taken.size] = taken
            self._used += taken.size
            words_N = words_N[taken.size :]
            if self._used == self._part_words and words_N.size:
                self._spill()

    def count(self) -> RankCounts:
        """Count the samples added, and forget them; raises HotsetError where the file cannot be read."""
        counts = RankCounts.none()
        if self._num_parts == 0:
            words_N = self._words_N[: self._used]
            words_N.sort()
            count_sorted(words_N, counts)
        else:
            self._spill()
            self._merge(counts)
        close_tie(counts)
        self.close()
        return counts

    def close(self) -> None:
        """Give memory and file back."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._num_parts = self._used = 0
        self._words_N = np.empty(0, np.uint64)

    def _spill(self) -> None:
        """Write the words in memory to the file as one sorted part; a short last one is filled up."""
        # The counts of pairs are products of two numbers of samples, and must fit in 63 bits.
        if (self._num_parts + 1) * self._part_words > MOST_SAMPLES:
            raise HotsetError(f"an evaluation of more than {MOST_SAMPLES:,} samples cannot be counted")
        part_N = self._words_N[: self._used]
        part_N.sort()
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)
            part_N.tofile(self._file)
        except OSError as error:
            where = self._folder or tempfile.gettempdir()
            raise HotsetError(
                f"{where} has no room for the scores of an evaluation: {error.strerror or error}",
                hint="free 8 bytes of disk space there for each sample that is evaluated",
            ) from error
        self._num_parts += 1
        self._last_words = self._used
        self._used = 0

    def _merge(self, counts: RankCounts) -> None:
        """Count the words of all parts in order, some of each part in memory at a time."""
        # Every part but the last is full, so their places in the file follow from their number.
        starts = [part * self._part_words for part in range(self._num_parts)]
        stops = [start + self._part_words for start in starts]
        stops[-1] = starts[-1] + self._last_words
        num_read = max(_FEWEST_MERGED, self._part_words // self._num_parts)
        blocks = [np.empty(0, np.uint64)] * self._num_parts
        # One block of each part in memory; a block that is used up is followed by the next of its part.
        while True:
            for part in range(self._num_parts):
                if blocks[part].size == 0 and starts[part] < stops[part]:
                    blocks[part] = self._read(starts[part], min(num_read, stops[part] - starts[part]))
                    starts[part] += blocks[part].size
            if not any(block.size for block in blocks):
                return
            # All words up to the least last one of a part that goes on are in memory.
            ends = [blocks[part][-1] for part in range(self._num_parts) if starts[part] < stops[part]]
            limit = min(ends) if ends else None
            cuts = [
                block.size if limit is None else int(np.searchsorted(block, limit, side="right"))
                for block in blocks
            ]
            # What lies below the limit in any block is complete: sorted together, it is counted and
            # forgotten.
            joined_N = np.concatenate([block[:cut] for block, cut in zip(blocks, cuts, strict=True)])
            joined_N.sort()
            count_sorted(joined_N, counts)
            blocks = [block[cut:] for block, cut in zip(blocks, cuts, strict=True)]

    def _read(self, first: int, num_words: int) -> NDArray[np.uint64]:
        assert self._file is not None
        self._file.seek(8 * first)
        words_N = np.fromfile(self._file, np.uint64, num_words)
        if words_N.size != num_words:
            raise HotsetError("the file of the scores of an evaluation is cut short")
        return words_N
