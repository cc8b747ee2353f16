"""``hotset train`` and ``hotset evaluate``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from ...pipeline.sizes import format_byte_size
from ...train.config import TrainConfig
from ...train.evaluate import evaluate
from ...train.run import train
from ..console import print_json, progress_bars, say, stdout_console
from ..options import parse_options

Dir = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
Run = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True, kw_only=True)
class TrainCommand(TrainConfig):
    """How to train, on what, and where to."""

    dir: Dir
    """Folder that `preprocess --out` made, or its shards alone."""

    out: Path
    """Folder of the run."""

    json: bool = False
    """Print one JSON object on stdout."""


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand:
    """Which run, on what."""

    run: Run
    """Folder that `train --out` made."""

    dir: Dir
    """Folder that `preprocess --out` made, or its shards alone."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, words: list[str]) -> int:
    """Run ``hotset train`` or ``hotset evaluate``."""
    return _train(words) if command == "train" else _evaluate(words)


def _train(words: list[str]) -> int:
    options = parse_options(
        TrainCommand, words, command="train", description="Train a DLRM on shards and evaluate it at the end."
    )
    config = TrainConfig(**{field.name: getattr(options, field.name) for field in fields(TrainConfig)})
    with progress_bars() as progress:
        summary = train(options.dir, config, options.out, progress=progress).to_dict()
    if options.json:
        print_json(summary)
    else:
        show_runs([summary], stdout_console())
        say(f"wrote {options.out}")
    return 0


def _evaluate(words: list[str]) -> int:
    options = parse_options(
        EvaluateCommand,
        words,
        command="evaluate",
        description="Evaluate a run's weights on the evaluation part of DIR.",
    )
    result = evaluate(options.run, options.dir).to_dict()
    if options.json:
        print_json(result)
    else:
        print(", ".join(f"{label} {show(result)}" for label, show in _SCORES), end=" ")
        print(f"over {result['num_samples']:,} samples")
    return 0


def show_runs(summaries: list[dict[str, Any]], console: Console) -> None:
    """A table of runs, one column each."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for summary in summaries:
        table.add_column(summary["placement"], justify="right")
    for name, show in _ROWS:
        table.add_row(name, *(show(summary) for summary in summaries))
    console.print(table)


def _metric(name: str) -> Any:
    return lambda summary: "-" if summary[name] is None else f"{summary[name]:.4f}"


def _num_made(summary: dict[str, Any]) -> int:
    return sum(table["made"] for table in summary["rows_by_table"].values())


_SCORES: tuple[tuple[str, Any], ...] = (
    ("AUC", _metric("auc")),
    ("log loss", _metric("log_loss")),
    ("accuracy", _metric("accuracy")),
)
_ROWS: tuple[tuple[str, Any], ...] = (
    *_SCORES,
    ("samples/s", lambda summary: f"{summary['samples_per_second']:,.0f}"),
    ("bytes to the fast tier", lambda summary: format_byte_size(summary["bytes_to_fast"])),
    ("bytes to the slow tier", lambda summary: format_byte_size(summary["bytes_to_slow"])),
    ("rows made at first use", lambda summary: f"{_num_made(summary):,}"),
    ("batches that waited", lambda summary: f"{summary['transfers']['stalls']:,}"),
)
