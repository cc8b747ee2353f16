"""The device and the threads that a run computes with."""

from __future__ import annotations

import torch

from ...pipeline.errors import ConfigError
from ...pipeline.runtime.tasks import num_workers


def open_device(name: str) -> torch.device:
    """The torch device ``name``; raises ConfigError where this machine has no such device."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {name!r}", hint="--device is cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"training runs on cpu or cuda, not on {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("this machine has no CUDA device", hint="use --device cpu")
    if device.type == "cuda":
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise ConfigError(
                f"this machine has {torch.cuda.device_count()} CUDA devices, and {name!r} is none of them",
                hint="count devices from cuda:0",
            )
        # Events and buffers that name no device are those of the calling thread's.
        torch.cuda.set_device(device)
    return device


def set_threads(threads: int | None) -> int:
    """Set the number of threads of the dense layers for the run, and return it."""
    threads = threads or num_workers(0)
    torch.set_num_threads(threads)
    return threads
