"""A training step next to a DLRM or DCN V2 in plain torch, on the same batches in the same order.

Contestants take turns: plain torch, the same with FBGEMM's tables where installed, hotset with every row at
hand, hotset's `lookahead`, and torch (under autocast) and hotset in bf16 where the CPU has instructions.
Plain torch has an ``nn.EmbeddingBag`` with sparse gradients for each table, and SGD for everything. With
FBGEMM all tables are one module that looks up and updates in fused kernels; the rest stays.

``--open-files`` opens that many small shard files instead, and takes the first step.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ...pipeline.errors import ConfigError
from ...stats.shuffle import epoch_order
from ...train.build import build_trainer
from ...train.build_embeddings import set_threads
from ...train.config import TrainConfig
from ...train.data.batch import Batch, RecordedOrder
from ...train.data.shards import Shards
from ...train.loop import Trainer, read_ahead, train_steps
from ...train.model.gradients import cpu_features, has_bf16
from ...train.model.shapes import dlrm_shape
from .. import drawn_shards
from . import harness
from .harness import Facts, Options, Seconds, tell
from .plain_torch import PlainDcn, PlainDlrm, PlainNet, TorchOptimizers, bags

_FBGEMM = "fbgemm_gpu"
REFERENCE = "torch fp32"
"""The contestant that ratios are against."""
WARM_UP_STEPS = 3
"""Steps of each turn before the clock starts."""
_LEAST_STEPS = 4
_SMALL_BATCH, _TRIALS = 64, 5
"""Batch size of the small files, each of which has one batch, and how often they are opened."""

PARSER = harness.new_parser(__spec__, __doc__)
PARSER.add_argument("--batch-sizes", type=int, nargs="+", default=[128, 2048, 16384])
PARSER.add_argument("--embedding-dims", type=int, nargs="+", default=[16, 64])
PARSER.add_argument("--threads", type=int, nargs="+", default=[1, 2])
PARSER.add_argument("--model", choices=("dlrm", "dcnv2"), default="dlrm")
PARSER.add_argument("--rounds", type=int, default=5, help="rounds in which each contestant runs once")
PARSER.add_argument("--round-samples", type=int, default=32_768, help="at least, of each round")
PARSER.add_argument("--open-files", type=int, help="shard files to open instead")


def measure(options: Options, scratch: Path) -> Facts:
    """Measure every contestant at every batch size, dim and number of threads; or how shards are opened."""
    records: list[Facts] = []
    ratios: list[Facts] = []
    threads_before = torch.get_num_threads()
    if options.open_files is not None:
        return _measure_opening(options.open_files, scratch)
    for shards in _each_shards(options, scratch):
        for threads in options.threads:
            setting = {"batch_size": shards.batch_size, "embedding_dim": shards.embedding_dim}
            setting["threads"] = threads
            tell(", ".join(f"{name} {value:,}" for name, value in setting.items()))
            rounds = harness.take_turns(_contestants(shards, options, threads), options.rounds)
            num_steps = len(order_of(shards, options.round_samples)) - WARM_UP_STEPS
            for name, measured in rounds.items():
                about = {"name": name} | setting
                median = harness.median_seconds(measured)
                microseconds = 1e6 / (num_steps * shards.batch_size)
                each = {f"{clock}_us": microseconds * median[f"{clock}_seconds"] for clock in ("wall", "cpu")}
                records.append(about | each | {"rounds": measured})
                found = harness.compare(rounds[REFERENCE], measured)
                ratios.append(about | {f"{clock}_ratio": ratio for clock, ratio in found.items()})
    torch.set_num_threads(threads_before)
    return {"contestants": records, "ratios": ratios}


def _each_shards(options: Options, scratch: Path) -> Iterator[Shards]:
    """Generate the log once and pack it for each dim and batch size."""
    largest = max(options.batch_sizes)
    # Seven sevenths: the last is for evaluation, and the last batch may be short.
    samples = 2 * (_LEAST_STEPS + WARM_UP_STEPS) * largest
    log = harness.new_log(scratch, max(min(samples, 10 * options.round_samples), 9 * largest))
    for dim, batch_size in product(options.embedding_dims, options.batch_sizes):
        settings = {"embedding_dim": dim, "batch_size": batch_size, "embedding_optimizer": "sgd"}
        yield harness.pack_again(log, scratch / "data", **settings, order="original")


def order_of(shards: Shards, round_samples: int) -> list[int]:
    """Return the batches of a round, those of the warm-up first."""
    num_steps = max(-(-round_samples // shards.batch_size), _LEAST_STEPS) + WARM_UP_STEPS
    # A last batch may be short; the others are all full.
    is_hot_only = shards.is_hot_only[: shards.num_training_batches - 1]
    order: list[int] = epoch_order(is_hot_only, 0, 0, spread=False).tolist()
    if not order:
        raise ConfigError(f"no full batch of {shards.batch_size:,} samples")
    # A short log is passed several times in a round.
    return (order * -(-num_steps // len(order)))[:num_steps]


def _contestants(shards: Shards, options: Options, threads: int) -> dict[str, Callable[[], Seconds]]:
    order = order_of(shards, options.round_samples)
    config = TrainConfig(
        model=options.model,
        placement="all-fast",
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
        embedding_lr=0.1,
        dense_lr=0.1,
        threads=threads,
    )
    torch.manual_seed(0)
    rows, dim = [table.num_rows for table in shards.tables], shards.embedding_dim
    # Those of torch read their batches from memory, so that reading costs them nothing.
    batches = [_InMemory(shards.training_batch(number)) for number in order]

    def plain(tables: nn.Module | None = None, *, autocast: bool = False) -> Callable[[], Seconds]:
        sizes = shards.num_dense, len(rows), dim
        widths = dlrm_shape("auto", *sizes)
        net: PlainNet
        if options.model == "dcnv2":
            net = PlainDcn(bags(rows, dim), sizes, widths.top[1:-1], None)
        else:
            kind = PlainDlrm if tables is None else FbgemmDlrm
            net = kind(tables or bags(rows, dim), sizes, widths.bottom[1:-1], widths.top[1:-1])
        optimizers = TorchOptimizers(config.optimizers("sgd"), net.tables.parameters(), net.layers())
        return partial(_run_torch, net, optimizers, batches, threads, autocast)

    def own(**settings: Any) -> Callable[[], Seconds]:
        return lambda: train_timed(shards, replace(config, **settings), order)[1]

    found = {REFERENCE: plain()}
    if importlib.util.find_spec(_FBGEMM) and options.model == "dlrm":
        found["torch fp32, fbgemm"] = plain(_fbgemm_tables(rows, dim))
    found["hotset fp32"] = own()
    found["hotset fp32, lookahead"] = own(placement="lookahead")
    # A CPU without such instructions takes some eleven times as long with either.
    if has_bf16(cpu_features()):
        found["torch bf16"] = plain(autocast=True)
        found["hotset bf16"] = own(dense_dtype="bf16")
    return found


class _InMemory:
    """A batch of one-hot features as plain torch wants it, made before the clock starts."""

    def __init__(self, batch: Batch) -> None:
        self.inputs = batch.dense_BK.clone(), torch.from_numpy(batch.ids_BF.T.copy()).long()
        self.label_B = batch.label_B.clone()


def _run_torch(
    net: PlainNet, optimizers: TorchOptimizers, batches: list[_InMemory], threads: int, autocast: bool
) -> Seconds:
    torch.set_num_threads(threads)
    begin = harness.clock()
    for number, batch in enumerate(batches):
        if number == WARM_UP_STEPS:
            begin = harness.clock()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logit_B = net(*batch.inputs)
        # The loss is computed in fp32 whatever the model computed in.
        optimizers.step(binary_cross_entropy_with_logits(logit_B.float(), batch.label_B))
    return harness.seconds_since(begin)


class FbgemmDlrm(PlainDlrm):
    """DLRM with all tables in one operator of FBGEMM."""

    def _look_up(self, ids_FB: torch.Tensor) -> list[torch.Tensor]:
        emb_BN = self.tables(ids_FB.reshape(-1), torch.arange(ids_FB.numel() + 1))
        return list(emb_BN.float().split(emb_BN.shape[1] // len(ids_FB), dim=1))


def _fbgemm_tables(num_rows: Sequence[int], embedding_dim: int) -> Any:
    # Its build for the CPU warns of optimizers that it lacks.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        training = importlib.import_module(f"{_FBGEMM}.split_table_batched_embeddings_ops_training")
        common = importlib.import_module(f"{_FBGEMM}.split_table_batched_embeddings_ops_common")
        config = importlib.import_module(f"{_FBGEMM}.split_embedding_configs")
    # Tables in host memory with their update fused into the backward pass, as FBGEMM does best on a CPU.
    place = (common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
    return training.SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, embedding_dim, *place) for rows in num_rows],
        optimizer=config.EmbOptimType.EXACT_SGD,
        learning_rate=0.1,
    )


def train_timed(
    shards: Shards, config: TrainConfig, order: Sequence[int], num_warm_up: int = WARM_UP_STEPS
) -> tuple[Trainer, Seconds]:
    """Read, plan and train batches in a new run; return it, and its seconds after the warm-up."""
    set_threads(config.threads)
    trainer = build_trainer(shards, config, RecordedOrder(np.array(order, np.int32)))
    begin = harness.clock()
    with closing(train_steps(trainer)) as steps:
        for _ in steps:
            if trainer.step == num_warm_up:
                trainer.runner.synchronize()
                begin = harness.clock()
    trainer.runner.synchronize()
    return trainer, harness.seconds_since(begin)


def samples_of(shards: Shards, order: Sequence[int]) -> int:
    """Return the samples of training batches."""
    return sum(shards.training_batch(number).num_samples for number in order)


def _measure_opening(num_files: int, folder: Path) -> Facts:
    """Open shards of so many files, and take the first step."""
    with mock.patch.object(drawn_shards, "_FILE_SAMPLES", _SMALL_BATCH):
        drawn_shards.DrawnShards(
            rows_of_table=1000, skew=1.1, num_batches=num_files, batch_size=_SMALL_BATCH
        ).write(folder / "small")
    # Once for the code of kernels, which is loaded or compiled at its first use.
    trials = [_first_step(folder / "small") for _ in range(1 + _TRIALS)][1:]
    names = ("seconds_to_open", "seconds_to_first_step")
    return {name: statistics.median(trial[name] for trial in trials) for name in names} | {"trials": trials}


def _first_step(folder: Path) -> Facts:
    begin = time.perf_counter()
    shards = Shards.open(folder)
    opened = time.perf_counter() - begin
    trainer = build_trainer(shards, TrainConfig(placement="all-fast", threads=1))
    with closing(read_ahead(trainer)) as steps:
        trainer.runner.train(next(iter(steps)), 0, trainer.rates.of_step(0))
    return {"seconds_to_open": opened, "seconds_to_first_step": time.perf_counter() - begin}


if __name__ == "__main__":
    harness.main(PARSER, measure)
