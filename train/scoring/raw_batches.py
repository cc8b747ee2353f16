"""Encoded samples cut into batches, wherever the parts of the log end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from ...pipeline.stages.encode_raw import EncodedSamples
from ..data.batch import Batch, FeatureBags
from ..data.joined_batches import join


def batches_of(encoded: Iterable[EncodedSamples], batch_size: int) -> Iterator[Batch]:
    """Yield batches of ``batch_size`` samples in order, the last one perhaps shorter; labels are zeros."""
    waiting: list[Batch] = []
    missing = batch_size
    for samples in encoded:
        batch = _batch_of(samples)
        first = 0
        while batch.num_samples - first >= missing:
            yield join([*waiting, batch.cut(first, first + missing)])
            first += missing
            waiting = []
            missing = batch_size
        if first < batch.num_samples:
            waiting.append(batch.cut(first, batch.num_samples))
            missing -= batch.num_samples - first
    if waiting:
        yield join(waiting)


def _batch_of(samples: EncodedSamples) -> Batch:
    bags = tuple(FeatureBags(*arrays) for arrays in samples.ids.lists.values())
    label_B = torch.zeros(samples.num_samples)
    return Batch(label_B, torch.from_numpy(samples.dense), samples.ids.matrix, None, False, bags)
