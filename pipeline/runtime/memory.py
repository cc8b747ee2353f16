"""Keeping to ``--memory``: how many bytes a stage may hold at a time.

The cap is on anonymous resident memory, of this process and its workers on one machine together. Part of it
is spent before a stage begins (interpreter, libraries, compiled kernels, what the allocators keep): the rest
is the stage's room. Pages of mapped files belong to the page cache and do not count, so what a stage cannot
hold goes to files, see `folders.output`.

On a cluster every machine has the cap, or by default a quarter of its own memory; of machines that differ the
one with the least room decides. More machines never leave a worker less.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from ..errors import MIB, MemoryCapError, format_byte_size
from .limits import ControlGroup, addresses_left, control_groups, numbers_in
from .tasks import (
    Resources,
    cores_of_worker,
    crew_size,
    drop_thread_buffers,
    imagined_node,
    nodes,
    num_processes,
    num_workers,
)

Item = TypeVar("Item")

FIXED_BYTES = 160 * MIB
"""Memory of the interpreter, libraries and kernels; 47 MiB at import, 110 to 140 after some stages."""
_SLACK_BYTES = 32 * MIB
"""Allowance for what allocators take beyond what is requested."""
_WAYS_OUT = {"ingest": "a smaller --block-bytes needs less"}
"""Remedies of stages that take fewer workers by themselves where memory is short."""
_SHARE = 4
"""Part of a machine's memory that a run takes where no cap is given: a quarter."""
_NO_LIMIT = 1 << 62
"""Limits from here on are none; version 1 of control groups has the largest multiple of a page."""


def machine_bytes() -> int:
    """Return the memory of this machine, or of its container where that has less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for limit, _ in _limits_of_groups())])


def default_memory_bytes() -> int:
    """Return a quarter of this machine's memory, or of its container's where that has less."""
    return machine_bytes() // _SHARE


def anonymous_bytes() -> int:
    """Return the anonymous resident memory of this process; 0 if the system does not report it."""
    return numbers_in(Path("/proc/self/status")).get("RssAnon", 0) * 1024


def available_bytes() -> int | None:
    """Return the memory that this process may still take by all limits, or None."""
    # The machine, a container and a limit of the process may each bind; unknown ones do not.
    limits = [_available_to_machine(), _available_to_cgroup(), addresses_left()]
    return min((limit for limit in limits if limit is not None), default=None)


def page_cache_bytes(held_bytes: int) -> int | None:
    """Return the bytes of files that memory has room for next to ``held_bytes`` more; None if unknown."""
    limits = [_available_to_machine(has_swap=False), _available_to_cgroup()]
    available = min((limit for limit in limits if limit is not None), default=None)
    return None if available is None else max(0, available - held_bytes)


def _available_to_machine(*, has_swap: bool = True) -> int | None:
    found = numbers_in(Path("/proc/meminfo"))
    names = ["MemAvailable", *["SwapFree"] * has_swap]
    return 1024 * sum(found.get(name, 0) for name in names) if "MemAvailable" in found else None


def _available_to_cgroup() -> int | None:
    """Return what the groups of this process may still take; None without a limit."""
    return min((max(0, limit - held) for limit, held in _limits_of_groups()), default=None)


def _limits_of_groups() -> list[tuple[int, int]]:
    """Return the limit of each control group that has one, and what the group holds for good (bytes)."""
    found = [_limit_of(group) for group in control_groups("memory")]
    return [each for each in found if each is not None]


def _limit_of(group: ControlGroup) -> tuple[int, int] | None:
    """Return the limit of a group and what it holds for good; None where it has no limit."""
    names = ("memory.max", "memory.current", "file", "shmem")
    if group.version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem")
    limit = group.read(names[0])
    used = group.read(names[1])
    # Version 2 says "max" where there is no limit, version 1 a number that is no size of any memory.
    if not (limit.isdecimal() and used.isdecimal()) or int(limit) >= _NO_LIMIT:
        return None
    # The kernel drops the page cache for a group that needs memory, except files on a memory device.
    held = numbers_in(group.folder / "memory.stat")
    droppable = max(0, held.get(names[2], 0) - held.get(names[3], 0))
    return int(limit), max(0, int(used) - droppable)


def room_for(stage: str, resources: Resources, needed_bytes: int, *, here: bool = False) -> int:
    """Return the bytes that ``stage`` may hold at a time on each machine; at least ``needed_bytes``.

    Args:
        stage: for the message.
        resources: the cap, and the workers: each may be a process, which has fixed costs too. Without a cap
            the stage gets a quarter of the machine's memory, or what it needs.
        needed_bytes: the least the stage can do with on a machine.
        here: the tasks share memory, so they run in threads of this machine, whatever the engine.

    Raises:
        MemoryCapError: the stage cannot keep within the cap; the hint names one that would do.
    """
    check_cap(stage, resources, needed_bytes, here=here)
    give_back()
    return max(needed_bytes, min(rooms_of_machines(resources, here=here)))


def rooms_of_machines(resources: Resources, *, here: bool = False) -> list[int]:
    """Return what the cap of each machine leaves; negative where its processes take more."""
    spent = max(FIXED_BYTES, anonymous_bytes() + _SLACK_BYTES)
    cap = resources.memory_bytes
    if here or not nodes():
        imagined = imagined_node()
        own = imagined.memory_bytes // _SHARE if imagined else default_memory_bytes()
        return [(cap or own) - spent]
    # Each worker process spends the fixed part of an interpreter before it holds anything for the stage.
    workers = num_workers(resources.workers)
    cores = cores_of_worker(nodes(), workers)
    crews = [node.num_workers(cores, workers) if workers > 1 else 0 for node in nodes()]
    caps = [cap or node.memory_bytes // _SHARE for node in nodes()]
    return [own - spent - crew * FIXED_BYTES for own, crew in zip(caps, crews, strict=True)]


def workers_within(stage: str, resources: Resources, worker_bytes: int, shared_bytes: int = 0) -> int:
    """Return the largest number of workers that keeps ``stage`` within the memory cap of every machine.

    Args:
        stage: for the message.
        resources: the cap, a quarter of the machine's memory where there is none, and the most workers.
        worker_bytes: memory of each worker.
        shared_bytes: memory that the workers of a machine should have in common; one worker does without.

    Raises:
        MemoryCapError: not even one worker keeps a cap that was given; the hint names one that would do.
    """
    # One worker fewer until all fit, as each takes the same.
    fewer = replace(resources, workers=num_workers(resources.workers))
    while fewer.workers > 1:
        needed = crew_size(fewer.workers) * worker_bytes + shared_bytes
        if min(rooms_of_machines(fewer)) >= needed:
            break
        fewer = replace(fewer, workers=fewer.workers - 1)
    check_cap(stage, replace(resources, workers=1), worker_bytes)
    return fewer.workers


def least_cap(resources: Resources, needed_bytes: int, *, here: bool = False) -> int:
    """Return the smallest ``--memory`` for a stage (bytes), with the fixed costs of a machine's processes."""
    return (1 + (0 if here else num_processes(resources.workers))) * FIXED_BYTES + needed_bytes


def check_cap(stage: str, resources: Resources, needed_bytes: int, *, here: bool = False) -> None:
    """Raise MemoryCapError where ``stage`` cannot keep within the memory cap, if there is one."""
    check_caps(resources, {stage: least_cap(resources, needed_bytes, here=here)})


def check_caps(resources: Resources, least_caps: Mapping[str, int]) -> None:
    """Raise MemoryCapError where one of the stages cannot keep within the memory cap, if there is one.

    The error names the stage that needs the most, so the cap in its hint does for all of them. An imagined
    machine has no more memory than it is said to have.
    """
    stage, largest = max(least_caps.items(), key=lambda need: need[1])
    option, cap = "--memory", resources.memory_bytes
    machine = imagined_node()
    if machine is not None and (cap is None or machine.memory_bytes < cap):
        option, cap = "--node-memory", machine.memory_bytes
    if cap is None or cap >= largest:
        return
    # Rounded up to whole mebibytes, so that the cap in the hint is accepted.
    enough = -(-largest // MIB)
    way_out = _WAYS_OUT.get(stage, "fewer --workers need less")
    error = MemoryCapError(
        f"{stage} cannot stay within {format_byte_size(cap)} of memory",
        hint=f"{option} {enough}MiB would do; {way_out}",
    )
    error.least_bytes = largest
    raise error


def groups_within(
    room_bytes: int, items: Iterable[Item], bytes_of: Callable[[Item], int]
) -> Iterator[list[Item]]:
    """Group consecutive items that fit in ``room_bytes`` together; one that does not is a group by itself."""
    group: list[Item] = []
    held = 0
    # Items are not reordered: a group is a run of them.
    for item in items:
        needed = bytes_of(item)
        if group and held + needed > room_bytes:
            yield group
            group = []
            held = 0
        group.append(item)
        held += needed
    if group:
        yield group


def give_back() -> None:
    """Return to the system what this thread's buffers and the allocators keep."""
    # First what this package keeps, then the pools of Arrow and of the C library.
    drop_thread_buffers()
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library
        return
