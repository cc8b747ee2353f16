"""``hotset bench fuzz``: mutated lines, fields, files and whole folders through everything that reads them.

Each part runs in a process of its own, as ``python -m hotset.tests.fuzz.NAME``: the naive twins it is held
against belong to the tests, so this benchmark needs a checkout. A part lists each input that was judged
wrongly in ``wrong``; a process that ends by a signal counts as one.
"""

from __future__ import annotations

import importlib.util
import json
import secrets
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError, require_at_least
from ....pipeline.runtime.resources import ProgressCallback, silent
from ....pipeline.runtime.tasks import num_workers
from ...machine_facts import describe_machine

_MODULES = "hotset.tests.fuzz"
_MOST_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class BenchFuzzConfig:
    """Numbers of inputs of each kind; 0 leaves a kind out."""

    lines: int = 1_000_000
    """Lines of Criteo's format, each judged as the naive parser judges it."""

    fields: int = 1_000_000
    """Lines of separated text, field by field."""

    files: int = 1_000
    """Files of a preprocessed folder, one changed at a time; as many again of a log with lists."""

    folders: int = 10_000
    """Crafted folders through the stages, the trainer, evaluate and verify."""

    seed: int | None = None
    """Seed of all inputs; by default a new one, which the result names."""

    workers: int = 0
    """Processes that read crafted folders; 0 takes every core the run may use."""

    def __post_init__(self) -> None:
        for name in ("lines", "fields", "files", "folders", "seed", "workers"):
            require_at_least(name, getattr(self, name), 0)


def bench_fuzz(config: BenchFuzzConfig, progress: ProgressCallback = silent) -> dict[str, Any]:
    """Run every part; return plain data, ready for JSON.

    Each part has ``inputs``, counts of outcomes, ``wrong`` (a number or a list), ``seed`` and ``seconds``.

    Raises:
        ConfigError: there are no tests beside the package.
    """
    # The parts live in the tests, which a wheel lacks.
    if importlib.util.find_spec(_MODULES.rpartition(".")[0]) is None:
        raise ConfigError("bench fuzz needs the tests of a checkout", hint="run it from a checkout of hotset")
    # Without a seed each run tries other inputs; the result names the seed that repeats it.
    seed = secrets.randbelow(10**9) if config.seed is None else config.seed
    parts = {
        "lines": ("fuzz_lines", ["--lines", config.lines]),
        "fields": ("fuzz_fields", ["--lines", config.fields]),
        "files": ("fuzz_files", ["--files", config.files]),
        "files with lists": ("fuzz_files", ["--lists", "--files", config.files]),
        "folders": (
            "fuzz_folders",
            ["--workers", num_workers(config.workers), "--folders", config.folders],
        ),
    }
    # A part of size 0 is left out.
    wanted = {name: part for name, part in parts.items() if part[1][-1]}
    found: dict[str, Any] = {}
    for done, (name, (module, words)) in enumerate(wanted.items(), 1):
        found[name] = _run(module, [*map(str, words), "--seed", str(seed)])
        progress("fuzz", done, len(wanted))
    return {
        "benchmark": "fuzz",
        **found,
        "settings": asdict(config) | {"seed": seed},
        "machine": describe_machine(),
    }


def _run(module: str, words: list[str]) -> dict[str, Any]:
    """Run one part; a part that finds an input judged wrongly may end there."""
    ended = subprocess.run(
        [sys.executable, "-m", f"{_MODULES}.{module}", *words], capture_output=True, text=True
    )
    if ended.returncode == 0:
        result: dict[str, Any] = json.loads(ended.stdout)
        return result
    # A part that ended by a signal is worth more than any wrong verdict: it is told with its last line.
    by_signal = ended.returncode < 0
    status = signal.Signals(-ended.returncode).name if by_signal else f"exit status {ended.returncode}"
    last = (ended.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    return {"inputs": 0, "wrong": [f"{module} {' '.join(words)} ended by {status}: {last}"], "seconds": 0.0}


def num_wrong(part: dict[str, Any]) -> int:
    """Return how many inputs of a part were judged wrongly."""
    wrong = part["wrong"]
    return wrong if isinstance(wrong, int) else len(wrong)


def print_bench_fuzz(result: dict[str, Any], console: Console) -> None:
    """Print inputs and wrong verdicts of each part as a table, and the first of these."""
    table = Table(box=None, pad_edge=False)
    table.add_column("fuzzed")
    for column in ("inputs", "judged wrongly", "seconds"):
        table.add_column(column, justify="right")
    # Settings and machine stand beside the parts.
    parts = {name: part for name, part in result.items() if isinstance(part, dict) and "wrong" in part}
    for name, part in parts.items():
        table.add_row(name, f"{part['inputs']:,}", str(num_wrong(part)), f"{part['seconds']:.0f}")
    console.print(table, "")
    console.print(f"seed {result['settings']['seed']}")
    wrong = [line for part in parts.values() if isinstance(part["wrong"], list) for line in part["wrong"]]
    for line in wrong[:_MOST_SHOWN]:
        console.print(line, soft_wrap=True, markup=False)


CONFIG = BenchFuzzConfig
measure = bench_fuzz
show = print_bench_fuzz
