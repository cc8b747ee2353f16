"""Describes the device and its ceilings: bytes moved and products computed per second."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch

from .part_process import end_of_part, start_part
from .part_settings import PartSettings
from .records import Records

_LIBRARIES = ("torch", "triton", "numba", "numpy", "pyarrow")
_REPETITIONS = 7
_SPARE_SECONDS = 3.0
"""Left of the part's time when it stops waiting for another process."""
_OUTPUT_CHARACTERS = 1500


def measure_machine(settings: PartSettings, records: Records) -> None:
    """Write the names and ceilings of the device and of the link to it.

    Meanwhile another process compiles the kernels of the host, which takes a minute where nothing is cached.
    Otherwise every process that tries a kernel would compile them, within its time limit.
    """
    host_kernels = start_part("host-kernels", settings, settings.scratch / "host-kernels.jsonl")
    try:
        _measure_ceilings(settings, records)
    finally:
        is_right, output = end_of_part(host_kernels, records.seconds_left - _SPARE_SECONDS)
    records.check("kernels of the host are compiled", bool(is_right), output[-_OUTPUT_CHARACTERS:])


def _measure_ceilings(settings: PartSettings, records: Records) -> None:
    device = settings.torch_device
    is_gpu = device.type == "cuda"
    records.fact(
        device=torch.cuda.get_device_name(device) if is_gpu else platform.processor() or "cpu",
        memory_bytes=torch.cuda.get_device_properties(device).total_memory if is_gpu else None,
        python=platform.python_version(),
        libraries={name: _version(name) for name in _LIBRARIES},
    )
    # Within the device a copy reads each byte and writes it, so it moves twice as many.
    num_bytes = 2**20 if settings.is_small else 2**30
    source = torch.full((num_bytes,), 7, dtype=torch.uint8)
    near = source.to(device)
    target = torch.empty_like(near)
    seconds = _time(partial(target.copy_, near), device)
    records.row(what="device copy", bytes_per_second=2 * num_bytes / seconds)
    # Over the link, the pageable copies show what is lost where buffers are not pinned.
    if is_gpu:
        pinned = source.pin_memory()
        for name, host in (("pinned", pinned), ("pageable", source)):
            up = _time(partial(near.copy_, host, non_blocking=True), device)
            down = _time(partial(host.copy_, near, non_blocking=True), device)
            records.row(what=f"{name} host to device", bytes_per_second=num_bytes / up)
            records.row(what=f"device to {name} host", bytes_per_second=num_bytes / down)
    # A product of square matrices has a multiplication and an addition for each triple of indices.
    size = 256 if settings.is_small else 4096
    for dtype in (torch.float32, torch.bfloat16):
        left = torch.randn(size, size, device=device).to(dtype)
        right = torch.randn(size, size, device=device).to(dtype)
        seconds = _time(partial(torch.matmul, left, right), device)
        records.row(what=f"products, {dtype}", flops_per_second=2 * size**3 / seconds)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _time(work: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of a call, device work included."""
    found = []
    for number in range(_REPETITIONS + 2):
        synchronize(device)
        begin = time.perf_counter()
        work()
        synchronize(device)
        # The first two calls load code and take memory.
        if number >= 2:
            found.append(time.perf_counter() - begin)
    return statistics.median(found)


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
