"""``hotset runs``: list runs, or compare their settings over seeds.

Prints a table, or writes a page with the curves. Runs are read as plain records, and nothing in a folder is
trusted.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import xxhash
from rich.console import Console

from ...pipeline.errors import HotsetError, format_byte_size
from ...pipeline.folders.disk import whole_file
from ...train.config import read_object
from ..command_list import JsonCommand
from ..console import TextTable, print_json, print_line, print_table, say, stdout_console
from ..options import Arg
from .stats import check_html

_CONFIG, _SUMMARY, _METRICS = "config.json", "summary.json", "metrics.jsonl"
_MOST_DEPTH = 4
"""Folders below the one that is named are searched so deep."""
_NOT_SETTINGS = frozenset(
    {"tables", "threads", "dense_model", "embedding_dim", "num_dense", "dense_products", "log_every"}
)
"""Keys of a config that say what the shards and the machine are like, or decide nothing."""
_AS_OPTIONS = {
    "init_from": {"run": "init_from"},
    "exchange": {
        "vectors": "exchange",
        "gradients": "exchange_back",
        "dense": "exchange_dense",
        "feedback": "exchange_feedback",
    },
}
"""Nested records whose keys say nothing without the name of the record, and what they are called."""


_ONLY_OF = {
    "staging_bytes": ("lookahead", "cache"),
    "prefetch": ("lookahead", "cache"),
    "cache_policy": ("cache",),
    "cache_warmup": ("cache",),
    "cache_batches": ("cache",),
    "fae_variant": ("fae",),
}
"""Settings that other placements than these ignore."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    name: str
    """Folder of the run, relative to the searched one."""
    settings: dict[str, Any]
    """Settings by name, those of nested records too."""
    summary: dict[str, Any] | None
    """None while the run is unfinished."""
    curves: dict[str, list[tuple[int, float]]]
    """Points (step, value) of ``loss`` in nats per sample, and of the AUC of ``validation`` and
    ``evaluation``."""
    fault: str | None = None
    """Why it could not be read."""


def read_runs(folder: Path) -> list[Run]:
    """Read every run in a folder, in the order of their names.

    Raises:
        HotsetError: there is none.
    """
    paths = sorted(_run_folders(folder, _MOST_DEPTH))
    if not paths:
        raise HotsetError(f"{folder} holds no training run", hint="give the folder that runs were written to")
    return [_read_run(path, str(path.relative_to(folder)) if path != folder else path.name) for path in paths]


def groups_of(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs by test part, the best AUC first in each; those without a score are last.

    Test parts are one where they have as many samples and as many clicks: AUCs of others do not compare.
    Unfinished runs are with those of the same shards.
    """
    parts = {run.settings.get("shards"): part for run in runs if (part := _test_part(run)) is not None}
    found: dict[tuple[float, float] | None, list[Run]] = {}
    for run in sorted(runs, key=lambda run: -(_number(run, "auc") or 0.0)):
        found.setdefault(_test_part(run) or parts.get(run.settings.get("shards")), []).append(run)
    return sorted(found.values(), key=lambda group: all(_test_part(run) is None for run in group))


def _test_part(run: Run) -> tuple[float, float] | None:
    """Return the samples of a test part and the log loss of its click rate; None where there is no score."""
    if _number(run, "auc") is None:
        return None
    num_samples, loss, entropy = (
        _number(run, name) or 0.0 for name in ("num_samples", "log_loss", "normalized_entropy")
    )
    return num_samples, round(loss / entropy, 6) if entropy else 0.0


def title_of(group: Sequence[Run]) -> str:
    """Return the test part of a group in words."""
    part = next((part for run in group if (part := _test_part(run)) is not None), None)
    if part is None:
        return "Without a test score"
    return f"Test part of {part[0]:,.0f} samples, log loss {part[1]:.4f} without a model"


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings that differ between the readable runs that they apply to, the placement first."""
    found = [run for run in runs if run.fault is None]
    names = sorted(
        {name for run in found for name in run.settings}, key=lambda name: (name != "placement", name)
    )
    return [name for name in names if len({_applied(run, name) for run in found} - {""}) > 1]


def _applied(run: Run, name: str) -> str:
    """Return a setting as JSON; nothing where the placement of its run ignores it."""
    placements = _ONLY_OF.get(name)
    is_ignored = placements is not None and run.settings.get("placement") not in (None, *placements)
    return "" if is_ignored else json.dumps(run.settings.get(name))


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    # A run holds no other runs, so the search ends at its config.
    if (folder / _CONFIG).is_file():
        yield folder
        return
    if depth == 0:
        return
    try:
        # Links are not followed: they could lead round in circles.
        children = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise HotsetError(f"{folder} cannot be read: {error.strerror}") from error
    for child in children:
        yield from _run_folders(Path(child), depth - 1)


def _read_run(path: Path, name: str) -> Run:
    # A damaged run is listed with its fault, among the readable ones.
    try:
        config = read_object(path / _CONFIG)
        summary = read_object(path / _SUMMARY) if (path / _SUMMARY).is_file() else None
        curves = _curves_in(path / _METRICS) if (path / _METRICS).is_file() else {}
    except (OSError, ValueError, RecursionError, HotsetError) as error:
        return Run(name, {}, None, {}, fault=str(error))
    return Run(name, dict(_flat(config)), summary, curves)


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of nested records by their own names, as options are called."""
    for name, value in values.items():
        if name in _NOT_SETTINGS:
            continue
        if isinstance(value, dict):
            called = _AS_OPTIONS.get(name, {})
            yield from ((called.get(key, key), one) for key, one in _flat(value))
        else:
            yield name, value


def _curves_in(path: Path) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {"loss": [], "validation": [], "evaluation": []}
    # A line has a loss, or scores of one part; whatever else it holds is left out.
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        for name, points in curves.items():
            found = entry.get(name) if isinstance(entry, dict) else None
            value = found.get("auc") if isinstance(found, dict) else found
            step = entry.get("step") if isinstance(entry, dict) else None
            if type(step) is int and type(value) is float and math.isfinite(value):
                points.append((step, value))
    return curves


_CURVES = {
    "validation": "AUC of the validation part",
    "evaluation": "AUC of the test part",
    "loss": "training loss (nats per sample)",
}
"""The curves of runs, and what their charts call them."""
_FIGURES = ("run", "AUC", "log loss", "samples/s", "moved")
_MOST_SHOWN = 12
"""Settings that differ, at most: more of them say that the runs are of different experiments."""
_FINGERPRINT = re.compile("[0-9a-f]{32}")
_SHOWN_DIGITS = 8


def show_run_list(runs: Sequence[Run], console: Console) -> None:
    """Print a table for each test part, the best AUC first, with the settings that differ inside it."""
    for group in groups_of(runs):
        print_table(console, runs_table(group))
        for run in group:
            if run.fault:
                print_line(console, f"{run.name}: {run.fault}")


def runs_table(group: Sequence[Run]) -> TextTable:
    """Return the figures of runs and the settings that differ between them."""
    names = differing_settings(group)
    shown = names[:_MOST_SHOWN]
    title = title_of(group)
    if len(names) > len(shown):
        title += f" ({len(names) - len(shown)} more settings differ)"
    # Few logs have groups.
    gauc = ["GAUC"] if any(_number(run, "gauc") is not None for run in group) else []
    rows = [
        [
            run.name,
            *_figures(run),
            *(_four_digits(run, "gauc") for _ in gauc),
            *(_short(run, name) for name in shown),
        ]
        for run in group
    ]
    return TextTable((*_FIGURES, *gauc, *shown), rows, title)


def page_of_runs(runs: Sequence[Run], folder: Path) -> str:
    """Return a page of HTML with tables and curves of runs; it needs nothing else."""
    # Altair takes a second to import, which other outputs do without.
    from ..report.charts import curves_chart
    from ..report.page import Page, Section, render

    sections = []
    for number, group in enumerate(groups_of(runs)):
        table = runs_table(group)
        charts = [
            partial(curves_chart, title, curves)
            for name, title in _CURVES.items()
            for curves in [{run.name: run.curves.get(name, []) for run in group}]
            # One point is no curve, and the table has it.
            if any(len(curve) > 1 for curve in curves.values())
        ]
        makers = [[run.name, run.fault or _provenance(run)] for run in group]
        made = TextTable(("run", "made by"), [each for each in makers if each[1]], num_texts=3)
        text = "The best AUC first, with the settings that differ."
        sections.append(
            Section(f"runs-{number}", table.title, text, None, [made], [replace(table, title="")])
        )
        if charts:
            equal = "Runs with equal curves share a line."
            sections.append(Section(f"curves-{number}", "Curves", equal, charts))
    facts = [("runs", f"{len(runs):,}"), ("finished", f"{sum(run.summary is not None for run in runs):,}")]
    return render(Page(f"Training runs: {folder.resolve().name}", facts, [], [], sections))


def _figures(run: Run) -> list[str]:
    if run.summary is None:
        return ["damaged" if run.fault else "unfinished", "", "", ""]
    speed = _number(run, "samples_per_second")
    moved = [_number(run, name) for name in ("bytes_to_fast", "bytes_to_slow")]
    # Ranks count what they move each for itself, and the first one writes the summary.
    whose = " (rank 0)" if run.summary.get("exchange") else ""
    return [
        _four_digits(run, "auc"),
        _four_digits(run, "log_loss"),
        "-" if speed is None else f"{speed:,.0f}",
        "-" if None in moved else format_byte_size(int(sum(each or 0 for each in moved))) + whose,
    ]


def _four_digits(run: Run, name: str) -> str:
    value = _number(run, name)
    return "-" if value is None else f"{value:.4f}"


def _number(run: Run, name: str) -> float | None:
    value: Any = (run.summary or {}).get(name)
    return float(value) if type(value) in (int, float) else None


def _short(run: Run, name: str) -> str:
    """Return a setting in a word, fingerprints and schema texts abbreviated; a dash where none applies."""
    value = run.settings.get(name)
    text = "-" if value is None or not _applied(run, name) else str(value)
    if "\n" in text:
        return f"{xxhash.xxh3_128_hexdigest(text.encode(errors='replace'))[:_SHOWN_DIGITS]} (of a file)"
    return text[:_SHOWN_DIGITS] if _FINGERPRINT.fullmatch(text) else text


def _provenance(run: Run) -> str:
    """The command, commit and processor that made a run, as far as it says so."""
    found = (run.summary or {}).get("provenance")
    if not isinstance(found, dict):
        return ""
    machine = found.get("machine")
    cpu = machine.get("cpu") if isinstance(machine, dict) else None
    return "; ".join(str(each) for each in (found.get("command"), found.get("commit"), cpu) if each)


@dataclass(frozen=True, kw_only=True)
class RunsCommand(JsonCommand):
    """List runs, best AUC first, and what differs."""

    json_object = "the runs, or the settings of --compare,"

    folder: Annotated[Path, Arg("FOLDER", is_positional=True)]
    """Folder with runs that `train --out` created, each in a separate folder."""

    compare: bool = False
    """Compare settings over seeds: mean, standard deviation, and difference of runs with the same seed."""

    html: Path | None = None
    """File for a page with the table and the curves of the runs."""

    def execute(self) -> int:
        """Run ``hotset runs``."""
        if self.html is not None:
            check_html(self.html)
        # The page is written whatever else is printed.
        runs = read_runs(self.folder)
        groups = groups_of(runs)
        if self.html is not None:
            with whole_file(self.html, overwrite=True, option="--html") as file:
                file.write(page_of_runs(runs, self.folder).encode(errors="replace"))
            say(f"wrote {self.html}")
        if self.compare:
            # Scores of different test parts are not compared.
            scored = [group for group in groups if _scored(group)] or groups
            compared = [(title_of(group), compare_settings(group)) for group in scored]
            if self.json:
                print_json({"settings": [one for _, each in compared for one in each]})
            for title, each in compared if not self.json else ():
                _show_settings(each, title)
        elif self.json:
            # Show only settings that differ between runs of one test part.
            found = [
                {
                    "run": run.name,
                    "test_part": title_of(group),
                    "differs": {name: run.settings.get(name) for name in names if _applied(run, name)},
                    "summary": run.summary,
                    "fault": run.fault,
                }
                for group in groups
                for names in [differing_settings(group)]
                for run in group
            ]
            print_json({"runs": found})
        else:
            show_run_list(runs, stdout_console())
        return 0


def _scored(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if isinstance((run.summary or {}).get("auc"), float)]


def compare_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the runs of one test part that differ in their seed alone, the best mean AUC first.

    Each has the settings in which it differs from others; means and standard deviations over its seeds, None
    of one seed; and the mean difference from the best settings in AUC, of runs with the same seed, None
    without such pairs.

    Raises:
        HotsetError: no run has an AUC.
    """
    scored = _scored(runs)
    if not scored:
        raise HotsetError("no run has an AUC", hint="finish runs on shards with an evaluation part")
    names = [name for name in differing_settings(scored) if name != "seed"]
    groups: dict[str, list[Run]] = {}
    for run in scored:
        groups.setdefault(repr([_applied(run, name) for name in names]), []).append(run)
    best, *others = sorted(groups.values(), key=lambda group: -_mean(group, "auc"))
    return [_compared(group, best, names) for group in (best, *others)]


def _compared(group: Sequence[Run], best: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    by_seed, of_best = _auc_by_seed(group), _auc_by_seed(best)
    pairs = [by_seed[seed] - of_best[seed] for seed in by_seed if seed in of_best]
    return {
        "settings": {name: group[0].settings.get(name) for name in names if _applied(group[0], name)},
        "seeds": sorted(by_seed),
        "mean_auc": _mean(group, "auc"),
        "deviation_auc": _deviation([_number(run, "auc") or 0.0 for run in group]),
        "mean_log_loss": _mean(group, "log_loss"),
        "mean_samples_per_second": _mean(group, "samples_per_second"),
        "difference_auc": statistics.fmean(pairs) if pairs and group is not best else None,
        "deviation_difference": _deviation(pairs) if group is not best else None,
        "num_pairs": len(pairs),
    }


def _auc_by_seed(group: Sequence[Run]) -> Mapping[int, float]:
    """Return the AUC of each seed; of several runs with one seed their mean."""
    found: dict[int, list[float]] = {}
    for run in group:
        found.setdefault(int(run.settings.get("seed", 0)), []).append(_number(run, "auc") or 0.0)
    return {seed: statistics.fmean(values) for seed, values in found.items()}


def _mean(group: Sequence[Run], name: str) -> float:
    return statistics.fmean(_number(run, name) or 0.0 for run in group)


def _deviation(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _show_settings(compared: Sequence[Mapping[str, Any]], title: str) -> None:
    """Print a line for each group of runs, with what differs in it."""
    titles = ("settings", "seeds", "AUC", "log loss", "samples/s", "difference, same seed")
    rows = []
    for each in compared:
        shown = ", ".join(f"{name} {value}" for name, value in each["settings"].items() if value is not None)
        difference = "best" if each is compared[0] else "no pair"
        if each["difference_auc"] is not None:
            difference = f"{each['difference_auc']:+.4f}{_plus_minus(each['deviation_difference'])}"
        row = [
            shown or "all",
            str(len(each["seeds"])),
            f"{each['mean_auc']:.4f}{_plus_minus(each['deviation_auc'])}",
            f"{each['mean_log_loss']:.4f}",
            f"{each['mean_samples_per_second']:,.0f}",
            difference,
        ]
        rows.append(row)
    print_table(stdout_console(), TextTable(titles, rows, title))


def _plus_minus(deviation: float | None) -> str:
    return f" ± {deviation:.4f}" if deviation is not None else ""
