"""The series of the statistics as Polars frames, one for each table of figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from ...pipeline.statistics.frequencies import SERIES, Statistics

if TYPE_CHECKING:
    import polars as pl


def series_frames(statistics: Statistics) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each series by name; a series of several tables is named ``SERIES_TABLE``."""
    # Polars takes 0.2 s to import, which other outputs do without.
    import polars as pl

    for name, rows in _named_tables(statistics):
        yield name, pl.DataFrame([_flat(row) for row in rows], infer_schema_length=None)


def _named_tables(statistics: Statistics) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each series and its rows; a series of several tables is named ``SERIES_TABLE``."""
    series = cast(Mapping[str, Any], statistics)
    for name in SERIES:
        found = series.get(name, {})
        if isinstance(found, list):
            yield name, found
            continue
        for key, rows in found.items():
            # Single figures stand beside the tables; --json has them.
            if isinstance(rows, list):
                yield f"{name}_{key}", rows


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without nesting: ``{"top_share": {"1": 0.5}}`` -> ``{"top_share_1": 0.5}``."""
    flat: dict[str, Any] = {}
    for key, cell in row.items():
        if isinstance(cell, dict):
            flat |= {f"{key}_{inner_key}": inner for inner_key, inner in cell.items()}
        else:
            flat[key] = cell
    return flat
