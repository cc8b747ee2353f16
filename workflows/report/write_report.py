"""What `hotset stats` leaves behind: the report as one HTML file, and every series as Parquet."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from ...pipeline.errors import ConfigError, HotsetError, MissingExtraError
from ...pipeline.folders.manifest import Manifest
from ...pipeline.inspect.frequency_series import SERIES
from ...stats.prediction.workload import Machine
from ...train.advice import AdviceConfig, advise
from .report_page import render
from .report_sections import build_page

_LEAST_SAMPLES = 1_000_000
"""Training samples of a log that is compared with figures published for 39 M."""


def check_html(out: Path) -> None:
    """Find out before the work is done that a report cannot be drawn or written.

    Raises:
        MissingExtraError: the packages that draw are not installed.
        ConfigError: ``out`` is a folder, or in none.
    """
    try:
        import altair
        import vl_convert
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"--html needs {error.name}", hint="pip install 'hotset[report]'") from error
    del altair, vl_convert
    if out.is_dir() or not out.parent.is_dir():
        fault = "it is a folder" if out.is_dir() else f"{out.parent} is no folder"
        raise ConfigError(f"{out} cannot be written: {fault}", hint="give another --html FILE")


def check_parquet(folder: Path) -> None:
    """Make the folder for Parquet files; raises ConfigError where that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error) from error


def _not_written(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{folder} cannot be written: {error.strerror}", hint="give another --parquet FOLDER")


def write_html(folder: Path, statistics: Mapping[str, Any], out: Path, *, workers: int = 0) -> None:
    """Write the report of ``folder`` to ``out``, all at once: it is never half there.

    Args:
        folder: that the statistics are of.
        statistics: every series, as `frequency_statistics` returns them.
        out: replaced where it exists.

    Raises:
        ConfigError: it cannot be written, or no sample trains.
    """
    if not statistics["num_train_samples"]:
        raise ConfigError(
            f"{folder} has no training part to report on", hint="report on the folder its ids come from"
        )
    columns, plan = (Manifest.read(folder / name) for name in ("columns", "plan"))
    try:
        advice = advise(folder, AdviceConfig(), Machine(), workers=workers)
    except HotsetError:  # no preset fits such a log; the report does without predictions
        advice = None
    is_kaggle = columns.config["schema"] == "criteo-kaggle" and plan.totals["row_bytes"] == 64
    is_kaggle = is_kaggle and statistics["num_train_samples"] >= _LEAST_SAMPLES
    page = render(build_page(folder.resolve().name, statistics, advice, is_kaggle=is_kaggle))
    aside = out.with_name(out.name + ".partial")
    try:
        aside.write_text(page, encoding="utf-8")
        os.replace(aside, out)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise ConfigError(
            f"{out} cannot be written: {error.strerror}", hint="give another --html FILE"
        ) from error


def write_parquet(statistics: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write every series as ``folder/NAME.parquet``; returns the files.

    Raises:
        ConfigError: they cannot be written.
    """
    check_parquet(folder)
    written = []
    for name, rows in series_tables(statistics):
        path = folder / f"{name}.parquet"
        try:
            pl.DataFrame([_flat(row) for row in rows], infer_schema_length=None).write_parquet(path)
        except OSError as error:
            raise _not_written(folder, error) from error
        written.append(path)
    return written


def series_tables(statistics: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The rows of each series under its name; of a series of several tables, ``SERIES_PART``."""
    for name in SERIES:
        found = statistics.get(name, {})
        parts = (
            {name: found} if isinstance(found, list) else {f"{name}_{k}": part for k, part in found.items()}
        )
        yield from ((key, rows) for key, rows in parts.items() if isinstance(rows, list))


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """``{"top_share": {"1": 0.5}}`` -> ``{"top_share_1": 0.5}``."""
    found: dict[str, Any] = {}
    for key, cell in row.items():
        found |= (
            {f"{key}_{part}": inner for part, inner in cell.items()}
            if isinstance(cell, dict)
            else {key: cell}
        )
    return found
