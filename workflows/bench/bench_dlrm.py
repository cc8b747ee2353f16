"""``hotset bench dlrm``: raw log to training data, against the preprocessing of facebookresearch/dlrm.

Theirs is Python that visits each value, on one thread; at its speed a log of the real size takes most of an
hour, so it gets a shorter one and speeds are compared, a round of each in turn. What the two make differs:
theirs ends with one compressed file of ids in the order in which categories appeared, not shuffled; ours with
counts, ids by rank, hot and mixed samples told apart, shuffled batches, every file checked.

Their code is the user's own checkout and runs as it is, but for one thing: it puts categories of 32 bits into
int32, which NumPy did silently before 2.0 and refuses since, so its ``np.array`` wraps around here as it did.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import statistics
import sys
import tempfile
import types
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.runtime.tasks import num_workers
from ...pipeline.sizes import format_byte_size
from ..console import progress_bars
from ..recipes import criteo_kaggle
from .bench_harness import Contestant, Measurement, describe_machine, run_rounds, summarise
from .hotset_contestants import hotset_preprocess

_PROFILE = "criteo-kaggle"
_MODULE = "data_utils.py"
_DAYS = 7
_WARM_UP_SAMPLES = 2000
_ROOM_LOGS = 3
"""Memory and page cache either may need, in sizes of its log."""


@dataclass(frozen=True, kw_only=True)
class BenchDlrmConfig:
    """What the benchmark against DLRM's preprocessing may vary."""

    dlrm: Path
    """Folder of a checkout of facebookresearch/dlrm, whose data_utils.py is run."""

    samples: int = 2_000_000
    """Samples of hotset's log, enough that its start does not count."""

    dlrm_samples: int = 100_000
    """Samples of DLRM's log, the first of hotset's."""

    rounds: int = 3
    """Times each runs; ratios are medians over them."""

    seed: int = 0
    """Of the generated log."""

    workers: int = 0
    """Threads of hotset; 0 takes every core. DLRM's code uses one."""

    scratch: Path | None = None
    """Folder for what comes and goes; the system's own by default."""

    def __post_init__(self) -> None:
        for name in ("samples", "dlrm_samples", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if not (self.dlrm / _MODULE).is_file():
            raise ConfigError(
                f"{self.dlrm} holds no {_MODULE}", hint="name a checkout of github.com/facebookresearch/dlrm"
            )


def bench_dlrm(config: BenchDlrmConfig) -> dict[str, Any]:
    """Measure both ``config.rounds`` times; plain data, ready for JSON.

    ``ratio_total`` is hotset's samples a second over DLRM's by the wall clock, ``ratio_cpu`` by CPU seconds.
    """
    machine, workers = describe_machine(), num_workers(config.workers)
    with (
        tempfile.TemporaryDirectory(prefix="hotset-bench-", dir=config.scratch) as name,
        progress_bars() as bars,
    ):
        scratch = Path(name)
        logs = {
            "warm_up": _WARM_UP_SAMPLES,
            "dlrm": config.dlrm_samples,
            "hotset": config.samples,
        }
        paths = {name: scratch / f"{name}.txt" for name in logs}
        for name, samples in logs.items():
            wanted = GenerateConfig(profile=_PROFILE, samples=samples, seed=config.seed)
            generate(wanted, paths[name], workers=workers)
        contestants = _contestants(paths, config.dlrm.resolve(), workers)
        measured = run_rounds(contestants, config.rounds, scratch, workers=workers, progress=bars)
        num_bytes = {name: path.stat().st_size for name, path in paths.items() if name != "warm_up"}
    summaries = {each.name: summarise(each, measured[each.name]) for each in contestants}
    return {
        "benchmark": "dlrm",
        "ratio_total": _median_ratio(measured, "wall_seconds"),
        "ratio_cpu": _median_ratio(measured, "cpu_seconds"),
        "samples_per_second": {name: summary["samples_per_second"] for name, summary in summaries.items()},
        "contestants": summaries,
        "data": {"source": "generated", "profile": _PROFILE, "seed": config.seed, "bytes": num_bytes}
        | {"samples": {name: measured[name][0].facts["num_samples"] for name in summaries}},
        "settings": {"rounds": config.rounds, "workers": workers, "recipe": asdict(criteo_kaggle())},
        "machine": machine,
    }


def _contestants(paths: dict[str, Path], dlrm: Path, workers: int) -> list[Contestant]:
    warm_up = paths["warm_up"]
    return [
        Contestant(
            "dlrm",
            "facebookresearch/dlrm, getCriteoAdData: one compressed file of ids, not shuffled; one thread",
            dlrm_preprocess,
            (warm_up, dlrm),
            (paths["dlrm"], dlrm),
            _ROOM_LOGS * paths["dlrm"].stat().st_size,
        ),
        Contestant(
            "hotset",
            "hotset preprocess: counts, ids, hot and mixed samples, shuffled batches, all checked",
            hotset_preprocess,
            (warm_up, workers, criteo_kaggle()),
            (paths["hotset"], workers, criteo_kaggle()),
            _ROOM_LOGS * paths["hotset"].stat().st_size,
        ),
    ]


def dlrm_preprocess(folder: Path, log: Path, dlrm: Path) -> dict[str, Any]:
    """Run DLRM's Criteo preprocessing as its training script does, with its messages thrown away."""
    module = load_data_utils(dlrm)
    raw = folder / "train.txt"
    os.link(log, raw)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        made = module.getCriteoAdData(
            str(raw),
            "kaggleAdDisplayChallenge_processed",
            max_ind_range=-1,
            sub_sample_rate=0.0,
            days=_DAYS,
            data_split="train",
            randomize="total",
            criteo_kaggle=True,
            memory_map=False,
        )
    with np.load(made) as arrays:
        return {"num_samples": int(arrays["y"].shape[0])}


def load_data_utils(dlrm: Path) -> Any:
    """DLRM's ``data_utils`` with a NumPy whose int32 arrays take what does not fit, as before 2.0."""
    spec = importlib.util.spec_from_file_location("dlrm_data_utils", dlrm / _MODULE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(dlrm))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(dlrm))
    older = types.ModuleType("numpy")
    vars(older).update(vars(np))
    vars(older)["array"] = _wrapping_array
    module.np = older  # type: ignore[attr-defined]
    return module


def _wrapping_array(values: Any, dtype: Any = None) -> Any:
    if dtype is np.int32 and len(values) and isinstance(values[0], int):
        return np.array(values, np.int64).astype(np.int32)
    return np.array(values, dtype)


def _median_ratio(measured: dict[str, list[Measurement]], clock: str) -> float:
    """Median over rounds of hotset's samples a second over DLRM's."""
    rates = {
        name: [each.facts["num_samples"] / getattr(each, clock) for each in rounds]
        for name, rounds in measured.items()
    }
    ratios: list[float] = [ours / theirs for ours, theirs in zip(rates["hotset"], rates["dlrm"], strict=True)]
    return statistics.median(ratios)


def show_bench_dlrm(result: dict[str, Any], console: Console) -> None:
    """A line for each, and the ratios."""
    table = Table(box=None, pad_edge=False)
    for column in ("contestant", "samples", "wall s", "CPU s", "samples/s", "peak memory"):
        table.add_column(column, justify="left" if column == "contestant" else "right")
    for name, each in result["contestants"].items():
        table.add_row(
            name,
            f"{result['data']['samples'][name]:,}",
            f"{each['wall_seconds']:.2f}",
            f"{each['cpu_seconds']:.2f}",
            f"{each['samples_per_second']:,.0f}",
            format_byte_size(each["peak_rss_bytes"]),
        )
    console.print(table)
    ratio, of_cpu, threads = result["ratio_total"], result["ratio_cpu"], result["settings"]["workers"]
    console.print(
        f"hotset is {ratio:.0f} times as fast by the clock, with {threads} threads to one, "
        f"and {of_cpu:.0f} times by CPU seconds.",
        soft_wrap=True,
    )


CONFIG, measure, show = BenchDlrmConfig, bench_dlrm, show_bench_dlrm
