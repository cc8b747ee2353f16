"""A training step next to a DLRM or DCN V2 in plain torch, on the same batches in the same order.

Contestants take turns: plain torch, the same with FBGEMM's tables where installed, hotset with every row at
hand, hotset's `lookahead`, and torch (under autocast) and hotset in bf16 where the CPU has instructions.

The references have one ``nn.EmbeddingBag`` with sparse gradients for each table, the interaction by ``bmm``
and an index of the lower triangle, a sigmoid and ``BCELoss`` at the end, one SGD for everything. With FBGEMM
all tables are one module that looks up and updates in fused kernels; the rest stays.

Source:
    Naumov et al., arXiv 1906.00091; facebookresearch/dlrm, ``dlrm_s_pytorch.py``; for DCN V2 Wang et al.,
    arXiv 2008.13535, in the layout of TorchRec's `LowRankCrossNet`.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...pipeline.errors import ConfigError
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.preprocess import preprocess, remove_from
from ...stats.shuffle import epoch_order
from ...train.build import build_trainer
from ...train.build_embeddings import set_threads
from ...train.config import TrainConfig
from ...train.data.batch import Batch
from ...train.data.batch_order import RecordedOrder
from ...train.data.shards import Shards
from ...train.dense.gradients import cpu_features, has_bf16
from ...train.loop import Trainer, run_steps
from ...train.model.choose_model import choose_model
from ...train.model.shapes import DcnShape, DlrmShape, ModelInputs, dlrm_shape
from ..recipes import criteo_kaggle
from .harness import Facts, median_ratio, new_parser, run_script, scratch_folder, take_turns, tell

LEARNING_RATE = 0.1
_FBGEMM = "fbgemm_gpu"
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


def has_fbgemm() -> bool:
    """Return whether FBGEMM's table-batched embeddings are installed."""
    return importlib.util.find_spec(_FBGEMM) is not None


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


class ReferenceDlrm(nn.Module):
    """DLRM_Net with tables of torch or of FBGEMM.

    Args:
        shape: sizes of the dense layers.
        num_rows: rows of each table.
        fbgemm: whether the tables are FBGEMM's.
    """

    def __init__(self, shape: DlrmShape, num_rows: Sequence[int], *, fbgemm: bool = False) -> None:
        super().__init__()
        self.bottom = _mlp(shape.bottom, sigmoid_last=False)
        self.top = _mlp(shape.top, sigmoid_last=True)
        # Either one table after another, or all tables in one operator.
        self.tables: Any = (
            _fbgemm_tables(num_rows, shape.embedding_dim)
            if fbgemm
            else nn.ModuleList(
                nn.EmbeddingBag(rows, shape.embedding_dim, mode="sum", sparse=True) for rows in num_rows
            )
        )
        self._is_fbgemm = fbgemm

    def forward(self, batch: ReferenceBatch) -> torch.Tensor:
        """Return (B, 1) probabilities of a click."""
        probability_B1: torch.Tensor = self.top(self._top_inputs(batch))
        return probability_B1

    def logits(self, batch: ReferenceBatch) -> torch.Tensor:
        """Return (B, 1) logits: what is before the last sigmoid."""
        logit_B1: torch.Tensor = self.top[:-1](self._top_inputs(batch))
        return logit_B1

    def _top_inputs(self, batch: ReferenceBatch) -> torch.Tensor:
        return self._interact(self.bottom(batch.dense_BK), self._look_up(batch))

    def _look_up(self, batch: ReferenceBatch) -> list[torch.Tensor]:
        if self._is_fbgemm:
            offsets = torch.arange(len(batch.ids) * batch.offsets_B.numel() + 1)
            emb_BFD = self.tables(torch.cat(batch.ids), offsets)
            return list(emb_BFD.float().split(emb_BFD.shape[1] // len(batch.ids), dim=1))
        return [table(ids, batch.offsets_B) for table, ids in zip(self.tables, batch.ids, strict=True)]

    @staticmethod
    def _interact(bottom_BD: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        num_samples, dim = bottom_BD.shape
        vectors_BVD = torch.cat([bottom_BD, *embeddings], dim=1).view((num_samples, -1, dim))
        dots_BVV = torch.bmm(vectors_BVD, torch.transpose(vectors_BVD, 1, 2))
        num_vectors = dots_BVV.shape[1]
        # Each pair of different vectors counts once: the products below the diagonal.
        rows = torch.tensor([i for i in range(num_vectors) for _ in range(i)])
        columns = torch.tensor([j for i in range(num_vectors) for j in range(i)])
        return torch.cat([bottom_BD, dots_BVV[:, rows, columns]], dim=1)


class ReferenceDcn(nn.Module):
    """DCN V2 with an ``EmbeddingBag`` for each table.

    Args:
        shape: sizes of the dense layers; the stacked structure without a bottom MLP.
        num_rows: rows of each table.
    """

    def __init__(self, shape: DcnShape, num_rows: Sequence[int]) -> None:
        super().__init__()
        assert shape.config.structure == "stacked" and not shape.bottom
        num_inputs = shape.num_inputs
        rank = shape.config.cross_rank
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)
            for rows, dim in zip(num_rows, shape.table_dims, strict=True)
        )

        def cross() -> nn.Module:
            # A full matrix, or its two factors where the rank is limited.
            if rank is None:
                return nn.Linear(num_inputs, num_inputs)
            return nn.Sequential(nn.Linear(num_inputs, rank, bias=False), nn.Linear(rank, num_inputs))

        self.cross = nn.ModuleList(cross() for _ in range(shape.config.cross_layers))
        deep: list[nn.Module] = []
        widths = (num_inputs, *shape.config.top_widths)
        for inputs, outputs in pairwise(widths):
            deep += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.deep = nn.Sequential(*deep, nn.Linear(widths[-1], 1), nn.Sigmoid())

    def forward(self, batch: ReferenceBatch) -> torch.Tensor:
        """Return (B, 1) probabilities of a click."""
        rows = [table(ids, batch.offsets_B) for table, ids in zip(self.tables, batch.ids, strict=True)]
        first_BN = torch.cat([batch.dense_BK, *rows], dim=1)
        crossed_BN = first_BN
        # A cross layer multiplies the first vector by a linear map of the last one, and adds the last one.
        for layer in self.cross:
            crossed_BN = first_BN * layer(crossed_BN) + crossed_BN
        probability_B1: torch.Tensor = self.deep(crossed_BN)
        return probability_B1


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


def _mlp(widths: Sequence[int], *, sigmoid_last: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for layer in range(len(widths) - 1):
        layers.append(nn.Linear(widths[layer], widths[layer + 1]))
        is_last = layer == len(widths) - 2
        layers.append(nn.Sigmoid() if is_last and sigmoid_last else nn.ReLU())
    return nn.Sequential(*layers)


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
    sys.exit(run_script(parser(), measure))
