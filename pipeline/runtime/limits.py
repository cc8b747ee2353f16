"""Memory and cores that this process may use: control groups, ``ulimit -v``; and machines of a cluster.

Linux shows control groups as folders: version 1 has a tree for each controller, version 2 has one tree. The
limit of a group also binds the groups inside it, so a process is bound by its group and by all groups around
it. A container usually sees its group as the outermost one. Systemd and containers mount the trees in
``/sys/fs/cgroup``.

Libraries handle a full address space (``ulimit -v``) badly: some end the process without a message when a
thread finds no room for its variables, others raise errors that name a file. So the limit is checked before
the first thread starts.
"""

from __future__ import annotations

import math
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from ..errors import MIB, SystemFaultError, first_line, format_byte_size


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A control group that limits this process."""

    folder: Path
    version: int
    """1 or 2, of the system's control groups."""

    def read(self, name: str) -> str:
        """Return the text of a file of the group, empty where it has no such file."""
        try:
            return (self.folder / name).read_text().strip()
        except (OSError, ValueError):
            return ""


def control_groups(controller: str, system: Path = Path("/")) -> list[ControlGroup]:
    """Return the groups that may limit this process, its own before those around it; none on other systems.

    ``controller``: ``memory`` or ``cpu``; ``system``: the root of all paths.
    """
    trees = system / "sys" / "fs" / "cgroup"
    try:
        text = (system / "proc" / "self" / "cgroup").read_text(errors="surrogateescape")
        own = [(controllers, group) for _, controllers, group in (x.split(":", 2) for x in text.splitlines())]
    except (OSError, ValueError):  # no Linux, or one that shows this to nobody
        return []
    # A system may have both versions: then only one of them has the controller's files.
    found = []
    for controllers, group in own:
        if not controllers:
            tree = trees / "unified" if (trees / "unified").is_dir() else trees
            found += [ControlGroup(folder, 2) for folder in _folders_of(group, tree)]
        elif controller in controllers.split(","):
            found += [ControlGroup(folder, 1) for folder in _folders_of(group, trees / controller)]
    return found


def _folders_of(group: str, tree: Path) -> list[Path]:
    """Return the folder of a group, and those around it as far as they are visible."""
    # A container without a group namespace has the path on the host, and sees the end of it or nothing.
    parts = Path(group).parts[1:]
    ends = [] if ".." in parts else [tree.joinpath(*parts[first:]) for first in range(len(parts))]
    folder = next((end for end in ends if end.is_dir()), tree)
    return [folder, *(above for above in folder.parents if above.is_relative_to(tree))]


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a cluster."""

    cores: int
    memory_bytes: int

    def num_workers(self, cores_each: int, workers: int) -> int:
        """Return how many of ``workers`` it runs at a time at most, each on some cores."""
        return min(workers, self.cores // cores_each)


def usable_cores(system: Path = Path("/")) -> int:
    """Return the number of cores that the process and its container may use.

    A container that may use 2.5 cores counts as 3. All groups around the process are looked at.
    """
    num_cores = os.cpu_count() or 1
    # Only some systems can bind a process to cores.
    num_bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else num_cores
    limits = [_cores_of(group) for group in control_groups("cpu", system)]
    return max(1, min(num_cores, num_bound, *(limit for limit in limits if limit is not None)))


def _cores_of(group: ControlGroup) -> int | None:
    """Return the cores that a group may use at a time, None where it has no limit."""
    names = ("cpu.max",) if group.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    # The share of CPU time, and the period that it refers to (microseconds).
    words = [word for name in names for word in group.read(name).split()]
    # "max" or -1 in place of the share means that there is none.
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None
    share, period = (int(word) for word in words)
    return math.ceil(share / period) if period else None


def numbers_in(path: Path) -> dict[str, int]:
    """Return the numbers of a file of the system, by the word before each; empty if there is no such file."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


_LEAST_BYTES = 160 * MIB
"""Addresses of kernels and buffers of the smallest jobs; with 110 MiB altogether commands aborted."""
_THREAD_BYTES = 16 * MIB
"""Addresses of the stacks of a thread here and in a library."""
TORCH_BYTES = 1100 * MIB
"""Addresses that the CPU's build of torch takes when it is imported, which ends the process with 300 MiB."""
_LIBRARY_BYTES = 512 * MIB
"""Addresses with which any library is loaded."""


def addresses_left() -> int | None:
    """Return the bytes of addresses that this process may still take; None where it has no limit."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else max(0, most - _addresses_taken())


def check_addresses(subject: str, more_bytes: int = 0) -> None:
    """Raise SystemFaultError where threads could not start: the hint names a limit that would do.

    ``more_bytes``: addresses that libraries of the command ``subject`` take later.
    """
    left = addresses_left()
    wanted = _LEAST_BYTES + usable_cores() * _THREAD_BYTES + more_bytes
    if left is None or left >= wanted:
        return
    # In KiB, as the shell counts, and whole MiB with some to spare.
    enough = (_addresses_taken() + wanted) // MIB + 16
    raise SystemFaultError(
        f"{subject}: `ulimit -v` leaves {format_byte_size(left)} of addresses next to the libraries, "
        f"want {format_byte_size(wanted)}",
        hint=f"raise the limit: `ulimit -v {enough * MIB // 1024}`",
    )


def lost_library(subject: str, error: BaseException) -> SystemFaultError | None:
    """Return the error of a library that the limit may have stopped, or None."""
    left = addresses_left()
    if left is None or left >= _LIBRARY_BYTES:
        return None
    return SystemFaultError(
        f"{subject}: a library cannot be loaded with {format_byte_size(left)} of addresses: "
        f"{first_line(error)}",
        hint="raise the limit: `ulimit -v 4194304`, or `ulimit -v unlimited`",
    )


def _addresses_taken() -> int:
    """Return the bytes of addresses of this process; 0 where the system does not say."""
    return numbers_in(Path("/proc/self/status")).get("VmSize", 0) * 1024


SHARE = 4
"""Part of a machine's memory that a run takes where no cap is given: a quarter."""
_NO_LIMIT = 1 << 62
"""Limits from here on are none; version 1 of control groups has the largest multiple of a page."""


def machine_bytes() -> int:
    """Return the memory of this machine, or of its container where that has less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for limit, _ in _limits_of_groups())])


def default_memory_bytes() -> int:
    """Return a quarter of this machine's memory, or of its container's where that has less."""
    return machine_bytes() // SHARE


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
