"""Describes what a timing depends on: the machine, the versions of libraries, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .. import __version__
from ..pipeline.runtime.tasks import num_workers

_ROOT = Path(__file__).resolve().parents[1]
_LIBRARIES = ("numba", "numpy", "polars", "pyarrow", "torch", "safetensors")
_INSTALLED = ("torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu")
"""Libraries that are named only where they are installed."""
_HELD = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "NUMBA_CPU_NAME", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that hold a library to older instructions than the CPU has."""


def describe_machine() -> dict[str, Any]:
    """Return what a timing depends on, and nothing that identifies this very machine."""
    return {
        "cpu": cpu_model(),
        "held_to": {name: os.environ[name] for name in _HELD if name in os.environ},
        "cores": num_workers(0),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "libraries": versions(_LIBRARIES)
        | {name: found for name, found in versions(_INSTALLED).items() if found is not None},
        "hotset": __version__,
        "commit": commit(),
    }


def cpu_model() -> str:
    """Return the name of this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def versions(libraries: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of libraries by name, None for those that are missing."""
    found: dict[str, str | None] = dict.fromkeys(libraries)
    for library in found:
        with suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def commit(root: Path = _ROOT) -> str | None:
    """Return the commit of a checkout, by default the one of this file; None where there is none."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
