"""A training step next to a DLRM or DCN V2 in plain torch, on the same batches in the same order.

Contestants take turns: plain torch, the same with FBGEMM's tables where installed, hotset with every row at
hand, hotset's `lookahead`, and torch (under autocast) and hotset in bf16 where the CPU has instructions.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ...pipeline.errors import ConfigError
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.preprocess import preprocess, remove_from
from ...stats.shuffle import epoch_order
from ...train.build import build_trainer
from ...train.build_embeddings import set_threads
from ...train.config import TrainConfig
from ...train.data.batch_order import RecordedOrder
from ...train.data.shards import Shards
from ...train.dense.gradients import cpu_features, has_bf16
from ...train.loop import Trainer, run_steps
from ...train.model.choose_model import choose_model
from ...train.model.shapes import DcnShape, ModelInputs, dlrm_shape
from ..recipes import criteo_kaggle
from .harness import Facts, median_ratio, new_parser, run_script, scratch_folder, take_turns, tell
from .torch_models import (
    LEARNING_RATE,
    ReferenceBatch,
    ReferenceDcn,
    ReferenceDlrm,
    ReferenceTraining,
    has_fbgemm,
)

REFERENCE = "torch fp32"
"""The contestant that ratios are against."""
WARM_UP_STEPS = 3
"""Steps of each turn before the clock starts."""
_LEAST_STEPS = 4
Seconds = tuple[float, float]
"""Wall and CPU seconds of all threads."""


def parser() -> argparse.ArgumentParser:
    """Return the options of the script."""
    found = new_parser(__spec__.name if __spec__ else "train_step", __doc__ or "")
    found.add_argument("--batch-sizes", type=int, nargs="+", default=[128, 2048, 16384])
    found.add_argument("--embedding-dims", type=int, nargs="+", default=[16, 64])
    found.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    found.add_argument("--model", choices=("dlrm", "dcnv2"), default="dlrm")
    found.add_argument("--rounds", type=int, default=5, help="rounds in which each contestant runs once")
    found.add_argument("--round-samples", type=int, default=32_768, help="at least, of each round")
    return found


def measure(options: argparse.Namespace) -> Facts:
    """Measure every contestant at every batch size, dim and number of threads."""
    records: list[Facts] = []
    threads_before = torch.get_num_threads()
    try:
        with scratch_folder(options) as scratch:
            for shards in _each_shards(options, scratch):
                contestants = _contestants(shards, options)
                for threads in options.threads:
                    setting = {
                        "batch_size": shards.batch_size,
                        "embedding_dim": shards.embedding_dim,
                        "threads": threads,
                    }
                    tell(", ".join(f"{name} {value:,}" for name, value in setting.items()))
                    turns = {name: partial(run, threads) for name, run in contestants.items()}
                    rounds = take_turns(turns, options.rounds)
                    num_steps = len(order_of(shards, options.round_samples)) - WARM_UP_STEPS
                    records += _records(rounds, num_steps * shards.batch_size, setting)
    finally:
        torch.set_num_threads(threads_before)
    return {"contestants": records, "ratios": _ratios(records)}


def _each_shards(options: argparse.Namespace, scratch: Path) -> Iterator[Shards]:
    """Generate the log once and pack it for each dim and batch size."""
    log, data = scratch / "log.tsv", scratch / "data"
    largest = max(options.batch_sizes)
    # Seven sevenths: the last is for evaluation, and the last batch may be short.
    samples = 2 * (_LEAST_STEPS + WARM_UP_STEPS) * largest
    generate(GenerateConfig(samples=max(min(samples, 10 * options.round_samples), 9 * largest)), log)
    recipe = criteo_kaggle()
    for dim in options.embedding_dims:
        if (data / "plan").exists():
            remove_from("split", data)
        split = replace(recipe.split, embedding_dim=dim, embedding_optimizer="sgd")
        for batch_size in options.batch_sizes:
            if (data / "shards").exists():
                remove_from("pack", data)
            pack = replace(recipe.pack, batch_size=batch_size, order="original")
            preprocess([log], replace(recipe, split=split, pack=pack), data)
            yield Shards.open(data)


def order_of(shards: Shards, round_samples: int) -> list[int]:
    """Return the batches of a round, those of the warm-up first."""
    num_steps = max(-(-round_samples // shards.batch_size), _LEAST_STEPS) + WARM_UP_STEPS
    # A last batch may be short; the others are all full.
    order: list[int] = epoch_order(
        shards.is_hot_only[: shards.num_training_batches - 1], 0, 0, spread=False
    ).tolist()
    if not order:
        raise ConfigError(f"no full batch of {shards.batch_size:,} samples")
    # A short log is passed several times in a round.
    return (order * -(-num_steps // len(order)))[:num_steps]


def _contestants(shards: Shards, options: argparse.Namespace) -> dict[str, Callable[[int], Seconds]]:
    model, order = options.model, order_of(shards, options.round_samples)
    # The references read their batches from memory, so that reading costs them nothing.
    batches = [ReferenceBatch.of(shards.training_batch(number)) for number in order]
    config = TrainConfig(
        model=model,
        placement="all-fast",
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
        embedding_lr=LEARNING_RATE,
        dense_lr=LEARNING_RATE,
    )
    torch.manual_seed(0)
    num_rows = [table.num_rows for table in shards.tables]

    def reference() -> torch.nn.Module:
        if model == "dlrm":
            shape = dlrm_shape("auto", shards.num_dense, len(shards.tables), shards.embedding_dim)
            return ReferenceDlrm(shape, num_rows)
        inputs = ModelInputs.of(shards)
        chosen = choose_model(config, shards.embedding_dim)
        return ReferenceDcn(DcnShape(inputs.num_dense, inputs.table_dims, chosen), num_rows)

    found: dict[str, Callable[[int], Seconds]] = {
        REFERENCE: partial(_run_torch, ReferenceTraining(reference()), batches)
    }
    if has_fbgemm() and model == "dlrm":
        shape = dlrm_shape("auto", shards.num_dense, len(shards.tables), shards.embedding_dim)
        tables = ReferenceDlrm(shape, num_rows, fbgemm=True)
        found["torch fp32, fbgemm"] = partial(_run_torch, ReferenceTraining(tables), batches)
    found["hotset fp32"] = partial(_run_hotset, shards, order, config)
    lookahead = replace(config, placement="lookahead")
    found["hotset fp32, lookahead"] = partial(_run_hotset, shards, order, lookahead)
    # A CPU without such instructions takes some eleven times as long with either.
    if has_bf16(cpu_features()):
        autocast = ReferenceTraining(reference(), autocast=True)
        found["torch bf16"] = partial(_run_torch, autocast, batches)
        found["hotset bf16"] = partial(_run_hotset, shards, order, replace(config, dense_dtype="bf16"))
    return found


def _run_torch(training: ReferenceTraining, batches: list[ReferenceBatch], threads: int) -> Seconds:
    torch.set_num_threads(threads)
    for batch in batches[:WARM_UP_STEPS]:
        training.step(batch)
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in batches[WARM_UP_STEPS:]:
        training.step(batch)
    return time.perf_counter() - wall, time.process_time() - cpu


def _run_hotset(shards: Shards, order: list[int], config: TrainConfig, threads: int) -> Seconds:
    """Read, plan and train in a new run."""
    set_threads(threads)
    recorded = RecordedOrder(np.array(order, np.int32))
    trainer = build_trainer(shards, replace(config, threads=threads), recorded)
    begin = (time.perf_counter(), time.process_time())

    def after_step(running: Trainer, *_: object) -> None:
        nonlocal begin
        if running.step == WARM_UP_STEPS:
            begin = (time.perf_counter(), time.process_time())

    run_steps(trainer, after_step)
    return time.perf_counter() - begin[0], time.process_time() - begin[1]


def _records(rounds: dict[str, list[Seconds]], num_samples: int, setting: Facts) -> list[Facts]:
    found = []
    for name, measured in rounds.items():
        wall, cpu = ([1e6 * one[clock] / num_samples for one in measured] for clock in (0, 1))
        found.append(
            {"name": name, **setting}
            | {"wall_us": statistics.median(wall), "cpu_us": statistics.median(cpu)}
            | {"rounds": {"wall_us": wall, "cpu_us": cpu}}
        )
    return found


def _ratios(records: list[Facts]) -> list[Facts]:
    """Return how many times as fast as the reference each contestant is: medians of the rounds' ratios."""
    keys = ("batch_size", "embedding_dim", "threads")
    references = {tuple(one[key] for key in keys): one for one in records if one["name"] == REFERENCE}
    return [
        {key: one[key] for key in ("name", *keys)}
        | {
            f"{clock}_ratio": median_ratio(
                references[tuple(one[key] for key in keys)]["rounds"][f"{clock}_us"],
                one["rounds"][f"{clock}_us"],
            )
            for clock in ("wall", "cpu")
        }
        for one in records
    ]


if __name__ == "__main__":
    sys.exit(run_script(parser(), measure))
