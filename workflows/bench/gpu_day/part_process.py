"""Start a part of a GPU day in a separate, parallel process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .part_settings import PartSettings


def start_part(
    name: str,
    settings: PartSettings,
    records: Path,
    kernels: str | None = None,
    seconds: float | None = None,
) -> subprocess.Popen[str]:
    """Start a part, and return its process, whose output can be read.

    Args:
        name: of the part.
        settings: passed on to it.
        records: file of its findings.
        kernels: passed on instead of those that are replaced.
        seconds: time that it has; None: as a part has it.
    """
    command = [sys.executable, "-m", "hotset.workflows.bench.gpu_day.part", name, "--device", settings.device]
    command += ["--records", str(records), "--scratch", str(settings.scratch)]
    command += ["--kernels", kernels] if kernels else []
    command += ["--seconds", f"{seconds:.1f}"] if seconds is not None else []
    command += ["--small"] * settings.is_small
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end_of_part(process: subprocess.Popen[str], seconds: float) -> tuple[bool | None, str]:
    """Wait for a part; return whether it ended well, None where it did not end in time, and what it printed.

    A process that has not ended in time is killed.
    """
    try:
        output, _ = process.communicate(timeout=max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        return None, output
    return process.returncode == 0, output
