"""The kernels of a step by name, and the choice of how each runs: with Triton, or with its twin in torch.

A kernel that is broken on some machine is then one option away from costing speed instead of the run. All
write to tensors that are given, return nothing, and wait for nothing (twins do); the docstring of a twin says
what its kernel does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch

from ...pipeline.errors import ConfigError

Kernel = Callable[..., None]

TWINS = {
    "decode_batch": "row_twins",
    "gather_rows": "row_twins",
    "sum_gradients": "row_twins",
    "sum_and_step": "row_twins",
    "move_rows": "row_twins",
    "make_rows": "row_twins",
    "gather_dots": "dense_twins",
    "gather_dots_backward": "dense_twins",
    "last_layer": "dense_twins",
    "relu_backward": "dense_twins",
    "step_dense": "dense_twins",
}
"""The module of each kernel's twin."""
TRITON = {
    "decode_batch": "triton_batches",
    "gather_rows": "triton_batches",
    "sum_gradients": "triton_steps",
    "sum_and_step": "triton_steps",
    "move_rows": "triton_moves",
    "make_rows": "triton_moves",
    "gather_dots": "triton_dots",
    "gather_dots_backward": "triton_dots",
    "last_layer": "triton_dense",
    "relu_backward": "triton_dense",
    "step_dense": "triton_dense",
}
"""The module of each kernel in Triton."""
ENGINES = ("triton", "torch")


def choose_kernels(device: torch.device, wanted: str = "") -> dict[str, Kernel]:
    """Return every kernel by its name: Triton's on a GPU where it is installed, else twins.

    Args:
        device: where they run.
        wanted: exceptions, ``ENGINE:KERNEL`` with commas between, such as ``torch:gather_dots``; ``torch``
            alone is all of them. Triton runs on the host, too, with ``TRITON_INTERPRET=1``, for tests.

    Raises:
        ConfigError: no such engine or kernel, or Triton where it cannot run.
    """
    engines = dict.fromkeys(TWINS, "triton" if device.type == "cuda" and _has_triton() else "torch")
    for word in wanted.split(",") if wanted else ():
        engine, _, name = word.strip().partition(":")
        if engine not in ENGINES or (name and name not in TWINS):
            names = ", ".join(TWINS)
            raise ConfigError(
                f"no kernel {word.strip()!r}: want triton or torch, or ENGINE:KERNEL of {names}"
            )
        if engine == "triton" and not (_has_triton() and (device.type == "cuda" or _is_interpreted())):
            raise ConfigError(f"{word.strip()!r} needs a GPU and the package triton; the device is {device}")
        engines |= dict.fromkeys([name] if name else TWINS, engine)
    return {name: kernel_of(name, engine) for name, engine in engines.items()}


def kernel_of(name: str, engine: str) -> Kernel:
    """Return one kernel; Triton is imported when its first kernel is asked for."""
    module = TRITON[name] if engine == "triton" else TWINS[name]
    kernel: Any = getattr(importlib.import_module(f".{module}", __package__), name)
    return kernel  # type: ignore[no-any-return]


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _is_interpreted() -> bool:
    """Whether Triton's interpreter runs its kernels, on the host."""
    return os.environ.get("TRITON_INTERPRET") == "1"
