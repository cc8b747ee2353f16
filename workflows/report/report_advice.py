"""The advice at the top of the report: sentences computed from the statistics, and commands that follow."""

from __future__ import annotations

import shlex
from pathlib import Path

from ...pipeline.statistics.frequencies import Statistics
from ...stats.curves import where_doubling_stops_paying
from ...train.advice import PlacementAdvice
from .report_commands import rebuild_commands, size_option
from .report_page import Advice
from .report_sentences import (
    LEAST_GAIN,
    budget_sentences,
    drift_sentences,
    order_of,
    peel_share,
    placement_sentence,
    policy_sentences,
)

_NEARLY_EQUAL = 1.1
"""Ratio of two budgets up to which another one is not worth a command."""


def advise_reader(folder: Path, statistics: Statistics, advice: PlacementAdvice | None) -> list[Advice]:
    """Return what to do, most important first.

    Args:
        folder: as commands name it.
        statistics: every series.
        advice: result of `advise`; None where no model fits the log.
    """
    # In the order in which a reader decides: how much memory, for which placement, under which policy.
    found = [
        Advice("Memory", budget_sentences(statistics), _budget_commands(folder, statistics)),
        Advice(
            "Placement",
            [] if advice is None else [placement_sentence(advice)],
            [] if advice is None else _training_commands(folder, statistics, advice),
        ),
        Advice("Policy", policy_sentences(statistics["miss_ratios"])),
        Advice("Age", drift_sentences(statistics["drift"])),
    ]
    return [one for one in found if one.sentences]


def _can_rebuild(statistics: Statistics) -> bool:
    # `pack` reads columns/, whose labels are a part of the statistics unless it was discarded.
    return bool(statistics["log"]["labels"])


def _budget_commands(folder: Path, statistics: Statistics) -> list[str]:
    """Return how to get the budget from which more stops paying, and peeled rows where they are better."""
    if not _can_rebuild(statistics) or statistics["mode"] != "budget":
        # Commands are offered only where this folder can be rebuilt by them.
        return []
    provenance = statistics["provenance"]
    curve = order_of(statistics)
    sizes = [row["bytes"] for row in curve]
    # Three budgets: what the plan has, from where more stops paying, and the largest that was simulated.
    chosen = next(row["bytes"] for row in statistics["budgets"] if row["is_chosen"])
    stop = where_doubling_stops_paying(sizes, [row["hot_sample_share"] for row in curve], LEAST_GAIN)
    wanted = sizes[-1] if stop is None else stop
    lines = []
    # A budget that is nearly the wanted one is left as it is.
    if chosen < sizes[-1] and not wanted / _NEARLY_EQUAL <= chosen <= wanted * _NEARLY_EQUAL:
        size = size_option(wanted)
        lines += [f"# Hot rows of {size}", *rebuild_commands(provenance, folder, hot_bytes=size)]
    # With several row widths peeling needs the bytes of each, which `preprocess` finds.
    if peel_share(statistics) is not None and not provenance["settings"]["split"]["feature_dims"]:
        lines += [
            "# Or rows ranked by peeling" if lines else "# Rows ranked by peeling",
            *rebuild_commands(provenance, folder, first="rank", rank_by="peel"),
        ]
    return lines


def _training_commands(folder: Path, statistics: Statistics, advice: PlacementAdvice) -> list[str]:
    """Return how to train with the placement and the memory that are enough."""
    enough = advice["enough"]
    option = next(option for option in advice["options"] if option["fast_bytes"] == enough["fast_bytes"])
    best = option["placements"][0]
    train = ["hotset", "train", str(folder), "--placement", best["placement"]]
    # Hot rows and staging are given in full, so that the run is the one that was predicted.
    lines = []
    if best["placement"] in ("lookahead", "cache", "fae"):
        if not _can_rebuild(statistics) or statistics["mode"] != "budget":
            return []
        hot_bytes = size_option(best["memory"]["hot"])
        lines = rebuild_commands(statistics["provenance"], folder, hot_bytes=hot_bytes)
        if best["memory"]["staging"]:
            train += ["--staging-bytes", size_option(best["memory"]["staging"])]
        if best["prefetch"] is not None:
            train += ["--prefetch", str(best["prefetch"])]
    return [*lines, shlex.join([*train, "--out", "RUN"])]
