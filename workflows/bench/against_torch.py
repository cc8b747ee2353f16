"""Scores of hotset and of a plain torch program on the same logs, by the same recipes.

The torch program is written as such programs are. It keeps the parsed samples in memory, shuffles all of them
anew in each epoch, has an ``nn.Embedding`` for each feature, and leaves gradients and steps to torch. With
hotset it shares the values and ids of samples, the sizes of the model, the batch size, the learning rates and
the distributions of initial values; not their draws, batches, optimizers, kernels or scores. The other
programs of ``--programs`` have more in common with hotset, or less, and show where a difference comes from.

A difference is a program's score minus that of the first program with the same seed. Its interval over seeds
is Student's, of 95%.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, pairwise, product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...pipeline.errors import ConfigError
from ...train.build_model import build_model
from ...train.config import TrainConfig
from ...train.data.batch import Batch
from ...train.data.batch_order import SeededOrder
from ...train.data.shards import EvaluationPart, Shards
from ...train.model.choose_model import choose_model
from ...train.model.shapes import ModelInputs
from ...train.rows.tiers import InitialValues
from ...train.run import train
from ..library import preprocess
from .harness import Facts, new_log, new_parser, new_run, run_script, scratch_folder, tell

DIM = 16
"""Width of the rows."""
CROSS_LAYERS = 3


@dataclass(frozen=True, slots=True)
class Layers:
    """The hidden layers of both models, of either program."""

    bottom: tuple[int, ...]
    """Widths of DLRM's layers before the interaction."""
    top: tuple[int, ...]
    """Widths of its layers after it, and of the deep network of DCN V2."""
    cross_rank: int | None
    """Rank of the matrices of DCN V2's cross layers; None: they are full."""

    def settings(self, model: str) -> dict[str, Any]:
        """Return the settings of hotset for a model."""
        if model == "dcnv2":
            return {"model": model, "top_mlp": self.top, "cross_rank": self.cross_rank}
        return {"model": model, "bottom_mlp": self.bottom, "top_mlp": self.top}


LAYERS = {"kaggle": Layers((512, 256, 64), (512, 256), None), "small": Layers((64,), (64,), 32)}
RECIPES = {
    # Adagrad for rows and Adam for the dense layers; Adam for all, as FuxiCTR has it, by the rate of rows of
    # hotset and by that of torch; SGD for all, as DLRM.
    "adagrad": TrainConfig(embedding_optimizer="adagrad", threads=1),
    "adam": TrainConfig(embedding_optimizer="adam", threads=1),
    "adam-0.001": TrainConfig(embedding_optimizer="adam", embedding_lr=0.001, threads=1),
    "sgd": TrainConfig(embedding_optimizer="sgd", dense_optimizer="same", threads=1),
}
Scores = dict[str, float]
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided quantiles of 95% for 2 to 10 seeds."""


@dataclass(frozen=True, slots=True)
class Log:
    """A log: how it is preprocessed, and how often a run passes it."""

    batch_size: int
    scale: float = 1
    """Divisor of the cardinalities of a generated log."""
    min_count: int = 1
    epochs: int = 1
    num_sparse: int | None = None
    """Categorical columns that are read, the first ones, without the dense ones; None: all columns are."""


LOGS = {
    # Categories that most often occur once; tables of a few rows; a log in the shape of Avazu's.
    "kaggle": Log(batch_size=1024),
    "small": Log(batch_size=512, scale=1000, epochs=2),
    "sparse": Log(batch_size=1024, scale=10, min_count=2, num_sparse=22),
    "real": Log(batch_size=512, min_count=4),
}


@dataclass(frozen=True, slots=True)
class Program:
    """A torch program, and what is not its own."""

    values: str = "own"
    """Initial values: own draws, those of hotset, or draws from FuxiCTR's distributions."""
    has_batches: bool = False
    """Whether it trains on the batches of hotset in their order."""
    has_lazy_adam: bool = False
    """Whether Adam leaves rows without lookups as they are; otherwise their averages move them on."""


HOTSET: dict[str, Literal["grouped", "original"]] = {
    "hotset": "grouped",
    "hotset, original order": "original",
}
"""Ways to train with hotset, and the order of their shards."""
PROGRAMS = {
    "torch": Program(),
    "torch, values of hotset": Program(values="hotset"),
    "torch, batches of hotset": Program(has_batches=True),
    "torch, both of hotset": Program(values="hotset", has_batches=True),
    "torch, values as FuxiCTR's": Program(values="fuxictr"),
    "torch, SparseAdam": Program(has_lazy_adam=True),
}

PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("--data", type=Path, help="raw Criteo log, the one called real")
PARSER.add_argument("--logs", nargs="+", choices=LOGS, default=["small", "kaggle", "sparse"])
PARSER.add_argument("--models", nargs="+", choices=("dlrm", "dcnv2"), default=["dlrm", "dcnv2"])
PARSER.add_argument("--layers", choices=LAYERS, default="kaggle", help="widths, by hotset's preset")
PARSER.add_argument("--optimizers", nargs="+", choices=RECIPES, default=["adagrad", "adam"])
PARSER.add_argument("--programs", nargs="+", choices=(*HOTSET, *PROGRAMS), default=["hotset", "torch"])
PARSER.add_argument("--seeds", type=int, choices=range(2, 11), default=5, help="number of seeds")
PARSER.add_argument("--train-samples", type=int, default=120_000, help="of a generated log, over its epochs")
PARSER.add_argument("--test-samples", type=int, default=100_000, help="of a generated log")
PARSER.add_argument("--cells", type=Path, help="file of finished trainings, which are not done again")


def measure(options: argparse.Namespace) -> Facts:
    """Train every program on every log with each model, optimizer and seed; return scores and differences."""
    if "real" in options.logs and options.data is None:
        raise ConfigError("the log called real needs --data")
    torch.set_num_threads(1)
    finished = Finished(options.cells)
    with scratch_folder(options) as folder:
        logs = {name: Data(folder / name, name, options) for name in options.logs}
        # Seeds are outermost, so that a run that is cut short has as many of each.
        for seed, *case in product(
            range(options.seeds), options.optimizers, options.models, options.logs, options.programs
        ):
            if not finished.has(case, seed):
                optimizer, model, log, program = case
                finished.add(case, seed, logs[log].scores_of(program, model, optimizer, seed))
        facts: Facts = {"logs": {name: data.facts() for name, data in logs.items()}}
    facts["recipes"] = {name: asdict(config.optimizers("")) for name, config in RECIPES.items()}
    facts |= {"cases": [], "together": {}}
    for optimizer in options.optimizers:
        cases = [
            {"log": log, "model": model, "optimizer": optimizer}
            | summary(
                {name: finished.of([optimizer, model, log, name], options.seeds) for name in options.programs}
            )
            for model, log in product(options.models, options.logs)
        ]
        facts["cases"] += cases
        facts["together"][optimizer] = together(cases)
    return facts


class Finished:
    """Scores of the trainings so far, by optimizer, model, log, program and seed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.scores = {tuple(cell): scores for cell, scores in map(json.loads, lines)}

    def has(self, case: Sequence[str], seed: int) -> bool:
        """Return whether a training is finished."""
        return (*case, seed) in self.scores

    def of(self, case: Sequence[str], num_seeds: int) -> list[Scores]:
        """Return the scores of a training with each seed."""
        return [self.scores[*case, seed] for seed in range(num_seeds)]

    def add(self, case: Sequence[str], seed: int, scores: Scores) -> None:
        """Keep the scores of a training."""
        self.scores[*case, seed] = scores
        tell(f"seed {seed}, {', '.join(case)}: AUC {scores['auc']:.4f}, log loss {scores['log_loss']:.4f}")
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps([[*case, seed], scores]) + "\n")


def summary(scores: dict[str, list[Scores]]) -> Facts:
    """Return the scores of each program, their means, and differences from the first program by seed."""
    found: Facts = {}
    first = next(iter(scores.values()))
    for score in ("auc", "log_loss"):
        found[score] = {program: [one[score] for one in own] for program, own in scores.items()}
        found[f"mean_{score}"] = {program: fmean(own) for program, own in found[score].items()}
        found[f"{score}_difference"] = {
            program: interval([one[score] - other[score] for one, other in zip(own, first, strict=True)])
            for program, own in list(scores.items())[1:]
        }
    return found


def together(cases: Sequence[Facts]) -> Facts:
    """Return differences from the first program, of the means over cases by seed."""
    found: Facts = {}
    for score in ("auc", "log_loss"):
        names = list(cases[0][score])
        means = {name: np.mean([case[score][name] for case in cases], axis=0) for name in names}
        found[score] = {name: interval((means[name] - means[names[0]]).tolist()) for name in names[1:]}
    return found


def interval(differences: Sequence[float]) -> Facts:
    """Return the mean of differences and the bounds of its interval."""
    mean = fmean(differences)
    half = _STUDENT[len(differences) - 2] * stdev(differences) / math.sqrt(len(differences))
    return {"mean": mean, "from": mean - half, "to": mean + half}


class Data:
    """A preprocessed log.

    Args:
        folder: a new one, for the log and the runs.
        name: one of `LOGS`.
        options: those of the script.
    """

    def __init__(self, folder: Path, name: str, options: argparse.Namespace) -> None:
        folder.mkdir()
        self.log = LOGS[name]
        self._layers = LAYERS[options.layers]
        self._folder = folder
        self._raw, eval_fraction = options.data, 0.2
        if name != "real":
            num_training = options.train_samples // self.log.epochs
            num_samples = num_training + options.test_samples
            self._raw = new_log(folder, num_samples, scale=self.log.scale)
            eval_fraction = options.test_samples / num_samples
        self._settings: dict[str, Any] = {
            "batch_size": self.log.batch_size,
            "embedding_dim": DIM,
            "min_count": self.log.min_count,
            "eval_fraction": eval_fraction,
        }
        self.shards = self._shards("grouped")
        self.rows = [table.num_rows for table in self.shards.tables]

    def _shards(self, order: Literal["grouped", "original"]) -> Shards:
        """Preprocess the log with an order of samples, unless it is."""
        schema: str | Path = "criteo-kaggle"
        if self.log.num_sparse is not None:
            schema = self._folder / "schema.toml"
            schema.write_text(schema_of_sparse(self.log.num_sparse))
        data = self._folder / order
        if not data.exists():
            preprocess(
                self._raw, data, schema=schema, order=order, workers=1, progress=False, **self._settings
            )
        return Shards.open(data)

    def facts(self) -> Facts:
        """Return sizes and settings."""
        samples = {"training": self.shards.num_training_samples, "test": self.shards.num_evaluation_samples}
        return asdict(self.log) | {"samples": samples, "rows": sum(self.rows), "settings": self._settings}

    def scores_of(self, program: str, model: str, optimizer: str, seed: int) -> Scores:
        """Train a program; return its scores of the test part."""
        settings = self._layers.settings(model)
        config = replace(RECIPES[optimizer], seed=seed, epochs=self.log.epochs, **settings)
        if program in PROGRAMS:
            return train_torch(self, PROGRAMS[program], config)
        out = new_run(self._folder)
        found = train(self._shards(HOTSET[program]).manifest.folder, config, out)
        shutil.rmtree(out)
        assert found.auc is not None and found.log_loss is not None, "both labels occur"
        return {"auc": found.auc, "log_loss": found.log_loss}

    @cached_property
    def training(self) -> Samples:
        """The training part, in the order of its batches."""
        return Samples.of([self.shards.training_batch(i) for i in range(self.shards.num_training_batches)])

    @cached_property
    def test(self) -> Samples:
        """The test part."""
        part = EvaluationPart(self.shards, "test")
        return Samples.of([part.batch(number) for number in part.numbers])


def schema_of_sparse(num_sparse: int) -> str:
    """Return the schema of a Criteo log of which some categorical columns are read."""
    columns = ["label", *(f"I{i + 1}" for i in range(13)), *(f"C{i + 1}" for i in range(26))]
    text = ['format = "csv"', 'separator = "\\t"', "header = false", f"fields = {json.dumps(columns)}"]
    text += ['label = "label"', "dense = []", "[sparse]"]
    return "\n".join(text + [f'{name} = "hex8"' for name in columns[14 : 14 + num_sparse]]) + "\n"


@dataclass(frozen=True, slots=True)
class Samples:
    """Parsed samples in memory, as a torch program has them."""

    dense_NK: torch.Tensor
    ids_NF: torch.Tensor
    label_N: torch.Tensor
    sizes: list[int]
    """Samples of each batch that they were read in."""

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> Samples:
        """Join batches."""
        return cls(
            torch.cat([batch.dense_BK for batch in batches]),
            torch.cat([torch.from_numpy(batch.ids_BF.astype(np.int64)) for batch in batches]),
            torch.cat([batch.label_B for batch in batches]),
            [batch.num_samples for batch in batches],
        )


class Net(nn.Module):
    """The tables of a model, and its parameters by kind.

    Args:
        config: its hidden layers.
        num_dense: dense features, which may be none.
        rows: of each table.
        is_sparse: whether gradients of tables are sparse tensors.
    """

    def __init__(self, config: TrainConfig, num_dense: int, rows: Sequence[int], is_sparse: bool) -> None:
        super().__init__()
        self.top_widths = config.top_mlp or ()
        self.tables: Any = nn.ModuleList(nn.Embedding(count, DIM, sparse=is_sparse) for count in rows)

    def look_up(self, ids_BF: torch.Tensor) -> torch.Tensor:
        """Return the (B, F, D) rows of samples."""
        return torch.stack([table(ids_BF[:, i]) for i, table in enumerate(self.tables)], dim=1)

    def dense_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of all layers after the tables."""
        return [value for name, value in self.named_parameters() if not name.startswith("tables")]


class PlainDlrm(Net):
    """DLRM: the products of all pairs of embeddings and the output of a bottom MLP."""

    def __init__(self, config: TrainConfig, num_dense: int, rows: Sequence[int], is_sparse: bool) -> None:
        super().__init__(config, num_dense, rows, is_sparse)
        num_vectors = len(rows) + (1 if num_dense else 0)
        num_pairs = num_vectors * (num_vectors - 1) // 2
        self.bottom = _mlp([num_dense, *(config.bottom_mlp or ()), DIM]) if num_dense else None
        self.top = _mlp([num_pairs + (DIM if num_dense else 0), *self.top_widths, 1])[:-1]

    def forward(self, dense_BK: torch.Tensor, ids_BF: torch.Tensor) -> torch.Tensor:
        """Return (B,) logits."""
        vectors_BVD = self.look_up(ids_BF)
        inputs = []
        if self.bottom is not None:
            inputs = [self.bottom(dense_BK)]
            vectors_BVD = torch.cat([inputs[0].unsqueeze(1), vectors_BVD], dim=1)
        rows, columns = torch.tril_indices(vectors_BVD.shape[1], vectors_BVD.shape[1], offset=-1)
        dots_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
        logit_B1: torch.Tensor = self.top(torch.cat([*inputs, dots_BVV[:, rows, columns]], dim=1))
        return logit_B1.squeeze(1)


class PlainDcn(Net):
    """DCN V2: a cross network, then a deep one, then a linear layer."""

    def __init__(self, config: TrainConfig, num_dense: int, rows: Sequence[int], is_sparse: bool) -> None:
        super().__init__(config, num_dense, rows, is_sparse)
        width = num_dense + DIM * len(rows)
        rank = config.cross_rank
        self.cross = nn.ModuleList(
            nn.Linear(width, width)
            if rank is None
            else nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))
            for _ in range(CROSS_LAYERS)
        )
        self.deep = _mlp([width, *self.top_widths, 1])[:-1]

    def forward(self, dense_BK: torch.Tensor, ids_BF: torch.Tensor) -> torch.Tensor:
        """Return (B,) logits."""
        first_BN = torch.cat([dense_BK, self.look_up(ids_BF).flatten(1)], dim=1)
        crossed_BN = first_BN
        for layer in self.cross:
            crossed_BN = first_BN * layer(crossed_BN) + crossed_BN
        logit_B1: torch.Tensor = self.deep(crossed_BN)
        return logit_B1.squeeze(1)


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    """Return linear layers with a ReLU after each."""
    layers = ((nn.Linear(inputs, outputs), nn.ReLU()) for inputs, outputs in pairwise(widths))
    return nn.Sequential(*chain.from_iterable(layers))


@torch.no_grad()
def draw_values(net: Net, *, as_fuxictr: bool) -> None:
    """Draw initial values from DLRM's distributions, which are hotset's too, or from FuxiCTR's."""
    for table in net.tables:
        bound = math.sqrt(1 / table.num_embeddings)
        table.weight.normal_(std=1e-4) if as_fuxictr else table.weight.uniform_(-bound, bound)
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                has_zeros = as_fuxictr or name.startswith("cross")
                layer.bias.normal_(std=0 if has_zeros else math.sqrt(1 / layer.out_features))


def train_torch(data: Data, program: Program, config: TrainConfig) -> Scores:
    """Train a torch program; return its scores of the test part."""
    torch.manual_seed(config.seed)
    chosen = config.optimizers(data.shards.embedding_optimizer)
    # Rows without a gradient stay as they are under SGD and Adagrad, so sparse gradients do the same and are
    # quicker. Under torch's Adam such rows move on.
    is_sparse = chosen.embedding_optimizer != "adam" or program.has_lazy_adam
    build = PlainDlrm if config.model == "dlrm" else PlainDcn
    net = build(config, data.shards.num_dense, data.rows, is_sparse)
    draw_values(net, as_fuxictr=program.values == "fuxictr")
    if program.values == "hotset":
        take_values_of_hotset(net, data.shards, config)
    kinds: Any = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
    lazy: Any = {"adam": torch.optim.SparseAdam} if program.has_lazy_adam else {}
    optimizers = [
        (kinds | lazy)[chosen.embedding_optimizer](net.tables.parameters(), lr=chosen.embedding_lr),
        kinds[chosen.dense_optimizer](net.dense_parameters(), lr=chosen.dense_lr),
    ]
    samples, loss_of = data.training, nn.BCEWithLogitsLoss()
    batches = batches_of_hotset(data, config) if program.has_batches else shuffled_batches(data)
    # Torch's Adagrad makes sparse tensors internally, and would warn that it does not check them.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        for batch in batches:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = loss_of(net(samples.dense_NK[batch], samples.ids_NF[batch]), samples.label_N[batch])
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    return score(net, data.test)


def shuffled_batches(data: Data) -> Iterator[torch.Tensor]:
    """Yield the samples of each batch, all shuffled anew in each epoch."""
    for _ in range(data.log.epochs):
        yield from torch.split(torch.randperm(data.training.label_N.numel()), data.log.batch_size)


def batches_of_hotset(data: Data, config: TrainConfig) -> Iterator[torch.Tensor]:
    """Yield the samples of each batch of hotset, in its order."""
    batches = torch.split(torch.arange(data.training.label_N.numel()), data.training.sizes)
    shards = data.shards
    order = SeededOrder(shards.is_hot_only, config.seed, config.epochs, is_grouped=shards.is_grouped)
    for numbers in order.epochs():
        yield from (batches[number] for number in numbers)


@torch.no_grad()
def take_values_of_hotset(net: Net, shards: Shards, config: TrainConfig) -> None:
    """Set the initial values that hotset has with this seed."""
    model = build_model(choose_model(config, DIM), ModelInputs.of(shards), config.seed)
    for own, other in zip(net.dense_parameters(), model.parameters(), strict=True):
        own.copy_(other)
    rows = [table.num_embeddings for table in net.tables]
    initial = InitialValues.of(config.seed, range(len(rows)), rows)
    for number, table in enumerate(net.tables):
        ids = np.arange(rows[number])
        initial.write(np.full(ids.size, number), ids, table.weight, ids)


@torch.no_grad()
def score(net: Net, test: Samples) -> Scores:
    """Return the scores of all samples of a part."""
    parts = zip(torch.split(test.dense_NK, 8192), torch.split(test.ids_NF, 8192), strict=True)
    logit_N = torch.cat([net(dense, ids) for dense, ids in parts]).double().numpy()
    return scores_of_logits(logit_N, test.label_N.double().numpy())


def scores_of_logits(logit_N: NDArray[np.float64], label_N: NDArray[np.float64]) -> Scores:
    """Return AUC, a tie counting one half, and mean log loss in nats."""
    _, distinct_N, counts = np.unique(logit_N, return_inverse=True, return_counts=True)
    rank_N = (np.cumsum(counts) - (counts - 1) / 2)[distinct_N]
    num_clicks = label_N.sum()
    above = rank_N[label_N == 1].sum() - num_clicks * (num_clicks + 1) / 2
    return {
        "auc": float(above / (num_clicks * (label_N.size - num_clicks))),
        "log_loss": float(np.mean(np.logaddexp(0, logit_N) - label_N * logit_N)),
    }


if __name__ == "__main__":
    sys.exit(run_script(PARSER, measure))
