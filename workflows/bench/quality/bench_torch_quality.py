"""``hotset bench torch-quality``: the AUC of a DLRM in plain torch and of hotset's, seed by seed.

Both begin with the same initial values and train on the same batches in the same order, with optimizers of
the same kind and rates: Adagrad on rows and Adam on dense layers, as the recipe for small samples has it. So
the two differ by the order of additions, and in a batch that is not full, whose loss plain torch divides by
its own samples; what they differ by can be held against what seeds do.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError, HotsetError, require_at_least
from ....pipeline.folders.stage_totals import ShardsTotals
from ....pipeline.stages.preprocess import preprocess
from ....train.config import TrainConfig
from ....train.data.batch_order import SeededOrder
from ....train.data.evaluation_part import EvaluationPart
from ....train.data.shards import Shards
from ....train.metrics.scores import ScoreCounter
from ....train.model.dense_dtype import cpu_features, has_bf16
from ....train.model.dlrm import Dlrm
from ....train.model.dlrm_shape import dlrm_shape
from ....train.rows.initial_values import InitialValues
from ....train.run import train
from ...console import say
from ...machine_facts import commit, describe_machine
from ...recipes import small_real_sample, small_real_sample_training
from ..training.dlrm_reference import ReferenceBatch, ReferenceDlrm, ReferenceTraining

REFERENCE = "torch fp32"
"""The contestant that differences are from."""


@dataclass(frozen=True, kw_only=True)
class BenchTorchQualityConfig:
    """Settings of the comparison with plain torch."""

    data: Path
    """A small raw Criteo log, or one of `hotset generate`."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of initial values and of the order of batches."""

    batch_size: int = 512
    """Samples per batch."""

    def __post_init__(self) -> None:
        require_at_least("batch_size", self.batch_size, 1)
        if not self.seeds:
            raise ConfigError("name at least one seed")


def bench_torch_quality(config: BenchTorchQualityConfig) -> dict[str, Any]:
    """Train every contestant with every seed, one epoch.

    Returns:
        ``auc`` and ``log_loss`` of the test part by contestant, one per seed, with their means and deviations
        over seeds; the same of the differences from plain torch with the same seed; recipe and machine.
        Of bf16 they are None on a CPU without instructions for it.

    Raises:
        HotsetError: the test part has labels of one kind.
    """
    recipe = small_real_sample()
    recipe = replace(recipe, pack=replace(recipe.pack, batch_size=config.batch_size))
    fp32 = replace(small_real_sample_training(), placement="all-fast")
    contestants = {"hotset fp32": fp32}
    if has_bf16(cpu_features()):
        contestants["hotset bf16"] = replace(fp32, dense_dtype="bf16")
    scores: dict[str, list[dict[str, float | None]]] = {REFERENCE: [], **{name: [] for name in contestants}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = preprocess([config.data], recipe, folder / "data")
        shards = Shards.open(folder / "data")
        for seed in config.seeds:
            scores[REFERENCE].append(train_reference(shards, replace(fp32, seed=seed)))
            for number, (contestant, training) in enumerate(contestants.items()):
                summary = train(folder / "data", replace(training, seed=seed), folder / f"{number}-{seed}")
                scores[contestant].append({"auc": summary.auc, "log_loss": summary.log_loss})
            say(f"seed {seed}: " + ", ".join(f"{each} {found[-1]['auc']}" for each, found in scores.items()))
    result: dict[str, Any] = {
        "benchmark": "torch-quality",
        "data": config.data.name,
        "samples": ShardsTotals.of(manifest).samples.to_json(),
        "seeds": list(config.seeds),
    }
    for score in ("auc", "log_loss"):
        result[score] = {each: _defined(found, score) for each, found in scores.items()} | {
            each: None for each in ("hotset bf16",) if each not in scores
        }
        result |= _summary(score, result[score])
    settings = {"preprocess": asdict(recipe), "train": asdict(fp32)}
    return result | settings | {"machine": describe_machine(), "commit": commit()}


def train_reference(shards: Shards, config: TrainConfig) -> dict[str, float | None]:
    """Train a DLRM in plain torch on shards as ``config`` says; return ``auc`` and ``log_loss`` of the test
    part.

    Args:
        shards: tables of one width without list-valued features.
        config: seed, epochs, optimizers and constant rates; the model is the one that suits the shards.
    """
    num_rows = [table.num_rows for table in shards.tables]
    shape = dlrm_shape("auto", shards.num_dense, len(shards.tables), shards.embedding_dim)
    model = ReferenceDlrm(shape, num_rows)
    # The initial values of hotset's run with this seed.
    found = model.load_state_dict(Dlrm(shape, config.seed).state_dict(), strict=False)
    assert not found.unexpected_keys and all(key.startswith("tables") for key in found.missing_keys)
    initial = InitialValues.of(config.seed, range(len(num_rows)), num_rows)
    for number, table in enumerate(model.tables):
        initial.fill(number, 0, table.weight.detach().numpy())
    chosen = config.optimizers(shards.embedding_optimizer)
    dense = [*model.bottom.parameters(), *model.top.parameters()]
    training = ReferenceTraining(
        model,
        optimizers=[
            _optimizer(chosen.embedding_optimizer)(model.tables.parameters(), lr=chosen.embedding_lr),
            _optimizer(chosen.dense_optimizer)(dense, lr=chosen.dense_lr),
        ],
    )
    order = SeededOrder(shards.is_hot_only, config.seed, config.epochs, is_grouped=shards.is_grouped)
    # Torch's Adagrad makes sparse tensors of its own, and would warn that it does not check them.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        for numbers in order.epochs():
            for batch in numbers:
                training.step(ReferenceBatch.of(shards.training_batch(batch)))
    return _score(model, shards)


def _optimizer(name: str) -> Any:
    return {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[name]


@torch.no_grad()
def _score(model: ReferenceDlrm, shards: Shards) -> dict[str, float | None]:
    """Score the test part as hotset's runs are scored."""
    part = EvaluationPart(shards, "test")
    with closing(ScoreCounter()) as counter:
        for number in part.numbers:
            batch = part.batch(number)
            assert batch.is_hot_B is not None, "evaluation batches have it"
            logit_B = model.logits(ReferenceBatch.of(batch)).squeeze(1).numpy()
            is_hot_B = batch.is_hot_B.astype(np.bool_)
            counter.add(logit_B, batch.label_B.numpy(), is_hot_B, shards.has_oov(batch))
        quality = counter.quality()
    return {"auc": quality.auc, "log_loss": quality.log_loss}


def _defined(found: list[dict[str, float | None]], score: str) -> list[float]:
    values = [each[score] for each in found]
    if None in values:
        raise HotsetError("the test part has labels of one kind, so there is no AUC")
    return [value for value in values if value is not None]


def _summary(score: str, values: dict[str, list[float] | None]) -> dict[str, Any]:
    """Return means and deviations over seeds of a score, and of its differences from the reference."""
    reference = values[REFERENCE]
    assert reference is not None, "it runs on every CPU"
    differences = {
        name: None if found is None else [one - other for one, other in zip(found, reference, strict=True)]
        for name, found in values.items()
        if name != REFERENCE
    }
    summary: dict[str, Any] = {f"{score}_difference": differences}
    for prefix, of in (("", values), ("_difference", differences)):
        summary[f"mean_{score}{prefix}"] = {name: each and fmean(each) for name, each in of.items()}
        summary[f"deviation_{score}{prefix}"] = {
            name: each and (stdev(each) if len(each) > 1 else 0.0) for name, each in of.items()
        }
    return summary


def show_torch_quality(result: dict[str, Any], console: Console) -> None:
    """Print the AUC of all contestants, one row per seed, and how far they are from plain torch."""
    auc = {name: values for name, values in result["auc"].items() if values is not None}
    table = Table(box=None, pad_edge=False)
    table.add_column("AUC, seed")
    for name in auc:
        table.add_column(name, justify="right")
    for row, seed in enumerate(result["seeds"]):
        table.add_row(str(seed), *(f"{values[row]:.5f}" for values in auc.values()))
    for title in ("mean", "deviation"):
        figures = (f"{result[f'{title}_auc'][name]:.5f}" for name in auc)
        table.add_row(title, *figures, style="bold")
    console.print(table)
    for name in auc:
        if name != REFERENCE:
            mean = result["mean_auc_difference"][name]
            deviation = result["deviation_auc_difference"][name]
            console.print(f"{name} - {REFERENCE}: {mean:+.5f} with a deviation of {deviation:.5f}")


CONFIG = BenchTorchQualityConfig
measure = bench_torch_quality
show = show_torch_quality
