"""The output of stages, in one line for people each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...pipeline.errors import format_byte_size
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.totals import IdMapTotals, ShardsTotals
from ..console import describe_rate

if TYPE_CHECKING:
    from ...pipeline.preprocess import StageReport


def describe_stage(report: StageReport, width: int | None = None) -> str:
    """Return one line: the stage, its folder, how long it took and how fast that was.

    Where this is longer than ``width``, the folder is shown without those that it is in.
    """
    # A stage may end within the clock's resolution.
    rate = report.num_samples / max(report.seconds, 1e-9)
    num_bytes = format_byte_size(sum(entry.num_bytes for entry in report.manifest.files))
    figures = f"{num_bytes} in {report.seconds:.1f} s, {describe_rate(rate)}"
    folder = report.manifest.folder
    line, shorter = (
        f"{report.stage:<8} {name}: {'already done' if report.was_sealed else figures}"
        for name in (folder, folder.name)
    )
    return line if width is None or len(line) <= width else shorter


def describe_shards(shards: Manifest) -> str:
    """Return one line: samples and batches of each kind, and how many rows are hot."""
    totals = ShardsTotals.of(shards)
    samples = totals.samples
    batches = totals.batches
    return (
        f"{samples.hot_only:,} samples in {batches.hot_only:,} hot-only batches, "
        f"{samples.mixed:,} in {batches.mixed:,} mixed batches, "
        f"{samples.evaluation:,} for evaluation; "
        f"{totals.num_hot_rows:,} of {totals.num_rows:,} rows are hot"
    )


def explain_all_hot(num_rows: int, num_hot_rows: int) -> str | None:
    """Return a sentence on what it means that every row is hot; None where some are not."""
    if num_hot_rows < num_rows:
        return None
    return (
        f"All {num_rows:,} rows fit in --hot-bytes, so every row is hot and every batch is hot-only: "
        "no row ever moves, and lookahead and cache do the same as all-fast. To try placements, lower "
        "--hot-bytes."
    )


def describe_id_map(id_map: Manifest) -> str:
    """Return one line: how many rows are kept, and the share of lookups they serve."""
    totals = IdMapTotals.of(id_map)
    share = totals.kept_lookups / max(1, totals.new_lookups)
    num_new = totals.num_new_rows - totals.num_kept
    return (
        f"{id_map.folder}: {totals.num_kept:,} of {totals.num_old_rows:,} old rows are kept; "
        f"they serve {share:.1%} of the lookups counted for the new vocabulary. "
        f"{num_new:,} rows start fresh"
    )
