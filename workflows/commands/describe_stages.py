"""What stages made, in a line for people."""

from __future__ import annotations

from ...pipeline.folders.manifest import Manifest
from ...pipeline.sizes import format_byte_size
from ...pipeline.stages.preprocess import StageReport


def describe_stage(report: StageReport) -> str:
    """One line: the stage, its folder, how long it took and how fast that was."""
    name = f"{report.stage:<8} {report.manifest.folder}"
    if report.was_sealed:
        return f"{name}: finished before"
    rate = report.num_samples / max(report.seconds, 1e-9)
    num_bytes = format_byte_size(sum(entry.num_bytes for entry in report.manifest.files))
    return f"{name}: {num_bytes} in {report.seconds:.1f} s, {rate / 1e6:.2f} M samples/s"


def describe_shards(shards: Manifest) -> str:
    """Samples and batches of each kind, and how many rows are hot."""
    samples, batches = shards.totals["samples"], shards.totals["batches"]
    return (
        f"{samples['hot_only']:,} samples in {batches['hot_only']:,} hot-only batches, "
        f"{samples['mixed']:,} in {batches['mixed']:,} mixed, {samples['evaluation']:,} for evaluation; "
        f"{shards.totals['num_hot_rows']:,} of {shards.totals['num_rows']:,} rows are hot"
    )


def describe_schedule(made: Manifest) -> str:
    """What moves, and how many steps have to wait."""
    totals, epochs = made.totals, [epoch for width in made.totals["widths"] for epoch in width["epochs"]]
    notes = {"wait for room": totals["shortened"], "run in passes": totals["split"]}
    waits = "".join(f"; {count:,} {what}" for what, count in notes.items() if count)
    come, go = (format_byte_size(totals[f"bytes_to_{tier}"]) for tier in ("fast", "slow"))
    return (
        f"{sum(epoch['steps'] for epoch in epochs):,} steps: {totals['rows_to_fast']:,} rows come "
        f"({come}), {totals['rows_made']:,} are made at their first use, "
        f"{totals['rows_to_slow']:,} go home ({go}){waits}"
    )
