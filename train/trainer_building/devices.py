"""The device and the threads that a run computes with."""

from __future__ import annotations

import torch

from ...pipeline.errors import MIB, ConfigError
from ...pipeline.runtime.limits import refuse_few_addresses
from ...pipeline.runtime.tasks import num_workers
from ..device.cuda_device import CudaDevice
from ..device.late_device import LateDevice
from ..device.verbs import Device

LATE = "late"
"""Name of the simulated device, which computes on the host; ``late:7`` has the order of seed 7."""

_TORCH_BYTES = 192 * MIB
"""Addresses that torch takes when layers are computed first; with 100 MiB less training aborted."""


def open_verbs(name: str) -> Device | None:
    """The device ``name`` on which steps are queued; None for the host, which takes them at once."""
    if _is_late(name):
        return LateDevice(int(name.partition(":")[2] or 0))
    device = open_device(name)
    return CudaDevice(device) if device.type == "cuda" else None


def open_device(name: str) -> torch.device:
    """The torch device ``name``; raises ConfigError where this machine has no such device."""
    # The simulated device computes on the host.
    if _is_late(name):
        return torch.device("cpu")
    # The device must be one that torch knows, that training runs on, and that this machine has.
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {name!r}", hint="--device is cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"training runs on cpu or cuda, not on {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("this machine has no CUDA device", hint="use --device cpu")
    if device.type == "cuda":
        # Without a number it is the current one: torch selects devices by number alone.
        index = torch.cuda.current_device() if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise ConfigError(
                f"this machine has {torch.cuda.device_count()} CUDA devices, and {name!r} is none of them",
                hint="count devices from cuda:0",
            )
        # Events and buffers that name no device are those of the calling thread's.
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device


def _is_late(name: str) -> bool:
    kind, colon, seed = name.partition(":")
    return kind == LATE and (not colon or seed.isdecimal())


def set_threads(threads: int | None) -> int:
    """Set the number of threads of the dense layers for the run, and return it.

    Raises:
        SystemFaultError: `ulimit -v` leaves no addresses for them.
    """
    refuse_few_addresses("training", _TORCH_BYTES)
    threads = threads or num_workers(0)
    torch.set_num_threads(threads)
    return threads
