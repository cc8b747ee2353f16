"""``hotset runs``: list the runs of a folder, or compare their settings over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from rich.markup import escape

from ...pipeline.errors import HotsetError
from ...pipeline.folders.whole_file import whole_file
from ..command_list import Command
from ..console import plain_table, print_json, print_table, say, stdout_console
from ..options import Arg
from ..printing.read_runs import Run, differing_settings, read_runs
from ..printing.show_run_list import best_first, page_of_runs, show_run_list


@dataclass(frozen=True, kw_only=True)
class RunsCommand(Command):
    """List runs, best AUC first, and what differs."""

    folder: Annotated[Path, Arg("FOLDER", is_positional=True)]
    """Folder with runs that `train --out` created, in folders of their own."""

    compare: bool = False
    """Compare settings over seeds: mean, standard deviation, and difference of runs with the same seed."""

    html: Path | None = None
    """File for a page with the table and the curves of the runs."""

    json: bool = False
    """Print one JSON object on stdout."""

    def execute(self) -> int:
        """Run ``hotset runs``."""
        # The page is written whatever else is printed.
        runs = best_first(read_runs(self.folder))
        if self.html is not None:
            with whole_file(self.html, overwrite=True, option="--html") as file:
                file.write(page_of_runs(runs).encode())
            say(f"wrote {self.html}")
        if self.compare:
            compared = compare_settings(runs)
            if self.json:
                print_json({"settings": [asdict(each) for each in compared]})
            else:
                _show_settings(compared)
        elif self.json:
            # Only settings that differ between runs are told: all others are the same in each.
            names = differing_settings(runs)
            found = [
                {
                    "run": each.name,
                    "differs": {name: each.settings.get(name) for name in names},
                    "summary": each.summary,
                    "fault": each.fault,
                }
                for each in runs
            ]
            print_json({"runs": found})
        else:
            show_run_list(runs, stdout_console())
        return 0


@dataclass(frozen=True, slots=True)
class ComparedSettings:
    """Runs that differ in their seed alone, next to those of the best mean AUC."""

    settings: dict[str, object]
    """What differs from the runs of other settings."""
    seeds: list[int]
    mean_auc: float
    deviation_auc: float | None
    """Standard deviation over seeds; None of one seed."""
    mean_log_loss: float
    mean_samples_per_second: float
    difference_auc: float | None
    """Mean difference from the best settings, of runs with the same seed; None without such pairs."""
    deviation_difference: float | None
    num_pairs: int


def compare_settings(runs: Sequence[Run]) -> list[ComparedSettings]:
    """Return the settings of finished runs, the best mean AUC first.

    Raises:
        HotsetError: no run has an AUC.
    """
    scored = [run for run in runs if isinstance((run.summary or {}).get("auc"), float)]
    if not scored:
        raise HotsetError("no run has an AUC", hint="finish runs on shards with an evaluation part")
    names = [name for name in differing_settings(scored) if name != "seed"]
    groups: dict[str, list[Run]] = {}
    for run in scored:
        groups.setdefault(repr([run.settings.get(name) for name in names]), []).append(run)
    best, *others = sorted(groups.values(), key=lambda group: -_mean(group, "auc"))
    return [_compared(group, best, names) for group in (best, *others)]


def _compared(group: Sequence[Run], best: Sequence[Run], names: Sequence[str]) -> ComparedSettings:
    by_seed, of_best = _auc_by_seed(group), _auc_by_seed(best)
    pairs = [by_seed[seed] - of_best[seed] for seed in by_seed if seed in of_best]
    return ComparedSettings(
        settings={name: group[0].settings.get(name) for name in names},
        seeds=sorted(by_seed),
        mean_auc=_mean(group, "auc"),
        deviation_auc=_deviation([_figure(run, "auc") for run in group]),
        mean_log_loss=_mean(group, "log_loss"),
        mean_samples_per_second=_mean(group, "samples_per_second"),
        difference_auc=statistics.fmean(pairs) if pairs and group is not best else None,
        deviation_difference=_deviation(pairs) if group is not best else None,
        num_pairs=len(pairs),
    )


def _auc_by_seed(group: Sequence[Run]) -> Mapping[int, float]:
    """Return the AUC of each seed; of several runs with one seed their mean."""
    found: dict[int, list[float]] = {}
    for run in group:
        found.setdefault(int(run.settings.get("seed", 0)), []).append(_figure(run, "auc"))
    return {seed: statistics.fmean(values) for seed, values in found.items()}


def _mean(group: Sequence[Run], name: str) -> float:
    return statistics.fmean(_figure(run, name) for run in group)


def _figure(run: Run, name: str) -> float:
    return float((run.summary or {}).get(name) or 0.0)


def _deviation(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _show_settings(compared: Sequence[ComparedSettings]) -> None:
    """Print a line for each group of runs, with what differs in it."""
    titles = ("settings", "seeds", "AUC", "log loss", "samples/s", "difference, same seed")
    table = plain_table("", titles, texts=("settings",))
    for each in compared:
        shown = ", ".join(f"{name} {value}" for name, value in each.settings.items() if value is not None)
        difference = "best" if each is compared[0] else "no pair"
        if each.difference_auc is not None:
            difference = f"{each.difference_auc:+.4f}{_plus_minus(each.deviation_difference)}"
        auc = f"{each.mean_auc:.4f}{_plus_minus(each.deviation_auc)}"
        speed = f"{each.mean_samples_per_second:,.0f}"
        table.add_row(
            escape(shown) or "all", str(len(each.seeds)), auc, f"{each.mean_log_loss:.4f}", speed, difference
        )
    print_table(stdout_console(), table)


def _plus_minus(deviation: float | None) -> str:
    return f" ± {deviation:.4f}" if deviation is not None else ""


COMMANDS: dict[str, type[Command]] = {"runs": RunsCommand}
