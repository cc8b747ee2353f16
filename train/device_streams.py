"""When work on a device is done: events that one thread records and another waits for.

On the host a call that has returned is done, so there is nothing to wait for. On a GPU calls return
early: an event marks a position in a stream, and to wait for it is to let the streams of the calling thread
wait; the host itself continues. Transfers have two streams of their own there, one for each direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

Event = torch.cuda.Event | None
"""A position in a stream, or None on the host."""


class DeviceStreams(Protocol):
    """The streams of one device."""

    def record_event(self) -> Event:
        """Record what the calling thread has asked of the device so far."""

    def wait_event(self, event: Event) -> None:
        """Let whatever the calling thread asks from now on run after ``event``."""

    def transferring(self) -> AbstractContextManager[None]:
        """Let the calling thread use the streams of transfers inside the block."""

    def synchronize(self) -> None:
        """Wait until the device has done all that it was asked."""


class HostStreams:
    """The host, where nothing has to be waited for."""

    def record_event(self) -> Event:
        return None

    def wait_event(self, event: Event) -> None:
        return None

    def transferring(self) -> AbstractContextManager[None]:
        return nullcontext()

    def synchronize(self) -> None:
        return None


class CudaStreams:
    """The stream of compute, which is the current one of a thread, and one stream for each direction."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.h2d = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        """From the host to the device."""
        self.d2h = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        """From the device to the host."""

    def record_event(self) -> Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait_event(self, event: Event) -> None:
        if event is None:
            return
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)
        # The thread of transfers has both streams: a write-back must not overtake the compute either.
        if current == self.h2d:
            self.d2h.wait_event(event)

    @contextmanager
    def transferring(self) -> Iterator[None]:
        with torch.cuda.stream(self.h2d):
            yield

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)


def streams_of(device: torch.device) -> DeviceStreams:
    """The streams of a device."""
    return CudaStreams(device) if device.type == "cuda" else HostStreams()
