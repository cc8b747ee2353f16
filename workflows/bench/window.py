"""Bytes of the windowed planner against whole-epoch planning, and the CPU time of planning.

Both plan the same batches with the same slots. Bytes are those of the rows loaded and written back, rows that
are initialized at their first use included. The excess is that of the window over the whole epoch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ByteSize, ConfigError
from ...stats.lookahead.planner import StagingPlanner, lookahead_planner
from ...stats.lookahead.step_plans import (
    NEVER,
    WINDOW_BYTES,
    RowStream,
    RowTraffic,
    Window,
    next_uses_backward,
)
from ...stats.ranking.row_bytes import row_bytes
from ...stats.shuffle import epoch_order
from ...train.config import TrainConfig
from ...train.data.batch import IdReader
from ...train.data.shards import Shards
from ...train.placements.placements import build_placements
from ...train.placements.staging import Lookahead
from .harness import Facts, clock, new_log, new_parser, run_script, scratch_folder, seconds_since, tell
from .placements import pack_hot_share

_HOT_SHARE = 0.015
_BUDGETS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
"""Staging slots, as multiples of the hot rows."""
_CHUNK = 1024
"""Batches that are planned together where next uses are given."""

PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("--samples", type=int, nargs="*", default=[2_000_000], help="samples of generated logs")
PARSER.add_argument("--data", type=Path, help="a log in Criteo's text besides")
PARSER.add_argument("--data-batch-size", type=int, default=128)
PARSER.add_argument("--synthetic", action="store_true", help="streams that no log has, too")
PARSER.add_argument("--batch-size", type=int, default=2048)
PARSER.add_argument("--orders", choices=("grouped", "original"), nargs="+", default=["grouped", "original"])
PARSER.add_argument("--epochs", type=int, default=2)


@dataclass(frozen=True, slots=True)
class Epoch:
    """The distinct cold rows of each batch of an epoch that has any."""

    offsets: NDArray[np.int64]
    rows: NDArray[np.int32]
    num_samples: int


def measure(options: argparse.Namespace) -> Facts:
    """Plan every stream with every budget, with a window and with the whole epoch known."""
    cases: list[Facts] = []
    with scratch_folder(options) as scratch:
        for number, samples in enumerate(options.samples):
            log = new_log(scratch, samples, name=f"{number}.tsv")
            cases += _measure_log(f"{samples / 1e6:g} M generated samples", log, options.batch_size, options)
        if options.data:
            cases += _measure_log("real sample", options.data, options.data_batch_size, options)
    if options.synthetic:
        for name, epochs, slots in _synthetic_streams():
            cases.append({"log": name} | _compare(epochs, _RECURRING + _ONCE, slots, 2))
    if not cases:
        raise ConfigError("no stream is given", hint="--samples 2000000 or --synthetic")
    planning = [case["planning_microseconds"] for case in cases]
    return {
        "worst_excess": max((case["excess"] for case in cases if not case["capped"]), default=None),
        "median_planning_microseconds": statistics.median(planning),
        "worst_planning_microseconds": max(planning),
        "cases": cases,
    }


def _measure_log(name: str, log: Path, batch_size: int, options: argparse.Namespace) -> Iterator[Facts]:
    with scratch_folder(options) as data:
        for order in options.orders:
            shards = pack_hot_share(log, data, _HOT_SHARE, batch_size=batch_size, order=order)
            about = {"log": name, "order": order, "batch_size": batch_size}
            for found in _measure_shards(shards, options.epochs):
                yield about | found


def _measure_shards(shards: Shards, num_epochs: int) -> Iterator[Facts]:
    dim = shards.tables[0].embedding_dim
    hot_rows = int(_HOT_SHARE * sum(table.num_rows for table in shards.tables))
    epochs: list[Epoch] = []
    for budget in _BUDGETS:
        num_bytes = max(int(budget * hot_rows), 1) * row_bytes(dim, "sgd")
        config = TrainConfig(
            placement="lookahead", staging_bytes=ByteSize(num_bytes), embedding_optimizer="sgd"
        )
        (placement,) = build_placements(config, shards).values()
        assert isinstance(placement, Lookahead)
        if not epochs:
            epochs = [_read_epoch(shards, placement, epoch) for epoch in range(num_epochs)]
        found = _compare(
            epochs, placement.slow.num_own_slots, placement.num_staging_slots, placement.prefetch
        )
        yield {"slots_over_hot_rows": budget} | found


def _read_epoch(shards: Shards, placement: Lookahead, epoch: int) -> Epoch:
    order = epoch_order(shards.is_hot_only, 0, epoch, spread=shards.is_grouped).tolist()
    reader = IdReader(shards.tables, list(range(len(shards.tables))))
    batches = [
        placement.find_cold_rows(reader.read(shards.training_batch(number))).rows_U.astype(np.int32)
        for number in order
        if not shards.is_hot_only[number]
    ]
    offsets = np.cumsum([0, *(batch.size for batch in batches)], dtype=np.int64)
    return Epoch(offsets, np.concatenate(batches), shards.num_training_samples)


def _compare(epochs: list[Epoch], num_rows: int, num_slots: int, prefetch: int) -> Facts:
    planner = lookahead_planner(num_rows, num_slots, prefetch=prefetch, splits=True)
    whole = [_rows_of_whole(planner, epoch, num_rows) for epoch in epochs]
    window = Window(num_slots, WINDOW_BYTES)
    planner = lookahead_planner(num_rows, num_slots, prefetch=prefetch, window=window, splits=True)
    moved, seconds, windows = [], 0.0, []
    for epoch in epochs:
        traffic = RowTraffic()
        batches = [rows.astype(np.int64) for rows in np.split(epoch.rows, epoch.offsets[1:-1])]
        begin = clock()
        for batch in batches:
            traffic.add(planner.plan(RowStream(np.array([0, batch.size]), batch)))
        windows.append(window.num_batches)
        moved.append(_rows_moved(planner, traffic))
        seconds += seconds_since(begin)[1]
    num_batches = epochs[0].offsets.size - 1
    found = {
        "slots": num_slots,
        "prefetch": prefetch,
        "batches": num_batches,
        "rows_of_a_batch": int(epochs[0].rows.size / max(num_batches, 1)),
        "windows": windows,
        "capped": window.is_capped,
        "excess_of_epochs": [one / other - 1 for one, other in zip(moved, whole, strict=True)],
        "excess": sum(moved) / sum(whole) - 1,
        "planning_microseconds": 1e6 * seconds / sum(epoch.num_samples for epoch in epochs),
    }
    tell(f"{num_slots:,} slots: {found['excess']:+.3%}, windows {windows}")
    return found


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


def _synthetic_streams() -> Iterator[tuple[str, list[Epoch], int]]:
    """Yield streams of 2,000 batches of about 1,000 rows: name, epochs and slots."""
    for exponent, once, slots in (
        (1.0, 0.5, 16_000),
        (1.0, 0.5, 48_000),
        (1.0, 0.8, 16_000),
        (1.0, 0.9, 4_000),
        (1.0, 0.9, 16_000),
        (1.3, 0.5, 16_000),
        (1.0, 0.0, 48_000),
    ):
        name = f"Zipf {exponent}, {once:.0%} of the rows used once"
        yield name, [_zipf_epoch(exponent, once, seed) for seed in (0, 1)], slots
    steps = range(_STREAM_BATCHES)
    randoms = map(np.random.default_rng, (0, 1))
    uniform = [_stream(random.choice(20_000, 100, replace=False) for _ in steps) for random in randoms]
    yield "uniform, mean period 200, 90% of the rows used once", uniform, 10_000
    cycle = _stream(np.arange(100) + 100 * (step % 200) for step in steps)
    yield "each row every 200 batches, 90% of the rows used once", [cycle] * 2, 10_000


_STREAM_BATCHES, _STREAM_ROWS = 2000, 1000
_RECURRING, _ONCE = 200_000, _STREAM_BATCHES * _STREAM_ROWS


def _stream(recurring: Iterator[NDArray[np.int64]]) -> Epoch:
    """Return an epoch of the given recurring rows, each batch filled up with rows that no other uses."""
    batches, next_row = [], _RECURRING
    for rows in recurring:
        num_new = _STREAM_ROWS - rows.size
        batches.append(np.concatenate([rows, np.arange(next_row, next_row + num_new)]).astype(np.int32))
        next_row += num_new
    offsets = np.arange(0, _STREAM_ROWS * (len(batches) + 1), _STREAM_ROWS, dtype=np.int64)
    return Epoch(offsets, np.concatenate(batches), _STREAM_ROWS * len(batches))


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


if __name__ == "__main__":
    sys.exit(run_script(PARSER, measure))
