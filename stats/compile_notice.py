"""Report that kernels are being compiled, which slows a first run.

Separate from `kernel`, which imports Numba, so that a command without kernels does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

_FEW = 3
"""Kernels that a setting nobody used before may compile in a moment."""


class _Notice:
    """The number of kernels compiled since the last call of `call_when_compiling`, and its listener."""

    num_compiled = 0
    listener: Callable[[], None] | None = None


def call_when_compiling(listener: Callable[[], None]) -> None:
    """Call ``listener`` once, as soon as more than a few kernels are compiled."""
    _Notice.num_compiled = 0
    _Notice.listener = listener


def count_compiled_kernel() -> None:
    """Count a kernel that is about to be compiled; Numba compiles one at a time."""
    _Notice.num_compiled += 1
    listener = _Notice.listener
    if _Notice.num_compiled > _FEW and listener is not None:
        _Notice.listener = None
        listener()
