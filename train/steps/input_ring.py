"""Pinned memory that batches are packed into, slot after slot, and its use again once a copy has read it.

A slot is filled by the thread that reads ahead, and sent by the thread that queues steps. That thread
releases slots, in order: it waits for a copy only where others behind it are queued, so in practice never.
"""

from __future__ import annotations

from collections import deque

import torch

from ..device.verbs import Device, Event

_COPIES_BEHIND = 2
"""Copies that may be under way when the host continues."""


class InputRing:
    """Slots of pinned memory.

    Args:
        device: whose copies read them.
        num_ahead: batches that wait between the two threads, at most.
    """

    def __init__(self, device: Device, num_ahead: int) -> None:
        self._device = device
        # Besides those ahead, one that is being filled and one that is being sent.
        num_slots = num_ahead + 2 + _COPIES_BEHIND
        self._slots = [device.allocate_pinned([0], torch.uint8)] * num_slots
        self._num_filled = 0
        self._num_free = num_slots
        self._copies: deque[Event] = deque()

    def take(self, num_bytes: int) -> torch.Tensor:
        """The next slot, to be filled; slots are sent in the order in which they are taken."""
        # Whoever reads ahead is held up before it takes a slot too many, so this is a bug.
        assert self._num_filled < self._num_free, "a slot of the ring would be filled before it is free"
        number = self._num_filled % len(self._slots)
        self._num_filled += 1
        if self._slots[number].numel() < num_bytes:
            self._slots[number] = self._device.allocate_pinned([num_bytes], torch.uint8)
        return self._slots[number]

    def sent(self, copied: Event) -> None:
        """Note when the copy of the slot that is sent next ends, and release slots of earlier copies."""
        self._copies.append(copied)
        while len(self._copies) > _COPIES_BEHIND:
            self._device.wait_on_host(self._copies.popleft())
            self._num_free += 1
