"""Measure the link of a device, and the limit of each placement.

Uses the device calls of training: copies of pinned memory. On the simulated device the "link" is the host's
memory, so that all later parts run without a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from ....train.build_embeddings import open_device_api
from ....train.device import Device

_NUM_BYTES = 1 << 28
"""Bytes of a copy on a GPU: some 5 ms, so that its beginning does not count."""
_FEW_BYTES = 1 << 22
"""On a simulated device, whose figures mean nothing."""
_TRIALS = 5
SERIAL = ("hybrid", "hybrid-dedup", "fae")
"""Placements whose vectors arrive before the gradients of the same batch, and after those of the previous
one: the two directions alternate. The others move rows ahead, in both directions simultaneously."""


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bytes per second of pinned memory."""

    up: float
    """From the host to the device."""
    down: float

    def seconds(self, placement: str, bytes_up: float, bytes_down: float) -> float:
        """Return the seconds that the link needs at least for what a placement moves."""
        both = bytes_up / self.up, bytes_down / self.down
        return sum(both) if placement in SERIAL else max(both)


def measure_link(name: str) -> LinkRates | None:
    """Measure the link of a device; None for the host, which has none."""
    device = open_device_api(name)
    if device is None:
        return None
    num_bytes = _NUM_BYTES if device.is_timed else _FEW_BYTES
    pinned = device.allocate_pinned([num_bytes], torch.uint8)
    near = device.allocate([num_bytes], torch.uint8)
    up = _least_seconds(partial(device.copy, "copies", pinned, near), device)
    down = _least_seconds(partial(device.copy, "moves", near, pinned), device)
    device.close()
    return LinkRates(num_bytes / up, num_bytes / down)


def _least_seconds(queue: Callable[[], None], device: Device) -> float:
    """Return the seconds of the quickest of a few copies, after one that wakes the link."""
    found = []
    for _ in range(1 + _TRIALS):
        device.synchronize()
        begin = time.perf_counter()
        queue()
        device.synchronize()
        found.append(time.perf_counter() - begin)
    return min(found[1:])
