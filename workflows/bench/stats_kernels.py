"""Kernels of statistics next to plain Python and NumPy, and the hot samples of each order of rows.

Policies serve batch after batch from a cache that starts empty. The references of `lru` and `lookahead` keep
dictionaries and heaps; those of `lfu` and `dataset` examine every slot for each batch, as FreqCache's code
does (there with torch on a GPU). Ties are broken as in the kernels, and both load as many rows.
``--orders`` ranks a log in each order instead and counts its fully hot samples by budget. ``--scores``
compares scores of random samples with weights and groups with those of scikit-learn and Polars.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import GIB, MIB, ConfigError, MissingExtraError
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.totals import SamplesTotals, VocabularyTotals
from ...pipeline.preprocess import preprocess, remove_from
from ...pipeline.runtime.tasks import Resources
from ...pipeline.stages.orders import calibrate
from ...pipeline.stages.row_order import HotOrder, hot_curves, levels_of_tables
from ...stats.batch_rows import find_distinct
from ...stats.counting import add_counts, take_valid
from ...stats.id_tables import new_table, shift_of
from ...stats.kernel import read_only
from ...stats.lookahead.planner import StagingPlanner, cache_planner, lookahead_planner
from ...stats.lookahead.step_plans import RowStream, next_uses
from ...stats.ranking.row_bytes import row_bytes
from ...train.metrics import CLICKS
from ...train.scoring.sample_scores import SampleScores
from ..drawn_shards import zipf_ids
from ..recipes import criteo_kaggle
from .harness import (
    Facts,
    clock,
    new_log,
    new_parser,
    run_script,
    scratch_folder,
    seconds_since,
    take_turns,
    tell,
)

Batches = Sequence[NDArray[np.int64]]
BUDGETS = tuple(int(size) for size in (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB))
PUBLISHED = {4_000_000: 0.51, 20_000_000: 0.65, 140_000_000: 0.76}
"""Fully hot samples by bytes of hot rows at dim 16: FAE on Criteo Kaggle, read off PVLDB 15(1), figure 5."""
ORDERS = ("frequency", "peel", "fae-paper", "fae-code")
_DIM = 16
_SKEW = 0.9
"""Exponent of Zipf's law that lookups follow."""
_BATCH_LOOKUPS = 4096
"""Lookups per batch, about as many as 2,000 samples have of cold rows."""
_PREFETCH = 2
_PLAIN_BATCHES = 60
"""Batches that the reference implementations process; speeds are per lookup, so a part will do."""
_SMALL_ROWS, _SHARE_MISSING = 5000, 0.4
"""Categories of the column whose table fits in a cache, and share of its values that are missing."""

PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("--lookups", type=int, default=4_000_000, help="lookups of the log of the kernels")
PARSER.add_argument("--slots", type=int, default=500_000, help="slots of the caches, 1/20 of the rows")
PARSER.add_argument("--rounds", type=int, default=3, help="rounds in which each runs once")
PARSER.add_argument("--orders", action="store_true", help="count hot samples by order instead")
PARSER.add_argument("--scores", type=int, default=0, help="compare scores of this many random cases instead")
PARSER.add_argument("--data", type=Path, help="raw Criteo log for --orders; 2 M samples are generated")
PARSER.add_argument("--samples", type=int, default=2_000_000, help="samples generated for --orders")


def measure(options: argparse.Namespace) -> Facts:
    """Measure the kernels, or the orders."""
    if options.scores:
        return compare_scores(options.scores)
    if options.orders:
        with scratch_folder(options) as folder:
            return compare_orders(options, folder)
    if options.slots < _BATCH_LOOKUPS:
        raise ConfigError(f"slots must be {_BATCH_LOOKUPS} or more")
    rng = np.random.default_rng(0)
    num_rows = 20 * options.slots
    lookups = zipf_ids(rng.random(options.lookups), num_rows, _SKEW).astype(np.int64)
    comparisons = [*_policies(lookups, num_rows, options.slots), *_counting(lookups, rng)]
    for one in comparisons:  # compiles
        one.kernel()
    seconds = take_turns({one.name: one.seconds for one in comparisons}, options.rounds)
    return {"kernels": {one.name: one.describe(seconds[one.name]) for one in comparisons}}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A kernel and the reference implementation that it is compared with."""

    name: str
    about: str
    """Description of the reference."""
    kernel: Callable[[], object]
    num_lookups: int
    """Lookups that ``kernel`` processes."""
    reference: Callable[[], object]
    num_reference_lookups: int

    def seconds(self) -> list[float]:
        """Return the CPU seconds of the kernel and of the reference."""
        # Both take one turn together, so that a slow moment hits both.
        found = []
        for job in (self.kernel, self.reference):
            begin = clock()
            job()
            found.append(seconds_since(begin)[1])
        return found

    def describe(self, rounds: Sequence[Sequence[float]]) -> Facts:
        """Return speeds by the least seconds of all rounds, since other work can only add time."""
        kernel, reference = (min(seconds) for seconds in zip(*rounds, strict=True))
        speed, plain = self.num_lookups / kernel, self.num_reference_lookups / reference
        return {
            "lookups_per_second": speed,
            "plain_lookups_per_second": plain,
            "ratio": speed / plain,
            "plain": self.about,
        }


def _policies(lookups: NDArray[np.int64], num_rows: int, num_slots: int) -> list[Comparison]:
    """Return every policy with its reference."""
    # Policies see each row of a batch once, with the number of its lookups.
    batches, positions = zip(
        *map(find_distinct, np.split(lookups, range(_BATCH_LOOKUPS, lookups.size, _BATCH_LOOKUPS))),
        strict=True,
    )
    head = batches[:_PLAIN_BATCHES]
    stream = RowStream.of(batches, [np.bincount(each) for each in positions])

    def plan(name: str, of: RowStream, prefetch: int) -> int:
        # Planning is timed with all that a run needs: a new planner, and for look-ahead the next uses.
        planner = _planner(name, num_rows, num_slots, prefetch)
        if name == "lookahead":
            of = replace(of, next_uses=next_uses(of.offsets, of.rows, num_rows))
        misses = sum(int(plans.num_misses.sum()) for plans in planner.plan(of))
        planner.end_epoch()
        return misses

    comparisons = []
    for name, (about, reference) in REFERENCE_POLICIES.items():
        plain = partial(reference, head, num_slots, num_rows)
        fetched, wanted = plan(name, RowStream.of(head), 0), plain()
        assert fetched == wanted, f"{name} fetches {fetched} rows, its reference {wanted}"
        num_plain = min(len(head) * _BATCH_LOOKUPS, lookups.size)
        kernel = partial(plan, name, stream, _PREFETCH)
        comparisons.append(Comparison(name, about, kernel, lookups.size, plain, num_plain))
    return comparisons


def _planner(name: str, num_rows: int, num_slots: int, prefetch: int) -> StagingPlanner:
    if name == "lookahead":
        return lookahead_planner(num_rows, num_slots, prefetch=prefetch)
    # All but LRU fill their free slots with the most frequent rows after the first batch.
    ranks = np.arange(num_rows)
    warm = {"warmup_ratio": 0.0 if name == "lru" else 1.0, "warm_rows": ranks}
    options: dict[str, Any] = {"prefetch": prefetch, "rank_of_row": ranks} | warm
    return cache_planner(name, num_rows, num_slots, **options)  # type: ignore[arg-type]


def _counting(lookups: NDArray[np.int64], rng: np.random.Generator) -> list[Comparison]:
    """Return exact counting in hash tables; the reference sorts with vector instructions.

    A log in which few rows are looked up twice, whose table is far larger than any cache, suits it. Of a
    column that lacks values it is given those that are there, which counting finds itself.
    """
    # Knuth's multiplier spreads the numbers over 32 bits, as raw categories are.
    categories = (lookups * 2654435761 % 2**32).astype(np.uint32)
    small = (lookups % _SMALL_ROWS * 2654435761 % 2**32).astype(np.uint32)
    is_there = rng.random(lookups.size) >= _SHARE_MISSING
    no_nulls = np.zeros(0, np.uint8)
    cases: dict[str, tuple[NDArray[Any], NDArray[np.uint8], NDArray[Any]]] = {
        "counting": (categories, no_nulls, categories),
        "counting, 64 bits": (categories.astype(np.uint64), no_nulls, categories.astype(np.uint64)),
        "counting, small table": (small, np.packbits(is_there, bitorder="little"), small[is_there]),
    }
    found = []
    for name, (values, is_valid, present) in cases.items():
        kernel = partial(_count, read_only(values), read_only(is_valid), int(np.unique(present).size))
        sort = partial(np.unique, present, return_counts=True)
        found.append(Comparison(name, "NumPy, unique", kernel, values.size, sort, values.size))
    return found


def _count(categories: NDArray[Any], is_valid: NDArray[np.uint8], num_used: int) -> None:
    if is_valid.size:
        taken = np.empty_like(categories)
        categories = read_only(taken[: take_valid(categories, is_valid, taken)])
    table = new_table(num_used, is_short=categories.dtype == np.uint32)
    counted, found = add_counts(categories, 0, table, shift_of(table), 0, num_used + 1)
    assert counted == categories.size and found == num_used, "a count needs more than 32 bits"


def reference_lru(batches: Batches, num_slots: int, num_rows: int) -> int:
    """Evict the least recently used row."""
    held: OrderedDict[int, None] = OrderedDict()
    num_fetches = 0
    for batch in batches:
        rows = batch.tolist()
        missing = [row for row in rows if row not in held]
        # Used rows move to the end, so the front is the row used longest ago.
        for row in rows:
            held[row] = None
            held.move_to_end(row)
        while len(held) > num_slots:
            held.popitem(last=False)
        num_fetches += len(missing)
    return num_fetches


def reference_lookahead(batches: Batches, num_slots: int, num_rows: int) -> int:
    """Evict the row whose next use is farthest away (Belady)."""
    # Next uses, found from the end of the log backwards.
    never = len(batches)
    next_step = dict[int, int]()
    next_uses: list[list[int]] = []
    for step in range(len(batches) - 1, -1, -1):
        rows = batches[step].tolist()
        next_uses.append([next_step.get(row, never) for row in rows])
        next_step.update(dict.fromkeys(rows, step))
    next_uses.reverse()

    # The heap keeps stale entries; one is valid if it holds the row's current next use.
    held: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    num_fetches = 0
    for batch, uses in zip(batches, next_uses, strict=True):
        rows = batch.tolist()
        missing = [row for row in rows if row not in held]
        used = set(rows)
        # An entry of a row of this batch is dropped here, and a new one with its next use is added below.
        while len(held) + len(missing) > num_slots:
            use, row = heapq.heappop(heap)
            if held.get(row) == -use and row not in used:
                del held[row]
        for row, use in zip(rows, uses, strict=True):
            held[row] = use
            heapq.heappush(heap, (-use, row))
        num_fetches += len(missing)
    return num_fetches


def reference_lfu(batches: Batches, num_slots: int, num_rows: int) -> int:
    """Evict the row with the fewest lookups since it was loaded; here each use is one lookup."""
    # Ties go by age; of the rows that fill free slots, the lowest-ranked counts as the oldest.
    sequence = -np.arange(num_slots)
    counts = np.zeros(num_slots, np.int64)
    clock = 0

    def touch(slots: NDArray[np.int64], is_new: NDArray[np.bool_]) -> None:
        nonlocal clock
        # A row that was loaded again is counted from 0, as nothing is kept of rows without a slot.
        counts[slots[is_new]] = 0
        counts[slots] += 1
        sequence[slots] = clock + np.arange(slots.size)
        clock += slots.size

    return _over_all_slots(batches, num_slots, num_rows, lambda row: (counts << 40) + sequence, touch)


def reference_dataset(batches: Batches, num_slots: int, num_rows: int) -> int:
    """Evict the row with the largest number, which is the lowest-ranked."""
    return _over_all_slots(batches, num_slots, num_rows, lambda row: -row, lambda slots, is_new: None)


def _over_all_slots(
    batches: Batches,
    num_slots: int,
    num_rows: int,
    keys: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    touch: Callable[[NDArray[np.int64], NDArray[np.bool_]], None],
) -> int:
    """Evict the rows with the least ``keys``; ``touch`` is called with every batch's slots."""
    row_of_slot = np.full(num_slots, -1, np.int64)
    slot_of_row = np.full(num_rows, -1, np.int64)
    num_fetches = 0
    for batch in batches:
        slots = slot_of_row[batch]
        is_missing = slots < 0
        missing = batch[is_missing]
        # Free slots are used first, and then those of evicted rows.
        free = np.flatnonzero(row_of_slot < 0)
        num_victims = missing.size - free.size
        if num_victims > 0:
            # Rows of this batch and free slots are no victims: they get the greatest key.
            order = keys(row_of_slot).copy()
            order[slots[~is_missing]] = np.iinfo(np.int64).max
            order[free] = np.iinfo(np.int64).max
            victims = np.argpartition(order, num_victims - 1)[:num_victims]
            slot_of_row[row_of_slot[victims]] = -1
            free = np.concatenate([free, victims])
        slot_of_row[missing] = free[: missing.size]
        row_of_slot[free[: missing.size]] = missing
        touch(slot_of_row[batch], is_missing)
        num_fetches += missing.size
        # After the first batch the free slots are filled with the highest-ranked rows: the warm-up.
        if batch is batches[0]:
            free = np.flatnonzero(row_of_slot < 0)
            warm = np.flatnonzero(slot_of_row[:num_slots] < 0)[: free.size]
            slot_of_row[warm] = free[: warm.size]
            row_of_slot[free[: warm.size]] = warm
    return num_fetches


REFERENCE_POLICIES: dict[str, tuple[str, Callable[[Batches, int, int], int]]] = {
    "lookahead": ("Python, dictionaries and a heap", reference_lookahead),
    "lru": ("Python, an ordered dictionary", reference_lru),
    "lfu": ("NumPy, every slot for each batch", reference_lfu),
    "dataset": ("NumPy, every slot for each batch", reference_dataset),
}
"""By name of the policy, what its reference implementation is, and the implementation."""


def compare_orders(options: argparse.Namespace, folder: Path) -> Facts:
    """Rank a log in each order and count the hot samples and lookups of every budget."""
    budgets = sorted({*BUDGETS, *PUBLISHED})
    log, data = options.data or new_log(folder, options.samples), folder / "data"
    shares: dict[str, list[Facts | None]] = {}
    ranking: dict[str, dict[str, float]] = {}
    for order in ORDERS:
        # The two modes of FAE differ in how they draw their sample.
        rank_by = "sampled" if order.startswith("fae") else order
        rank = replace(criteo_kaggle().rank, rank_by=rank_by, with_replacement=order == "fae-code")  # type: ignore[arg-type]
        run = partial(preprocess, [log], replace(criteo_kaggle(), rank=rank), data)
        run(until="count")
        # Twice, because the first run may compile; the second one is timed.
        for _ in range(2):
            if (data / "vocabulary").exists():
                remove_from("rank", data)
            begin = clock()
            vocabulary = run(until="rank")
            wall, cpu = seconds_since(begin)
        ranking[order] = {"wall_seconds": wall, "cpu_seconds": cpu}
        shares[order] = _shares(order, vocabulary, run(until="encode"), budgets)
    return {
        "num_train_samples": VocabularyTotals.of(vocabulary).num_train_samples,
        "row_bytes": row_bytes(_DIM, "sgd"),
        "budgets": [
            {"bytes": budget, "published": PUBLISHED.get(budget)}
            | {order: shares[order][number] for order in ORDERS}
            for number, budget in enumerate(budgets)
        ],
        "rank": ranking,
    }


def _shares(order: str, vocabulary: Manifest, samples: Manifest, budgets: list[int]) -> list[Facts | None]:
    """Return what each budget makes hot; None where the order refuses it."""
    # Every table has rows of one width, so that budgets compare.
    tables = SamplesTotals.of(samples).tables
    width = row_bytes(_DIM, "sgd")
    found: list[Facts | None] = []
    num_train = max(1, VocabularyTotals.of(vocabulary).num_train_samples)
    for budget in budgets:
        try:
            num_hot, facts = _choose(order, vocabulary, [width] * len(tables), budget)
        except ConfigError:
            found.append(None)
            continue
        # Exact: every training sample is checked against the hot rows.
        levels = levels_of_tables(np.array([num_hot]), tables)
        (curve,) = hot_curves(samples, [levels], 1, num_train, Resources())
        shares = {
            "hot_sample_share": int(curve.samples[0]) / num_train,
            "hot_lookup_share": int(curve.lookups[0]) / max(1, curve.num_lookups),
            "hot_bytes": width * sum(num_hot),
        }
        found.append(shares | facts)
    return found


_KINDS_OF_SCORES = ("continuous", "few values", "one value", "one class", "rare labels", "whole weights")
_SCORES = ("auc", "pr_auc", "log_loss", "accuracy", "calibration", "normalized_entropy")
_MOST_SAMPLES_OF_CASE = 60
_CASES_AT_A_TIME = 500


def compare_scores(num_cases: int) -> Facts:
    """Return the largest difference from scikit-learn and Polars of each score over random cases.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    if find_spec("sklearn") is None:
        raise MissingExtraError("--scores needs scikit-learn", hint="`pip install scikit-learn` installs it")
    rng = np.random.default_rng(0)
    largest: dict[str, float] = {}
    counts = dict.fromkeys(_KINDS_OF_SCORES, 0)
    num_defined: Counter[str] = Counter()
    for first in range(0, num_cases, _CASES_AT_A_TIME):
        numbers = range(first, min(first + _CASES_AT_A_TIME, num_cases))
        cases = []
        for number in numbers:
            kind = _KINDS_OF_SCORES[number % len(_KINDS_OF_SCORES)]
            counts[kind] += 1
            cases.append(_draw_case(kind, rng))
        for case, gauc in zip(cases, _gauc_by_polars(cases), strict=True):
            found = _scores_of(case)
            for name, wanted in (_scores_by_sklearn(case) | {"gauc": gauc}).items():
                own = found.get(name)
                if (own is None) != (wanted is None):
                    raise AssertionError(f"{name} is {own}, want {wanted}")
                if own is not None and wanted is not None:
                    num_defined[name] += 1
                    largest[name] = max(largest.get(name, 0.0), abs(own - wanted) / max(1.0, abs(wanted)))
        tell(f"{numbers.stop} of {num_cases} cases")
    return {
        "cases": counts,
        "cases_with_the_score": dict(num_defined),
        "largest_difference": largest,
        "against": {"scikit-learn": version("scikit-learn"), "polars": version("polars")},
    }


def _draw_case(kind: str, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Return samples with ties, weights of 0, missing labels and groups, of which some have one class."""
    size = int(rng.integers(2, _MOST_SAMPLES_OF_CASE))
    logit_N = rng.normal(-1, 2, size)
    if kind in ("few values", "one value", "whole weights"):
        logit_N = rng.integers(0, 1 if kind == "one value" else 5, size) / 2
    label_N = (rng.random(size) < (0.0 if kind == "one class" else 0.35)).astype(np.float32)
    weight_N = rng.integers(0, 4, size) if kind == "whole weights" else rng.lognormal(0, 2, size)
    weight_N = np.where(rng.random(size) < 0.1, 0, weight_N)
    label_N[rng.random(size) < (0.7 if kind == "rare labels" else 0.1)] = np.nan
    return {
        "logit": logit_N.astype(np.float32),
        "label": label_N,
        "weight": weight_N.astype(np.float32),
        "group": rng.integers(0, 2**64, 1 + size // 4, np.uint64)[rng.integers(0, 1 + size // 4, size)],
        "has_group": rng.random(size) < 0.9,
    }


def _scores_of(case: Mapping[str, NDArray[Any]]) -> dict[str, float | None]:
    """Return the scores that an evaluation gives."""
    none_N = np.zeros(case["logit"].size, np.bool_)
    counter = SampleScores(none_N.size, CLICKS, ("weight", "group"))
    counter.add(case["logit"], case["label"][:, None], none_N, none_N, case)
    return counter.quality().to_dict()


def _scores_by_sklearn(case: Mapping[str, NDArray[Any]]) -> dict[str, float | None]:
    """Return areas and log loss by scikit-learn, and plain means by NumPy; None where undefined."""
    from sklearn import config_context, metrics

    kept = ~np.isnan(case["label"]) & (case["weight"] > 0)
    label_N, logit_N = case["label"][kept], case["logit"][kept]
    weight_N = case["weight"][kept].astype(np.float64)
    found: dict[str, float | None] = dict.fromkeys(_SCORES)
    if label_N.size == 0:
        return found
    chance_N = 1 / (1 + np.exp(-logit_N.astype(np.float64)))
    rate = np.average(label_N.astype(np.float64), weights=weight_N)
    with config_context(assume_finite=True, skip_parameter_validation=True):
        loss = metrics.log_loss(label_N, chance_N, sample_weight=weight_N, labels=[0, 1])
        found["log_loss"] = float(loss)
        found["accuracy"] = float(np.average((logit_N > 0) == label_N, weights=weight_N))
        if rate > 0:
            found["pr_auc"] = float(metrics.average_precision_score(label_N, logit_N, sample_weight=weight_N))
            found["calibration"] = float(np.average(chance_N, weights=weight_N) / rate)
        if 0 < label_N.sum() < label_N.size:
            found["auc"] = float(metrics.roc_auc_score(label_N, logit_N, sample_weight=weight_N))
            entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
            found["normalized_entropy"] = float(loss / entropy)
    return found


def _gauc_by_polars(cases: Sequence[Mapping[str, NDArray[Any]]]) -> list[float | None]:
    """Return the mean AUC of the groups of each case, from pairs that a join makes."""
    import polars as pl

    samples = pl.concat(
        pl.DataFrame(
            {name: case[name] for name in ("logit", "label", "weight", "group", "has_group")}
        ).select(pl.lit(number).alias("case"), pl.all())
        for number, case in enumerate(cases)
    )
    samples = samples.filter(pl.col("label").is_not_nan(), pl.col("has_group"), pl.col("weight") > 0)
    samples = samples.with_columns(pl.col("weight").cast(pl.Float64))
    keys = ["case", "group"]
    clicks, others = (samples.filter(pl.col("label") == label) for label in (1, 0))
    above = pl.col("logit") > pl.col("logit_right")
    tied = pl.col("logit") == pl.col("logit_right")
    product = pl.col("weight") * pl.col("weight_right")
    won = (product * (above + 0.5 * tied)).sum() / product.sum()
    areas = clicks.join(others, on=keys).group_by(keys).agg(won.alias("auc"))
    weights = samples.group_by(keys).agg(pl.col("weight").sum())
    mean = (pl.col("auc") * pl.col("weight")).sum() / pl.col("weight").sum()
    found = areas.join(weights, on=keys).group_by("case").agg(mean.alias("gauc"))
    by_case = dict(found.select("case", "gauc").iter_rows())
    return [by_case.get(number) for number in range(len(cases))]


def _choose(order: str, vocabulary: Manifest, widths: list[int], budget: int) -> tuple[list[int], Facts]:
    """Return the hot rows of each table under a budget (bytes), and facts of FAE's estimate."""
    if not order.startswith("fae"):
        return HotOrder(vocabulary, widths).num_hot(budget)[0], {}
    num_hot, found = calibrate(order, vocabulary, widths, budget)
    if found.threshold is None:
        return num_hot, {}
    kept = ("estimated_bytes", "is_covered", "num_covered_tables", "num_large_tables")
    return num_hot, {key: getattr(found, key) for key in kept}


if __name__ == "__main__":
    sys.exit(run_script(PARSER, measure))
