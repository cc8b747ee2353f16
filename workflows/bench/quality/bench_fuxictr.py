"""``hotset bench fuxictr``: FuxiCTR's DCN V2 and hotset's on the same samples and ids, over seeds.

hotset preprocesses a log with a validation and a test part. Both train one epoch: FuxiCTR on the Parquet that
`export-shards --to fuxictr` writes, hotset on the shards, each in its own order and from its own initial
values. Either is scored on the same test part.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError, HotsetError, MissingExtraError
from ....pipeline.export.export_shards import export_shards
from ....pipeline.stages.count import CountConfig
from ....pipeline.stages.preprocess import preprocess
from ....train.run import train
from ...machine_facts import commit, describe_machine
from ...recipes import small_real_sample, small_real_sample_training

_PACKAGES = Path(__file__).resolve().parents[4]


@dataclass(frozen=True, kw_only=True)
class BenchFuxictrConfig:
    """Settings of the comparison with FuxiCTR."""

    data: Path
    """A small raw Criteo log."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of both programs."""

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ConfigError("name at least one seed")


def bench_fuxictr(config: BenchFuxictrConfig) -> dict[str, Any]:
    """Train both models with each seed.

    Returns:
        ``auc`` of the test part by program, one per seed; their means; recipe and machine.

    Raises:
        MissingExtraError: FuxiCTR is not installed.
        HotsetError: FuxiCTR failed, with the last line that it wrote.
    """
    if not has_fuxictr():
        raise MissingExtraError("the comparison needs FuxiCTR: pip install '.[interop]'")
    # FuxiCTR wants a validation part, so both leave the samples before the test part out of training.
    recipe = replace(small_real_sample(), count=CountConfig(eval_fraction=0.2, valid_fraction=0.1))
    training = small_real_sample_training("dcnv2")
    auc: dict[str, list[float]] = {"FuxiCTR": [], "hotset": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards = preprocess([config.data], recipe, folder / "data")
        export_shards(shards, "fuxictr", folder / "criteo_export")
        for seed in config.seeds:
            auc["FuxiCTR"].append(_fuxictr_auc(folder / "criteo_export", seed))
            summary = train(folder / "data", replace(training, seed=seed), folder / f"run-{seed}")
            if summary.auc is None:
                raise HotsetError("the test part has labels of one kind, so there is no AUC")
            auc["hotset"].append(summary.auc)
    settings = {"preprocess": asdict(recipe), "train": asdict(training)}
    return {
        "data": config.data.name,
        "seeds": list(config.seeds),
        "auc": auc,
        "mean_auc": {program: fmean(values) for program, values in auc.items()},
        **settings,
        "machine": describe_machine(),
        "commit": commit(),
    }


def has_fuxictr() -> bool:
    """Return whether FuxiCTR is installed."""
    return importlib.util.find_spec("fuxictr") is not None


def _fuxictr_auc(export: Path, seed: int) -> float:
    """Return the AUC that FuxiCTR reaches on an export, in a process of its own."""
    program = "hotset.workflows.bench.quality.fuxictr_training"
    paths = os.pathsep.join([str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", program, str(export), str(seed)],
        cwd=export.parent,
        # FuxiCTR's loader starts Ray, which would join any cluster of this machine, and fail when that ends.
        env=os.environ | {"PYTHONPATH": paths, "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise HotsetError(f"FuxiCTR failed: {(done.stderr.strip().splitlines() or ['it wrote nothing'])[-1]}")
    return float(done.stdout.rpartition("AUC")[2])


def show_fuxictr(result: dict[str, Any], console: Console) -> None:
    """Print the AUC of both programs, one row per seed."""
    table = Table(box=None, pad_edge=False)
    table.add_column("AUC, seed")
    for program in result["auc"]:
        table.add_column(program, justify="right")
    for row, seed in enumerate(result["seeds"]):
        table.add_row(str(seed), *(f"{scores[row]:.4f}" for scores in result["auc"].values()))
    table.add_row("mean", *(f"{mean:.4f}" for mean in result["mean_auc"].values()), style="bold")
    console.print(table)


CONFIG = BenchFuxictrConfig
measure = bench_fuxictr
show = show_fuxictr
