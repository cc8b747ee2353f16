"""The report's plain words: what the figures say to do, each sentence computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...pipeline.sizes import MIB, format_byte_size
from ...stats.analysis.findings import (
    first_to_reach,
    gain_of_doubling,
    gain_of_one_more,
    share_at,
    where_doubling_stops_paying,
)

LEAST_GAIN = 0.05
"""Fully hot samples that a doubling must bring to be worth it, as a share of all."""


def percent(share: float | None, decimals: int = 1) -> str:
    """0.614 -> ``61.4 %``; nothing for None."""
    return "" if share is None else f"{100 * share:.{decimals}f} %"


def order_of(statistics: Mapping[str, Any], order: str | None = None) -> list[dict[str, Any]]:
    """The rows of the hot_samples series of one order; by default the folder's own."""
    rows: list[dict[str, Any]] = statistics["hot_samples"]
    wanted = rows[0]["order"] if order is None else order
    return [row for row in rows if row["order"] == wanted]


def advice_paragraphs(
    statistics: Mapping[str, Any], advice: Mapping[str, Any] | None
) -> list[tuple[str, str]]:
    """What to do, most important first: what it is about, and the sentences."""
    paragraphs = {
        "Memory": budget_sentences(statistics),
        "Placement": [] if advice is None else [placement_sentence(advice)],
        "Policy": policy_sentences(statistics["miss_ratios"]),
        "Age": drift_sentences(statistics["drift"]),
    }
    return [(about, " ".join(sentences)) for about, sentences in paragraphs.items() if sentences]


def budget_sentences(statistics: Mapping[str, Any]) -> list[str]:
    """What memory for hot rows buys."""
    curve = order_of(statistics)
    sizes = [row["bytes"] for row in curve]
    lookups, samples = ([row[key] for row in curve] for key in ("hot_lookup_share", "hot_sample_share"))
    every, rows = format_byte_size(sizes[-1]), statistics["num_rows"]
    found = []
    enough = first_to_reach(sizes, lookups, 0.9)
    if enough is not None:
        hot = curve[sizes.index(enough)]["num_hot_rows"]
        found.append(
            f"{format_byte_size(enough)} of fast memory hold the {hot:,} rows ({percent(hot / max(1, rows))} "
            f"of {rows:,}, which take {every}) that serve 90 % of the look-ups."
        )
    half = first_to_reach(sizes, samples, 0.5)
    if half is not None and half < sizes[-1]:
        found.append(f"{format_byte_size(half)} make half of the samples fully hot.")
    chosen = next(row for row in statistics["budgets"] if row["is_chosen"])
    gain = gain_of_one_more(sizes, samples, max(chosen["bytes"], sizes[0]), MIB)
    said = (
        f"The plan's {format_byte_size(chosen['bytes'])} make {percent(chosen['hot_sample_share'])} fully hot"
    )
    if chosen["bytes"] >= sizes[-1]:
        found.append(f"{said}: every row fits, so nothing has to be moved.")
    else:
        found.append(f"{said}; one more MiB would add {100 * gain:.2g} points.")
    found.append(_stop(sizes, samples))
    return found + _peel(statistics, chosen)


def _peel(statistics: Mapping[str, Any], chosen: Mapping[str, Any]) -> list[str]:
    """What another order would make of the plan's budget."""
    peeled = order_of(statistics, "peel")
    if not peeled or peeled[0] == statistics["hot_samples"][0] or chosen["bytes"] >= peeled[-1]["bytes"]:
        return []
    sizes, shares = ([row[key] for row in peeled] for key in ("bytes", "hot_sample_share"))
    share = share_at(sizes, shares, chosen["bytes"])
    if share < chosen["hot_sample_share"] + 0.01:
        return []
    return [f"Ranked by peeling (preprocess --rank-by peel) the plan would make {percent(share)} fully hot."]


def _stop(sizes: Sequence[int], samples: Sequence[float]) -> str:
    stop = where_doubling_stops_paying(sizes, samples, LEAST_GAIN)
    every = format_byte_size(sizes[-1])
    if stop is None:
        return f"Doubling the memory pays until all rows fit, at {every}."
    points = 100 * gain_of_doubling(sizes, samples, stop)
    return (
        f"More memory stops paying at {format_byte_size(stop)}: twice that makes only {points:.1f} points "
        "more "
        f"of the samples fully hot. After that only room for all rows, {every}, makes a difference."
    )


def placement_sentence(advice: Mapping[str, Any]) -> str:
    """Where to keep rows, from predicted step times."""
    enough = advice["enough"]
    batch = advice["workload"]["batch_size"]
    return (
        f"Predicted for a GPU with the speeds below: {enough['placement']} with "
        f"{format_byte_size(enough['fast_bytes'])} in all trains {batch / enough['step_seconds']:,.0f} "
        "samples a second, "
        f"{percent(advice['compute_seconds'] / enough['step_seconds'], 0)} of the speed with every row at "
        "hand; "
        "more memory gains under 1 %."
    )


def policy_sentences(found: Mapping[str, Any]) -> list[str]:
    """How far the policies are apart where it matters: where look-ahead still fetches something."""
    curve = found["curve"]
    shares = {(row["policy"], row["num_slots"]): row["refetched_share"] for row in curve}
    sizes = sorted({row["num_slots"] for row in curve})
    if not sizes:
        return []
    size = next((size for size in sizes[1:] if shares["lookahead", size] < 0.1), sizes[-1])
    others = {policy: shares[policy, size] for policy in ("dataset", "static", "lfu", "lru")}
    best = min(others, key=lambda policy: others[policy])
    num_bytes = next(row["bytes"] for row in curve if row["num_slots"] == size)
    return [
        f"With {format_byte_size(num_bytes)} of slots and nothing pinned, look-ahead fetches "
        f"{percent(shares['lookahead', size])} of a batch's rows again, the best policy that does not know "
        "the "
        f"order ({best}) {percent(others[best])}, lru {percent(others['lru'])}."
    ]


def drift_sentences(drift: Mapping[str, Any]) -> list[str]:
    """How fast hot sets age."""
    by_age, found = drift["by_age"], []
    if len(by_age) > 2:
        key = "hot_lookup_share"
        first, last = by_age[1], by_age[-1]
        fall = 100 * (first[key] - last[key])
        verdict = (
            "they hardly age"
            if fall < 0.5
            else "choose them again now and then"
            if fall < 3
            else "choose them often"
        )
        found.append(
            f"Hot rows chosen on one part of the log serve {percent(first[key])} of the next part's "
            "look-ups and "
            f"{percent(last[key])} of those {last['age']} parts later: {verdict}."
        )
    evaluation = [part for part in drift["parts"] if not part["is_training"]]
    if evaluation:
        share = max(part["no_id_share"] for part in evaluation)
        found.append(f"{percent(share)} of the look-ups of the evaluation part have no id of their own.")
    return found
