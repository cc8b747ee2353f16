"""Compiles kernels before they are needed, in child processes that fill the cache on disk.

Numba's compiler holds one lock per process, so threads would wait for each other. Each child runs one kind of
work on a few samples, which compiles what that work calls: no list of kernels and types has to be kept.
Nothing depends on it. A kernel that no child has kept is compiled where it is first called, outside of all
clocks (`stats.compile_notice`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from ..pipeline.errors import MIB
from ..pipeline.runtime.limits import available_bytes, usable_cores
from ..pipeline.runtime.tasks import Resources
from ..stats.kernel import is_compiled

_CHILD_BYTES = 1024 * MIB
"""Free memory for each child; the one that trains takes 0.5 GiB, most of it torch."""
_MOST_SECONDS = 300.0
"""Time after which the children are given up."""
_LOOK_SECONDS = 0.05
_END_SECONDS = 2.0


def _generate(folder: Path) -> None:
    from ..pipeline.generate.generate import GenerateConfig, generate

    generate(GenerateConfig(samples=100), folder / "log.tsv", workers=1)


def _preprocess(folder: Path) -> None:
    from ..pipeline.preprocess import preprocess
    from ..pipeline.statistics.frequencies import QUICK, frequency_statistics
    from .recipes import criteo_kaggle

    log = folder / "log.tsv"
    lines = [f"{number % 2}" + 13 * f"\t{number}" + 26 * f"\t{number % 30:08x}" for number in range(300)]
    log.write_text("\n".join([*lines, ""]))
    preprocess([log], config=criteo_kaggle(), out=folder / "data", resources=Resources(workers=1))
    frequency_statistics(folder / "data", Resources(workers=1), series=QUICK)


def _train(folder: Path) -> None:
    from ..train.config import TrainConfig
    from ..train.run import train
    from .characterise import DrawnShards

    # Batches of several tiles, whose gradients are added.
    drawn = DrawnShards(rows_of_table=50, skew=1.0, batch_size=512, num_batches=2, optimizer="adagrad")
    drawn.write(folder / "data")
    train(folder / "data", TrainConfig(placement="all-fast", threads=1), folder / "run")


def _plan(_folder: Path) -> None:
    from ..stats.lookahead.planner import lookahead_planner
    from ..stats.lookahead.step_plans import RowStream, Window

    planner = lookahead_planner(128, 128, prefetch=1, window=Window(128), splits=True)
    rows_U = np.arange(100)
    for _ in range(70):  # more than the first buffers hold
        planner.plan(RowStream.of([rows_U], [rows_U]))
    list(planner.plan_rest())
    planner.end_epoch()


@dataclass(frozen=True, slots=True)
class _Work:
    """A kind of work that a child does."""

    run: Callable[[Path], None]
    """Does it in an empty folder."""
    seconds: int
    """Time that it takes to compile on one core."""
    kernels: tuple[str, ...]
    """Modules and names of some of its kernels: the first that are called, and the last."""


_WORK = {
    "training steps": _Work(
        _train, 15, ("train.model.kernels.add_bias_relu", "stats.metrics.count_weighted")
    ),
    "row transfers": _Work(_plan, 11, ("stats.lookahead.kernel.plan_steps",)),
    "preprocessing": _Work(
        _preprocess, 10, ("pipeline.raw.criteo_kernel.parse_lines", "stats.shuffle.gather_rows")
    ),
    "a log": _Work(
        _generate, 6, ("pipeline.generate.kernel.draw_samples", "pipeline.generate.kernel.write_samples")
    ),
}
"""The longest first: one core then ends hardly later than the others."""

_MODULE = f"{__package__}.compile_ahead"
TRAINING_STEPS, ROW_TRANSFERS, PREPROCESSING, LOG = _WORK


def kinds_of_training(placement: str, device: str) -> list[str]:
    """Return the kinds of work whose kernels a run calls."""
    kinds = [TRAINING_STEPS] if device == "cpu" else []
    return kinds + [ROW_TRANSFERS] * (placement in ("lookahead", "cache", "hybrid-uva"))


class CompileAhead:
    """Child processes that compile, at most one on each core.

    They end with this process, however it ends: each watches a pipe from it.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._pending = [name for name in _WORK if name in names and _is_missing(_WORK[name])]
        room = available_bytes()
        most = usable_cores() if room is None else min(usable_cores(), room // _CHILD_BYTES)
        # One child would not be done sooner than this process.
        if most < 2:
            self._pending.clear()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._most = most
        self._began = time.monotonic()
        self._start_some()

    def wait(self, progress: Callable[[str, int, int, str], object]) -> None:
        """Return once the kernels are there, or the children have failed; show what is compiled."""
        left = [_WORK[name].seconds for name in (*self._running, *self._pending)]
        about = max([sum(left) // max(self._most, 1), *left], default=0)
        while self._running and time.monotonic() - self._began < _MOST_SECONDS:
            names = ", ".join((*self._running, *self._pending))
            progress(f"compiling (once, about {about} s)", 0, 0, names)
            time.sleep(_LOOK_SECONDS)
            for name in [name for name, child in self._running.items() if child.poll() is not None]:
                _end(self._running.pop(name))
            self._start_some()

    def close(self) -> None:
        """End the children."""
        self._pending.clear()
        while self._running:
            _end(self._running.popitem()[1])

    def _start_some(self) -> None:
        while self._pending and len(self._running) < self._most:
            name = self._pending.pop(0)
            # Safe paths: no file in the current folder is imported as a library.
            command = [sys.executable, "-P", "-m", _MODULE, name]
            silent = subprocess.DEVNULL
            # A separate session: Ctrl-C is for this process, which ends the children.
            with suppress(OSError):
                self._running[name] = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=silent, stderr=silent, start_new_session=True
                )


@contextmanager
def compiling_ahead(names: Sequence[str]) -> Iterator[CompileAhead]:
    """Compile the kernels of kinds of work that have not been compiled, in child processes."""
    ahead = CompileAhead(names)
    try:
        yield ahead
    finally:
        ahead.close()


def _is_missing(work: _Work) -> bool:
    """Return whether a kernel of this work is not in the cache, and can be kept there."""
    for path in work.kernels:
        module, _, name = path.rpartition(".")
        if not is_compiled(getattr(import_module(f"..{module}", __package__), name)):
            return True
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.close()
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _end_with_parent(folder: str) -> None:
    """End this process, and leave nothing, when the pipe from its parent is closed."""
    os.read(0, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _main(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="hotset-compile-") as folder:
        threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
        _WORK[name].run(Path(folder))


if __name__ == "__main__":
    _main(sys.argv[1])
