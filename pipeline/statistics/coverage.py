"""Coverage of a folder's tables, and what is hot under each budget.

Computes curves of each table's counts, the budgets to show, the tables that take the plan's fast memory, and
the distinct rows of a batch, predicted from counts and measured in the log.

The hot lookups and samples under each budget are computed for the order of the folder's ids and for others:
by frequency, by peeling and by FAE's sample. Another order needs no new encoding, only the level of every row
(the first budget that makes it hot). Peeling holds the log's cold lookups in memory, so for a long log, or
without the files it reads, it is left out and the report says so.

Replicated rows for training on several devices are compared with other ways to place rows: `hotset advise
--engine torchrec` prints what `replication_of` finds, from the uses of rows that
`train.torchrec.sharding.count_uses` counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.curves import AccessRates, EpochUses, coverage_points, mean_unique_rows, top_shares
from ...stats.ranking import levels_by_count
from ...stats.replication import (
    Network,
    RowUses,
    TableSize,
    Traffic,
    choose_prefixes,
    pooled_traffic,
    traffic_of,
)
from ...stats.row_bytes import row_bytes
from ..errors import GIB, MIB, ConfigError
from ..folders.disk import is_discarded
from ..folders.manifest import FileEntry, Manifest
from ..folders.totals import (
    PlanSettings,
    PlanTotals,
    SamplesTotals,
    ShardSettings,
    ShardsTotals,
    VocabularyTotals,
    by_feature,
    for_features,
)
from ..formats.arrow_files import fixed_lists, read_batch
from ..runtime.tasks import Resources, run_tasks, silent
from ..schema.schema import FeatureSettings
from ..stages.orders import peel_order
from ..stages.rank import PEEL_FLOOR, RankConfig, counted_samples, rank_tables
from ..stages.row_order import Levels, hot_curves, levels_of_tables
from .folder import Inspected, Row, share_of
from .traffic import draw_part, largest_key

POINTS_PER_DECADE = 6
SMALLEST_BUDGET = 1 << 14


def coverage(inspected: Inspected) -> list[Row]:
    """Return table, num_rows and lookup_share of each table's top rows."""
    found: list[Row] = []
    for table, count in zip(inspected.tables, inspected.counts, strict=True):
        # Sorting millions of counts is what takes time here, and by frequency they fall already.
        falling = count if bool((count[1:] <= count[:-1]).all()) else np.sort(count)[::-1]
        points = coverage_points(falling.shape[0], POINTS_PER_DECADE)
        shares = top_shares(falling, points)
        found += [
            {"table": table.name, "num_rows": rows, "lookup_share": share}
            for rows, share in zip(points, shares, strict=True)
        ]
    return found


def budgets_up_to(num_bytes: int) -> list[int]:
    """Return half powers of two from 16 KiB up to ``num_bytes``."""
    sizes = {num_bytes}
    size = float(SMALLEST_BUDGET)
    while size < num_bytes:
        sizes.add(round(size))
        size *= 2**0.5
    return sorted(sizes)


def hot_tables(inspected: Inspected) -> list[Row]:
    """Return what each table takes of fast memory, and what it gives.

    Returns:
        ``table``, num_rows, num_hot_rows, hot_bytes, hot_bytes_share (of the bytes of all hot rows),
        lookup_share (of the lookups of all tables), hot_lookup_share (of the table's own), cold_lookup_share
        (of the cold lookups of all tables), and oov_share and evaluation_oov_share (of the lookups of either
        part, None of none). Shares are in [0, 1]. Lookups are those of the training part, of the model's
        where ids were adopted.
    """
    plan = PlanTotals.of(inspected.plan)
    num_hot = [table.num_hot for table in plan.tables]
    hot_bytes = [hot * width for hot, width in zip(num_hot, plan.bytes_of_rows, strict=True)]
    lookups = [int(count.sum()) for count in inspected.counts]
    # Hot rows are the first ids of a table.
    hot_lookups = [int(count[:hot].sum()) for count, hot in zip(inspected.counts, num_hot, strict=True)]
    # Lookups that the plan leaves cold, over all tables: what more memory would be for.
    num_cold = sum(lookups) - sum(hot_lookups)
    num_evaluation = inspected.samples.num_samples - inspected.num_train
    return [
        {
            "table": table.name,
            "num_rows": table.num_rows,
            "num_hot_rows": num_hot[number],
            "hot_bytes": hot_bytes[number],
            "hot_bytes_share": share_of(hot_bytes[number], sum(hot_bytes)),
            "lookup_share": share_of(lookups[number], sum(lookups)),
            "hot_lookup_share": share_of(hot_lookups[number], lookups[number]),
            "cold_lookup_share": share_of(lookups[number] - hot_lookups[number], num_cold),
            "oov_share": share_of(table.oov_train, _num_lookups(table.lookups_train, inspected.num_train)),
            "evaluation_oov_share": share_of(
                table.oov_evaluation, _num_lookups(table.lookups_evaluation, num_evaluation)
            ),
        }
        for number, table in enumerate(SamplesTotals.of(inspected.samples).tables)
    ]


def _num_lookups(recorded: int | None, num_samples: int) -> int:
    """Return a table's lookups; only those of lists are recorded."""
    return num_samples if recorded is None else recorded


FAE_SHARE = 0.05
"""Share of the log that FAE counts."""
_SEED = 0
"""Seed of that sample, and of the order of rows with equal counts."""
MAX_PEELED_SAMPLES = 5_000_000
"""Peeling takes about 1.5 s CPU and 250 MB for a million samples of Criteo's."""


def _sampled_levels(inspected: Inspected, budgets: Sequence[int]) -> Levels:
    """Return levels by the counts of a sample, as FAE's code does."""
    counts_R = np.zeros(sum(table.num_rows for table in inspected.tables), np.int32)
    # Only training samples are drawn from, as FAE does.
    largest = largest_key(FAE_SHARE)
    tasks = ((inspected.samples, *part, _SEED, largest) for part in inspected.train_parts())
    for _, rows, _ in run_tasks(draw_part, tasks, workers=inspected.resources.workers):
        np.add.at(counts_R, rows, 1)
    return _levels(inspected, counts_R, budgets)


def _levels(inspected: Inspected, counts_R: NDArray[np.int32], budgets: Sequence[int]) -> Levels:
    first_row_T = np.cumsum([0, *(table.num_rows for table in inspected.tables)], dtype=np.int64)
    widths = np.array(PlanTotals.of(inspected.plan).bytes_of_rows, np.int64)
    levels_R = levels_by_count(counts_R, first_row_T, widths, np.array(budgets, np.int64), _SEED)
    return np.split(levels_R, first_row_T[1:-1])


def _peeled_levels(inspected: Inspected, budgets: Sequence[int]) -> Levels | str:
    """Return levels by peeling, or why there are none."""
    folder = inspected.folder
    num_train = inspected.num_train
    # Where peeling is impossible, the report gives the reason instead of the curve.
    if num_train > MAX_PEELED_SAMPLES:
        return f"the log has {num_train:,} training samples, peeling is shown up to {MAX_PEELED_SAMPLES:,}"
    if not num_train:
        return "no sample of the log trains"
    if is_discarded(folder / "columns"):
        return "the columns were discarded"
    columns = Manifest.read(folder / "columns")
    counts = Manifest.read_sealed(folder / "counts")
    if counts is None:
        return "there are no counts"
    row_bytes = PlanTotals.of(inspected.plan).bytes_of_rows
    resources = inspected.resources
    try:
        config = inspected.vocabulary.read_config(RankConfig)
        names = [table.name for table in inspected.tables]
        # Peeling weighs samples against bytes, so it has to know the widths where they differ.
        if len(set(row_bytes)) > 1:
            config = replace(config, peel_row_bytes=FeatureSettings(zip(names, row_bytes, strict=True)))
        # Peeling starts from the order by frequency, as in the stage; the counts are all it needs.
        tables = rank_tables(config, counts, replace(resources, progress=silent))
        new_place_of, _ = peel_order(
            tables, row_bytes, PEEL_FLOOR, columns, counted_samples(counts), resources
        )
    except ConfigError as error:  # too little memory
        return str(error)
    # Peeling gives the position of each row; the level is the first budget that the bytes up to it fit.
    places = [np.empty(table.num_rows, np.int64) for table in tables]
    for table, place in zip(tables, places, strict=True):
        table.write_places(place)
    new_places: list[NDArray[np.int32]] = [new_place_of[place] for place in places]
    width_of_place = np.zeros(new_place_of.shape[0], np.int64)
    for moved, width in zip(new_places, row_bytes, strict=True):
        width_of_place[moved] = width
    level_of_place = np.searchsorted(np.array(budgets, np.int64), np.cumsum(width_of_place)).astype(np.uint8)
    return [level_of_place[moved] for moved in new_places]


BUDGETS = tuple(int(size) for size in (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB))


def budgets(inspected: Inspected) -> list[Row]:
    """Per budget: bytes, num_hot_rows, hot_lookup_share, hot_sample_share, is_chosen (by the plan)."""
    chosen = PlanSettings.of(inspected.plan).hot_bytes
    sizes = sorted({*BUDGETS, chosen})
    num_hot = _num_hot(inspected, sizes)
    (rows,) = _hot_by_budget(inspected, sizes, [levels_of_tables(num_hot, inspected.tables)])
    if not inspected.num_train:  # adopted ids: what the model's own log looked up
        for row, hot in zip(rows, num_hot, strict=True):
            served = sum(int(count[:n].sum()) for count, n in zip(inspected.counts, hot, strict=True))
            row["hot_lookup_share"] = served / max(1, inspected.num_lookups)
    return [row | {"is_chosen": row["bytes"] == chosen} for row in rows]


def _num_hot(inspected: Inspected, sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return (num_budgets, num_tables) hot rows in the order of ids."""
    found = [inspected.hot_order.num_hot(size)[0] for size in sizes]
    return np.array(found, np.int64).reshape(len(sizes), len(inspected.tables))


def _hot_by_budget(inspected: Inspected, sizes: Sequence[int], orders: Sequence[Levels]) -> list[list[Row]]:
    """Count what is hot under rising budgets, for each order.

    Returns:
        For each order a row per budget: bytes, num_hot_rows, hot_lookup_share and hot_sample_share, of
        the training part.
    """
    # One pass over samples/ serves all orders.
    num_train = inspected.num_train
    curves = hot_curves(inspected.samples, [*orders], len(sizes), num_train, inspected.resources)
    return [
        [
            {
                "bytes": size,
                "num_hot_rows": num_rows,
                "hot_lookup_share": int(lookups) / max(1, curve.num_lookups),
                "hot_sample_share": int(samples) / max(1, num_train),
            }
            for size, num_rows, lookups, samples in zip(
                sizes, _rows_by_level(levels, len(sizes)), curve.lookups, curve.samples, strict=True
            )
        ]
        for levels, curve in zip(orders, curves, strict=True)
    ]


def hot_samples(inspected: Inspected) -> list[Row]:
    """Per order and budget: order, bytes, num_hot_rows, hot_lookup_share and hot_sample_share.

    The first order is that of the folder's ids; the others are ``frequency``, ``peel`` where it can be had
    (``left_out`` says why not), and ``fae``, which counts 5 % of the training samples.
    """
    own = VocabularyTotals.of(inspected.vocabulary).rank_by
    widths = PlanTotals.of(inspected.plan).bytes_of_rows
    sizes = budgets_up_to(sum(t.num_rows * width for t, width in zip(inspected.tables, widths, strict=True)))
    orders: dict[str, Levels] = {own: levels_of_tables(_num_hot(inspected, sizes), inspected.tables)}
    # The order by frequency for comparison, or peeling where the folder's own order is by frequency.
    if own != "frequency":
        # The kernel counts in 32 bits; beyond that rows tie, which only the very first could.
        counts = [np.minimum(count, 2**31 - 1).astype(np.int32) for count in inspected.counts]
        orders["frequency"] = _levels(inspected, np.concatenate(counts), sizes)
    else:
        peeled = _peeled_levels(inspected, sizes)
        if isinstance(peeled, str):
            inspected.left_out.append(f"the curve of peeled rows: {peeled}")
        else:
            orders["peel"] = peeled
    # FAE's order is drawn again, unless the ids already follow such an order.
    if own != "sampled":
        orders["fae"] = _sampled_levels(inspected, sizes)
    rows_of_orders = _hot_by_budget(inspected, sizes, [*orders.values()])
    return [
        {"order": order, **row} for order, rows in zip(orders, rows_of_orders, strict=True) for row in rows
    ]


def _rows_by_level(levels: Levels, num_budgets: int) -> list[int]:
    """Hot rows under each budget."""
    # A row is hot from its level on, so rows of each level are added up.
    found = sum(
        (np.bincount(level, minlength=num_budgets + 1) for level in levels),
        np.zeros(num_budgets + 1, np.int64),
    )
    return [int(rows) for rows in np.cumsum(found)[:num_budgets]]


def count_hot_samples(
    samples: Manifest, num_hot: NDArray[np.int64], num_train: int, resources: Resources
) -> NDArray[np.int64]:
    """Return (num_budgets,) training samples that only look up hot rows."""
    levels = levels_of_tables(num_hot, SamplesTotals.of(samples).tables)
    (curve,) = hot_curves(samples, [levels], num_hot.shape[0], num_train, resources)
    return curve.samples


_MAX_FILES = 16


BATCH_SIZES = tuple(1 << power for power in range(6, 17))


def unique_rows(inspected: Inspected, batch_sizes: Sequence[int] = BATCH_SIZES) -> list[Row]:
    """Return expected and measured distinct rows per batch, by batch size.

    Measured over consecutive training samples in log order, in at most 16 files spread over the log; a size
    that no file holds is left out.

    Returns:
        ``batch_size``, ``expected``, ``measured``, ``num_lookups`` of each.
    """
    if not inspected.num_train:
        inspected.left_out.append("distinct rows per batch: the log has no training samples")
        return []
    # Lists and shared tables are left out: the prediction knows tables with one lookup per sample only.
    lists = ", ".join(feature.name for feature in by_feature(t for t in inspected.tables if t.is_multi_hot))
    if lists:
        inspected.left_out.append(f"distinct rows per batch of list-valued features: {lists}")
    tables = zip(inspected.tables, inspected.counts, strict=True)
    counts = [count for table, count in tables if not table.is_multi_hot]
    if not counts:
        return []
    # Columns of the ids whose feature shares no table.
    is_shared = for_features(inspected.tables, [table.is_multi_hot for table in inspected.tables])
    own = [
        not shared
        for shared, feature in zip(is_shared, by_feature(inspected.tables), strict=True)
        if not feature.is_multi_hot
    ]
    rates = AccessRates.of_counts(counts, inspected.num_train)
    bases = np.cumsum([0, *(count.shape[0] for count in counts)])[:-1]
    parts = [(entry, num_own) for _, entry, num_own in inspected.train_parts()]
    # Spread over the log instead of the first files: what is looked up changes from day to day.
    chosen = parts[:: -(-len(parts) // _MAX_FILES)]
    found: list[Row] = []
    for size in batch_sizes:
        measured = [
            _measure(inspected.samples, *part, bases, np.array(own, np.bool_), size) for part in chosen
        ]
        of_files = [one for one in measured if one is not None]
        if of_files:
            expected = EpochUses.of_rates(rates, inspected.num_train, size).rows_per_batch
            mean = float(np.mean(of_files))
            lookups = size * len(counts)
            found.append({"batch_size": size, "expected": expected, "measured": mean, "num_lookups": lookups})
    return found


def _measure(
    samples: Manifest,
    entry: FileEntry,
    num_samples: int,
    bases: NDArray[np.int64],
    own: NDArray[np.bool_],
    batch_size: int,
) -> float | None:
    if num_samples < batch_size:
        return None
    ids = fixed_lists(read_batch(samples, entry).column("ids"), own.shape[0], np.int32)[:num_samples]
    ids = ids if own.all() else ids[:, own]
    return mean_unique_rows((ids + bases).ravel(), batch_size * bases.shape[0])


def table_sizes(shards: Manifest, optimizer: str) -> list[TableSize]:
    """Return the sizes of the tables, with rows that have the state of ``optimizer``."""
    totals = ShardsTotals.of(shards)
    return [
        TableSize(table.num_rows, dim, row_bytes(dim, optimizer), max(1, len(table.features)))
        for table, dim in zip(totals.tables, totals.embedding_dims, strict=True)
    ]


CHOSEN, DISTINCT, POOLED, FAE = "chosen split", "all sharded, distinct", "all sharded", "FAE: all hot rows"


def replication_of(
    shards: Manifest,
    of_devices: Sequence[RowUses],
    *,
    device_bytes: int | None = None,
    network: Network | None = None,
) -> list[dict[str, Any]]:
    """Compare ways to place the rows of shards on several devices.

    Args:
        shards: of the training.
        of_devices: uses of rows by each number of devices.
        device_bytes: memory of each device for rows with their state; None: no limit.
        network: speeds between devices; None compares bytes.

    Returns:
        For each number of devices ``devices``, ``batch_size``, ``num_batches`` that were counted,
        ``excess`` (the choice may be this share above the optimum), and ``splits``: name, num_replicated of
        each table, replicated_rows, and a `stats.replication.Traffic` as plain data with the bytes that
        leave a device, ``crossing_bytes``, on average over all steps.
    """
    network = network or Network()
    totals = ShardsTotals.of(shards)
    tables = table_sizes(shards, totals.embedding_optimizer)
    hot = [table.num_hot for table in totals.tables]
    found = []
    for uses in of_devices:
        num_ranks = uses.num_ranks
        limit = None if device_bytes is None else room_for_replicas(tables, num_ranks, device_bytes)
        choice = choose_prefixes(uses, tables, network, limit)
        nothing = [0] * len(tables)
        splits = [
            _split(
                CHOSEN,
                choice.num_replicated,
                traffic_of(uses, tables, choice.num_replicated, network),
                num_ranks,
            ),
            _split(DISTINCT, nothing, traffic_of(uses, tables, nothing, network), num_ranks),
            _split(POOLED, nothing, pooled_traffic(uses, tables, network), num_ranks),
            _split(FAE, hot, traffic_of(uses, tables, hot, network), num_ranks),
        ]
        found.append(
            {
                "devices": num_ranks,
                "batch_size": ShardSettings.of(shards).batch_size,
                "num_batches": uses.num_steps,
                "excess": choice.step_seconds / choice.bound_seconds - 1 if choice.bound_seconds else 0.0,
                "splits": splits,
            }
        )
    return found


def room_for_replicas(tables: Sequence[TableSize], num_ranks: int, device_bytes: int) -> int:
    """Return the bytes of a device that replicated rows may take.

    What divided rows leave of it; half of it where divided rows do not fit and are cached.
    """
    every = sum(table.row_bytes * table.num_rows for table in tables)
    if every > device_bytes * num_ranks or num_ranks == 1:
        return device_bytes // 2
    # A row that is replicated takes the place of a part of itself.
    return min(every, (device_bytes * num_ranks - every) // (num_ranks - 1))


def _split(name: str, num_replicated: Sequence[int], traffic: Traffic, num_ranks: int) -> dict[str, Any]:
    crossing = traffic.mean.crossing(num_ranks)
    return {
        "split": name,
        "num_replicated": list(num_replicated),
        "replicated_rows": sum(num_replicated),
        **asdict(traffic),
        "crossing_bytes": crossing.handed if num_ranks > 1 else 0.0,
    }
