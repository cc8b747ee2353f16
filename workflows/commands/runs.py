"""``hotset runs``: list runs, or compare their settings over seeds.

Prints a table, or writes a page with the curves. Runs are read as plain records, and nothing in a folder is
trusted.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import xxhash
from rich.console import Console

from ...pipeline.errors import HotsetError, format_byte_size
from ...pipeline.folders.whole_file import whole_file
from ...train.run_config import read_object
from ..command_list import JsonCommand
from ..console import TextTable, print_json, print_line, print_table, say, stdout_console
from ..options import Arg

_CONFIG, _SUMMARY, _METRICS = "config.json", "summary.json", "metrics.jsonl"
_MOST_DEPTH = 4
"""Folders below the one that is named are searched so deep."""
_NOT_SETTINGS = frozenset({"tables", "threads", "dense_model", "embedding_dim", "num_dense"})
"""Keys of a config that say what the shards and the machine are like."""
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


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings that differ between readable runs, by name."""
    found = [run.settings for run in runs if run.fault is None]
    names = sorted({name for settings in found for name in settings})
    return [name for name in names if len({json.dumps(settings.get(name)) for settings in found}) > 1]


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
    settings = {key: value for key, value in config.items() if key not in _NOT_SETTINGS}
    return Run(name, dict(_flat(settings)), summary, curves)


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of nested records by their own names, as options are called."""
    for name, value in values.items():
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


_FIGURES = ("run", "AUC", "log loss", "samples/s", "moved")
_MOST_SHOWN = 12
"""Settings that differ, at most: more of them say that the runs are of different experiments."""
_FINGERPRINT = re.compile("[0-9a-f]{32}")
_SHOWN_DIGITS = 8
_WIDTH, _HEIGHT, _MARGIN = 480, 220, 48
_SHOWN_WIDTH = 640
"""Pixels of a chart where there is room; it shrinks on narrow screens."""
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888")
"""Okabe and Ito's palette, with gray for black, which a dark page would hide."""
_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;padding:0 1em;max-width:75em}
.wide{overflow-x:auto}
table{border-spacing:0}
td,th{padding:.2em .7em;text-align:left;vertical-align:top;white-space:nowrap}
td.text{white-space:normal;min-width:16em;overflow-wrap:anywhere}
svg{max-width:100%;height:auto;display:block}
text{fill:currentColor;font-size:11px}
"""


def show_run_list(runs: Sequence[Run], console: Console) -> None:
    """Print runs, the best AUC first, then of each the settings that not all have alike."""
    names = differing_settings(runs)
    print_table(console, TextTable(_FIGURES, [[run.name, *_figures(run)] for run in best_first(runs)]))
    for run in best_first(runs):
        if text := _differences(run, names):
            print_line(console, f"{run.name}: {text}")


def best_first(runs: Sequence[Run]) -> list[Run]:
    """Return the runs by falling AUC; those without one are last."""
    return sorted(runs, key=lambda run: -(_number(run, "auc") or 0.0))


def page_of_runs(runs: Sequence[Run]) -> str:
    """Return a page of HTML with the table and the curves of runs; it needs nothing else."""
    names = differing_settings(runs)
    ordered = best_first(runs)
    titles = ("", "run", "AUC", "log loss", "samples/s", "bytes moved", "what differs", "made by")
    rows = ["".join(f"<th>{title}</th>" for title in titles)]
    for number, run in enumerate(ordered):
        # The color of a row is that of its curves below.
        cells = [f'<td style="background:{_COLORS[number % len(_COLORS)]}">&nbsp;</td>']
        cells += [f"<td>{html.escape(cell)}</td>" for cell in (run.name, *_figures(run))]
        texts = (_differences(run, names), _provenance(run))
        cells += [f'<td class="text">{html.escape(text)}</td>' for text in texts]
        rows.append("".join(cells))
    # A chart for each series that any of the runs has.
    series = {
        "validation": "AUC of the validation part by step",
        "evaluation": "AUC of the test part by step",
        "loss": "Training loss by step, nats per sample",
    }
    charts = [
        f"<h2>{title}</h2>{_chart({run.name: run.curves.get(name, []) for run in ordered})}"
        for name, title in series.items()
        if any(run.curves.get(name) for run in ordered)
    ]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>hotset runs</title><style>{_STYLE}</style></head><body><h1>Runs</h1>"
        f'<div class="wide"><table>{"".join(f"<tr>{row}</tr>" for row in rows)}</table></div>'
        f"{''.join(charts)}</body></html>\n"
    )


def _figures(run: Run) -> list[str]:
    if run.summary is None:
        return ["damaged" if run.fault else "unfinished", "", "", ""]
    auc, log_loss, speed = (_number(run, name) for name in ("auc", "log_loss", "samples_per_second"))
    moved = [_number(run, name) for name in ("bytes_to_fast", "bytes_to_slow")]
    # Ranks count what they move each for itself, and the first one writes the summary.
    whose = " (rank 0)" if run.summary.get("exchange") else ""
    return [
        "-" if auc is None else f"{auc:.4f}",
        "-" if log_loss is None else f"{log_loss:.4f}",
        "-" if speed is None else f"{speed:,.0f}",
        "-" if None in moved else format_byte_size(int(sum(each or 0 for each in moved))) + whose,
    ]


def _number(run: Run, name: str) -> float | None:
    value: Any = (run.summary or {}).get(name)
    return float(value) if type(value) in (int, float) else None


def _differences(run: Run, names: Sequence[str]) -> str:
    if run.fault:
        return run.fault
    shown = [f"{name} {_short(run.settings[name])}" for name in names if run.settings.get(name) is not None]
    more = len(shown) - _MOST_SHOWN
    return ", ".join(shown[:_MOST_SHOWN]) + (f", and {more} more" if more > 0 else "")


def _short(value: Any) -> str:
    """Return a setting in a word, with fingerprints and schema texts abbreviated."""
    text = str(value)
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


def _chart(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Draw the curves of runs over the same axes as SVG, in the colors of the table."""
    # All curves share their axes; a constant one must not divide by zero.
    points = [point for curve in curves.values() for point in curve]
    last = max(max(step for step, _ in points), 1)
    low, high = min(value for _, value in points), max(value for _, value in points)
    span = (high - low) or 1.0

    def place(step: int, value: float) -> str:
        x = _MARGIN + step / last * (_WIDTH - 2 * _MARGIN)
        y = _HEIGHT - _MARGIN - (value - low) / span * (_HEIGHT - 2 * _MARGIN)
        return f"{x:.1f},{y:.1f}"

    # Placements have equal curves, so each is drawn wider than those above it: all are visible.
    lines = []
    for number, (name, curve) in enumerate(curves.items()):
        color = _COLORS[number % len(_COLORS)]
        width = 1.5 + 1.5 * min(len(curves) - 1 - number, len(_COLORS))
        title = f"<title>{html.escape(name)}</title>"
        if len(curve) > 1:
            path = " ".join(place(*point) for point in curve)
            shape = f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}">'
            lines.append(f"{shape}{title}</polyline>")
        # A curve of one point has no line, so the point itself is drawn.
        for point in curve[:1] if len(curve) == 1 else []:
            x, y = place(*point).split(",")
            lines.append(f'<circle cx="{x}" cy="{y}" r="{2 + width / 2}" fill="{color}">{title}</circle>')
    bottom, right = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    axes = (
        f'<path d="M{_MARGIN},{_MARGIN}V{bottom}H{right}" fill="none" stroke="#888"/>'
        f'<text x="{_MARGIN - 6}" y="{bottom}" text-anchor="end">{low:.4g}</text>'
        f'<text x="{_MARGIN - 6}" y="{_MARGIN + 4}" text-anchor="end">{high:.4g}</text>'
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end">step {last:,}</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_SHOWN_WIDTH}">{axes}{"".join(lines)}</svg>'


@dataclass(frozen=True, kw_only=True)
class RunsCommand(JsonCommand):
    """List runs, best AUC first, and what differs."""

    folder: Annotated[Path, Arg("FOLDER", is_positional=True)]
    """Folder with runs that `train --out` created, each in a separate folder."""

    compare: bool = False
    """Compare settings over seeds: mean, standard deviation, and difference of runs with the same seed."""

    html: Path | None = None
    """File for a page with the table and the curves of the runs."""

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
                print_json({"settings": compared})
            else:
                _show_settings(compared)
        elif self.json:
            # Show only settings that differ between runs.
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


def compare_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the runs that differ in their seed alone, the best mean AUC first.

    Each has the settings in which it differs from others; means and standard deviations over its seeds, None
    of one seed; and the mean difference from the best settings in AUC, of runs with the same seed, None
    without such pairs.

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


def _compared(group: Sequence[Run], best: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    by_seed, of_best = _auc_by_seed(group), _auc_by_seed(best)
    pairs = [by_seed[seed] - of_best[seed] for seed in by_seed if seed in of_best]
    return {
        "settings": {name: group[0].settings.get(name) for name in names},
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


def _show_settings(compared: Sequence[Mapping[str, Any]]) -> None:
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
    print_table(stdout_console(), TextTable(titles, rows))


def _plus_minus(deviation: float | None) -> str:
    return f" ± {deviation:.4f}" if deviation is not None else ""
