"""Preprocessing and statistics from Python: `hotset.preprocess` and `hotset.statistics`.

They do what the commands of these names do, with paths as text and settings by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..pipeline.errors import ConfigError, parse_byte_size
from ..pipeline.preprocess import PreprocessConfig
from ..pipeline.preprocess import preprocess as _preprocess
from ..pipeline.runtime.tasks import ProgressCallback, Resources, silent
from ..pipeline.schema.schema import FeatureSettings, nearest
from ..pipeline.schema.schema_file import setting_of
from ..pipeline.statistics.frequencies import QUICK, frequency_statistics
from .recipes import DEFAULT_SCHEMA, recipe_for, recipe_like

if TYPE_CHECKING:
    import polars as pl


_STAGES = ("ingest", "count", "rank", "split", "pack")


def preprocess(
    raw: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    schema: str = DEFAULT_SCHEMA,
    like: str | Path | None = None,
    extend: bool = False,
    workers: int = 0,
    memory: int | str | None = None,
    progress: ProgressCallback = silent,
    **settings: Any,
) -> Path:
    """Turn raw logs into shards, as ``hotset preprocess`` does.

    An interrupted call is resumed by the same one.

    Args:
        raw: logs in order: Criteo's text, CSV or Parquet, plain, gzip or zstd.
        out: folder of all stages.
        schema: a built-in name, or a ``.toml`` file.
        like: folder whose vocabulary provides the ids; all samples are for evaluation then.
        extend: where ``out`` was made from the first of these logs, read only the others.
        workers: number of workers; 0 takes every core.
        memory: cap of memory, in bytes or as text ("2GiB").
        progress: called as ``progress(stage, done, total)``.
        settings: options of the stages by name that differ from the defaults of the schema, such as
            ``hot_bytes="64MiB"``, ``batch_size=4096``, ``eval_fraction=0.1`` and ``min_count=4``.

    Returns:
        ``out``, for `hotset.fit`.

    Raises:
        HotsetError: what is wrong with the logs or the settings, in one line.

    Example:
        ``data = hotset.preprocess("train.tsv", "data", hot_bytes="64MiB", batch_size=4096)``
    """
    logs = [raw] if isinstance(raw, str | Path) else raw
    named = setting_of(schema)
    recipe = recipe_for(named) if like is None else recipe_like(Path(like), named)
    memory_bytes = parse_byte_size(memory) if isinstance(memory, str) else memory
    _preprocess(
        [Path(each) for each in logs],
        _with_settings(recipe, settings),
        Path(out),
        Resources(workers, memory_bytes, progress),
        like=None if like is None else Path(like),
        extend=extend,
    )
    return Path(out)


def statistics(
    data: str | Path, *, series: Sequence[str] | None = None, workers: int = 0
) -> dict[str, pl.DataFrame]:
    """Return how lookups are distributed over rows, as ``hotset stats`` finds it.

    Args:
        data: folder that `preprocess` wrote.
        series: names of series, see ``hotset stats --help``; by default those that take no time.
        workers: number of workers; 0 takes every core.

    Returns:
        Frames by series: ``features`` has a row for each table, ``budgets`` one for each budget of memory. A
        series of several tables is named ``SERIES_TABLE``.

    Raises:
        HotsetError: the folder is unfinished or damaged, or there is no such series.

    Example:
        ``print(hotset.statistics("data")["features"])``
    """
    # Tables import what prints, which a machine that only takes timings may lack.
    from .report.tables import series_frames

    wanted = QUICK if series is None else series
    found = frequency_statistics(Path(data), Resources(workers=workers), series=wanted)
    return dict(series_frames(found))


def _with_settings(recipe: PreprocessConfig, settings: dict[str, Any]) -> PreprocessConfig:
    """Return ``recipe`` with some fields of its stages set by name."""
    names = {field.name: stage for stage in _STAGES for field in fields(getattr(recipe, stage))}
    chosen: dict[str, dict[str, Any]] = {stage: {} for stage in _STAGES}
    for name, value in settings.items():
        if name not in names or name == "schema":
            raise ConfigError(f"there is no setting {name!r}", hint=nearest(name, sorted(names)))
        # Sizes and settings of single features as the command line takes them.
        if name.endswith("_bytes") and isinstance(value, str):
            value = parse_byte_size(value)
        if name.startswith("feature_") and isinstance(value, dict):
            value = FeatureSettings(sorted(value.items()))
        chosen[names[name]][name] = value
    changed = {stage: replace(getattr(recipe, stage), **chosen[stage]) for stage in _STAGES if chosen[stage]}
    return replace(recipe, **changed)
