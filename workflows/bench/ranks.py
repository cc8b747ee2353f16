"""Measure several ranks: exchanged rows, bytes of codecs, and speed.

``bytes`` counts vectors and gradients per training sample along the order of training; ``codecs`` packs the
rows that samples look up in every codec; ``speed`` lets one process and two ranks of this machine train in
turns, a thread each. AUC by codec: `quality seeds --ranks 2 --vary "--exchange int8"`.

``splits`` counts what several devices would exchange with TorchRec, in batches of several sizes with several
budgets of hot rows: with the chosen rows replicated, none, or all hot ones, as `hotset advise --engine
torchrec` does. ``spy`` trains with TorchRec on gloo ranks and counts what each hands to collectives in every
step, next to what is predicted.

``engines`` compares runs on TorchRec with runs of hotset's own engine, from equal initial values. A log of
single values and one of lists, added up or averaged, are trained for some steps by each optimizer of rows: by
hotset's own engine, and by TorchRec on 1, 2 and 4 gloo ranks of this machine, with the tables split at their
hot rows and with all rows sharded. The result has the largest differences of losses over the first 20 steps
and over all, those of AUC, and of all weights at the end, next to those between two numbers of ranks. Its
``faults`` list what is too far: first losses by more than 1e-5 with SGD and 1e-4 with Adagrad, AUC by more
than 5e-4, losses by more than two numbers of ranks are from each other. Once a ReLU has flipped by a last
digit, two runs grow apart, whatever made them. The library takes seconds to import, so one process a rank
makes all runs.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import combinations, product
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from ...pipeline.errors import MIB, ByteSize, ConfigError, HotsetError
from ...pipeline.folders.manifest import hash_file
from ...pipeline.folders.totals import ShardsTotals
from ...pipeline.statistics.coverage import CHOSEN, DISTINCT, FAE, replication_of, table_sizes
from ...pipeline.statistics.traffic import Trace, ranked_epoch
from ...stats.codecs import CODEC_NAMES, MessageShape, codec_of
from ...stats.exchange import MOST_RANKS, RankedEpoch, count_exchange
from ...stats.replication import Network, Traffic, choose_prefixes, traffic_of
from ...stats.shuffle import epoch_order
from ...train.config import TrainConfig
from ...train.config_parts import CheckpointSettings, Pooling, RecipeOptions
from ...train.data.shards import ShardSet
from ...train.run import RunOptions, train
from ...train.run_folder.weights import open_weights
from ...train.torchrec.sharding import count_uses
from . import harness
from .harness import Facts, Options, free_port, tell

BOUNDS = (0.01, 0.03, 0.05)
_FLOAT_BYTES = 4
_SLICES, _BATCHES = (512, 2048), 8
_STEPS, RANK_BATCH = 20, 2048
_SPY_ERROR, _SPY_BYTES = 0.03, 64
"""Largest error of predicted bytes of a step, as a share, and in bytes where next to none are predicted."""

PARSER, _JOBS = harness.new_parsers(
    __spec__,
    __doc__,
    bytes="vectors and gradients of a sample",
    codecs="sizes of packed rows",
    speed="one process and two ranks",
    splits="what TorchRec would exchange",
    spy="what ranks on TorchRec hand to collectives",
    engines="TorchRec next to hotset's own engine",
)
for _name, _each in _JOBS.items():
    _is_of_engines = _name == "engines"
    _each.add_argument("--samples", type=int, default=150_000 if _is_of_engines else 2_000_000)
    _each.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4] if _is_of_engines else [2, 4, 8])
    _each.add_argument("--embedding-dim", type=int, default=8 if _is_of_engines else 16)
_JOBS["speed"].add_argument("--rounds", type=int, default=5, help="turns of each contestant")
for _each in (_JOBS["splits"], _JOBS["spy"]):  # of the latter the first ones
    _each.add_argument("--batch-sizes", type=int, nargs="+", default=[4096, 16384, 65536])
    _each.add_argument("--budgets", type=int, nargs="+", default=[1, 4, 16], help="MiB of hot rows")
_JOBS["spy"].add_argument("--steps", type=int, help="by default an epoch, whose bytes are predicted")
_JOBS["engines"].add_argument("--steps", type=int, default=200)
_JOBS["engines"].add_argument("--batch-size", type=int, default=512)
_JOBS["engines"].add_argument(
    "--hot-bytes", nargs=2, default=["2MiB", "48KiB"], help="of single values, and of lists"
)
_JOBS["engines"].add_argument("--optimizers", nargs="+", default=["sgd", "adagrad"])


def measure(options: Options, folder: Path) -> Facts:
    """Measure what the options select."""
    if options.what == "engines":
        return compare_engines(options, folder)
    least = 1 if options.what == "spy" else 2
    if not all(least <= ranks <= MOST_RANKS for ranks in options.ranks):
        raise ConfigError(f"ranks must be from {least} to {MOST_RANKS}")
    jobs = {"bytes": count_bytes, "codecs": compare_codecs, "speed": compare_speed}
    jobs |= {"splits": compare_splits, "spy": spy_on_ranks}
    log = harness.new_log(folder, options.samples)
    return jobs[options.what](options, log, folder)


def _packed(options: Options, log: Path, folder: Path, batch_size: int, **settings: Any) -> ShardSet:
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


def _read_epoch(shards: ShardSet, num_ranks: int) -> RankedEpoch:
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


_FIRST = 20
_FIRST_LOSSES = {"sgd": 1e-5, "adagrad": 1e-4, "rowwise-adagrad": 1e-4}
"""Largest difference of the first losses, by optimizer."""
_AUC = 5e-4
_ROUNDING = 2.0**-22
"""Room for additions of a loss in float32, four of its last places, where nothing has grown apart."""
_SPLITS = ("split", "sharded")
_POOLINGS: dict[str, Pooling] = {"single values": "sum", "lists, sum": "sum", "lists, mean": "mean"}
_CONFIG = TrainConfig(threads=1, log_every=1, placement="all-fast")

_Run = tuple[Path, TrainConfig, tuple[int, ...], Path]
"""Shards, config, replicated rows of each table, and folder of a run."""


def compare_engines(options: Options, folder: Path) -> Facts:
    """Train all contestants, and compare their losses, scores and weights."""
    logs = _logs_of_engines(options, folder)
    configs = {
        (log, optimizer): replace(
            _CONFIG,
            embedding_optimizer=optimizer,
            dense_optimizer="same",
            pooling=pooling,
            recipe=RecipeOptions(max_steps=options.steps),
        )
        for (log, pooling), optimizer in product(_POOLINGS.items(), options.optimizers)
    }
    for (log, optimizer), config in configs.items():
        train(logs[log].manifest.folder, config, _folder(folder, log, optimizer), _options())
    for num_ranks in options.ranks:
        runs = [
            _run(logs[log], config, split, _folder(folder, log, optimizer, split, num_ranks))
            for ((log, optimizer), config), split in product(configs.items(), _SPLITS)
        ]
        call_on_ranks(num_ranks, folder, train_as_rank, runs)
        tell(f"{num_ranks} ranks")
    found = []
    for (log, optimizer), split in product(configs, _SPLITS):
        own = {ranks: _folder(folder, log, optimizer, split, ranks) for ranks in options.ranks}
        compared = _compare_runs(_folder(folder, log, optimizer), own)
        found.append({"log": log, "optimizer": optimizer, "rows": split} | compared)
    return {
        "batches": {
            log: {"hot_only": int(own.is_hot_only.sum()), "all": len(own.is_hot_only)}
            for log, own in logs.items()
        },
        "runs": found,
        "faults": [fault for each in found for fault in faults_of_engines(each)],
    }


def _logs_of_engines(options: Options, folder: Path) -> Mapping[str, ShardSet]:
    """Prepare the logs; both ways to pool read the same lists."""
    # Imported here: tests of a GPU's image, which lacks Polars, use the spy.
    from .quality import LABELS, SCHEMA, draw_log

    single, lists = (
        {"batch_size": options.batch_size, "hot_bytes": hot_bytes, "embedding_dim": options.embedding_dim}
        for hot_bytes in options.hot_bytes
    )
    values = harness.pack_again(harness.new_log(folder, options.samples, seed=0), folder / "values", **single)
    frame, _ = draw_log(options.samples)
    frame.drop(LABELS[1:]).write_parquet(folder / "lists.parquet")
    (folder / "lists.toml").write_text(SCHEMA.replace(f"labels = {list(LABELS)}", f'label = "{LABELS[0]}"'))
    of_lists = harness.pack_again(
        folder / "lists.parquet", folder / "lists", schema=folder / "lists.toml", **lists
    )
    return {log: values if log == "single values" else of_lists for log in _POOLINGS}


def _folder(folder: Path, *names: object) -> Path:
    return folder / "-".join(str(name).replace(", ", "-") for name in ("run", *names))


def _options() -> RunOptions:
    return RunOptions(checkpoints=CheckpointSettings(checkpoint_every="off"))


def _run(shards: ShardSet, config: TrainConfig, split: str, out: Path) -> _Run:
    num_replicated = tuple(table.num_hot if split == "split" else 0 for table in shards.tables)
    return shards.manifest.folder, replace(config, engine="torchrec"), num_replicated, out


def train_as_rank(runs: Sequence[_Run]) -> Facts:
    """Make the runs of one rank."""
    # Here, since the module cannot be imported without the library.
    from ...train.torchrec import engine

    for data, config, num_replicated, out in runs:
        with patch.object(engine, "choose_num_replicated", lambda *_, chosen=num_replicated: chosen):
            train(data, config, out, _options())
    return {}


def _compare_runs(own: Path, runs: Mapping[int, Path]) -> Facts:
    """Return the differences of runs from one of hotset, by number of ranks, and between these."""
    wanted, found = _read_run(own), {ranks: _read_run(run) for ranks, run in runs.items()}
    return {
        "from_hotset": [{"ranks": ranks, **_differences(wanted, each)} for ranks, each in found.items()],
        "between": [
            {"ranks": pair, **_differences(*(found[ranks] for ranks in pair))}
            for pair in combinations(found, 2)
        ],
    }


def _read_run(run: Path) -> Facts:
    """Return the losses of a run by step, its AUC, and all its rows and weights in one array."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    weights = open_weights(run / "weights.safetensors")
    return {
        "losses": torch.tensor([line["loss"] for line in lines if "loss" in line], dtype=torch.float64),
        "auc": json.loads((run / "summary.json").read_text())["auc"],
        "weights": torch.cat([weights[name].flatten() for name in sorted(weights)]).double(),
    }


def _differences(one: Facts, other: Facts) -> dict[str, float]:
    losses, weights = ((one[name] - other[name]).abs() for name in ("losses", "weights"))
    return {
        "first_losses": float(losses[:_FIRST].max()),
        "all_losses": float(losses.max()),
        "auc": abs(one["auc"] - other["auc"]),
        "weights_rms": float(weights.square().mean().sqrt()),
        "weights_largest": float(weights.max()),
    }


def faults_of_engines(row: Facts) -> list[str]:
    """Return what is too far in a comparison."""
    found = []
    limits = {"first_losses": _FIRST_LOSSES[row["optimizer"]], "auc": _AUC}
    # One number of ranks alone is compared with no other one.
    if row["between"]:
        limits["all_losses"] = max(each["all_losses"] for each in row["between"]) + _ROUNDING
    for each, (name, limit) in product(row["from_hotset"], limits.items()):
        if not each[name] <= limit:
            run = f"{row['log']}, {row['optimizer']}, {row['rows']}, {each['ranks']} ranks"
            found.append(f"{run}: {name} differ by {each[name]:.2g}, more than {limit:.2g}")
    return found


_TIMEOUT = datetime.timedelta(minutes=5)
"""How long a rank waits for another one, which may have failed."""


class Spy(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls of c10d and the bytes handed to them by name, those of C++ code included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::").strip("_")
            sent = args[1] if name == "alltoall_base" else args[0]
            tensors = sent if isinstance(sent, (list, tuple)) else [sent]
            self.calls[name] += 1
            self.num_bytes[name] += sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))
        return func(*args, **(kwargs or {}))


def call_on_ranks(
    num_ranks: int, scratch: Path, function: Callable[..., Facts], *arguments: Any
) -> list[Facts]:
    """Call a top-level function in a process for each rank; return what each call returns.

    Raises:
        HotsetError: a rank failed; it has printed why.
    """
    spawn = multiprocessing.get_context("spawn")
    files = [scratch / f"rank-{rank}.json" for rank in range(num_ranks)]
    port = free_port()
    ranks = [
        spawn.Process(target=_call, args=(rank, num_ranks, port, file, function, arguments))
        for rank, file in enumerate(files)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    if any(each.exitcode for each in ranks):
        raise HotsetError(f"ranks ended with {[each.exitcode for each in ranks]}")
    return [json.loads(file.read_text()) for file in files]


def _call(
    rank: int, num_ranks: int, port: str, file: Path, function: Callable[..., Facts], arguments: Any
) -> None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    os.environ |= dict(zip(names, map(str, (rank, num_ranks, "127.0.0.1", port)), strict=True))
    status = 1
    try:
        if num_ranks > 1:
            dist.init_process_group("gloo", timeout=_TIMEOUT)
        file.write_text(json.dumps(function(*arguments)))
        status = 0
    finally:
        if status:
            traceback.print_exc()
        # TorchRec's threads may abort the interpreter's own end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    harness.main(PARSER, measure)
