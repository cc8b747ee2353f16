"""Dropout with the same mask on any device and in any thread.

The mask is a function of (seed, step, layer, sample, unit). Torch draws its masks one after the other, so
that they depend on which part of a batch is drawn first. Here each number is drawn by its place: a batch may
be cut into tiles, micro-batches or ranks, a run may be interrupted, and every placement draws the same.

Source:
    Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting, JMLR 15 (2014), with
    outputs scaled up in training, as torch does, rather than down afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...stats.id_tables import mix64_pair
from ...stats.kernel import kernel

_BITS = 24
"""Bits of a hash that are compared with the share."""


@kernel
def draw_mask(
    stream: np.uint64, first_sample: int, num_dropped: int, kept: np.float32, mask_TU: NDArray[np.float32]
) -> None:
    """Draw which outputs of a layer are kept.

    Args:
        stream: hash of (seed, step, layer).
        first_sample: position of the first sample in its batch.
        num_dropped: so many of ``2**24`` outputs are dropped.
        kept: value of those that are kept.
        mask_TU: (num_samples, num_units), written: ``kept`` or 0.
    """
    for sample in range(mask_TU.shape[0]):
        of_sample = mix64_pair(stream, np.uint64(first_sample + sample))
        for unit in range(mask_TU.shape[1]):
            bits = mix64_pair(of_sample, np.uint64(unit)) >> np.uint64(64 - _BITS)
            mask_TU[sample, unit] = kept if np.int64(bits) >= num_dropped else np.float32(0)


class _Place(threading.local):
    """Which samples the present thread passes."""

    stream: np.uint64 | None = None
    """Hash of (seed, step)."""
    first_sample: int = 0


_place = _Place()


@contextmanager
def drawing(seed: int, step: int, first_sample: int) -> Iterator[None]:
    """Set the step and the first sample that layers of this thread draw for."""
    _place.stream = np.uint64(mix64_pair(np.uint64(seed), np.uint64(step)))
    _place.first_sample = first_sample
    try:
        yield
    finally:
        _place.stream = None


class HashDropout(nn.Module):
    """Drops a share of its inputs in training, and scales the others up.

    Args:
        share: that is dropped, in (0, 1).
        layer: number of the layer in its model; layers draw apart.
    """

    def __init__(self, share: float, layer: int) -> None:
        super().__init__()
        self.share = share
        self._layer = np.uint64(layer)
        self._num_dropped = round(share * 2**_BITS)
        self._kept = np.float32(1 / (1 - share))

    def forward(self, inputs_TU: torch.Tensor) -> torch.Tensor:
        """Drop some of the (T, U) outputs of a layer."""
        if not self.training:
            return inputs_TU
        assert _place.stream is not None, "a step says which samples it passes: `drawing`"
        mask_TU = torch.empty(inputs_TU.shape)
        stream = np.uint64(mix64_pair(_place.stream, self._layer))
        draw_mask(stream, _place.first_sample, self._num_dropped, self._kept, mask_TU.numpy())
        return inputs_TU * mask_TU.to(inputs_TU.device, inputs_TU.dtype)
