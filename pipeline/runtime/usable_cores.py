"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from .control_groups import ControlGroup, control_groups


def usable_cores(process: Path = Path("/proc/self")) -> int:
    """Return the cores of this machine, or fewer where the process is bound to some or its container is.

    A container that may use 2.5 cores counts as 3. All groups around the process are looked at.

    Args:
        process: folder in which the system describes the process.
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
