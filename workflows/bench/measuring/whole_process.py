"""Measure programs as whole processes, from their start to their end: imports and caches are on the clock."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....pipeline.errors import HotsetError, first_line


@dataclass(frozen=True, slots=True)
class ProcessSeconds:
    """The time of one process."""

    wall_seconds: float
    cpu_seconds: float
    """CPU seconds of all its threads, and of the processes that it waited for."""


def time_module(
    module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> ProcessSeconds:
    """Run ``python -m module`` with arguments, and return the time of the whole process.

    Args:
        environment: variables beside those of this process.

    Raises:
        HotsetError: the process failed; its first line of errors is in the message.
    """
    # What it prints goes to a file, which never makes it wait.
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=os.environ | dict(environment or {}),
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        # This call alone tells the CPU seconds of a single child.
        _, status, usage = os.wait4(process.pid, 0)
        wall_seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            reason = first_line(Exception(errors.read().decode(errors="replace").strip()))
            raise HotsetError(f"python -m {module} ended with {process.returncode}: {reason}")
    return ProcessSeconds(wall_seconds, usage.ru_utime + usage.ru_stime)
