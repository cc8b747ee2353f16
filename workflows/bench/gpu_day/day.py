"""Run the parts of a GPU day, and collect their findings.

Each part has a separate process; findings are kept in one growing file. A part writes its findings as lines
of JSON to a file while it runs, and they count whatever happens to it later. A part that crashes, hangs or
writes rubbish is named with the end of its output, and the next one begins. Every part has a reserved share
of the time, and what earlier parts leave of theirs. Pieces of its work that it does not reach are named, and
a later call does them.
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
"""Factor of the time of a part when a day is only tried."""

Status = Literal["ok", "failed", "timeout", "rubbish", "not begun"]
CHECKING = ("bits", "tests")
"""Parts that check whether the device computes correctly: speeds mean little if one failed."""
RECORDS = ("fact", "check", "row", "pieces", "done")
"""Kinds of records that a part may write: a line is an object with one of these keys."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the day."""

    name: str
    seconds: float
    """Reserved share of the day, which no earlier part can use."""
    most_seconds: float
    """Time it may take, where parts before it have left some."""
    is_extra: bool = False
    """Whether it is left out of a day unless it is named, and has the latter time whatever a day has."""


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
    """The end of a part."""

    name: str
    status: Status
    seconds: float
    output: str
    """The end of what it printed; empty where all went well."""
    done: list[str]
    """Pieces of its work that were done, those of earlier calls included."""
    left_out: list[str]
    """Pieces that there was no time for, or that it broke at; the part itself where it names none."""


def run_day(
    parts: Sequence[Part],
    settings: DaySettings,
    out: Path,
    scratch: Path,
    say: Callable[[str], None],
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run the parts in their order; return what ``out`` holds at the end.

    Args:
        parts: to run.
        settings: passed on to each.
        out: file of the result, rewritten after each part.
        scratch: folder for temporary files, shared by all parts.
        say: called with a line after each part.
        before: result of an earlier call with these settings, which is added to. A part that left something
            out does that alone; any other runs again, and replaces its earlier findings.
    """
    begin = time.monotonic()
    result: dict[str, Any] = before or {
        "device": None,
        "checks_failed": False,
        "commit": settings.commit,
        "settings": asdict(settings),
        "parts": [],
        "facts": {},
        "checks": [],
        "rows": [],
    }
    # Saved after each part, so that a day that is cut short has a result.
    _save(result, out)
    for number, part in enumerate(parts):
        left = settings.seconds - (time.monotonic() - begin)
        limit = _limit(part, parts[number + 1 :], left, settings)
        found = _run_part(part, limit, settings, scratch, result, _done_before(part, result))
        result["parts"] = [each for each in result["parts"] if each["name"] != part.name]
        result["parts"].append(asdict(found))
        result["device"] = result["facts"].get("device")
        result["checks_failed"] = bool(failed_parts(result))
        _save(result, out)
        left_out = f", {len(found.left_out)} left out" if found.left_out else ""
        say(f"{part.name}: {found.status}, {found.seconds:.1f} s{left_out}")
    return result


def left_out_of(result: dict[str, Any]) -> dict[str, list[str]]:
    """Return what the parts of a day have left out, by their names."""
    return {part["name"]: part["left_out"] for part in result["parts"] if part["left_out"]}


def failed_parts(result: dict[str, Any]) -> list[str]:
    """Return those of the `CHECKING` parts in which a check failed, or which broke."""
    wrong = {check["part"] for check in result["checks"] if not check["is_right"]}
    # One that was killed for its time, or had none, has found nothing wrong.
    wrong |= {part["name"] for part in result["parts"] if part["status"] in ("failed", "rubbish")}
    return [name for name in CHECKING if name in wrong]


def _limit(part: Part, later: Sequence[Part], left: float, settings: DaySettings) -> float:
    """Return the seconds of a part: its share, and what earlier parts left of their shares."""
    if part.is_extra:
        return part.most_seconds
    # Where everything is only tried, the machine is a slow one, and no part is worth more than another.
    if settings.is_small:
        return min(_PATIENCE * part.most_seconds, left)
    return min(part.most_seconds, left - sum(each.seconds for each in later))


def _done_before(part: Part, result: dict[str, Any]) -> list[str]:
    """Return the pieces that an earlier call has done; forget its findings where nothing was left out."""
    for earlier in result["parts"]:
        if earlier["name"] == part.name and earlier["left_out"] and earlier["done"]:
            done: list[str] = earlier["done"]
            return done
    for kind in ("checks", "rows"):
        result[kind] = [each for each in result[kind] if each["part"] != part.name]
    return []


def _run_part(
    part: Part,
    seconds: float,
    settings: DaySettings,
    scratch: Path,
    result: dict[str, Any],
    done: list[str],
) -> PartResult:
    # A part that cannot end in the time left is not begun.
    if seconds < _LEAST_SECONDS:
        return PartResult(part.name, "not begun", 0.0, "no time was left", done, [part.name])
    records = scratch / f"{part.name}.jsonl"
    printed = scratch / f"{part.name}.log"
    command = [sys.executable, "-m", "hotset.workflows.bench.gpu_day.part", part.name]
    command += ["--device", settings.device, "--records", str(records), "--scratch", str(scratch)]
    command += ["--seconds", f"{seconds:.1f}"] + ["--small"] * settings.is_small
    command += ["--done", json.dumps(done)]
    # Kernels that an earlier part found broken cost speed from here on, and not the rest of the day.
    if replaced := result["facts"].get("replaced_kernels"):
        command += ["--kernels", replaced]
    begin = time.monotonic()
    status: Status
    with printed.open("wb") as output:
        # A separate process group, so that what the part has started ends with it.
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = "ok" if process.wait(timeout=seconds) == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "timeout"
        finally:
            _kill_group(process)
    # Records of a part that broke are kept as far as they can be read.
    found = _take_records(records, part.name, result)
    if found.rubbish and status == "ok":
        status = "rubbish"
    done = [*done, *found.done]
    left_out = [name for name in found.pieces if name not in done]
    if status != "ok" and not left_out:
        left_out = [part.name]
    tail = printed.read_text(errors="replace")[-_OUTPUT_CHARACTERS:]
    explanation = "" if status == "ok" else "\n".join([*found.rubbish, tail])
    return PartResult(part.name, status, time.monotonic() - begin, explanation, done, left_out)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@dataclass(frozen=True, slots=True)
class _Found:
    """The records of a part that are no findings."""

    pieces: list[str]
    done: list[str]
    rubbish: list[str]
    """One explanation for each line that is no record."""


def _take_records(path: Path, part: str, result: dict[str, Any]) -> _Found:
    """Add a part's findings to the result, and return its other records."""
    found = _Found([], [], [])
    if not path.exists():
        return found
    # One record per line; a line that is not a record is reported and skipped.
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
            ((kind, content),) = record.items()
            if kind not in RECORDS or not isinstance(content, dict):
                raise ValueError(kind)
            if kind == "pieces":
                found.pieces.extend(content["names"])
            elif kind == "done":
                found.done.append(content["name"])
        except (ValueError, AttributeError, TypeError, KeyError):
            found.rubbish.append(f"no record: {line[:200]!r}")
            continue
        if kind == "fact":
            result["facts"].update(content)
        elif kind in ("check", "row"):
            result[f"{kind}s"].append(content | {"part": part})
    return found


def _save(result: dict[str, Any], out: Path) -> None:
    """Replace the file atomically, so that an interrupted day leaves a complete one."""
    aside = out.with_name(out.name + ".partial")
    aside.write_text(json.dumps(result, indent=1) + "\n")
    aside.replace(out)
