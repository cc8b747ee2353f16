"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP_2 = ("cpu.max",)
_CGROUP_1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
"""Files of a container's share of CPU time and the period that it refers to (microseconds)."""


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the cores of this machine, or fewer where the process is bound to some or its container is.

    A container that may use 2.5 cores counts as 3, as for joblib, whose ``cpu_count`` follows the same rules
    and takes 50 ms to import.

    Args:
        cgroup: folder of the container's limits.
    """
    num_cores = os.cpu_count() or 1
    # Only some systems can bind a process to cores.
    num_bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else num_cores
    return max(1, min(num_cores, num_bound, _cores_of_container(cgroup) or num_cores))


def _cores_of_container(cgroup: Path) -> int | None:
    """Return the cores that a container may use at a time, None where there is no limit."""
    words = _words_in(cgroup, _CGROUP_2) or _words_in(cgroup, _CGROUP_1)
    # "max" or -1 in place of the share means that there is none.
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return None
    share, period = (int(word) for word in words)
    return math.ceil(share / period) if period else None


def _words_in(folder: Path, names: tuple[str, ...]) -> list[str]:
    """Return the words of all files, none where one of them is missing."""
    try:
        return [word for name in names for word in (folder / name).read_text().split()]
    except OSError:
        return []
