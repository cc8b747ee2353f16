"""Compare runs on TorchRec with runs of hotset's own engine, from equal initial values.

A log of single values and one of lists, added up or averaged, are trained for some steps by each optimizer
of rows: by hotset's own engine, and by TorchRec on 1, 2 and 4 gloo ranks of this machine, with the tables
split at their hot rows and with all rows sharded. The result has the largest differences of losses over the
first 20 steps and over all, those of AUC, and of all weights at the end, next to those between two numbers of
ranks.

``faults`` lists what is too far: first losses by more than 1e-5 with SGD and 1e-4 with Adagrad, AUC by more
than 5e-4, losses by more than two numbers of ranks are from each other. Once a ReLU has flipped by a last
digit, two runs grow apart, whatever made them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from unittest.mock import patch

import torch

from ....train.config import TrainConfig
from ....train.config_parts import CheckpointSettings, Pooling, RecipeOptions
from ....train.data.shards import Shards
from ....train.run import RunOptions, train
from ....train.run_folder.weights import open_weights
from .. import harness
from ..harness import Facts, Options, tell
from .drawn_impressions import LABELS, SCHEMA, draw_log
from .torchrec_ranks import call_on_ranks

_FIRST = 20
_FIRST_LOSSES = {"sgd": 1e-5, "adagrad": 1e-4, "rowwise-adagrad": 1e-4}
"""Largest difference of the first losses, by optimizer."""
_AUC = 5e-4
_ROUNDING = 2.0**-22
"""Room for additions of a loss in float32, four of its last places, where nothing has grown apart."""
_SPLITS = ("split", "sharded")
_POOLINGS: dict[str, Pooling] = {"single values": "sum", "lists, sum": "sum", "lists, mean": "mean"}
_CONFIG = TrainConfig(threads=1, log_every=1, placement="all-fast")

PARSER = harness.new_parser(__spec__, __doc__)
PARSER.add_argument("--samples", type=int, default=150_000, help="samples of each log")
PARSER.add_argument("--steps", type=int, default=200)
PARSER.add_argument("--batch-size", type=int, default=512)
PARSER.add_argument("--embedding-dim", type=int, default=8)
PARSER.add_argument("--hot-bytes", nargs=2, default=["2MiB", "48KiB"], help="of single values, and of lists")
PARSER.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
PARSER.add_argument("--optimizers", nargs="+", default=["sgd", "adagrad"])

_Run = tuple[Path, TrainConfig, tuple[int, ...], Path]
"""Shards, config, replicated rows of each table, and folder of a run."""


def measure(options: Options, folder: Path) -> Facts:
    """Train all contestants, and compare their losses, scores and weights."""
    logs = _logs(options, folder)
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
        compared = _compare(_folder(folder, log, optimizer), own)
        found.append({"log": log, "optimizer": optimizer, "rows": split} | compared)
    return {
        "batches": {
            log: {"hot_only": int(own.is_hot_only.sum()), "all": len(own.is_hot_only)}
            for log, own in logs.items()
        },
        "runs": found,
        "faults": [fault for each in found for fault in faults_of(each)],
    }


def _logs(options: Options, folder: Path) -> Mapping[str, Shards]:
    """Prepare the logs; both ways to pool read the same lists."""
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


def _run(shards: Shards, config: TrainConfig, split: str, out: Path) -> _Run:
    num_replicated = tuple(table.num_hot if split == "split" else 0 for table in shards.tables)
    return shards.manifest.folder, replace(config, engine="torchrec"), num_replicated, out


def train_as_rank(runs: Sequence[_Run]) -> Facts:
    """Make the runs of one rank."""
    # Here, since the module cannot be imported without the library.
    from ....train.torchrec import engine

    for data, config, num_replicated, out in runs:
        with patch.object(engine, "choose_num_replicated", lambda *_, chosen=num_replicated: chosen):
            train(data, config, out, _options())
    return {}


def _compare(own: Path, runs: Mapping[int, Path]) -> Facts:
    """Return the differences of runs from one of hotset, by number of ranks, and between these."""
    wanted, found = _read(own), {ranks: _read(run) for ranks, run in runs.items()}
    return {
        "from_hotset": [{"ranks": ranks, **_differences(wanted, each)} for ranks, each in found.items()],
        "between": [
            {"ranks": pair, **_differences(*(found[ranks] for ranks in pair))}
            for pair in combinations(found, 2)
        ],
    }


def _read(run: Path) -> Facts:
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


def faults_of(row: Facts) -> list[str]:
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


if __name__ == "__main__":
    harness.main(PARSER, measure)
