"""The verbs of a device: all that the orchestration of training steps may ask of one.

A device has three streams. Work in one stream runs in the order in which it was queued; between streams only
events decide. `CudaDevice` is a GPU. `LateDevice` runs on the host, as late and in as odd an order as streams
and events allow, so that a missing wait shows without a GPU. Both run the same orchestration, which must not
ask which of them it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch

StreamName = Literal["copies", "moves", "compute"]
"""Inputs that go up; rows that move between the tiers; everything else."""
STREAMS: tuple[StreamName, ...] = ("copies", "moves", "compute")


class Event(Protocol):
    """A position in a stream."""


class Graph(Protocol):
    """Work that was recorded once and is queued as a whole."""


class Device(Protocol):
    """A device and its streams. Calls return before their work is done, but for the waits of the host."""

    torch_device: torch.device
    """Where tensors of the device are."""
    is_timed: bool
    """Whether what takes less time there is worth finding out."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return memory of the device, with any content."""

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return host memory that copies of the device can read and write, with any content."""

    def pin(self, tensor: torch.Tensor) -> bool:
        """Let kernels of the device read and write host memory that exists already; return whether they can,
        which is not so of mapped files."""

    def copy(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        """Queue a copy between pinned host memory and the device."""

    def launch(self, stream: StreamName, kernel: Callable[..., object], *arguments: Any) -> None:
        """Queue a kernel: a call that asks the device for work and does not read what the device computes."""

    def record(self, stream: StreamName) -> Event:
        """Return an event that has happened once all that the stream was given so far is done."""

    def wait(self, stream: StreamName, event: Event) -> None:
        """Let whatever the stream is given from now on run after ``event``; the host does not wait."""

    def wait_on_host(self, event: Event) -> None:
        """Return once ``event`` has happened."""

    def synchronize(self) -> None:
        """Return once the device has done all that it was given."""

    def capture(self, stream: StreamName, queue_work: Callable[[], None]) -> Graph:
        """Record what ``queue_work`` launches in a stream, without running it.

        The work is of this stream alone, and reads and writes the same memory whenever it runs.

        Raises:
            RuntimeError: some of the work cannot be recorded; nothing has run.
        """

    def replay(self, stream: StreamName, graph: Graph) -> None:
        """Queue work that was recorded in this stream."""

    def close(self) -> None:
        """End the use of the device.

        Raises:
            RuntimeError: work is still queued, whose memory could be freed before it runs.
        """
