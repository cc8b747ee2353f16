"""``make gpu-day``: everything a machine with a GPU can tell, in one command of a few minutes.

It needs torch, Numba, NumPy, pyarrow, xxhash, safetensors and pytest, and no network. The parts are in the
order of what is asked first. Each has a separate process, a reserved share of the time, and what earlier
parts leave of theirs. It writes its findings as lines of JSON while it runs, and they count whatever happens
to it later: a part that crashes or hangs is named with the end of its output, and the next one begins. Pieces
of its work that it does not reach are named, and a later call does them: ``--only`` runs some parts and goes
on with the file of an earlier call.

``gpu_day part NAME`` runs one part in this process. Its module is imported only then, so that a package that
is missing or broken ends the parts that need it, and no other.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...pipeline.errors import HotsetError
from ...pipeline.folders.disk import check_target, whole_file
from ..machine import commit

if TYPE_CHECKING:
    import torch

_MODULE = "hotset.workflows.bench.gpu_day"
_DAY_SECONDS = 480.0
_LEAST_SECONDS, _LAST_WORDS_SECONDS, SPARE_SECONDS = 5.0, 3.0, 3.0
"""A part is not begun with less time left; one that hangs prints where its threads are so long before it is
killed; and one that another part waits for has so much less."""
_PATIENCE, _MARGIN = 2, 1.2
"""Factor of the time of a part when a day is only tried; and of the time of a piece of work, below which the
next one does not begin."""
_OUTPUT_CHARACTERS, _TRACE_CHARACTERS = 4000, 2000
"""Characters that are kept of the end of a part's output, and of a traceback."""

Status = Literal["ok", "failed", "timeout", "not begun"]
CHECKING = ("kernels", "bits", "tests")
"""Parts that check whether the device computes correctly: speeds mean little if one failed."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the day."""

    name: str
    seconds: float
    """Reserved share of the day, which no earlier part can use."""
    most_seconds: float
    """Time it may take, where parts before it have left some."""
    function: str
    """Module next to this one and function there, called with `PartSettings` and `Records`."""
    more: tuple[int, ...] = ()
    """Further arguments."""
    is_extra: bool = False
    """Whether it is left out of a day unless it is named, and has the latter time whatever a day has."""


PARTS = (
    # What is broken, and is mended before anything else.
    Part("machine", 30, 50, "gpu_speeds.measure_machine"),
    Part("verbs", 12, 20, "gpu_checks.try_verbs"),
    Part("kernels", 55, 120, "gpu_checks.run_kernel_tests"),
    Part("first-steps", 40, 90, "gpu_checks.take_first_steps"),
    # What is wrong: other bits, or a step that does not wait for another.
    Part("bits", 45, 90, "gpu_checks.compare_bits"),
    Part("tests", 45, 120, "gpu_checks.run_tests"),
    # The most important figures.
    Part("speed-16", 85, 150, "gpu_speeds.measure_speed", (16,)),
    Part("speed-128", 65, 120, "gpu_speeds.measure_speed", (128,)),
    # Why they are as they are.
    Part("parts", 40, 75, "gpu_steps.measure_step_parts"),
    Part("speed-64", 30, 90, "gpu_speeds.measure_speed", (64,)),
    # Only if requested by name.
    Part("caches", 0, 400, "gpu_speeds.compare_caches", (128,), is_extra=True),
    Part("epoch", 0, 500, "gpu_speeds.train_an_epoch", is_extra=True),
)
_INNER = (Part("host-kernels", 0, 60, "gpu_checks.compile_host_kernels"),)
"""Parts that other parts start."""


@dataclass(frozen=True, slots=True)
class PartSettings:
    """The settings that a part works with."""

    device: str
    """Name of the device: cuda, cpu, or late, a simulated GPU."""
    scratch: Path
    """Folder for temporary files."""
    is_small: bool
    """Few rows and samples: only to see that everything runs."""

    @property
    def torch_device(self) -> torch.device:
        """Torch device of the tensors."""
        from ...train.build_embeddings import open_device

        return open_device(self.device)

    @property
    def step_kernels(self) -> str | None:
        """The kernels of steps: on a simulated GPU those of a GPU, too, with torch."""
        from ...train.build_embeddings import SIMULATED

        return "torch" if self.device.startswith(SIMULATED) else None


class Records:
    """The findings of one part, appended to a file line by line.

    ``seconds`` is the time of the part, which stops between two pieces before it is over; ``done`` names the
    pieces that an earlier call has done.
    """

    def __init__(self, path: Path, seconds: float, done: Collection[str] = ()) -> None:
        self._path, self._end, self._done = path, time.monotonic() + seconds, frozenset(done)
        self._is_left_open = False

    @property
    def seconds_left(self) -> float:
        """Time until the part is stopped."""
        return self._end - time.monotonic()

    def fact(self, **content: Any) -> None:
        """Note something about the machine."""
        self._write({"fact": content})

    def check(self, name: str, is_right: bool, detail: str = "") -> None:
        """Note whether something holds."""
        self._write({"check": {"name": name, "is_right": is_right, "detail": detail}})

    @contextmanager
    def catching(self, name: str) -> Iterator[None]:
        """Note a check that failed where the block raises, and continue after it."""
        try:
            yield
        except Exception:  # whatever a first run on a device raises is a finding, and not the last one
            self.check(name, False, traceback.format_exc()[-_TRACE_CHARACTERS:])

    def row(self, **content: Any) -> None:
        """Note a measurement."""
        self._write({"row": content})

    def pieces(self, names: Sequence[str]) -> Iterator[str]:
        """Yield the names of pieces of work one by one, those done earlier apart, while there is time.

        What the part does not reach is then known by name, even if it is killed.
        """
        last_seconds = 0.0
        for name in self.announce(names):
            # What took long takes long again.
            if not self.has_time(last_seconds):
                return
            begin = time.monotonic()
            yield name
            last_seconds = time.monotonic() - begin
            if not self._is_left_open:
                self.finish(name)
            self._is_left_open = False

    def leave_open(self) -> None:
        """Count the current piece of work as left out, so that a later call repeats it."""
        self._is_left_open = True

    def announce(self, names: Sequence[str]) -> list[str]:
        """Note the names of all pieces of work, and return those that are left to do."""
        self._write({"pieces": {"names": list(names)}})
        return [name for name in names if name not in self._done]

    def has_time(self, last_seconds: float) -> bool:
        """Return whether there is time for a piece, the one before having taken so long."""
        return self.seconds_left > _MARGIN * last_seconds

    def finish(self, name: str) -> None:
        """Note that a piece was done, whether or not what it found is right."""
        self._write({"done": {"name": name}})

    def _write(self, record: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(_finite(record)) + "\n")


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not know by None."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kind and content of each record, except one that a kill truncated."""
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError, AttributeError):
            yield from json.loads(line).items()


def run_process(
    name: str,
    settings: PartSettings,
    records: Path,
    seconds: float,
    *,
    done: Sequence[str] = (),
    is_inner: bool = True,
) -> tuple[Status, str]:
    """Run a part in a separate process; return how it ended, and the end of what it printed.

    It is killed after ``seconds``; an inner one ends with the part that starts it, as one of its processes.
    """
    command = [sys.executable, "-m", _MODULE, "part", name, "--device", settings.device]
    command += ["--records", str(records), "--scratch", str(settings.scratch)]
    # One that another part waits for ends by itself before it is killed.
    own_seconds = max(seconds - SPARE_SECONDS, 0.0) if is_inner else seconds
    command += ["--seconds", f"{own_seconds:.1f}", "--done", json.dumps(list(done))]
    command += ["--small"] * settings.is_small
    printed = records.with_suffix(".log")
    with printed.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=not is_inner
        )
        try:
            status: Status = "ok" if process.wait(timeout=max(seconds, 0.0)) == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "timeout"
        finally:
            # What a part of the day has started ends with it.
            with suppress(ProcessLookupError):
                process.kill() if is_inner else os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return status, printed.read_text(errors="replace")[-_OUTPUT_CHARACTERS:]


def run_part(arguments: Sequence[str]) -> int:
    """Run one part in this process."""
    every = {part.name: part for part in (*PARTS, *_INNER)}
    parser = argparse.ArgumentParser(prog="gpu_day part")
    parser.add_argument("name", choices=sorted(every))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--done", type=json.loads, default=[], help="pieces of work to leave out")
    chosen = parser.parse_args(arguments)
    # The time begins here: on a machine where nothing is cached, imports alone take seconds.
    records = Records(chosen.records, chosen.seconds, chosen.done)
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(chosen.seconds - _LAST_WORDS_SECONDS, 1.0))
    settings = PartSettings(chosen.device, chosen.scratch, chosen.small)
    part = every[chosen.name]
    module, function = part.function.split(".")
    getattr(importlib.import_module(f".{module}", __package__), function)(settings, records, *part.more)
    faulthandler.cancel_dump_traceback_later()
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DaySettings:
    """The settings of a day."""

    device: str = "cuda"
    seconds: float = _DAY_SECONDS
    """Time of all parts together."""
    is_small: bool = False
    """Few rows and samples, to see that everything runs."""
    commit: str | None = None


def run_day(
    parts: Sequence[Part],
    settings: DaySettings,
    out: Path,
    scratch: Path,
    report: Callable[[str], None],
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run the parts in their order; return what ``out``, rewritten after each, holds at the end.

    ``report`` is called with a line after each part. The result of an earlier call, ``before``, is added to:
    a part that left something out does that alone; any other runs again, and replaces its earlier findings.
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
        found = _run_part_of_day(part, limit, settings, scratch, result)
        result["parts"] = [each for each in result["parts"] if each["name"] != part.name] + [found]
        result["device"] = result["facts"].get("device")
        result["checks_failed"] = bool(failed_parts(result))
        _save(result, out)
        left_out = f", {len(found['left_out'])} left out" if found["left_out"] else ""
        report(f"{part.name}: {found['status']}, {found['seconds']:.1f} s{left_out}")
    return result


def _limit(part: Part, later: Sequence[Part], left: float, settings: DaySettings) -> float:
    """Return the seconds of a part: its share, and what earlier parts left of their shares."""
    if part.is_extra:
        return part.most_seconds
    # Where everything is only tried, the machine is a slow one, and no part is worth more than another.
    if settings.is_small:
        return min(_PATIENCE * part.most_seconds, left)
    return min(part.most_seconds, left - sum(each.seconds for each in later))


def _run_part_of_day(
    part: Part, seconds: float, settings: DaySettings, scratch: Path, result: dict[str, Any]
) -> dict[str, Any]:
    """Run a part, add its findings to the result, and return how it ended and what it left out."""
    done = _done_before(part, result)
    begin = time.monotonic()
    records = scratch / f"{part.name}.jsonl"
    own = PartSettings(settings.device, scratch, settings.is_small)
    status: Status = "not begun"
    output = "no time was left"
    # A part that cannot end in the time left is not begun.
    if seconds >= _LEAST_SECONDS:
        status, output = run_process(part.name, own, records, seconds, done=done, is_inner=False)
    pieces: list[str] = []
    done = list(done)
    for kind, content in read_records(records):
        if kind == "fact":
            result["facts"].update(content)
        elif kind in ("check", "row"):
            result[f"{kind}s"].append(content | {"part": part.name})
        elif kind == "pieces":
            pieces.extend(content["names"])
        else:
            done.append(content["name"])
    left_out = [name for name in pieces if name not in done]
    # A part that broke has left out all, unless it names what it did.
    if status != "ok" and not left_out:
        left_out = [part.name]
    return {
        "name": part.name,
        "status": status,
        "seconds": time.monotonic() - begin,
        "output": "" if status == "ok" else output,
        "done": done,
        "left_out": left_out,
    }


def _done_before(part: Part, result: dict[str, Any]) -> list[str]:
    """Return the pieces that an earlier call has done; forget its findings where nothing was left out."""
    for earlier in result["parts"]:
        if earlier["name"] == part.name and earlier["left_out"] and earlier["done"]:
            done: list[str] = earlier["done"]
            return done
    for kind in ("checks", "rows"):
        result[kind] = [each for each in result[kind] if each["part"] != part.name]
    return []


def left_out_of(result: dict[str, Any]) -> dict[str, list[str]]:
    """Return what the parts of a day have left out, by their names."""
    return {part["name"]: part["left_out"] for part in result["parts"] if part["left_out"]}


def failed_parts(result: dict[str, Any]) -> list[str]:
    """Return those of the `CHECKING` parts in which a check failed, or which broke."""
    wrong = {check["part"] for check in result["checks"] if not check["is_right"]}
    # One that was killed for its time, or had none, has found nothing wrong.
    wrong |= {part["name"] for part in result["parts"] if part["status"] == "failed"}
    return [name for name in CHECKING if name in wrong]


def _save(result: dict[str, Any], out: Path) -> None:
    """Replace the file atomically, so that an interrupted day leaves a complete one."""
    with whole_file(out, overwrite=True) as file:
        file.write((json.dumps(result, indent=1) + "\n").encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the day; 0 where every part and check was right."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["part"]:
        return run_part(words[1:])
    day, extra = ([part for part in PARTS if part.is_extra == is_extra] for is_extra in (False, True))
    parser = _parser(day, extra)
    chosen = parser.parse_args(words)
    # A part that does not exist is refused before the machine's time is spent.
    wanted = [name for name in chosen.only.split(",") if name]
    unknown = sorted(set(wanted) - {part.name for part in PARTS})
    if unknown:
        parser.error(f"no part {', '.join(unknown)}: want some of {_names(PARTS)}")
    parts = [part for part in PARTS if part.name in wanted] if wanted else day
    settings = DaySettings(
        device=chosen.device, seconds=chosen.seconds, is_small=chosen.small, commit=chosen.commit
    )
    try:
        check_target(chosen.out, overwrite=True)
    except HotsetError as error:
        parser.error(str(error))
    # A call for some parts adds to what others have found.
    before = _result_of(chosen.out, settings) if wanted and chosen.out.exists() else None
    if before is None and wanted and chosen.out.exists():
        parser.error(f"{chosen.out} is of another device, size or commit: give another --out")
    with tempfile.TemporaryDirectory(prefix="hotset-gpu-day-") as scratch:
        report = partial(print, flush=True)
        result = run_day(parts, settings, chosen.out, Path(scratch), report, before)
    return _print(result, chosen.out)


def _parser(day: Sequence[Part], extra: Sequence[Part]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu_day", description=(__doc__ or "").splitlines()[0])
    only = f"parts to run, with commas between: {_names(day)}; left out unless named: {_names(extra)}"
    seconds = f"time of all parts (default: {_DAY_SECONDS:g}) but those left out unless named, which have "
    seconds += ", ".join(f"{part.most_seconds:g} seconds ({part.name})" for part in extra)
    parser.add_argument("--out", type=Path, default=Path("gpu-day.json"), help="file of the result")
    parser.add_argument("--device", default="cuda", help="cuda, or late to try it (default: cuda)")
    parser.add_argument("--only", default="", help=only)
    parser.add_argument("--seconds", type=float, default=_DAY_SECONDS, help=seconds)
    parser.add_argument("--small", action="store_true", help="few rows and samples: does everything run?")
    parser.add_argument("--commit", default=commit(), help="commit of the code, where git cannot tell")
    return parser


def _result_of(out: Path, settings: DaySettings) -> dict[str, Any] | None:
    """Return what an earlier call has found with these settings; None where it was another one."""
    try:
        result: dict[str, Any] = json.loads(out.read_text())
        earlier = DaySettings(**result["settings"])
        _ = result["facts"], result["checks"], result["rows"], [part["done"] for part in result["parts"]]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return result if replace(earlier, seconds=settings.seconds) == settings else None


def _print(result: dict[str, Any], out: Path) -> int:
    """Print what a day has found; return 0 where all was right."""
    # Rows of measurements first, then what was wrong, then how many checks were right.
    for row in result["rows"]:
        print(", ".join(f"{name} {_shown(value)}" for name, value in row.items()))
    wrong = [check for check in result["checks"] if not check["is_right"]]
    for check in wrong:
        print(f"WRONG: {check['name']}\n{check['detail']}")
    failed = [part["name"] for part in result["parts"] if part["status"] != "ok"]
    print(f"{len(result['checks']) - len(wrong)} of {len(result['checks'])} checks right; wrote {out}")
    if failed:
        print(f"did not end well: {', '.join(failed)}")
    if broken := ", ".join(failed_parts(result)):
        print(f"CHECKS FAILED in {broken}: all speeds are of a device that computes something wrong")
    # What there was no time for, and the call that goes on with it.
    left_out = left_out_of(result)
    for name, pieces in left_out.items():
        print(f"left out of {name}: {'; '.join(pieces)}")
    if left_out:
        print(f"make gpu-day OUT={out} ONLY={','.join(left_out)} goes on with what was left out")
    return 1 if wrong or failed else 0


def _names(parts: Sequence[Part]) -> str:
    return ", ".join(part.name for part in parts)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"({' '.join(map(_shown, value))})"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
