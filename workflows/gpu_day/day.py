"""Runs the parts of a GPU day, each in a process of its own, and keeps what they found in one growing file.

A part writes its findings as lines of JSON to a file while it runs. Whatever becomes of it afterwards, what
it has written counts: a part that crashes, hangs or writes rubbish is named with the end of its output, and
the next one begins.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

_OUTPUT_CHARACTERS = 4000
"""Characters that are kept of the end of a part's output."""
_LEAST_SECONDS = 5.0
"""A part is not begun with less time left."""
_PATIENCE = 2
"""A part may take so many times as long where a day is only tried."""

Status = Literal["ok", "failed", "timeout", "rubbish", "not begun"]
RECORDS = ("fact", "check", "row")
"""Kinds of records that a part may write: a line is an object with one of these keys."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the day."""

    name: str
    seconds: float
    """Time it may take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DaySettings:
    """The settings of a day."""

    device: str = "cuda"
    seconds: float = 480.0
    """Time of all parts together."""
    is_small: bool = False
    """Few rows and samples, to see that everything runs."""
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class PartResult:
    """How a part ended."""

    name: str
    status: Status
    seconds: float
    output: str
    """The end of what it printed; empty where all went well."""


def run_day(
    parts: Sequence[Part], settings: DaySettings, out: Path, scratch: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the parts in their order; return what ``out`` holds at the end.

    Args:
        parts: to run.
        settings: passed on to each.
        out: file of the result, written anew after each part.
        scratch: folder for temporary files, shared by all parts.
        say: called with a line after each part.
    """
    begin = time.monotonic()
    result: dict[str, Any] = {
        "device": None,
        "commit": settings.commit,
        "settings": asdict(settings),
        "parts": [],
        "facts": {},
        "checks": [],
        "rows": [],
    }
    # Saved after each part, so that a day that is cut short has a result.
    _save(result, out)
    for part in parts:
        left = settings.seconds - (time.monotonic() - begin)
        # Where everything is only tried, the machine is a slow one.
        limit = part.seconds * (_PATIENCE if settings.is_small else 1)
        found = _run_part(part, min(limit, left), settings, scratch, result)
        result["parts"].append(asdict(found))
        result["device"] = result["facts"].get("device")
        _save(result, out)
        say(f"{part.name}: {found.status}, {found.seconds:.1f} s")
    return result


def _run_part(
    part: Part, seconds: float, settings: DaySettings, scratch: Path, result: dict[str, Any]
) -> PartResult:
    # A part that cannot end in the time left is not begun.
    if seconds < _LEAST_SECONDS:
        return PartResult(part.name, "not begun", 0.0, "no time was left")
    records = scratch / f"{part.name}.jsonl"
    printed = scratch / f"{part.name}.log"
    command = [sys.executable, "-m", "hotset.workflows.gpu_day.part", part.name]
    command += ["--device", settings.device, "--records", str(records), "--scratch", str(scratch)]
    command += ["--seconds", f"{seconds:.1f}"] + ["--small"] * settings.is_small
    # Kernels that an earlier part found broken cost speed from here on, and not the rest of the day.
    if replaced := result["facts"].get("replaced_kernels"):
        command += ["--kernels", replaced]
    begin = time.monotonic()
    status: Status
    with printed.open("wb") as output:
        # A group of its own, so that what the part has started ends with it.
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = "ok" if process.wait(timeout=seconds) == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "timeout"
        finally:
            _kill_group(process)
    # Records of a part that broke are kept as far as they can be read.
    rubbish = _take_records(records, result)
    if rubbish and status == "ok":
        status = "rubbish"
    tail = printed.read_text(errors="replace")[-_OUTPUT_CHARACTERS:]
    explanation = "" if status == "ok" else "\n".join([*rubbish, tail])
    return PartResult(part.name, status, time.monotonic() - begin, explanation)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _take_records(path: Path, result: dict[str, Any]) -> list[str]:
    """Add a part's records to the result; return a line for each that is none."""
    if not path.exists():
        return []
    rubbish = []
    # One record a line; a line that is none is told and skipped.
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
            ((kind, content),) = record.items()
            if kind not in RECORDS or not isinstance(content, dict):
                raise ValueError(kind)
        except (ValueError, AttributeError, TypeError):
            rubbish.append(f"no record: {line[:200]!r}")
            continue
        if kind == "fact":
            result["facts"].update(content)
        else:
            result[f"{kind}s"].append(content)
    return rubbish


def _save(result: dict[str, Any], out: Path) -> None:
    """Replace the file at once, so that a day cut short leaves a whole one."""
    aside = out.with_name(out.name + ".partial")
    aside.write_text(json.dumps(result, indent=1) + "\n")
    aside.replace(out)
