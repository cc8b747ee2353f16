"""``hotset preprocess --dry-run`` as a table that people read."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ...pipeline.dry_run import MAKING, REFUSED, RunPlan
from ...pipeline.errors import format_byte_size


def show_plan(plan: RunPlan, console: Console) -> None:
    """Print what each stage would do, and the disk and memory that the run needs."""
    table = Table(box=None, pad_edge=False)
    for name in ("stage", "folder", "bytes", "seconds", "state"):
        # Folders and reasons wrap where the terminal is narrow, so that no number is cut.
        is_long = name in ("folder", "state")
        table.add_column(
            name,
            justify="right" if name in ("bytes", "seconds") else "left",
            no_wrap=not is_long,
            overflow="fold",
        )
    for stage in plan.stages:
        state = stage.state
        # Finished stages cost nothing, and a column of zeros would hide which ones do.
        is_work = state.state in MAKING
        why = f" ({state.why})" if state.why and state.state != REFUSED else ""
        table.add_row(
            state.stage,
            str(state.folder),
            format_byte_size(stage.new_bytes) if is_work else "",
            f"{stage.seconds:.1f}" if is_work else "",
            state.state + why,
        )
    console.print(table)
    # Below the table the run as a whole.
    estimate = plan.estimate
    total = sum(stage.seconds for stage in plan.stages)
    console.print(
        f"\nAbout {estimate.num_samples:,.0f} samples in {format_byte_size(plan.text_bytes)} of raw data, "
        f"{estimate.num_rows:,.0f} rows; about {total:.1f} s on an idle machine."
    )
    disk = f"about {format_byte_size(plan.disk_needed)} more ({format_byte_size(plan.disk_free)} free)"
    memory = f"at most about {format_byte_size(plan.memory_peak)} (limit {format_byte_size(plan.memory_cap)})"
    console.print(f"Disk: {disk}. Memory: {memory}.")
    console.print("Nothing was written. These are estimates from a few MiB of the log.")
