"""Try the calls of the device API one by one.

So a first run on a GPU names what fails there. Each is a few lines on separate memory; all later parts
consist of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from ....train.build_embeddings import open_device_api
from ....train.device import STREAMS, Device, StreamName
from ....train.gpu.packed_batch import RowMoves, RowTensors
from ....train.gpu.twins import choose_kernels
from ....train.rows.tiers import HostMemory
from .part_settings import PartSettings
from .records import Records

_NUM_ROWS, _DIM = 5000, 16
_ROUNDS = 20
_BUSY_CALLS = 50
_BUSY_NUMBERS, _FEW_BUSY_NUMBERS = 1 << 24, 1 << 4
"""Numbers of a kernel that runs longer than it takes to queue it, so that many keep the stream busy."""


def try_verbs(settings: PartSettings, records: Records) -> None:
    """Write a check for each device call; one that raises is recorded, and the next one begins."""
    device = open_device_api(settings.device)
    assert device is not None, "a part for devices that are not the host"
    checks: list[tuple[str, Callable[[], bool]]] = [
        ("pinned memory is copied up and down", partial(_copies, device)),
        ("a stream waits for the event of another", partial(_waits, device, is_small=settings.is_small)),
        ("another thread queues and waits", partial(_works_from_a_thread, device)),
        ("kernels read and write pinned rows of the host", partial(_moves_rows, device, settings)),
    ]
    for stream in STREAMS[1:]:
        checks.append((f"work of {stream} is recorded and replayed", partial(_records, device, stream)))
    for name, check in checks:
        with records.catching(name):
            records.check(name, check())
    with records.catching("the device is closed"):
        device.synchronize()
        device.close()
        records.check("the device is closed", True)


def _copies(device: Device) -> bool:
    """Return whether copied numbers return unchanged, each time."""
    host, back = (device.allocate_pinned([_NUM_ROWS], torch.int32) for _ in range(2))
    near = device.allocate([_NUM_ROWS], torch.int32)
    for number in range(_ROUNDS):
        host.copy_(torch.arange(_NUM_ROWS) + number)
        device.copy("copies", host, near)
        device.wait("moves", device.record("copies"))
        device.copy("moves", near, back)
        device.wait_on_host(device.record("moves"))
        if not torch.equal(host, back):
            return False
    return True


def _waits(device: Device, *, is_small: bool) -> bool:
    """Return whether what waits for a busy stream sees all of its work, each time."""
    near = device.allocate([_FEW_BUSY_NUMBERS if is_small else _BUSY_NUMBERS], torch.float32)
    back = device.allocate_pinned([1], torch.float32)
    for _ in range(_ROUNDS):
        device.launch("compute", near.zero_)
        for _ in range(_BUSY_CALLS):
            device.launch("compute", near.add_, 1)
        device.wait("moves", device.record("compute"))
        device.copy("moves", near[:1], back)
        device.wait_on_host(device.record("moves"))
        if back.item() != _BUSY_CALLS:
            return False
    return True


def _works_from_a_thread(device: Device) -> bool:
    """Return whether another thread can do the same, as the one that moves rows does."""
    found: list[bool | BaseException] = []

    def work() -> None:
        try:
            found.append(_copies(device))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _moves_rows(device: Device, settings: PartSettings) -> bool:
    """Return whether the kernel of training reads rows in host memory, and writes them back there."""
    rows_SD = HostMemory(None, Path(), may_spill=False, is_pinned=True).rows(_NUM_ROWS, _DIM)
    rows_SD.copy_(torch.arange(_NUM_ROWS * _DIM).view(_NUM_ROWS, _DIM))
    wanted = rows_SD.flip(0)
    if not device.pin(rows_SD):
        raise ValueError("the memory was not pinned")
    near_SD = device.allocate([_NUM_ROWS, _DIM], torch.float32)
    slow, fast = (RowTensors(each, each[:, :0]) for each in (rows_SD, near_SD))
    place = torch.tensor([_NUM_ROWS, 0, 0], dtype=torch.int32)
    up = torch.arange(_NUM_ROWS, dtype=torch.int32)
    lists = [each.to(device.torch_device) for each in (place, up, up.flip(0))]
    move_rows = choose_kernels(device.torch_device, settings.step_kernels or "")["move_rows"]
    # Up in their order, and down from the last to the first.
    device.launch("moves", move_rows, RowMoves(lists[0], lists[1], lists[1]), slow, fast)
    device.launch("moves", move_rows, RowMoves(lists[0], lists[1], lists[2]), fast, slow)
    device.synchronize()
    return torch.equal(rows_SD, wanted)


def _records(device: Device, stream: StreamName) -> bool:
    """Return whether recorded work runs once at each replay, and not when it is recorded."""
    near = device.allocate([1], torch.float32)
    device.launch(stream, near.zero_)
    device.launch(stream, near.add_, 1)
    device.synchronize()
    graph = device.capture(stream, lambda: device.launch(stream, near.add_, 1))
    for _ in range(3):
        device.replay(stream, graph)
    device.synchronize()
    return near.item() == 4
