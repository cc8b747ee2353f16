"""The report's advice in sentences computed from the statistics, and commands to paste.

The commands are the one that wrote a folder, and those that write it with other settings.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

from ...pipeline.errors import GIB, KIB, MIB, format_byte_size, parse_byte_size
from ...pipeline.schema.schema import FeatureSettings
from ...pipeline.schema.schema_file import is_fingerprint
from ...pipeline.stages.split import AUTO_PERCENT, MOST_AUTO_BYTES
from ...pipeline.statistics.coverage import CHOSEN, DISTINCT, FAE, POOLED
from ...pipeline.statistics.folder import Row
from ...stats.curves import first_to_reach, gain_of, share_at
from ...stats.replication import Network
from ..options import list_options, typed, values_of
from ..recipes import DEFAULT_SCHEMA, recipe_for

_LEAST_PEEL_GAIN = 0.01
"""Share of all samples that peeling must make fully hot in addition to be mentioned."""
_FEW_REFETCHED = 0.1
"""Policies are compared at the first size at which look-ahead refetches a smaller share than this."""

_FEW_SAVED = 0.01
"""Share of the exchange from which on a split pays."""


def percent(share: float | None, decimals: int = 1) -> str:
    """Return 0.614 as ``61.4%``, and nothing for None."""
    return "" if share is None else f"{100 * share:.{decimals}f}%"


def rounded(number: float) -> str:
    """Return a positive number with two significant digits: 2282565 as ``2.3 M``."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        # 999,500 is "1.0 M", not "1000 k": so the limit is where two digits round up to the unit.
        if number >= 0.995 * unit:
            digits = float(f"{number / unit:.2g}")
            return f"{digits:.{1 if digits < 10 else 0}f}{name}"
    return f"{float(f'{number:.2g}'):g}"


def order_of(statistics: dict[str, Any], order: str | None = None) -> list[Row]:
    """Return the rows of ``hot_samples`` of one order, by default the folder's."""
    rows = statistics["hot_samples"]
    wanted = rows[0]["order"] if order is None else order
    return [row for row in rows if row["order"] == wanted]


def label_rate(log: dict[str, Any]) -> float | None:
    """Return the click rate of training samples; None where unknown."""
    rows = [row for row in log["labels"] if row["kind"] != "evaluation" and row["num_clicks"] is not None]
    num_samples = sum(row["num_samples"] for row in rows)
    return sum(row["num_clicks"] or 0 for row in rows) / num_samples if num_samples else None


def recommended_rows(statistics: dict[str, Any]) -> Row:
    """Return the row of ``budgets`` or ``hot_samples`` to train with: the plan's, or what auto would take."""
    chosen = chosen_budget(statistics)
    first, *others = order_of(statistics)
    curve = [first, *(row for row in others if row["bytes"] <= MOST_AUTO_BYTES)]
    enough = next((row for row in curve if row["hot_lookup_share"] >= AUTO_PERCENT / 100), curve[-1])
    is_enough = chosen["hot_lookup_share"] >= min(AUTO_PERCENT / 100, enough["hot_lookup_share"])
    return chosen if is_enough else enough


def chosen_budget(statistics: dict[str, Any]) -> Row:
    """Return the row of ``budgets`` that the plan was written with."""
    row: Row = next(row for row in statistics["budgets"] if row["is_chosen"])
    return row


def recommendation(statistics: dict[str, Any], hot: Row) -> list[str]:
    """Return how to train, and what moves then.

    Args:
        statistics: every series.
        hot: the recommended row of ``budgets`` or ``hot_samples``.
    """
    num_hot, num_rows = hot["num_hot_rows"], statistics["num_rows"]
    if num_hot >= num_rows:
        every = format_byte_size(order_of(statistics)[-1]["bytes"])
        return [f"Train with all-fast: all {num_rows:,} rows fit in {every}, so no row moves."]
    size = format_byte_size(parse_byte_size(size_option(hot["bytes"])))
    found = [
        f"Train with lookahead and {size} of hot rows: {percent(num_hot / num_rows)} of the rows serve "
        f"{percent(hot['hot_lookup_share'])} of the lookups. The weights are those of a run with every row "
        "in fast memory."
    ]
    moved = {
        row["placement"]: row["bytes_to_fast_per_sample"] + row["bytes_to_slow_per_sample"]
        for row in statistics["default_runs"]["placements"]
    }
    if "lookahead" in moved and "hybrid" in moved:
        found.append(
            f"With the plan's {format_byte_size(chosen_budget(statistics)['bytes'])} it moves "
            f"{moved['lookahead']:,.0f} bytes per sample; hybrid, which keeps every row in host memory, "
            f"moves {moved['hybrid']:,.0f}."
        )
    return found


def budget_sentences(statistics: dict[str, Any]) -> list[str]:
    """Return how many samples are fully hot under the plan, with more memory, and with peeled rows."""
    curve = order_of(statistics)
    sizes = [row["bytes"] for row in curve]
    samples = [row["hot_sample_share"] for row in curve]
    chosen = chosen_budget(statistics)
    plan = (
        f"The plan's {format_byte_size(chosen['bytes'])} makes {percent(chosen['hot_sample_share'])} of the "
        "samples fully hot"
    )
    if chosen["bytes"] >= sizes[-1]:
        return [f"{plan}: every row fits, so no rows are transferred."]
    gain = gain_of(sizes, samples, max(chosen["bytes"], sizes[0]), MIB)
    points = f"{100 * gain:.2g}"
    unit = "percentage point" if points == "1" else "percentage points"
    sentences = [f"{plan}; one more MiB would add {points} {unit}."]
    half = first_to_reach(sizes, samples, 0.5)
    if half is not None and half < sizes[-1]:
        sentences.append(f"{format_byte_size(half)} makes at least half of the samples fully hot.")
    share = peel_share(statistics)
    if share is not None:
        sentences.append(
            f"With rows ranked by peeling (hotset preprocess --rank-by peel), the plan would make "
            f"{percent(share)} of the samples fully hot."
        )
    return sentences


def peel_share(statistics: dict[str, Any]) -> float | None:
    """Return fully hot samples with peeled rows; None unless clearly more."""
    chosen = chosen_budget(statistics)
    peeled = order_of(statistics, "peel")
    if not peeled or peeled[0] == statistics["hot_samples"][0] or chosen["bytes"] >= peeled[-1]["bytes"]:
        return None
    sizes = [row["bytes"] for row in peeled]
    shares = [row["hot_sample_share"] for row in peeled]
    share = share_at(sizes, shares, chosen["bytes"])
    return None if share < chosen["hot_sample_share"] + _LEAST_PEEL_GAIN else share


TYPICAL_DEVICE = "a typical GPU (not this machine)"
"""The device of predictions without measured speeds."""


def placement_sentence(advice: dict[str, Any], where: str = "below", device: str = TYPICAL_DEVICE) -> str:
    """Return where to keep rows on ``device``, by step times predicted from speeds shown ``where``."""
    enough = advice["enough"]
    size = format_byte_size(enough["fast_bytes"])
    speed = rounded(advice["workload"]["batch_size"] / enough["step_seconds"])
    if enough["placement"] == "all-fast":
        return (
            f"Everything fits in {size} of fast memory, so no other placement than all-fast is needed. "
            f"Predicted on {device} with the speeds {where}: about {speed} samples per second."
        )
    # How far the best placement is from having all rows in fast memory.
    share = percent(advice["compute_seconds"] / enough["step_seconds"], 0)
    # Beyond the largest size nothing was predicted, unless every row fits there.
    largest = advice["options"][-1]
    has_all = any(one["placement"] == "all-fast" for one in largest["placements"])
    is_known = has_all or enough["fast_bytes"] < largest["fast_bytes"]
    return (
        f"On {device} with the speeds {where}, {enough['placement']} with {size} of fast memory in total is "
        f"predicted to train about {speed} samples per second: {share} of the speed with every row in fast "
        f"memory. {'More memory gains less than 1%' if is_known else 'No larger size was compared'}."
    )


def splits_sentence(row: dict[str, Any], network: Network) -> str:
    """Return whether it pays to replicate rows on so many devices.

    Args:
        row: one of what `replication_of` returns.
        network: the speeds that it was given.
    """
    if row["devices"] == 1:
        return "A single device exchanges nothing: replicated rows bring nothing."
    splits = {each["split"]: each for each in row["splits"]}
    chosen, fae = splits[CHOSEN], splits[FAE]
    distinct, pooled = splits[DISTINCT]["step_seconds"], splits[POOLED]["step_seconds"]
    saved = 1 - chosen["step_seconds"] / distinct if distinct else 0.0
    where = f"On {row['devices']} devices"
    what = "bytes that leave a device" if not network.exchange_seconds else "time of the exchange"
    if saved < _FEW_SAVED:
        said = (
            f"{where} the split does not pay: it saves {percent(saved)} of the {what} where all rows are "
            "sharded and each distinct one is sent once."
        )
    else:
        said = f"{where} the chosen split saves {percent(saved)} of the {what}."
    if pooled < chosen["step_seconds"]:
        less = percent(1 - pooled / chosen["step_seconds"])
        said += f" Pooled tables, all sharded, take {less} less: they send one vector for each list."
    # What FAE's rule buys with its bytes are steps without an all-to-all.
    steps = fae["hot_only_share"] - chosen["hot_only_share"]
    longer = fae["step_seconds"] - chosen["step_seconds"]
    if steps > 0 and longer > 0:
        limit = network.exchange_seconds + longer / steps
        said += (
            f" FAE's rule makes {percent(fae['hot_only_share'], 0)} of the steps hot-only. That pays if the "
            f"all-to-alls of a step take more than {1e6 * limit:,.0f} µs apart from their bytes, at "
            f"{network.all_to_all_bytes_per_second / 1e9:.3g} GB/s."
        )
    return said


def policy_sentences(found: dict[str, Any]) -> list[str]:
    """Return how far the policies are apart."""
    curve = found["curve"]
    shares = {(row["policy"], row["num_slots"]): row["refetched_share"] for row in curve}
    sizes = sorted({row["num_slots"] for row in curve})
    if not sizes:
        return []
    # The smallest caches load too much again to distinguish policies, and the largest load nothing again.
    size = next((size for size in sizes[1:] if shares["lookahead", size] < _FEW_REFETCHED), sizes[-1])
    others = {policy: shares[policy, size] for policy in ("dataset", "static", "lfu", "lru")}
    best = min(others, key=lambda policy: others[policy])
    num_bytes = next(row["bytes"] for row in curve if row["num_slots"] == size)
    and_lru = "" if best == "lru" else f", and lru {percent(others['lru'])}"
    return [
        # The comparison that matters: knowing the order of batches against the best guess without it.
        f"A cache of {format_byte_size(num_bytes)} loads {percent(shares['lookahead', size])} of the rows "
        f"that a batch needs again if it knows the batch order (lookahead). Without it the best policy "
        f"({best}) loads {percent(others[best])} again{and_lru}."
    ]


def drift_sentences(drift: dict[str, Any]) -> list[str]:
    """Return how fast hot rows age, and lookups without a row."""
    by_age = drift["by_age"]
    sentences = []
    # With two parts there is no trend to speak of.
    if len(by_age) > 2:
        first = by_age[1]["hot_lookup_share"]
        last = by_age[-1]["hot_lookup_share"]
        sentences.append(
            f"Hot rows chosen on one part of the log serve {percent(first)} of the lookups in the next part "
            f"and {percent(last)} of the lookups {by_age[-1]['age']} parts later: "
            f"{_aging_verdict(100 * (first - last))}."
        )
    # Out-of-vocabulary lookups of later parts say whether the vocabulary ages, too.
    evaluation = [part for part in drift["parts"] if not part["is_training"]]
    if evaluation:
        share = max(part["no_id_share"] for part in evaluation)
        sentences.append(
            f"{percent(share)} of the lookups in the evaluation part fall on out-of-vocabulary rows."
        )
    return sentences


def _aging_verdict(lost_points: float) -> str:
    """Return what to do about hot rows that serve less later."""
    if lost_points < 0.5:
        return "they hardly age"
    return "choose them again now and then" if lost_points < 3 else "choose them again often"


_SCHEMA_FILE = "SCHEMA.toml"
_AFTER_INGEST = ("count", "rank", "encode", "split", "pack")


def size_option(num_bytes: int, most: int | None = None) -> str:
    """Return the shortest size that is not below, as options take it: 2965821 as ``"2.83MiB"``.

    Args:
        num_bytes: the least size.
        most: the largest; by default one percent more.
    """
    most = num_bytes + num_bytes // 100 if most is None else most
    # More digits than these are no easier to read than bytes.
    texts = (
        f"{math.ceil(num_bytes / unit * 10**digits) / 10**digits:.{digits}f}{name}"
        for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
        for digits in range(7 if num_bytes >= unit else 0)
    )
    fitting = (text for text in texts if num_bytes <= parse_byte_size(text) <= most)
    return min(fitting, key=len, default=f"{num_bytes}")


def preprocess_command(provenance: dict[str, Any], folder: Path) -> str:
    """Return the command that writes ``folder`` again, run where its logs are.

    Args:
        provenance: see `pipeline.statistics.folder.provenance`.
        folder: the folder, as ``--out`` names it.
    """
    schema = provenance["schema"]
    options = (
        [] if schema == DEFAULT_SCHEMA else ["--schema", _SCHEMA_FILE if is_fingerprint(schema) else schema]
    )
    # The settings of ids that were adopted are those of a folder that is not known here.
    stages = ("ingest", *_AFTER_INGEST) if not provenance["is_adopted"] else ("ingest",)
    for stage in stages:
        options += stage_options(provenance, stage)
    if provenance["is_adopted"]:
        options += ["--like", "MODEL_DIR"]
    logs = [log["name"] for log in provenance["logs"]]
    return _line("preprocess", *logs, *options, "--out", str(folder))


def stage_options(provenance: dict[str, Any], stage: str, **other: str | None) -> list[str]:
    """Return the options by which a stage differs from its schema's defaults.

    Args:
        provenance: see `pipeline.statistics.folder.provenance`.
        stage: finished or not.
        other: settings to give instead, as the command line takes them; None leaves an option out.
    """
    default = getattr(recipe_for(provenance["schema"]), stage)
    found = provenance["settings"].get(stage, {})
    words: list[str] = []
    for option in list_options(type(default), values_of(default)):
        name, usual = option.field, option.default
        value = found.get(name)
        if isinstance(usual, FeatureSettings) and value is not None:
            value = FeatureSettings(value)
        # Where FAE's released code draws with replacement, --mode sets the order of rows, too.
        is_set_by_mode = name == "rank_by" and found.get("with_replacement")
        # The caller's values replace settings, or remove them.
        if name in other:
            given = other[name]
            words += [] if given is None else [option.name, given]
        # Settings that equal the defaults of the schema are left out, so that the command stays readable.
        elif name == "schema" or name not in found or value == usual or is_set_by_mode:
            continue
        elif option.takes_value:
            words += [option.name, size_option(value, value) if name.endswith("_bytes") else typed(value)]
        else:
            words.append(option.name)
    return words


def rebuild_commands(
    provenance: dict[str, Any], folder: Path, *, first: str = "split", **other: str | None
) -> list[str]:
    """Return the commands that run stages from ``first`` on."""
    lines = []
    for stage in _AFTER_INGEST[_AFTER_INGEST.index(first) :]:
        options = stage_options(provenance, stage, **other)
        redo = ["--redo"] if stage == first else []
        lines.append(_line(stage, str(folder), *options, *redo))
    return lines


def _line(command: str, *words: str) -> str:
    return shlex.join(["hotset", command, *words])
