"""Parts of batches joined to one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .batch import Batch, FeatureBags


def join(parts: Sequence[Batch]) -> Batch:
    """Return the samples of some batches, one or more, as one batch; of a single one, that batch itself."""
    if len(parts) == 1:
        return parts[0]
    tags = [part.is_hot_B for part in parts if part.is_hot_B is not None]
    return Batch(
        torch.cat([part.label_B for part in parts]),
        torch.cat([part.dense_BK for part in parts]),
        np.concatenate([part.ids_BF for part in parts]),
        # Samples are tagged where those of all parts are.
        np.concatenate(tags) if len(tags) == len(parts) else None,
        all(part.is_hot_only for part in parts),
        tuple(_join_bags(bags) for bags in zip(*(part.bags for part in parts), strict=True)),
    )


def _join_bags(parts: Sequence[FeatureBags]) -> FeatureBags:
    lengths_B = np.concatenate([np.diff(part.offsets_B1) for part in parts])
    offsets_B1 = np.concatenate([[0], np.cumsum(lengths_B)]).astype(np.int32)
    return FeatureBags(offsets_B1, np.concatenate([part.ids_N for part in parts]))
