"""Batches of encoded samples are the same wherever the parts end."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.pipeline.folders.totals import VocabularyTable
from hotset.pipeline.formats.ids import PartIds
from hotset.pipeline.stages.encode_raw import EncodedSamples
from hotset.train.data.batch import Batch
from hotset.train.scoring.raw_batches import batches_of

TABLES = tuple(
    VocabularyTable(name=name, num_rows=99, oov_id=0, oov_count=0, missing_id=1, is_multi_hot=is_multi_hot)
    for name, is_multi_hot in (("a", False), ("b", True))
)


def drawn(sizes: list[int]) -> list[EncodedSamples]:
    """Parts of so many samples; the sample number is in every value."""
    parts = []
    first = 0
    for size in sizes:
        numbers = np.arange(first, first + size, dtype=np.int32)
        lengths = numbers % 3
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        lists = {"b": (offsets, np.repeat(numbers, lengths))}
        dense = np.stack([numbers, -numbers], axis=1).astype(np.float32)
        parts.append(EncodedSamples(dense, PartIds(TABLES, numbers[:, None], lists)))
        first += size
    return parts


@pytest.mark.parametrize("sizes", [[], [0], [7], [8, 0, 1], [1] * 9, [30], [3, 29, 2]])
def test_batches_do_not_depend_on_the_parts(sizes: list[int]) -> None:
    found = list(batches_of(drawn(sizes), 4))
    wanted = list(batches_of(drawn([sum(sizes)]), 4))
    assert [batch.num_samples for batch in found] == [
        min(4, sum(sizes) - first) for first in range(0, sum(sizes), 4)
    ]
    for batch, other in zip(found, wanted, strict=True):
        assert described(batch) == described(other)
    numbers = [number for batch in found for number in batch.ids_BF[:, 0].tolist()]
    assert numbers == list(range(sum(sizes)))


def described(batch: Batch) -> tuple[object, ...]:
    bags = [(each.offsets_B1.tolist(), each.ids_N.tolist()) for each in batch.bags]
    return batch.ids_BF.tolist(), batch.dense_BK.tolist(), batch.label_B.tolist(), bags
