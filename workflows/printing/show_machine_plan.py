"""Prints a plan on a measured machine: the fastest ways to train, how sure they are, what would help."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from ...pipeline.sizes import format_byte_size
from ...train.planning.plan_record import MachinePlan, PlannedOption
from ..console import plain_table, print_line, print_table

_MOST_ROWS = 12


def show_machine_plan(found: MachinePlan, console: Console) -> None:
    """Print what `plan` returned."""
    print_table(console, _options(found), num_keys=2)
    for line in sentences(found):
        print_line(console, line)


def _options(found: MachinePlan) -> Table:
    table = plain_table(
        f"Predicted steps of {found['batch_size']:,} samples",
        ("placement", "fast memory", "ranks", "homes", "codec", "step", "from", "to", "samples/s", "needs"),
        texts=("placement", "homes", "codec"),
    )
    # Those that do not fit come last, dimmed, as far as the others leave room: what they need is told.
    every = [*found["options"], *found["too_large"]]
    for one in every[:_MOST_ROWS]:
        fits = one["memory_bytes"] <= one["fast_bytes"]
        table.add_row(
            one["placement"] + (" *" if one["is_arithmetic"] else ""),
            format_byte_size(one["fast_bytes"]),
            str(one["ranks"]),
            one["homes"] or "",
            one["codec"] or "",
            milliseconds(one["step_seconds"]),
            milliseconds(one["low_seconds"]),
            milliseconds(one["high_seconds"]),
            f"{one['samples_per_second']:,.0f}",
            format_byte_size(one["memory_bytes"]) + ("" if fits else ", does not fit"),
            style=None if fits else "dim",
        )
    return table


def milliseconds(seconds: float) -> str:
    """Write seconds with three digits."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{1e3 * seconds:,.0f} ms"


def sentences(found: MachinePlan) -> list[str]:
    """Say what to do, how sure it is, and what would help."""
    best = found["options"][0]
    sizes = ", ".join(format_byte_size(size) for size in found["fast_bytes"])
    tried = "as --fast-bytes asks" if found["is_given"] else "by default: --fast-bytes names others"
    lines = [f"Planned for {sizes} of fast memory, {tried}."]
    lines.append(f"The fastest is {described(best)}. {_slowest(best)}")
    # A lead below the error of predictions is no reason to prefer one to the other.
    if found["margin"] is not None:
        runner_up = found["options"][1]
        told = f"The runner-up is {described(runner_up)}, {found['margin']:.0%} slower"
        lines.append(f"{told}: too close to tell." if found["is_close"] else f"{told}.")
    gains = [f"{one['of']} {one['gain']:+.0%}" for one in found["sensitivities"]]
    lines.append(f"Twice of one thing would bring: {', '.join(gains)}.")
    if found["tables"]:
        homes = Counter(one["home"] for one in found["tables"])
        told = ", ".join(f"{count} {home}" for home, count in homes.most_common())
        lines.append(f"Tables on {found['table_ranks']} ranks, by arithmetic of what crosses: {told}.")
    # How far to trust all this: by cells that were held out, and by how quiet the machine was.
    error = found["machine"]["error"]
    if isinstance(error, dict):
        lines.append(
            f"On {error['num_cells']} cells that nothing was fitted to, predictions were wrong by "
            f"{error['median_error']:.0%} (median) and by less than {error['p90_error']:.0%} in nine of ten."
        )
    if not found["machine"]["is_quiet"]:
        lines.append("The machine was disturbed while it was measured: measure again when it is quiet.")
    if any(one["is_arithmetic"] for one in found["options"]):
        lines.append("* Arithmetic from measured constants: no cell of the sweep ran this way.")
    return lines


def described(one: PlannedOption) -> str:
    """Name an option in words."""
    words = f"{one['placement']} with {format_byte_size(one['fast_bytes'])}"
    if one["prefetch"] is not None:
        words += f", --prefetch {one['prefetch']}"
    if one["ranks"] == 1:
        return words
    return f"{words} on {one['ranks']} ranks (homes {one['homes']}, codec {one['codec']})"


def _slowest(best: PlannedOption) -> str:
    # Parts beside the loop overlap with it, so their seconds are no share of the step.
    loop = {part: seconds for part, seconds in best["parts"].items() if not part.startswith("beside")}
    part = max(loop, key=lambda name: loop[name])
    return f"Its longest part is {part}, {loop[part] / best['step_seconds']:.0%} of the step."
