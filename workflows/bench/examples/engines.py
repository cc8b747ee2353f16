"""Compare runs on TorchRec with runs of hotset's own engine, from equal initial values.

A generated log is trained for some steps by each optimizer of rows: by hotset's own engine, and by TorchRec
on 1, 2 and 4 gloo ranks of this machine, with the tables split at their hot rows and with all rows sharded.
The result has the largest differences of losses over the first 20 steps and over all, next to those between
two numbers of ranks, and the differences in AUC.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from ....pipeline.errors import HotsetError
from ....train.config import CheckpointSettings, TrainConfig
from ....train.recipe_options import RecipeOptions
from ....train.run import RunOptions, train
from ..harness import Facts, free_port, new_log, new_parser, pack_again, run_script, scratch_folder, tell

_FIRST = 20
_SPLITS = ("split", "sharded")
_CONFIG = TrainConfig(threads=1, log_every=1, placement="all-fast")

PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("--samples", type=int, default=150_000, help="samples of the generated log")
PARSER.add_argument("--steps", type=int, default=200)
PARSER.add_argument("--batch-size", type=int, default=512)
PARSER.add_argument("--hot-bytes", default="256KiB")
PARSER.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
PARSER.add_argument("--optimizers", nargs="+", default=["sgd", "adagrad"])


def measure(options: argparse.Namespace) -> Facts:
    """Train all contestants, and compare their losses."""
    with scratch_folder(options) as folder:
        log = new_log(folder, options.samples, seed=0)
        settings = {"batch_size": options.batch_size, "hot_bytes": options.hot_bytes, "embedding_dim": 8}
        shards = pack_again(log, folder / "data", **settings)
        recipe = RecipeOptions(max_steps=options.steps)
        configs = {
            name: replace(_CONFIG, embedding_optimizer=name, dense_optimizer="same", recipe=recipe)
            for name in options.optimizers
        }
        for name, config in configs.items():
            train(folder / "data", config, folder / name, _options())
        for num_ranks in options.ranks:
            runs = [
                (replace(config, engine="torchrec"), split, folder / f"{name}-{split}-{num_ranks}")
                for name, config in configs.items()
                for split in _SPLITS
            ]
            _train_on_ranks(num_ranks, folder / "data", runs)
            tell(f"{num_ranks} ranks")
        found = [
            {"optimizer": name, "rows": split} | _compare(folder, name, split, options.ranks)
            for name in configs
            for split in _SPLITS
        ]
        return {"num_hot_only": int(shards.is_hot_only.sum()), "runs": found}


def _options() -> RunOptions:
    return RunOptions(checkpoints=CheckpointSettings(checkpoint_every="off"))


_Run = tuple[TrainConfig, str, Path]
"""Config, split, and folder of a run."""


def _train_on_ranks(num_ranks: int, data: Path, runs: Sequence[_Run]) -> None:
    """Make some runs on so many ranks, which import TorchRec once."""
    port = free_port()
    start = multiprocessing.get_context("spawn")
    ranks = [
        start.Process(target=_train_as_rank, args=(rank, num_ranks, port, data, runs))
        for rank in range(num_ranks)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    if any(each.exitcode for each in ranks):
        raise HotsetError(f"ranks ended with {[each.exitcode for each in ranks]}")


def _train_as_rank(rank: int, num_ranks: int, port: str, data: Path, runs: Sequence[_Run]) -> None:
    """Make the runs of one rank."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    os.environ |= dict(zip(names, map(str, (rank, num_ranks, "127.0.0.1", port)), strict=True))
    import torch.distributed as dist

    from ....train.torchrec import engine

    own: Any = engine
    if num_ranks > 1:
        dist.init_process_group("gloo")
    for config, split, out in runs:
        hot = split == "split"
        own.choose_num_replicated = lambda shards, *_, hot=hot: tuple(
            table.num_hot if hot else 0 for table in shards.tables
        )
        train(data, config, out, _options())
    # TorchRec's threads may abort the interpreter's own end.
    sys.stdout.flush()
    os._exit(0)


def _compare(folder: Path, name: str, split: str, num_ranks: Sequence[int]) -> Facts:
    """Return the largest differences of the losses and scores of runs."""
    own, own_auc = _read(folder / name)
    runs = {ranks: _read(folder / f"{name}-{split}-{ranks}") for ranks in num_ranks}
    found = [
        {
            "ranks": ranks,
            "first_losses": _farthest(own[:_FIRST], losses[:_FIRST]),
            "all_losses": _farthest(own, losses),
            "auc": abs(auc - own_auc),
        }
        for ranks, (losses, auc) in runs.items()
    ]
    between = [
        {"ranks": pair, "all_losses": _farthest(*(runs[ranks][0] for ranks in pair))}
        for pair in combinations(num_ranks, 2)
    ]
    return {"from_hotset": found, "between": between}


def _read(run: Path) -> tuple[list[float], float]:
    """Return the losses of a run by step, and its AUC."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    auc: float = json.loads((run / "summary.json").read_text())["auc"]
    return [line["loss"] for line in lines if "loss" in line], auc


def _farthest(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    sys.exit(run_script(PARSER, measure))
