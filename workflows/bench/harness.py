"""Turns, fresh processes and result files for the scripts of this folder.

Speeds of a shared machine drift by a factor of two within minutes, so candidates take turns and a ratio
compares runs of one round; the median over rounds is reported. CPU seconds of all threads stand next to the
wall clock, because other programs disturb them least.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ...pipeline.errors import ConfigError, HotsetError, first_line
from ...pipeline.folders.disk import check_target, whole_file
from ...pipeline.runtime.limits import anonymous_bytes, available_bytes, control_groups
from ...pipeline.runtime.tasks import num_workers
from ...train.config_parts import TIMEOUT_VARIABLE
from ..machine import describe_machine

if TYPE_CHECKING:
    from ...train.data.shards import ShardSet

Result = TypeVar("Result")
Facts = dict[str, Any]
"""Plain data, ready for JSON."""
Options = argparse.Namespace
Seconds = tuple[float, float]
"""Wall and CPU seconds, these of all threads."""
_MESSAGES, _REMOVING_SECONDS, _SAMPLING_SECONDS = "messages.txt", 5.0, 0.02
"""File of messages; seconds that the end of a group may take; interval at which memory is read."""


def new_parser(script: ModuleSpec | None, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every script: ``--out`` and ``--scratch``."""
    assert script is not None and description is not None, "a script is run as a module, and has a docstring"
    parser = argparse.ArgumentParser(prog=f"python -m {script.name}", description=description.splitlines()[0])
    _add_files(parser)
    return parser


def new_parsers(
    script: ModuleSpec | None, description: str | None, **jobs: str
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return a parser of a script that measures one of several things, and the parser of each by its name."""
    parser = new_parser(script, description)
    kinds = parser.add_subparsers(dest="what", required=True)
    # The files may follow the name of the job, as all its options do.
    files = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    _add_files(files)
    return parser, {name: kinds.add_parser(name, help=text, parents=[files]) for name, text in jobs.items()}


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="file for the result as JSON; stdout by default")
    parser.add_argument("--scratch", type=Path, help="folder for temporary files")


def run_script(
    parser: argparse.ArgumentParser,
    measure: Callable[[Options, Path], Facts],
    arguments: Sequence[str] | None = None,
) -> int:
    """Parse the options, measure, and write the result with what made it; return the exit status.

    ``measure`` has a temporary folder, in ``--scratch`` if given.
    """
    try:
        options = parser.parse_args(arguments)
        # Some measure for hours, so a file that cannot be written is refused first.
        if options.out:
            check_target(options.out, overwrite=True)
        result = made_by(options, str(parser.prog).rpartition(".")[2])
        with tempfile.TemporaryDirectory(prefix="hotset-bench-", dir=options.scratch) as name:
            result |= measure(options, Path(name))
        text = json.dumps(result, indent=1, default=str) + "\n"
        if options.out is None:
            print(text, end="")
            return 0
        with whole_file(options.out, overwrite=True) as file:
            file.write(text.encode())
    except HotsetError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return 1
    tell(f"wrote {options.out}")
    return 0


def main(parser: argparse.ArgumentParser, measure: Callable[[Options, Path], Facts]) -> NoReturn:
    """Run a script as a program."""
    sys.exit(run_script(parser, measure))


def made_by(options: Options, name: str) -> Facts:
    """Return what made a result: script, settings without folders of this machine, machine and versions."""
    settings = {key: value for key, value in vars(options).items() if key not in ("out", "scratch")}
    plain = {key: value.name if isinstance(value, Path) else value for key, value in settings.items()}
    return {"benchmark": name, "settings": plain, "machine": describe_machine()}


def tell(text: str) -> None:
    """Print progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def take_turns(candidates: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """Call each candidate once per round; return their results by name, in the order of rounds.

    Every second round runs backwards, so that none always follows the same other.
    """
    results: dict[str, list[Result]] = {name: [] for name in candidates}
    for number in range(rounds):
        for name in list(candidates)[:: -1 if number % 2 else 1]:
            results[name].append(candidates[name]())
            tell(f"round {number + 1} of {rounds}: {name}")
    return results


def median_ratio(numerators: Iterable[float], denominators: Iterable[float]) -> float:
    """Return the median over rounds of the ratio of two candidates, both of one round."""
    return statistics.median(above / below for above, below in zip(numerators, denominators, strict=True))


def compare(slow: Sequence[Seconds], fast: Sequence[Seconds]) -> dict[str, float]:
    """Return the median ratios of two candidates by the clock and by CPU time, ``wall`` and ``cpu``."""
    both = zip(zip(*slow, strict=True), zip(*fast, strict=True), strict=True)
    return {name: median_ratio(*of_clock) for name, of_clock in zip(("wall", "cpu"), both, strict=True)}


def median_seconds(rounds: Sequence[Seconds]) -> dict[str, float]:
    """Return the medians by clock, ``wall_seconds`` and ``cpu_seconds``."""
    clocks = ("wall_seconds", "cpu_seconds")
    return {name: statistics.median(own) for name, own in zip(clocks, zip(*rounds, strict=True), strict=True)}


def clock() -> Seconds:
    """Return the wall and CPU seconds of this moment."""
    return time.perf_counter(), time.process_time()


def seconds_since(begin: Seconds) -> Seconds:
    """Return the wall and CPU seconds since `clock` gave ``begin``."""
    wall, cpu = clock()
    return wall - begin[0], max(cpu - begin[1], 1e-9)


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided quantiles of 95% for 2 to 10 values."""


def over_seeds(values: Mapping[str, Sequence[float]]) -> Facts:
    """Return what each contestant has with every seed, means and deviations, and differences from the first.

    A difference is of one seed; the interval of their mean is Student's, of 95%.
    """
    first = next(iter(values.values()))
    return {
        "values": values,
        "mean": {name: statistics.fmean(own) for name, own in values.items()},
        "deviation": {name: statistics.stdev(own) if len(own) > 1 else 0.0 for name, own in values.items()},
        "difference": {
            name: interval([one - other for one, other in zip(own, first, strict=True)])
            for name, own in list(values.items())[1:]
        },
    }


def scores_over_seeds(scores: Mapping[str, Sequence[Mapping[str, float]]]) -> Facts:
    """Return AUC and log loss of each contestant by seed, and what `over_seeds` has of them."""
    found: Facts = {}
    for score in ("auc", "log_loss"):
        seen = over_seeds({name: [one[score] for one in own] for name, own in scores.items()})
        found |= {score: seen["values"], f"mean_{score}": seen["mean"]}
        found |= {f"deviation_{score}": seen["deviation"], f"{score}_difference": seen["difference"]}
    return found


def interval(values: Sequence[float]) -> Facts:
    """Return the mean of at most 10 values, and the bounds of its interval: the mean itself of one value."""
    mean, half = statistics.fmean(values), 0.0
    if len(values) > 1:
        half = _STUDENT[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "from": mean - half, "to": mean + half}


def new_log(folder: Path, samples: int, *, name: str = "log.tsv", **settings: Any) -> Path:
    """Generate a log in ``folder`` and return its path; ``settings`` are those of `hotset generate`."""
    # Here, so that a process that only measures another command imports no stage.
    from ...pipeline.generate.generate import GenerateConfig, generate

    generate(GenerateConfig(samples=samples, **settings), folder / name)
    return folder / name


def pack_again(log: Path, data: Path, **settings: Any) -> ShardSet:
    """Preprocess a log with some settings of `split` and `pack`; the stages before these stay in ``data``."""
    from ...pipeline.preprocess import remove_from
    from ...train.data.shards import ShardSet
    from ..library import preprocess

    if (data / "plan").exists():
        remove_from("split", data)
    return ShardSet.open(preprocess(log, data, **settings))


@dataclass(frozen=True, slots=True)
class Measurement:
    """One candidate in one round."""

    seconds: Seconds
    peak_anonymous_bytes: int
    """Peak of the part that is no mapped file, read every 20 ms."""
    user_seconds: float
    """CPU seconds in user mode; those of the system are mostly fresh pages."""
    facts: Facts
    """Result of the candidate's function."""


def measure_in_fresh_process(
    scratch: Path, function: Callable[..., Facts], warm_up: Any, job: Any, *more: Any, room_bytes: int = 0
) -> Measurement:
    """Measure a job in a new process, whose libraries may use a thread for each core.

    Args:
        scratch: folder for temporary folders.
        function: a top-level one, called with an empty folder, a job and ``more``; returns facts.
        warm_up: a small job that runs before the clock starts.
        job: the job that is measured.
        more: further arguments of both.
        room_bytes: memory and page cache that it may need, touched before the clock starts.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=_limit_threads) as pool:
        return pool.submit(_measure, scratch, function, warm_up, job, more, room_bytes).result()


def _limit_threads() -> None:
    # Libraries read this once, when they are imported.
    os.environ |= dict.fromkeys(("POLARS_MAX_THREADS", "OMP_NUM_THREADS"), str(num_workers(0)))


def _measure(
    scratch: Path,
    function: Callable[..., Facts],
    warm_up: Any,
    job: Any,
    more: tuple[Any, ...],
    room_bytes: int,
) -> Measurement:
    # The first run compiles and reads libraries from disk; it is not counted.
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        function(Path(folder), warm_up, *more)
    _touch_memory(room_bytes)
    with tempfile.TemporaryDirectory(dir=scratch) as folder, AnonymousMemory() as anonymous:
        begin, user_start = clock(), os.times().user
        facts = function(Path(folder), job, *more)
        seconds, user = seconds_since(begin), os.times().user - user_start
    return Measurement(seconds, anonymous.peak_bytes, user, facts)


def _touch_memory(num_bytes: int) -> None:
    """Let another process fill and free ``num_bytes``, at most half of the available memory.

    In a virtual machine memory that the host reclaimed costs up to 2 ms per MiB to touch, forty times as
    much as usual, and the first candidate to use it would pay.
    """
    num_bytes = min(num_bytes, (available_bytes() or 0) // 2)
    if num_bytes:
        subprocess.run([sys.executable, "-IS", "-c", f"b'1' * {num_bytes}"], check=True)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A control group with a limit of memory, page cache included; a process that joins it stays."""

    folder: Path
    version: int
    """1 or 2, of the system's control groups."""

    def join(self) -> None:
        """Move this process into the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak_bytes(self) -> int | None:
        """Return the most memory that the group had, page cache included; None where it is not known."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):
            return None


@contextmanager
def memory_limit(num_bytes: int) -> Iterator[MemoryLimit]:
    """Make a group for the time of the block.

    Raises:
        ConfigError: this process may not, or the system has none.
    """
    limit = _limited_group(num_bytes)
    try:
        yield limit
    finally:
        # The system allows it a moment after its last process has ended.
        deadline = time.monotonic() + _REMOVING_SECONDS
        while limit.folder.exists():
            try:
                limit.folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def _limited_group(num_bytes: int) -> MemoryLimit:
    # The first group that can be made and limited; a container may allow neither.
    for group in control_groups("memory"):
        folder = group.folder / f"hotset-{os.getpid()}-{time.monotonic_ns()}"
        file = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
        with suppress(OSError):
            folder.mkdir()
            try:
                (folder / file).write_text(str(num_bytes))
                return MemoryLimit(folder, group.version)
            except OSError:
                folder.rmdir()  # a group that takes no limit is of no use, and another place is tried
    raise ConfigError("no control group can be limited here", hint="run it as root, outside a container")


class AnonymousMemory:
    """Watch the anonymous memory of this process from a thread, which costs 0.3% of a core."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> AnonymousMemory:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._stop.wait(_SAMPLING_SECONDS)
            self.peak_bytes = max(self.peak_bytes, anonymous_bytes())


def summarize(function: Callable[..., Facts], rounds: Sequence[Measurement]) -> Facts:
    """Return what was measured, medians over rounds, peak memory, and the seconds of every round."""
    medians = median_seconds([each.seconds for each in rounds])
    return medians | {
        "about": function.__doc__,
        "samples_per_second": rounds[0].facts["num_samples"] / medians["wall_seconds"],
        "peak_anonymous_bytes": max(each.peak_anonymous_bytes for each in rounds),
        "rounds": [dict(zip(("wall", "cpu"), each.seconds, strict=True)) for each in rounds],
    }


def start_hotset(
    arguments: Sequence[str], scratch: Path, num_ranks: int = 1, timeout: int = 60
) -> list[subprocess.Popen[bytes]]:
    """Start ``hotset``, on several ranks as a launcher does: a process each; messages go to a file.

    After ``timeout`` seconds a rank that another one does not answer stops.
    """
    launched = dict(os.environ)
    if num_ranks > 1:
        launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(num_ranks)}
        launched[TIMEOUT_VARIABLE] = str(timeout)
    words = [sys.executable, "-m", "hotset", *arguments]
    with (scratch / _MESSAGES).open("wb") as file:
        return [
            subprocess.Popen(
                words, env=launched | {"RANK": str(rank)} if num_ranks > 1 else None, stdout=file, stderr=file
            )
            for rank in range(num_ranks)
        ]


def last_message(scratch: Path) -> str:
    """Return the last line that the processes of `start_hotset` have printed."""
    lines = (scratch / _MESSAGES).read_text(errors="replace").splitlines()
    return lines[-1] if lines else "it printed nothing"


def run_hotset(arguments: Sequence[str], scratch: Path, num_ranks: int = 1) -> None:
    """Run ``hotset``, on several ranks perhaps.

    Raises:
        HotsetError: a process failed; the last line of its messages is in the message.
    """
    if any([process.wait() for process in start_hotset(arguments, scratch, num_ranks)]):
        raise HotsetError(f"hotset {' '.join(arguments)} failed: {last_message(scratch)}")


def train_in_process(data: Path, words: Sequence[str], num_ranks: int = 1) -> tuple[Path, Facts]:
    """Run ``hotset train`` on ``data``; return the run's folder, a new one next to it, and its summary."""
    out = new_run(data.parent)
    run_hotset(["train", str(data), "--out", str(out), "-q", *words], data.parent, num_ranks)
    return out, json.loads((out / "summary.json").read_text())


def program_of(checkout: Path) -> str:
    """Return the command of another checkout, which has its environment in ``.venv``."""
    program = checkout.resolve() / ".venv/bin/hotset"
    if not program.exists():
        raise ConfigError(f"{checkout.name} has no .venv/bin/hotset", hint="make env in that checkout")
    return str(program)


def new_run(folder: Path) -> Path:
    """Return a path in ``folder`` that no run has yet."""
    return folder / f"run-{len(list(folder.glob('run-*')))}"


def free_port() -> str:
    """Return a port of this machine at which nobody listens."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return str(opened.getsockname()[1])


def time_anew(program: str, out: Path, *words: object) -> Seconds:
    """Run a command of hotset that writes ``out``, which is removed first; return its seconds."""
    shutil.rmtree(out, ignore_errors=True)
    return time_process([program, *map(str, words), "-q", "--out", str(out)])


def time_process(words: Sequence[str], status: int = 0) -> Seconds:
    """Run a program; return the wall and CPU seconds of the whole process, imports included.

    Raises:
        HotsetError: it ended with another status; its first line of errors is in the message.
    """
    # What it prints goes to a file, which never makes it wait.
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
        # This call alone gives the CPU seconds of a single child.
        _, ended, usage = os.wait4(process.pid, 0)
        wall_seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(ended)
        if process.returncode != status:
            errors.seek(0)
            reason = first_line(Exception(errors.read().decode(errors="replace").strip()))
            raise HotsetError(f"{' '.join(words)} ended with {process.returncode}: {reason}")
    return wall_seconds, usage.ru_utime + usage.ru_stime
