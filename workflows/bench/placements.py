"""Placements, windows of planning and orders of rows, by what they move or keep on the fast tier.

``epoch``: all placements with the same fast memory, by bytes of an epoch, speed and AUC of its first batches.
Bytes are those of the step plans that training makes, simulated over the whole epoch; a share of the rows is
hot, and there are as many staging slots. Belady without prefetch is the least that any placement moves.

``window``: the windowed planner against planning of whole epochs, of the same batches with the same slots.
Bytes are those of the rows loaded and written back, rows that are initialized at their first use included.
The excess is that of the window over the whole epoch.

``orders``: fully hot samples and hot lookups by budget, of a log ranked in each order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import GIB, MIB, ByteSize, ConfigError
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.totals import SamplesTotals, ShardsTotals, VocabularyTotals
from ...pipeline.preprocess import preprocess, remove_from
from ...pipeline.runtime.tasks import Resources
from ...pipeline.stages.orders import calibrate
from ...pipeline.stages.row_order import HotOrder, hot_curves, levels_of_tables
from ...stats.lookahead.planner import StagingPlanner, lookahead_planner
from ...stats.lookahead.step_plans import (
    NEVER,
    WINDOW_BYTES,
    RowStream,
    RowTraffic,
    Window,
    next_uses_backward,
)
from ...stats.row_bytes import row_bytes
from ...stats.shuffle import epoch_order
from ...train.config import PlacementName, TrainConfig
from ...train.data.batch import IdReader
from ...train.data.shards import ShardSet
from ...train.model.shapes import tables_by_dim
from ...train.placements.placements import AllFast, Hybrid, HybridDedup, build_placements
from ...train.placements.staging import Lookahead, PlanQueue, StagingPlacement
from ..recipes import criteo_kaggle
from . import harness
from .harness import Facts, Options, tell
from .training import WARM_UP_STEPS, samples_of, train_timed

_BELADY = "belady, P = 0"
_PLAIN: tuple[PlacementName, ...] = ("all-fast", "hybrid", "hybrid-dedup", "hybrid-uva", "fae")
_POLICIES: tuple[Literal["lfu", "lru", "dataset"], ...] = ("lfu", "lru", "dataset")
_BATCHES, _EVALUATED = 20, 32_768
"""Batches that are trained, and most samples evaluated for the AUC."""
_STAGING_BUDGETS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
"""Staging slots of `window`, as multiples of the hot rows."""
_CHUNK = 1024
"""Batches that are planned together where next uses are given."""
_ORDERS = ("frequency", "peel", "fae-paper", "fae-code")
_PUBLISHED = {4_000_000: 0.51, 20_000_000: 0.65, 140_000_000: 0.76}
"""Fully hot samples by bytes of hot rows at dim 16: FAE on Criteo Kaggle, read off PVLDB 15(1), figure 5."""
_HOT_BUDGETS = sorted({*(MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB), *_PUBLISHED})

PARSER = harness.new_parser(__spec__, __doc__)
PARSER.add_argument("what", nargs="?", choices=("epoch", "window", "orders"), default="epoch")
PARSER.add_argument("--samples", type=int, default=2_000_000, help="samples of the generated log")
PARSER.add_argument("--data", type=Path, help="raw Criteo log in place of a generated one")
PARSER.add_argument("--shares", type=float, nargs="+", default=[0.015], help="shares of rows that are hot")
PARSER.add_argument("--embedding-dim", type=int, default=16)
PARSER.add_argument("--batch-size", type=int, default=2048)
PARSER.add_argument("--order", choices=("grouped", "original"), default="grouped")
PARSER.add_argument("--rounds", type=int, default=3, help="rounds in which each placement trains")
PARSER.add_argument("--bytes", action="store_true", help="count bytes of epoch, and train nothing")
PARSER.add_argument("--epochs", type=int, default=2, help="of window")
PARSER.add_argument("--synthetic", action="store_true", help="plan streams that no log has, in window")


def measure(options: Options, scratch: Path) -> Facts:
    """Measure what the options select, on one log."""
    if not all(0 < share < 1 for share in options.shares):
        raise ConfigError("shares must be between 0 and 1")
    if options.what == "window" and options.synthetic:
        return _summary(dict(_synthetic_cases()))
    log = options.data or harness.new_log(scratch, options.samples)
    measures = {"epoch": _measure_epoch, "window": _measure_window, "orders": _compare_orders}
    return measures[options.what](options, log, scratch / "data")


def _packed_by_share(options: Options, log: Path, data: Path) -> Iterator[tuple[Facts, ShardSet]]:
    """Yield the shards of a log, for SGD, with each share of all rows hot."""
    for share in options.shares:
        num_rows = VocabularyTotals.of(preprocess([log], criteo_kaggle(), data, until="rank")).num_rows
        width = row_bytes(options.embedding_dim, "sgd")
        shards = harness.pack_again(
            log,
            data,
            hot_bytes=ByteSize(int(share * num_rows) * width),
            embedding_dim=options.embedding_dim,
            embedding_optimizer="sgd",
            batch_size=options.batch_size,
            order=options.order,
        )
        tell(f"{share:.1%} of {num_rows:,} rows hot")
        yield {"share": share, "num_rows": num_rows}, shards


@dataclass(slots=True)
class EpochTraffic:
    """Bytes of one epoch each way."""

    bytes_to_fast: int = 0
    bytes_to_slow: int = 0
    bytes_made: int = 0
    """Bytes of rows that were initialized on the fast tier at their first use instead of fetched."""
    num_shortened: int = 0
    """Transfers that wait for a later batch than the prefetch depth requires."""
    num_split: int = 0
    """Batches of more cold rows than slots."""


def simulate_epoch(shards: ShardSet, config: TrainConfig, order: Sequence[int]) -> EpochTraffic:
    """Count what a placement moves while it trains on ``order``.

    Writing all rows back at the end counts.

    Raises:
        ValueError: the placement is fae, whose switches depend on the test loss.
    """
    moved = EpochTraffic()
    widths = tables_by_dim([table.embedding_dim for table in shards.tables])
    # Each table group has its own tiers and plans.
    for dim, placement in build_placements(config, shards).items():
        reader = IdReader(shards.tables, widths[dim])
        if isinstance(placement, StagingPlacement):
            num_bytes = row_bytes(dim, config.row_optimizer(shards.embedding_optimizer))
            _add_staged(moved, shards, placement, reader, order, num_bytes)
        elif isinstance(placement, Hybrid):
            num_bytes = 4 * dim * _num_vectors(shards, placement, reader, order)
            moved.bytes_to_fast += num_bytes
            moved.bytes_to_slow += num_bytes
        elif not isinstance(placement, AllFast):
            raise ValueError(f"the placement {config.placement} cannot be simulated")
    return moved


def _add_staged(
    moved: EpochTraffic,
    shards: ShardSet,
    placement: StagingPlacement,
    reader: IdReader,
    order: Sequence[int],
    num_bytes: int,
) -> None:
    queue = PlanQueue(placement, placement.planner(WINDOW_BYTES))
    for number in order:
        # A placement that stages cold rows alone has nothing to plan for a hot-only batch.
        if placement.stages_hot_only or not shards.is_hot_only[number]:
            queue.add(placement.find_cold_rows(reader.read(shards.training_batch(number))))
    queue.finish()
    # First uses are initialized on the fast tier: they are loaded, but not fetched.
    rows = RowTraffic(rows_to_slow=queue.flush.write_back.num_rows)
    rows.add(queue.chunks)
    moved.bytes_to_fast += rows.rows_to_fast * num_bytes
    moved.bytes_to_slow += rows.rows_to_slow * num_bytes
    moved.bytes_made += rows.rows_made * num_bytes
    moved.num_shortened += rows.shortened
    moved.num_split += rows.split


def _num_vectors(shards: ShardSet, placement: Hybrid, reader: IdReader, order: Sequence[int]) -> int:
    """Count one vector per distinct row of a batch, or one per bag."""
    batches = (reader.read(shards.training_batch(number)) for number in order)
    if isinstance(placement, HybridDedup):
        return sum(reader.by_row(ids).num_rows for ids in batches)
    return sum(ids.num_bags for ids in batches)


def _measure_epoch(options: Options, log: Path, data: Path) -> Facts:
    """Count the bytes of all placements by share of hot rows, and train the first batches."""
    shares = []
    for about, shards in _packed_by_share(options, log, data):
        staging = ByteSize(int(about["share"] * about["num_rows"]) * row_bytes(options.embedding_dim, "sgd"))
        shares.append(about | _measure_share(shards, staging, 0 if options.bytes else options.rounds))
    return {"shares": shares}


def candidates(staging: ByteSize) -> dict[str, TrainConfig]:
    """Return every placement with the same fast memory; the baselines first."""
    # SGD without state, as in the papers whose bytes are compared.
    base = TrainConfig(
        placement="lookahead",
        staging_bytes=staging,
        dense_optimizer="sgd",
        dense_dtype="fp32",
        fae_variant="code",
    )
    plain = {name: replace(base, placement=name) for name in _PLAIN}
    caches = {
        f"cache {policy}": replace(base, placement="cache", cache_policy=policy) for policy in _POLICIES
    }
    return plain | caches | {"lookahead": base, _BELADY: replace(base, prefetch=0)}


def _measure_share(shards: ShardSet, staging: ByteSize, rounds: int) -> Facts:
    every = candidates(staging)
    order = epoch_order(shards.is_hot_only, 0, 0, spread=shards.is_grouped).tolist()
    moved = {name: _moved(shards, config, order) for name, config in every.items()}
    first = order[: WARM_UP_STEPS + _BATCHES]
    turns = {name: partial(_train, shards, every[name], first) for name in every if name != _BELADY}
    measured = harness.take_turns(turns, rounds)
    cpu = {name: [one["cpu_seconds"] for one in own] for name, own in measured.items() if own}
    return {
        "bytes": moved,
        "ratios": _ratios(moved),
        "cpu": {name: harness.median_ratio(cpu["all-fast"], own) for name, own in cpu.items()},
        "rounds": measured,
    }


def _moved(shards: ShardSet, config: TrainConfig, order: list[int]) -> dict[str, float]:
    """Return the bytes per training sample that one epoch transfers."""
    if config.placement == "fae":
        # All mixed batches, hot rows copied to the fast tier, all hot-only batches, hot rows copied back: the
        # least that FAE can transfer.
        vectors = ShardsTotals.of(shards.manifest).samples.mixed
        vectors *= sum(4 * table.embedding_dim for table in shards.tables)
        hot = sum(table.num_hot * row_bytes(table.embedding_dim, "sgd") for table in shards.tables)
        moved = EpochTraffic(bytes_to_fast=vectors + hot, bytes_to_slow=vectors + hot)
    else:
        moved = simulate_epoch(shards, config, order)
    return {
        name.removeprefix("bytes_"): count / shards.num_training_samples
        for name, count in asdict(moved).items()
        if name.startswith("bytes_")
    }


def _ratios(moved: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the bytes of the others over look-ahead's, without and with first uses counted as loads."""

    def both_ways(name: str, *, fetches_all: bool = False) -> float:
        found = moved[name]
        return max(found["to_fast"] + found["to_slow"] + fetches_all * found["made"], 1e-9)

    fetching_all = both_ways("lookahead", fetches_all=True)
    return {
        "lookahead / belady": fetching_all / both_ways(_BELADY, fetches_all=True),
        "hybrid / lookahead, first uses fetched": both_ways("hybrid") / fetching_all,
        "hybrid / lookahead": both_ways("hybrid") / both_ways("lookahead"),
        "hybrid-dedup / lookahead": both_ways("hybrid-dedup") / both_ways("lookahead"),
    }


def _train(shards: ShardSet, config: TrainConfig, order: list[int]) -> Facts:
    """Train the first batches; return CPU seconds and speed after a warm-up, and the AUC."""
    # CPU of all threads: what runs ahead in the background costs, too.
    trainer, (wall, cpu) = train_timed(shards, config, order)
    num_samples = trainer.num_samples - samples_of(shards, order[:WARM_UP_STEPS])
    auc = trainer.predictor.score(_EVALUATED).auc
    return {"cpu_seconds": cpu, "samples_per_second": num_samples / wall, "auc": auc}


@dataclass(frozen=True, slots=True)
class Epoch:
    """The distinct cold rows of each batch of an epoch that has any."""

    offsets: NDArray[np.int64]
    rows: NDArray[np.int32]
    num_samples: int


def _measure_window(options: Options, log: Path, data: Path) -> Facts:
    """Plan a log with every budget of staging slots, with a window and with the whole epoch known."""
    cases = {}
    for about, shards in _packed_by_share(options, log, data):
        hot_rows = int(about["share"] * about["num_rows"])
        epochs: list[Epoch] = []
        for budget in _STAGING_BUDGETS:
            staging = ByteSize(max(int(budget * hot_rows), 1) * row_bytes(options.embedding_dim, "sgd"))
            config = TrainConfig(placement="lookahead", staging_bytes=staging, embedding_optimizer="sgd")
            (placement,) = build_placements(config, shards).values()
            assert isinstance(placement, Lookahead)
            # Rows of batches are the same with every budget.
            epochs = epochs or [_read_epoch(shards, placement, epoch) for epoch in range(options.epochs)]
            num_rows, num_slots = placement.slow.num_own_slots, placement.num_staging_slots
            found = _compare(epochs, num_rows, num_slots, placement.prefetch)
            name = f"{budget:g} slots per hot row, {about['share']:.1%} hot"
            cases[name] = {"batch_size": options.batch_size} | found
    return _summary(cases)


def _summary(cases: dict[str, Facts]) -> Facts:
    return {
        "worst_excess": max((case["excess"] for case in cases.values() if not case["capped"]), default=None),
        "worst_planning_microseconds": max(case["planning_microseconds"] for case in cases.values()),
        "cases": [{"case": name} | case for name, case in cases.items()],
    }


def _read_epoch(shards: ShardSet, placement: Lookahead, epoch: int) -> Epoch:
    order = epoch_order(shards.is_hot_only, 0, epoch, spread=shards.is_grouped).tolist()
    reader = IdReader(shards.tables, list(range(len(shards.tables))))
    batches = [
        placement.find_cold_rows(reader.read(shards.training_batch(number))).rows_U.astype(np.int32)
        for number in order
        if not shards.is_hot_only[number]
    ]
    return _epoch_of(batches, shards.num_training_samples)


def _epoch_of(batches: list[NDArray[np.int32]], num_samples: int) -> Epoch:
    offsets = np.cumsum([0, *(batch.size for batch in batches)], dtype=np.int64)
    return Epoch(offsets, np.concatenate(batches), num_samples)


def _compare(epochs: list[Epoch], num_rows: int, num_slots: int, prefetch: int) -> Facts:
    planner = lookahead_planner(num_rows, num_slots, prefetch=prefetch, splits=True)
    whole = [_rows_of_whole(planner, epoch, num_rows) for epoch in epochs]
    window = Window(num_slots, WINDOW_BYTES)
    planner = lookahead_planner(num_rows, num_slots, prefetch=prefetch, window=window, splits=True)
    moved, seconds, windows = [], 0.0, []
    for epoch in epochs:
        traffic = RowTraffic()
        batches = [rows.astype(np.int64) for rows in np.split(epoch.rows, epoch.offsets[1:-1])]
        begin = harness.clock()
        for batch in batches:
            traffic.add(planner.plan(RowStream(np.array([0, batch.size]), batch)))
        windows.append(window.num_batches)
        moved.append(_rows_moved(planner, traffic))
        seconds += harness.seconds_since(begin)[1]
    excess = sum(moved) / sum(whole) - 1
    tell(f"{num_slots:,} slots: excess {excess:.3%}")
    return {
        "slots": num_slots,
        "prefetch": prefetch,
        "batches": epochs[0].offsets.size - 1,
        "windows": windows,
        "capped": window.is_capped,
        "excess": excess,
        "planning_microseconds": 1e6 * seconds / sum(epoch.num_samples for epoch in epochs),
    }


def _rows_of_whole(planner: StagingPlanner, epoch: Epoch, num_rows: int) -> int:
    """Return the rows that move where the next use of every row is given."""
    uses = np.empty(epoch.rows.size, np.int32)
    order = np.arange(epoch.offsets.size - 1)
    next_uses_backward(order, epoch.offsets, epoch.rows, np.full(num_rows, NEVER, np.int32), uses)
    traffic = RowTraffic()
    for first in range(0, order.size, _CHUNK):
        offsets = epoch.offsets[first : first + _CHUNK + 1]
        part = slice(int(offsets[0]), int(offsets[-1]))
        rows, next_uses = epoch.rows[part].astype(np.int64), uses[part].astype(np.int64)
        traffic.add(planner.plan(RowStream(offsets - offsets[0], rows, None, next_uses)))
    return _rows_moved(planner, traffic)


def _rows_moved(planner: StagingPlanner, traffic: RowTraffic) -> int:
    """Plan the rest of an epoch; return the rows of all of it."""
    traffic.add(planner.plan_rest())
    return traffic.rows_to_fast + traffic.rows_made + traffic.rows_to_slow + planner.end_epoch().rows.size


_STREAM_BATCHES, _STREAM_ROWS = 2000, 1000
_RECURRING, _ONCE = 200_000, _STREAM_BATCHES * _STREAM_ROWS
_ZIPF_STREAMS = (
    *((1.0, once, 16_000) for once in (0.5, 0.8, 0.9)),
    *((1.0, 0.5, 48_000), (1.0, 0.9, 4_000), (1.3, 0.5, 16_000), (1.0, 0.0, 48_000)),
)
"""Exponent of the recurring rows, share of the rows that are used once, and slots."""


def _synthetic_cases() -> Iterator[tuple[str, Facts]]:
    """Plan two epochs of streams of 2,000 batches of about 1,000 rows."""
    for exponent, once, slots in _ZIPF_STREAMS:
        epochs = [_zipf_epoch(exponent, once, seed) for seed in (0, 1)]
        name = f"Zipf {exponent}, {once:.0%} of the rows used once, {slots:,} slots"
        yield name, _compare(epochs, _RECURRING + _ONCE, slots, 2)
    steps = range(_STREAM_BATCHES)
    randoms = map(np.random.default_rng, (0, 1))
    uniform = [_stream(random.choice(20_000, 100, replace=False) for _ in steps) for random in randoms]
    cycle = _stream(np.arange(100) + 100 * (step % 200) for step in steps)
    for name, epochs in (("uniform, mean period 200", uniform), ("each row every 200 batches", [cycle] * 2)):
        yield f"{name}, 90% of the rows used once", _compare(epochs, _RECURRING + _ONCE, 10_000, 2)


def _stream(recurring: Iterator[NDArray[np.int64]]) -> Epoch:
    """Return an epoch of the given recurring rows, each batch filled up with rows that no other uses."""
    batches, next_row = [], _RECURRING
    for rows in recurring:
        num_new = _STREAM_ROWS - rows.size
        batches.append(np.concatenate([rows, np.arange(next_row, next_row + num_new)]).astype(np.int32))
        next_row += num_new
    return _epoch_of(batches, _STREAM_ROWS * len(batches))


def _zipf_epoch(exponent: float, once: float, seed: int) -> Epoch:
    random = np.random.default_rng(seed)
    weights = 1 / np.arange(1, _RECURRING + 1) ** exponent
    bounds = np.cumsum(weights / weights.sum())
    num_recurring = round((1 - once) * _STREAM_ROWS)

    def draw() -> Iterator[NDArray[np.int64]]:
        for _ in range(_STREAM_BATCHES):
            found = np.unique(np.searchsorted(bounds, random.random(4 * num_recurring)))
            yield np.minimum(random.permutation(found)[:num_recurring], _RECURRING - 1)

    return _stream(draw())


def _compare_orders(options: Options, log: Path, data: Path) -> Facts:
    """Rank a log in each order, and count the hot samples and lookups of every budget."""
    width = row_bytes(options.embedding_dim, "sgd")
    shares: dict[str, list[Facts | None]] = {}
    for order in _ORDERS:
        # The two modes of FAE differ in how they draw their sample.
        rank_by = "sampled" if order.startswith("fae") else order
        rank = replace(criteo_kaggle().rank, rank_by=rank_by, with_replacement=order == "fae-code")  # type: ignore[arg-type]
        run = partial(preprocess, [log], replace(criteo_kaggle(), rank=rank), data)
        if (data / "vocabulary").exists():
            remove_from("rank", data)
        vocabulary = run(until="rank")
        shares[order] = _shares(order, vocabulary, run(until="encode"), width)
        tell(f"ranked by {order}")
    return {
        "num_train_samples": VocabularyTotals.of(vocabulary).num_train_samples,
        "row_bytes": width,
        "budgets": [
            {"bytes": budget, "published": _PUBLISHED.get(budget)}
            | {order: shares[order][number] for order in _ORDERS}
            for number, budget in enumerate(_HOT_BUDGETS)
        ],
    }


def _shares(order: str, vocabulary: Manifest, samples: Manifest, width: int) -> list[Facts | None]:
    """Return what each budget makes hot; None where the order refuses it."""
    tables = SamplesTotals.of(samples).tables
    found: list[Facts | None] = []
    num_train = max(1, VocabularyTotals.of(vocabulary).num_train_samples)
    for budget in _HOT_BUDGETS:
        # Every table has rows of one width, so that budgets compare.
        widths = [width] * len(tables)
        try:
            if order.startswith("fae"):
                num_hot, _ = calibrate(order, vocabulary, widths, budget)
            else:
                num_hot, _ = HotOrder(vocabulary, widths).num_hot(budget)
        except ConfigError:
            found.append(None)
            continue
        # Exact: every training sample is checked against the hot rows.
        levels = levels_of_tables(np.array([num_hot]), tables)
        (curve,) = hot_curves(samples, [levels], 1, num_train, Resources())
        found.append(
            {
                "hot_sample_share": int(curve.samples[0]) / num_train,
                "hot_lookup_share": int(curve.lookups[0]) / max(1, curve.num_lookups),
                "hot_bytes": width * sum(num_hot),
            }
        )
    return found


if __name__ == "__main__":
    harness.main(PARSER, measure)
