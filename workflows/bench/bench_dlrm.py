"""``hotset bench dlrm``: raw log to training data, against the preprocessing of facebookresearch/dlrm.

DLRM's preprocessing is single-threaded Python that visits each value. At its speed a log of the real size
takes most of an hour, so it gets a shorter log than hotset, and speeds (samples per second) are compared. The
outputs differ: DLRM's is one compressed file of ids in order of first appearance, not shuffled; hotset's has
counts, ids by rank, hot and mixed samples separated, shuffled batches, and a checksum of every file.

DLRM's code comes from the user's checkout and runs unchanged, with one exception: it stores 32-bit categories
as int32, which NumPy 2.0 refuses. Here its ``np.array`` wraps around, as NumPy did before.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError, require_at_least
from ...pipeline.generate.generate_log import GenerateConfig, generate
from ...pipeline.runtime.tasks import num_workers
from ...pipeline.sizes import format_byte_size
from ..console import progress_bars
from ..machine_facts import describe_machine
from ..recipes import criteo_kaggle
from .hotset_candidates import hotset_preprocess
from .measuring.fresh_process import Candidate, Measurement, run_rounds, summarize
from .measuring.rounds import median_ratio

_PROFILE = "criteo-kaggle"
_MODULE = "data_utils.py"
_DAYS = 7
_WARM_UP_SAMPLES = 2000
_ROOM_LOGS = 3
"""Memory and page cache that either may need, in multiples of its log."""


@dataclass(frozen=True, kw_only=True)
class BenchDlrmConfig:
    """Settings of the benchmark against DLRM's preprocessing."""

    dlrm: Path
    """Folder of a checkout of facebookresearch/dlrm, whose data_utils.py is measured."""

    samples: int = 2_000_000
    """Samples of hotset's log, enough to make its start-up time negligible."""

    dlrm_samples: int = 100_000
    """Samples of DLRM's log, which is the start of hotset's."""

    rounds: int = 3
    """Rounds in which each runs once; ratios are medians over rounds."""

    seed: int = 0
    """Seed of the generated logs."""

    workers: int = 0
    """Threads of hotset; 0 uses every core. DLRM's code uses one."""

    scratch: Path | None = None
    """Folder for temporary files; the system's temporary folder by default."""

    def __post_init__(self) -> None:
        for name in ("samples", "dlrm_samples", "rounds"):
            require_at_least(name, getattr(self, name), 1)
        if not (self.dlrm / _MODULE).is_file():
            raise ConfigError(
                f"{self.dlrm} has no {_MODULE}", hint="give a checkout of github.com/facebookresearch/dlrm"
            )


def bench_dlrm(config: BenchDlrmConfig) -> dict[str, Any]:
    """Measure both ``config.rounds`` times; return plain data, ready for JSON.

    ``ratio_total`` is hotset's samples per second over DLRM's by wall clock, ``ratio_cpu`` by CPU seconds.
    """
    machine = describe_machine()
    workers = num_workers(config.workers)
    with (
        tempfile.TemporaryDirectory(prefix="hotset-bench-", dir=config.scratch) as name,
        progress_bars() as bars,
    ):
        # DLRM gets a shorter log: it takes a hundred times as long per sample.
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
        # Both logs start with the same samples, so the shorter one is an excerpt of the longer.
        candidates = _candidates(paths, config.dlrm.resolve(), workers)
        measured = run_rounds(candidates, config.rounds, scratch, workers=workers, progress=bars)
        num_bytes = {name: path.stat().st_size for name, path in paths.items() if name != "warm_up"}
    # Medians over the rounds of each; the ratios below compare round by round.
    summaries = {each.name: summarize(each, measured[each.name]) for each in candidates}
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


def _candidates(paths: dict[str, Path], dlrm: Path, workers: int) -> list[Candidate]:
    # Each reads its own form of the log, of as many bytes of room as its outputs may take.
    warm_up = paths["warm_up"]
    return [
        Candidate(
            "dlrm",
            "facebookresearch/dlrm, getCriteoAdData: one compressed file of ids, not shuffled; one thread",
            dlrm_preprocess,
            (warm_up, dlrm),
            (paths["dlrm"], dlrm),
            _ROOM_LOGS * paths["dlrm"].stat().st_size,
        ),
        Candidate(
            "hotset",
            "hotset preprocess: counts, ids, hot and mixed samples, shuffled batches, all checked",
            hotset_preprocess,
            (warm_up, workers, criteo_kaggle()),
            (paths["hotset"], workers, criteo_kaggle()),
            _ROOM_LOGS * paths["hotset"].stat().st_size,
        ),
    ]


def dlrm_preprocess(folder: Path, log: Path, dlrm: Path) -> dict[str, Any]:
    """Run DLRM's Criteo preprocessing as its training script does, and discard its messages."""
    module = load_data_utils(dlrm)
    # It writes beside its input, so the input is a link in the folder that is deleted afterwards.
    raw = folder / "train.txt"
    os.link(log, raw)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        written = module.getCriteoAdData(
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
    # The file tells how many samples it holds.
    with np.load(written) as arrays:
        return {"num_samples": int(arrays["y"].shape[0])}


def load_data_utils(dlrm: Path) -> types.ModuleType:
    """Return DLRM's ``data_utils`` with a NumPy whose int32 arrays wrap around, as before 2.0."""
    spec = importlib.util.spec_from_file_location("dlrm_data_utils", dlrm / _MODULE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its own imports lie beside it, and are looked for there only while it is loaded.
    sys.path.insert(0, str(dlrm))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(dlrm))
    # A copy of the numpy module for this one importer: the real one must stay as it is.
    older = types.ModuleType("numpy")
    vars(older).update(vars(np))
    vars(older)["array"] = _wrapping_array
    vars(module)["np"] = older
    return module


def _wrapping_array(values: Sequence[Any], dtype: DTypeLike | None = None) -> NDArray[Any]:
    """Return ``np.array(values, dtype)``, but let integers wrap around in int32."""
    if dtype is np.int32 and len(values) and isinstance(values[0], int):
        return np.array(values, np.int64).astype(np.int32)
    return np.array(values, dtype)


def _median_ratio(measured: dict[str, list[Measurement]], clock: str) -> float:
    """Return the median over rounds of hotset's samples per second over DLRM's."""
    rates = {
        name: [each.facts["num_samples"] / getattr(each, clock) for each in rounds]
        for name, rounds in measured.items()
    }
    return median_ratio(rates["hotset"], rates["dlrm"])


def show_bench_dlrm(result: dict[str, Any], console: Console) -> None:
    """Print a line for each, and the ratios."""
    table = Table(box=None, pad_edge=False)
    for column in ("candidate", "samples", "wall s", "CPU s", "samples/s", "peak memory"):
        table.add_column(column, justify="left" if column == "candidate" else "right")
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
    # The ratio by CPU time is the fair one: the reference has one thread.
    threads = result["settings"]["workers"]
    console.print(
        f"hotset is {result['ratio_total']:.0f} times as fast by wall clock ({threads} threads against one) "
        f"and {result['ratio_cpu']:.0f} times by CPU time.",
        soft_wrap=True,
    )


CONFIG = BenchDlrmConfig
measure = bench_dlrm
show = show_bench_dlrm
