"""Limits of this process: control groups, ``ulimit -v`` and the number of cores.

Linux shows control groups as folders: version 1 has a tree for each controller, version 2 has one tree. The
limit of a group also binds the groups inside it, so a process is bound by its group and by all groups around
it. A container usually sees its group as the outermost one.

Libraries handle a full address space (``ulimit -v``) badly: some end the process without a message when a
thread finds no room for its variables, others raise errors that name a file. So the limit is checked before
the first thread starts.
"""

from __future__ import annotations

import math
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import MIB, SystemFaultError, first_line, format_byte_size

_ESCAPED = re.compile(r"\\([0-7]{3})")
"""A space or the like in a path of the list of mounts."""


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

    def numbers(self, name: str) -> dict[str, int]:
        """Return the numbers of a file of the group by the word before each; empty where there is no file."""
        lines = [line.split() for line in self.read(name).splitlines()]
        return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdecimal()}


def control_groups(controller: str, process: Path = Path("/proc/self")) -> list[ControlGroup]:
    """Return the groups that may limit a process, its own before those around it; none on other systems.

    ``controller``: ``memory`` or ``cpu``; ``process``: folder in which the system describes the process.
    """
    try:
        own = dict(_groups_of(process))
        mounts = list(_mounts_of(process))
    except (OSError, ValueError):  # no Linux, or one that shows this to nobody
        return []
    # A system may have both versions: then only one of them has the controller's files.
    found = []
    for mount in mounts:
        name = controller if mount.version == 1 else ""
        if name in own and (mount.version == 2 or controller in mount.controllers):
            found += [ControlGroup(folder, mount.version) for folder in mount.folders_of(own[name])]
    return found


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mount point of a tree of groups, or of a part of one."""

    point: Path
    root: str
    """The group at the mount point, by its path in the tree."""
    version: int
    controllers: tuple[str, ...]
    """Those of a tree of version 1, among other words."""

    def folders_of(self, group: str) -> Iterator[Path]:
        """Yield the folder of a group, and those around it as far as they are visible."""
        path = PurePosixPath(group)
        # In a container without a group namespace the path is that on the host, which may be invisible.
        is_below = path.is_relative_to(self.root)
        relative = path.relative_to(self.root) if is_below else PurePosixPath()
        is_seen = ".." not in relative.parts and (self.point / relative).is_dir()
        folder = self.point / relative if is_seen else self.point
        yield folder
        while folder != self.point:
            folder = folder.parent
            yield folder


def _groups_of(process: Path) -> Iterator[tuple[str, str]]:
    """Yield each controller with the path of its group; that of version 2 is empty."""
    for line in (process / "cgroup").read_text(errors="surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _mounts_of(process: Path) -> Iterator[_Mount]:
    """Yield the mounts of control groups; see "mountinfo" in proc(5)."""
    for line in (process / "mountinfo").read_text(errors="surrogateescape").splitlines():
        left, separator, right = line.partition(" - ")
        words = right.split()
        if not separator or len(words) < 3 or words[0] not in ("cgroup", "cgroup2"):
            continue
        root, point = (_ESCAPED.sub(lambda code: chr(int(code[1], 8)), part) for part in left.split()[3:5])
        yield _Mount(Path(point), root, 1 if words[0] == "cgroup" else 2, tuple(words[-1].split(",")))


def usable_cores(process: Path = Path("/proc/self")) -> int:
    """Return the number of cores that the process and its container may use.

    A container that may use 2.5 cores counts as 3. All groups around the process are looked at.
    """
    num_cores = os.cpu_count() or 1
    # Only some systems can bind a process to cores.
    num_bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else num_cores
    limits = [_cores_of(group) for group in control_groups("cpu", process)]
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
        f"{subject}: `ulimit -v` leaves {format_byte_size(left)} of addresses beside the libraries, "
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
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in lines if line.startswith("VmSize:")]
    return int(sizes[0]) * 1024 if sizes else 0
