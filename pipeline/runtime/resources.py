"""The resources of a call: workers, memory and a progress callback. None of them changes a byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ProgressCallback = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``, in bytes or samples; total 0 means unknown."""


def silent(stage: str, done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Workers, memory and progress of one call; never part of a config or a fingerprint."""

    workers: int = 0
    """Number of workers; 0 takes every core the run may use."""

    memory_bytes: int | None = None
    """Cap on anonymous resident memory of all processes together; None takes a quarter of the machine's."""

    progress: ProgressCallback = silent
    """Told how far each stage is."""


DEFAULT_RESOURCES = Resources()
"""Every core, a quarter of the machine's memory, and no progress shown."""
