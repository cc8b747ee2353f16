"""Encoded samples cut into batches, wherever the parts of the log end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from ...pipeline.encoding.raw_samples import EncodedSamples
from ..data.batch import Batch, FeatureBags


def batches_of(encoded: Iterable[EncodedSamples], batch_size: int) -> Iterator[Batch]:
    """Yield batches of ``batch_size`` samples in order, the last one perhaps shorter; labels are zeros."""
    waiting: list[Batch] = []
    missing = batch_size
    for samples in encoded:
        batch = _batch_of(samples)
        first = 0
        while batch.num_samples - first >= missing:
            yield _joined([*waiting, batch.cut(first, first + missing)])
            first += missing
            waiting = []
            missing = batch_size
        if first < batch.num_samples:
            waiting.append(batch.cut(first, batch.num_samples))
            missing -= batch.num_samples - first
    if waiting:
        yield _joined(waiting)


def _batch_of(samples: EncodedSamples) -> Batch:
    bags = tuple(FeatureBags(*arrays) for arrays in samples.ids.lists.values())
    label_B = torch.zeros(samples.num_samples)
    return Batch(label_B, torch.from_numpy(samples.dense), samples.ids.matrix, None, False, bags)


def _joined(parts: Sequence[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return Batch(
        torch.cat([part.label_B for part in parts]),
        torch.cat([part.dense_BK for part in parts]),
        np.concatenate([part.ids_BF for part in parts]),
        None,
        False,
        tuple(_joined_bags(bags) for bags in zip(*(part.bags for part in parts), strict=True)),
    )


def _joined_bags(parts: Sequence[FeatureBags]) -> FeatureBags:
    lengths_B = np.concatenate([np.diff(part.offsets_B1) for part in parts])
    offsets_B1 = np.concatenate([[0], np.cumsum(lengths_B)]).astype(np.int32)
    return FeatureBags(offsets_B1, np.concatenate([part.ids_N for part in parts]))
