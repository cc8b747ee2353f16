"""A training step next to a DLRM or DCN V2 in plain torch, on the same batches in the same order.

Contestants take turns: plain torch, the same with FBGEMM's tables where installed, hotset with every row at
hand, hotset's `lookahead`, and torch (under autocast) and hotset in bf16 where the CPU has instructions.

The references have one ``nn.EmbeddingBag`` with sparse gradients for each table, the interaction by ``bmm``
and an index of the lower triangle, a sigmoid and ``BCELoss`` at the end, one SGD for everything. With FBGEMM
all tables are one module that looks up and updates in fused kernels; the rest stays.

Source:
    Naumov et al., arXiv 1906.00091; facebookresearch/dlrm, ``dlrm_s_pytorch.py``; for DCN V2 Wang et al.,
    arXiv 2008.13535, in the layout of TorchRec's `CrossNet`.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...pipeline.errors import ConfigError
from ...stats.shuffle import epoch_order
from ...train.build import build_trainer
from ...train.build_embeddings import set_threads
from ...train.config import TrainConfig
from ...train.data.batch import Batch
from ...train.data.batch_order import RecordedOrder
from ...train.data.shards import Shards
from ...train.dense.gradients import cpu_features, has_bf16
from ...train.loop import Trainer, train_steps
from ...train.model.choose_model import choose_model
from ...train.model.shapes import DcnShape, DlrmShape, ModelInputs, dlrm_shape
from .harness import (
    Facts,
    Seconds,
    clock,
    compare,
    new_log,
    new_parser,
    pack_again,
    run_script,
    scratch_folder,
    seconds_since,
    take_turns,
    tell,
)

LEARNING_RATE = 0.1
_FBGEMM = "fbgemm_gpu"
REFERENCE = "torch fp32"
"""The contestant that ratios are against."""
WARM_UP_STEPS = 3
"""Steps of each turn before the clock starts."""
_LEAST_STEPS = 4

PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("--batch-sizes", type=int, nargs="+", default=[128, 2048, 16384])
PARSER.add_argument("--embedding-dims", type=int, nargs="+", default=[16, 64])
PARSER.add_argument("--threads", type=int, nargs="+", default=[1, 2])
PARSER.add_argument("--model", choices=("dlrm", "dcnv2"), default="dlrm")
PARSER.add_argument("--rounds", type=int, default=5, help="rounds in which each contestant runs once")
PARSER.add_argument("--round-samples", type=int, default=32_768, help="at least, of each round")


def measure(options: argparse.Namespace) -> Facts:
    """Measure every contestant at every batch size, dim and number of threads."""
    records: list[Facts] = []
    ratios: list[Facts] = []
    threads_before = torch.get_num_threads()
    try:
        with scratch_folder(options) as scratch:
            for shards in _each_shards(options, scratch):
                for threads in options.threads:
                    setting = {
                        "batch_size": shards.batch_size,
                        "embedding_dim": shards.embedding_dim,
                        "threads": threads,
                    }
                    tell(", ".join(f"{name} {value:,}" for name, value in setting.items()))
                    rounds = take_turns(_contestants(shards, options, threads), options.rounds)
                    num_steps = len(order_of(shards, options.round_samples)) - WARM_UP_STEPS
                    for name, measured in rounds.items():
                        about = {"name": name} | setting
                        records.append(about | _of_a_sample(measured, num_steps * shards.batch_size))
                        found = compare(rounds[REFERENCE], measured)
                        ratios.append(about | {f"{clock}_ratio": ratio for clock, ratio in found.items()})
    finally:
        torch.set_num_threads(threads_before)
    return {"contestants": records, "ratios": ratios}


def _of_a_sample(rounds: list[Seconds], num_samples: int) -> Facts:
    """Return the microseconds of a sample: the medians, and those of each round."""
    wall, cpu = ([1e6 * each / num_samples for each in of_clock] for of_clock in zip(*rounds, strict=True))
    medians = {"wall_us": statistics.median(wall), "cpu_us": statistics.median(cpu)}
    return medians | {"rounds": {"wall_us": wall, "cpu_us": cpu}}


def _each_shards(options: argparse.Namespace, scratch: Path) -> Iterator[Shards]:
    """Generate the log once and pack it for each dim and batch size."""
    largest = max(options.batch_sizes)
    # Seven sevenths: the last is for evaluation, and the last batch may be short.
    samples = 2 * (_LEAST_STEPS + WARM_UP_STEPS) * largest
    log = new_log(scratch, max(min(samples, 10 * options.round_samples), 9 * largest))
    for dim, batch_size in product(options.embedding_dims, options.batch_sizes):
        settings = {"embedding_dim": dim, "batch_size": batch_size}
        yield pack_again(log, scratch / "data", **settings, embedding_optimizer="sgd", order="original")


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


def _contestants(
    shards: Shards, options: argparse.Namespace, threads: int
) -> dict[str, Callable[[], Seconds]]:
    order = order_of(shards, options.round_samples)
    # The references read their batches from memory, so that reading costs them nothing.
    batches = [ReferenceBatch.of(shards.training_batch(number)) for number in order]
    config = TrainConfig(
        model=options.model,
        placement="all-fast",
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
        embedding_lr=LEARNING_RATE,
        dense_lr=LEARNING_RATE,
        threads=threads,
    )
    torch.manual_seed(0)
    num_rows = [table.num_rows for table in shards.tables]
    dlrm = dlrm_shape("auto", shards.num_dense, len(shards.tables), shards.embedding_dim)

    def reference() -> torch.nn.Module:
        if options.model == "dlrm":
            return ReferenceDlrm(dlrm, num_rows)
        inputs = ModelInputs.of(shards)
        chosen = choose_model(config, shards.embedding_dim)
        return ReferenceDcn(DcnShape(inputs.num_dense, inputs.table_dims, chosen), num_rows)

    def in_torch(training: ReferenceTraining) -> Callable[[], Seconds]:
        return partial(_run_torch, training, batches, threads)

    def in_hotset(config: TrainConfig) -> Callable[[], Seconds]:
        return lambda: train_timed(shards, config, order)[1]

    found = {REFERENCE: in_torch(ReferenceTraining(reference()))}
    if importlib.util.find_spec(_FBGEMM) and options.model == "dlrm":
        found["torch fp32, fbgemm"] = in_torch(ReferenceTraining(FbgemmDlrm(dlrm, num_rows)))
    found["hotset fp32"] = in_hotset(config)
    found["hotset fp32, lookahead"] = in_hotset(replace(config, placement="lookahead"))
    # A CPU without such instructions takes some eleven times as long with either.
    if has_bf16(cpu_features()):
        found["torch bf16"] = in_torch(ReferenceTraining(reference(), autocast=True))
        found["hotset bf16"] = in_hotset(replace(config, dense_dtype="bf16"))
    return found


def _run_torch(training: ReferenceTraining, batches: list[ReferenceBatch], threads: int) -> Seconds:
    torch.set_num_threads(threads)
    for batch in batches[:WARM_UP_STEPS]:
        training.step(batch)
    begin = clock()
    for batch in batches[WARM_UP_STEPS:]:
        training.step(batch)
    return seconds_since(begin)


def train_timed(
    shards: Shards, config: TrainConfig, order: Sequence[int], num_warm_up: int = WARM_UP_STEPS
) -> tuple[Trainer, Seconds]:
    """Read, plan and train batches in a new run; return it, and its seconds after the warm-up."""
    set_threads(config.threads)
    trainer = build_trainer(shards, config, RecordedOrder(np.array(order, np.int32)))
    begin = clock()
    with closing(train_steps(trainer)) as steps:
        for _ in steps:
            if trainer.step == num_warm_up:
                trainer.runner.synchronize()
                begin = clock()
    trainer.runner.synchronize()
    return trainer, seconds_since(begin)


def samples_of(shards: Shards, order: Sequence[int]) -> int:
    """Return the samples of training batches."""
    return sum(shards.training_batch(number).num_samples for number in order)


@dataclass(frozen=True, slots=True)
class ReferenceBatch:
    """One batch as the reference wants it, made before the clock starts."""

    dense_BK: torch.Tensor
    label_B1: torch.Tensor
    ids: tuple[torch.Tensor, ...]
    """(B,) int64 ids of each table."""
    offsets_B: torch.Tensor
    """(B,) int64; each bag has one id."""

    @classmethod
    def of(cls, batch: Batch) -> ReferenceBatch:
        """Copy a batch of one-hot features."""
        ids_FB = torch.from_numpy(batch.ids_BF.T.copy()).long()
        offsets_B = torch.arange(batch.num_samples)
        return cls(batch.dense_BK.clone(), batch.label_B.clone().unsqueeze(1), tuple(ids_FB), offsets_B)


class Reference(nn.Module):
    """A model in plain torch.

    Args:
        table_dims: of each table.
        num_rows: of each table.
    """

    def __init__(self, table_dims: Sequence[int], num_rows: Sequence[int]) -> None:
        super().__init__()
        self.tables: Any = nn.ModuleList(
            nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)
            for rows, dim in zip(num_rows, table_dims, strict=True)
        )

    def forward(self, batch: ReferenceBatch) -> torch.Tensor:
        """Return (B, 1) probabilities of a click."""
        return torch.sigmoid(self.logits(batch))

    def logits(self, batch: ReferenceBatch) -> torch.Tensor:
        """Return (B, 1) logits."""
        raise NotImplementedError

    def look_up(self, batch: ReferenceBatch) -> list[torch.Tensor]:
        """Return the (B, D) rows of each table."""
        return [table(ids, batch.offsets_B) for table, ids in zip(self.tables, batch.ids, strict=True)]


class ReferenceDlrm(Reference):
    """DLRM_Net; ``shape`` has the sizes of its dense layers."""

    def __init__(self, shape: DlrmShape, num_rows: Sequence[int]) -> None:
        super().__init__([shape.embedding_dim] * len(num_rows), num_rows)
        self.bottom = _mlp(shape.bottom)
        # The last layer gives logits.
        self.top = _mlp(shape.top)[:-1]

    def logits(self, batch: ReferenceBatch) -> torch.Tensor:
        bottom_BD = self.bottom(batch.dense_BK)
        num_samples, dim = bottom_BD.shape
        vectors_BVD = torch.cat([bottom_BD, *self.look_up(batch)], dim=1).view((num_samples, -1, dim))
        dots_BVV = torch.bmm(vectors_BVD, torch.transpose(vectors_BVD, 1, 2))
        num_vectors = dots_BVV.shape[1]
        # Each pair of different vectors counts once: the products below the diagonal.
        rows = torch.tensor([i for i in range(num_vectors) for _ in range(i)])
        columns = torch.tensor([j for i in range(num_vectors) for j in range(i)])
        logit_B1: torch.Tensor = self.top(torch.cat([bottom_BD, dots_BVV[:, rows, columns]], dim=1))
        return logit_B1


class FbgemmDlrm(ReferenceDlrm):
    """The same with all tables in one operator of FBGEMM."""

    def __init__(self, shape: DlrmShape, num_rows: Sequence[int]) -> None:
        super().__init__(shape, ())
        self.tables = _fbgemm_tables(num_rows, shape.embedding_dim)

    def look_up(self, batch: ReferenceBatch) -> list[torch.Tensor]:
        offsets = torch.arange(len(batch.ids) * batch.offsets_B.numel() + 1)
        emb_BFD = self.tables(torch.cat(batch.ids), offsets)
        return list(emb_BFD.float().split(emb_BFD.shape[1] // len(batch.ids), dim=1))


class ReferenceDcn(Reference):
    """DCN V2 in the stacked structure with full cross layers, without a bottom MLP."""

    def __init__(self, shape: DcnShape, num_rows: Sequence[int]) -> None:
        super().__init__(shape.table_dims, num_rows)
        assert shape.config.structure == "stacked" and not shape.bottom and shape.config.cross_rank is None
        num_inputs = shape.num_inputs
        self.cross = nn.ModuleList(
            nn.Linear(num_inputs, num_inputs) for _ in range(shape.config.cross_layers)
        )
        self.deep = _mlp((num_inputs, *shape.config.top_widths, 1))[:-1]

    def logits(self, batch: ReferenceBatch) -> torch.Tensor:
        first_BN = torch.cat([batch.dense_BK, *self.look_up(batch)], dim=1)
        crossed_BN = first_BN
        # A cross layer multiplies the first vector by a linear map of the last one, and adds the last one.
        for layer in self.cross:
            crossed_BN = first_BN * layer(crossed_BN) + crossed_BN
        logit_B1: torch.Tensor = self.deep(crossed_BN)
        return logit_B1


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    """Return layers with a ReLU after each."""
    layers = ((nn.Linear(inputs, outputs), nn.ReLU()) for inputs, outputs in pairwise(widths))
    return nn.Sequential(*chain.from_iterable(layers))


class ReferenceTraining:
    """The reference with its optimizers, one step at a time.

    Args:
        model: the network, from a `ReferenceBatch` to (B, 1) probabilities.
        autocast: whether the forward pass runs under bf16 autocast.
        optimizers: those of its parameters; None: SGD with `LEARNING_RATE` for all.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        autocast: bool = False,
        optimizers: Sequence[torch.optim.Optimizer] | None = None,
    ) -> None:
        self.model = model
        self._autocast = autocast
        self._optimizers = optimizers or [torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)]
        self._loss = nn.BCELoss(reduction="mean")

    def step(self, batch: ReferenceBatch) -> torch.Tensor:
        """Train on one batch; return its mean loss."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            probability_B1 = self.model(batch)
        # The loss is computed in fp32 whatever the model computed in.
        loss: torch.Tensor = self._loss(probability_B1.float(), batch.label_B1)
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self._optimizers:
            optimizer.step()
        return loss.detach()


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
        learning_rate=LEARNING_RATE,
    )


if __name__ == "__main__":
    sys.exit(run_script(PARSER, measure))
