"""The validation or the test part of shards, in batches of its own.

Shards hold the evaluation samples as one run of batches, of which one may have the last samples of the
validation part and the first of the test part. Here each part begins with a whole batch, as a log of its
lines alone does: products of matrices may differ in their last bits where batches are cut at other samples.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal

from .batch import Batch
from .joined_batches import join
from .shards import Shards

Part = Literal["validation", "test"]
"""A part of the evaluation samples: the first ones, where the log has such a part, or the others."""


class EvaluationPart:
    """The batches of one part by number, in the order of the log; the last one may be short.

    One thread reads them. Read in their order, each stored batch is read once.
    """

    def __init__(self, shards: Shards, part: Part) -> None:
        num_validation = shards.num_validation_samples
        self._shards = shards
        self._first = 0 if part == "validation" else num_validation
        self._stop = num_validation if part == "validation" else shards.num_evaluation_samples
        self._last: tuple[int, Batch] | None = None
        """Number of the stored batch that was read last, and the batch: the next one may begin in it."""

    @property
    def num_samples(self) -> int:
        return self._stop - self._first

    @property
    def numbers(self) -> range:
        """Numbers of the batches."""
        return range(-(-self.num_samples // self._shards.batch_size))

    def batch(self, number: int) -> Batch:
        """Return the batch ``number`` of the part.

        Raises:
            ShardError: a damaged file.
        """
        first = self._first + number * self._shards.batch_size
        stop = min(first + self._shards.batch_size, self._stop)
        # Stored batches that have samples of it, each cut to those.
        starts = self._shards.evaluation_starts
        parts = []
        stored = bisect_right(starts, first) - 1
        while starts[stored] < stop:
            start = starts[stored]
            batch = self._stored(stored)
            parts.append(batch.cut(max(first - start, 0), min(stop - start, batch.num_samples)))
            stored += 1
        return join(parts)

    def _stored(self, number: int) -> Batch:
        if self._last is None or self._last[0] != number:
            self._last = (number, self._shards.evaluation_batch(number))
        return self._last[1]
