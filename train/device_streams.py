"""When work on a device is done: marks that one thread sets and another waits for.

On the host a call that has returned is done, so there is nothing to wait for. On a GPU calls return
early: a mark is an event in a stream, and to wait for it is to let the streams of the calling thread wait;
the host itself goes on. Transfers have two streams of their own there, one each way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch

Mark = Any
"""An event, or None on the host."""


class Lanes(Protocol):
    """The streams of one device."""

    def mark(self) -> Mark:
        """Mark what the calling thread has asked of the device so far."""

    def wait(self, mark: Mark) -> None:
        """Let what the calling thread asks from now on come after ``mark``."""

    def transferring(self) -> AbstractContextManager[None]:
        """Inside, the calling thread asks in the streams of transfers."""


class HostLanes:
    """Nothing to wait for."""

    def mark(self) -> Mark:
        return None

    def wait(self, mark: Mark) -> None:
        return None

    def transferring(self) -> AbstractContextManager[None]:
        return nullcontext()


class CudaLanes:
    """The stream of compute, which is the current one of a thread, and one stream each way."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.up, self.down = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]

    def mark(self) -> Mark:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self, mark: Mark) -> None:
        if mark is None:
            return
        current = torch.cuda.current_stream(self.device)
        current.wait_event(mark)
        if current == self.up:
            self.down.wait_event(mark)

    @contextmanager
    def transferring(self) -> Iterator[None]:
        with torch.cuda.stream(self.up):
            yield


def lanes_of(device: torch.device) -> Lanes:
    """The lanes of a device."""
    return CudaLanes(device) if device.type == "cuda" else HostLanes()
