"""Measure several ranks: exchanged rows, bytes of codecs, and speed.

``bytes`` counts vectors and gradients per training sample along the order of training; ``codecs`` packs the
rows that samples look up in every codec; ``speed`` lets one process and two ranks of this machine train in
turns, a thread each. AUC by codec: `quality --ranks 2 --vary "--exchange int8"`.

``splits`` counts what several devices would exchange with TorchRec, in batches of several sizes with several
budgets of hot rows: with the chosen rows replicated, none, or all hot ones, as `hotset advise --engine
torchrec` does. ``spy`` trains with TorchRec on gloo ranks and counts what each hands to collectives in every
step, next to what is predicted.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import MIB, ByteSize, ConfigError
from ...pipeline.folders.manifest import hash_file
from ...pipeline.folders.totals import ShardsTotals
from ...pipeline.statistics.coverage import CHOSEN, DISTINCT, FAE, replication_of, table_sizes
from ...pipeline.statistics.traffic import Trace, ranked_epoch
from ...stats.codecs import CODEC_NAMES, MessageShape, codec_of
from ...stats.exchange import MOST_RANKS, RankedEpoch, count_exchange
from ...stats.replication import Network, Traffic, choose_prefixes, traffic_of
from ...stats.shuffle import epoch_order
from ...train.config import TrainConfig
from ...train.config_parts import RecipeOptions
from ...train.data.shards import Shards
from ...train.run import train
from ...train.torchrec.sharding import count_uses
from . import harness
from .examples.torchrec_ranks import Spy, call_on_ranks
from .harness import Facts, Options, tell

BOUNDS = (0.01, 0.03, 0.05)
_FLOAT_BYTES = 4
_SLICES, _BATCHES = (512, 2048), 8
_STEPS, RANK_BATCH = 20, 2048
_SPY_ERROR, _SPY_BYTES = 0.03, 64
"""Largest error of predicted bytes of a step, as a share, and in bytes where next to none are predicted."""

PARSER = harness.new_parser(__spec__, __doc__)
PARSER.add_argument("what", choices=("bytes", "codecs", "speed", "splits", "spy"))
PARSER.add_argument("--samples", type=int, default=2_000_000, help="samples of the generated log")
PARSER.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="numbers of ranks to count for")
PARSER.add_argument("--embedding-dim", type=int, default=16)
PARSER.add_argument("--rounds", type=int, default=5, help="turns of each contestant of speed")
PARSER.add_argument("--batch-sizes", type=int, nargs="+", default=[4096, 16384, 65536], help="of splits")
PARSER.add_argument("--budgets", type=int, nargs="+", default=[1, 4, 16], help="of splits: MiB of hot rows")
PARSER.add_argument("--steps", type=int, help="of spy; by default an epoch, whose bytes are predicted")


def measure(options: Options, folder: Path) -> Facts:
    """Measure what the options select."""
    least = 1 if options.what == "spy" else 2
    if not all(least <= ranks <= MOST_RANKS for ranks in options.ranks):
        raise ConfigError(f"ranks must be from {least} to {MOST_RANKS}")
    jobs = {"bytes": count_bytes, "codecs": compare_codecs, "speed": compare_speed}
    jobs |= {"splits": compare_splits, "spy": spy_on_ranks}
    log = harness.new_log(folder, options.samples)
    return jobs[options.what](options, log, folder)


def _packed(options: Options, log: Path, folder: Path, batch_size: int, **settings: Any) -> Shards:
    settings |= {"batch_size": batch_size, "embedding_dim": options.embedding_dim}
    return harness.pack_again(log, folder / "data", **settings)


def count_bytes(options: Options, log: Path, folder: Path) -> Facts:
    """Count vectors and gradients per sample between all ranks, from the plainest scheme to the least."""
    found = []
    for ranks in options.ranks:
        shards = _packed(options, log, folder, ranks * RANK_BATCH)
        epoch = _read_epoch(shards, ranks)
        counts = count_exchange(epoch)
        rows = {
            "every lookup": 2 * epoch.remote_lookups,
            "deduplicated": counts.deduplicated,
            "first uses computed": counts.striped.rows,
            "owners by use": counts.by_use.rows,
            "least possible": counts.least,
        }
        per_sample = {name: count / epoch.num_samples for name, count in rows.items()}
        found.append({"ranks": ranks, "num_samples": epoch.num_samples, "rows_per_sample": per_sample})
        tell(f"{ranks} ranks: " + ", ".join(f"{name} {each:.2f}" for name, each in per_sample.items()))
    return {"ranks": found, "rank_batch_size": RANK_BATCH}


def _read_epoch(shards: Shards, num_ranks: int) -> RankedEpoch:
    """Read the batches of an epoch in the order of training; rows are numbered over all tables."""
    first_row_F1 = np.cumsum([0, *(table.num_rows for table in shards.tables)])
    order = epoch_order(shards.is_hot_only, 0, 0, spread=shards.is_grouped).tolist()
    batches = [shards.training_batch(number).ids_BF + first_row_F1[:-1] for number in order]
    rows_NF = np.concatenate(batches)
    trace = Trace(rows_NF.reshape(-1), np.arange(rows_NF.shape[0] + 1) * rows_NF.shape[1])
    starts = np.cumsum([0, *(batch.shape[0] for batch in batches)])
    return ranked_epoch(trace, starts, int(first_row_F1[-1]), shards.batch_size, num_ranks)


def compare_codecs(options: Options, log: Path, folder: Path) -> Facts:
    """Return, for each size of messages, how many times smaller each codec makes the lookups."""
    shards = _packed(options, log, folder, RANK_BATCH)
    # Hot-only batches have the first numbers, so batches are drawn evenly from all of them.
    numbers = np.linspace(0, shards.num_training_batches - 1, _BATCHES).astype(int)
    ids = [shards.training_batch(number).ids_BF for number in np.unique(numbers).tolist()]
    return {
        "slices": [
            {"samples": size, "ratios": _ratios_of(ids, shards.embedding_dim, size)} for size in _SLICES
        ]
    }


def _ratios_of(batches: list[NDArray[np.int32]], dim: int, slice_samples: int) -> dict[str, float]:
    """Return by codec how many times smaller distinct rows are than one uncoded row per lookup."""
    num_bytes: dict[str, float] = defaultdict(float)
    plain_bytes = 0
    codecs = {name: codec_of(name) for name in (*CODEC_NAMES, *(f"bounded:{bound:g}" for bound in BOUNDS))}
    for batch in batches:
        # A message has so many samples; what is left of a batch is left out, unless it is all of it.
        size = min(slice_samples, batch.shape[0])
        for first in range(0, batch.shape[0] - size + 1, size):
            ids_BF = batch[first : first + size]
            starts = np.cumsum([0, *(np.unique(ids).size for ids in ids_BF.T)])
            plain_bytes += ids_BF.size * dim * _FLOAT_BYTES
            # Sizes of messages follow from their shape alone.
            for name, codec in codecs.items():
                num_bytes[f"distinct rows, {name}"] += codec.num_bytes(MessageShape(starts, dim))
    return {name: plain_bytes / found for name, found in sorted(num_bytes.items())}


def compare_speed(options: Options, log: Path, folder: Path) -> Facts:
    """Train in turns on the same batches and micro-batches; speeds are those that the runs report."""
    shards = _packed(options, log, folder, 2 * RANK_BATCH)
    steps = str(min(_STEPS, shards.num_training_batches))
    contestants: dict[str, tuple[int, list[str]]] = {
        "one process": (1, []),
        "two ranks": (2, []),
        "two ranks, auto": (2, ["--exchange", "auto"]),
    }

    def turn(name: str) -> float:
        ranks, more = contestants[name]
        words = ["--placement", "all-fast", "--threads", "1", "--micro-batches", "2"]
        words += ["--max-steps", steps, "--checkpoint-every", "off"]
        out, summary = harness.train_in_process(folder / "data", [*words, *more], ranks)
        digests.setdefault(name, str(hash_file(out / "weights.safetensors")[1]))
        return float(summary["samples_per_second"])

    digests: dict[str, str] = {}
    speeds = harness.take_turns({name: partial(turn, name) for name in contestants}, options.rounds)
    return {
        "batch_size": shards.batch_size,
        "contestants": [
            {
                "name": name,
                "step_seconds": shards.batch_size / median(found),
                "over_one": harness.median_ratio(found, speeds["one process"]),
            }
            for name, found in speeds.items()
        ],
        "has_equal_bits": digests["one process"] == digests["two ranks"],
    }


def compare_splits(options: Options, log: Path, folder: Path) -> Facts:
    """Compare ways to place rows, by batch size and budget of hot rows."""
    found = []
    for batch_size, budget in product(options.batch_sizes, options.budgets):
        hot_bytes = ByteSize(budget * MIB)
        shards = _packed(options, log, folder, batch_size, hot_bytes=hot_bytes)
        for row in replication_of(shards.manifest, count_uses(shards, options.ranks)):
            found.append({"hot_bytes": int(hot_bytes), **_summary(row)})
            tell(json.dumps(found[-1]["splits"]))
    return {"embedding_dim": options.embedding_dim, "comparisons": found}


def _summary(row: Facts) -> Facts:
    """Return a comparison without the rows of single tables, in kB per step and device."""
    seconds = {split["split"]: split["step_seconds"] for split in row["splits"]}
    shares = {split["split"]: split["hot_only_share"] for split in row["splits"]}
    # What a mixed step's messages must cost besides their bytes for FAE's rule to be better.
    steps, longer = shares[FAE] - shares[CHOSEN], seconds[FAE] - seconds[CHOSEN]
    return {
        "devices": row["devices"],
        "batch_size": row["batch_size"],
        "excess": round(row["excess"], 6),
        "saved_by_choice": round(1 - seconds[CHOSEN] / seconds[DISTINCT], 4),
        "fae_pays_from_us": round(1e6 * longer / steps, 1) if steps > 0 else None,
        "splits": {
            split["split"]: {
                "replicated_rows": split["replicated_rows"],
                "hot_only_share": round(split["hot_only_share"], 4),
                "crossing_kb": round(split["crossing_bytes"] / 1e3, 3),
            }
            for split in row["splits"]
        },
    }


def spy_on_ranks(options: Options, log: Path, folder: Path) -> Facts:
    """Train with each split on each number of ranks, and compare bytes with those predicted."""
    hot_bytes = ByteSize(options.budgets[0] * MIB)
    shards = _packed(options, log, folder, options.batch_sizes[0], hot_bytes=hot_bytes)
    totals = ShardsTotals.of(shards.manifest)
    tables = table_sizes(shards.manifest, totals.embedding_optimizer)
    found = []
    for num_ranks in options.ranks:
        (uses,) = count_uses(shards, [num_ranks])
        splits = {
            CHOSEN: choose_prefixes(uses, tables, Network()).num_replicated,
            DISTINCT: (0,) * len(tables),
            FAE: tuple(table.num_hot for table in totals.tables),
        }
        runs = folder / f"{num_ranks}-ranks"
        runs.mkdir()
        of_ranks = call_on_ranks(num_ranks, runs, spy_on_rank, folder / "data", runs, splits, options.steps)
        for name, num_replicated in splits.items():
            predicted = traffic_of(uses, tables, num_replicated, Network())
            counted = [step for own in of_ranks for step in own[name]]
            found.append({"ranks": num_ranks, "split": name, **_compared(counted, predicted, num_ranks)})
            tell(json.dumps(found[-1]))
    return {"spied": found, "faults": [fault for each in found for fault in faults_of(each)]}


def _compared(steps: list[Facts], predicted: Traffic, num_ranks: int) -> Facts:
    """Return mean bytes per rank and step by kind, counted and predicted, and calls of collectives."""
    found: Facts = {"steps": len(steps) // num_ranks}
    for kind, expected in (("hot_only", predicted.hot_only), ("mixed", predicted.mixed)):
        own = [step for step in steps if step["is_hot_only"] == (kind == "hot_only")]
        if not own:
            continue
        names = ("all_to_all", "all_reduce", "other")
        counted = {name: sum(step[name] for step in own) / len(own) for name in names}
        found[kind] = {
            "steps": len(own) // num_ranks,
            "all_to_all_calls": max(step["all_to_all_calls"] for step in own),
            "counted": counted,
            "predicted": {"all_to_all": expected.all_to_all, "all_reduce": expected.all_reduce},
            "ratio": sum(counted.values()) / expected.handed if expected.handed else None,
        }
    return found


def faults_of(row: Facts) -> list[str]:
    """Return what is wrong with a comparison of `_compared`."""
    name = f"{row['ranks']} ranks, {row['split']}"
    found = []
    for kind in ("hot_only", "mixed"):
        if (own := row.get(kind)) is None:
            continue
        if (own["all_to_all_calls"] > 0) != (kind == "mixed" and row["ranks"] > 1):
            found.append(f"{name}: {own['all_to_all_calls']} all-to-alls in a {kind} step")
        # A run has a few messages that are no step's.
        for what, predicted in {**own["predicted"], "other": 0}.items():
            if abs(own["counted"][what] - predicted) > max(_SPY_ERROR * predicted, _SPY_BYTES):
                found.append(f"{name}: {own['counted'][what]} bytes of {what}, predicted {predicted}")
    return found


def spy_on_rank(data: Path, folder: Path, splits: dict[str, tuple[int, ...]], num_steps: int | None) -> Facts:
    """Train as one of several ranks with each split, and return what each step handed over."""
    # By name, since the module cannot be imported without the library.
    engine: Any = import_module("hotset.train.torchrec.engine")
    run_step = engine.TorchRecSteps.train
    steps: list[Facts] = []

    def spied(own: Any, step: Any, number: int, rates: Any) -> Any:
        with Spy() as spy:
            loss_sum = run_step(own, step, number, rates)
        sent, calls = spy.num_bytes, spy.calls["alltoall_base"]
        # Dense layers are alike in every step and with every split.
        dense = sum(each.nbytes for each in own._model.module.dense.parameters())
        seen = {"all_to_all": sent.pop("alltoall_base", 0), "all_reduce": sent.pop("allreduce", 0) - dense}
        kind = {"is_hot_only": step.batch.is_hot_only, "all_to_all_calls": calls}
        steps.append(kind | seen | {"other": sent.total()})
        return loss_sum

    config = TrainConfig(engine="torchrec", threads=1, recipe=RecipeOptions(max_steps=num_steps))
    found = {}
    for number, (name, split) in enumerate(splits.items()):
        steps.clear()
        with (
            patch.object(engine.TorchRecSteps, "train", spied),
            patch.object(engine, "choose_num_replicated", lambda *_, split=split: split),
        ):
            train(data, config, folder / f"{number}")
        found[name] = list(steps)
    return found


if __name__ == "__main__":
    harness.main(PARSER, measure)
