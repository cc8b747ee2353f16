"""The cost in AUC of codecs between ranks, and of rows that are synchronised every few steps: two ranks train
with each of them and each seed, paired with an exact exchange by seed.

The ranks are processes of this machine. Weights of such a run depend on the number of ranks, so a difference
is that of two ranks; an exact exchange has none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from ....pipeline.stages.preprocess import PreprocessConfig, preprocess
from ....train.config import TrainConfig
from ....train.data.shards import Shards
from ....train.exchange.chosen_exchange import chosen_by
from ....train.options.exchange_options import ExchangeOptions
from ....train.ranks.ranks import Ranks
from ....train.trainer import run_steps
from ....train.trainer_building.build_trainer import build_trainer
from ....train.trainer_building.devices import set_threads
from ...machine_facts import commit, describe_machine
from ...recipes import small_real_sample_training
from ..ranks.rank_group import RankGroup
from .both_labels import refuse_one_label

NONE = "none"
_NUM_RANKS = 2
_TIMEOUT_SECONDS = 600.0
"""One rank may compile while the others wait."""


def coded_quality(
    data: Path,
    recipe: PreprocessConfig,
    seeds: Sequence[int],
    exchanges: Mapping[str, ExchangeOptions],
    model: str,
) -> dict[str, Any]:
    """Preprocess the log once and train two ranks with every exchange and seed.

    Args:
        data: a raw log.
        recipe: of its preprocessing.
        seeds: of the models and the batch order.
        exchanges: options of what crosses, by the names that the result has for them; an exact exchange,
            ``none``, is trained, too.
        model: trained with its recipe for small samples.

    Returns:
        By exchange ``auc``, one for each seed, its mean, the mean and the largest difference from ``none`` at
        the same seed, and the bytes of vectors and gradients that both ranks send per training sample.

    Raises:
        ConfigError: the test part has labels of one kind.
    """
    of_names = {NONE: ExchangeOptions()} | dict(exchanges)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in of_names}
    with tempfile.TemporaryDirectory(prefix="hotset-quality-") as folder:
        preprocess([data], recipe, Path(folder) / "data")
        refuse_one_label(Shards.open(Path(folder) / "data"))
        with RankGroup(_NUM_RANKS, _TIMEOUT_SECONDS) as group:
            for seed in seeds:
                for name, options in of_names.items():
                    found = group.call(
                        train_on_rank,
                        data=str(Path(folder) / "data"),
                        model=model,
                        options=asdict(options),
                        seed=seed,
                    )
                    # Both ranks know the score; each has sent bytes of its own.
                    num_bytes = sum(rank["bytes_per_sample"] for rank in found)
                    runs[name].append(found[0] | {"bytes_per_sample": num_bytes})
    auc = {name: [run["auc"] for run in of_name] for name, of_name in runs.items()}
    differences = {
        name: [own - none for own, none in zip(auc[name], auc[NONE], strict=True)] for name in of_names
    }
    return {
        "data": data.name,
        "seeds": list(seeds),
        "ranks": _NUM_RANKS,
        "auc": auc,
        "log_loss": {name: [run["log_loss"] for run in of_name] for name, of_name in runs.items()},
        "mean_auc": {name: fmean(each) for name, each in auc.items()},
        "mean_difference": {name: fmean(each) for name, each in differences.items()},
        "largest_difference": {name: max(map(abs, each)) for name, each in differences.items()},
        "bytes_per_sample": {
            name: fmean(run["bytes_per_sample"] for run in of_name) for name, of_name in runs.items()
        },
        "preprocess": asdict(recipe),
        "train": asdict(_training(model, seeds[0])),
        "machine": describe_machine(),
        "commit": commit(),
    }


def _training(model: str, seed: int) -> TrainConfig:
    return replace(small_real_sample_training(model), placement="all-fast", threads=1, seed=seed)


def train_on_rank(
    ranks: Ranks, data: str, model: str, options: Mapping[str, Any], seed: int
) -> dict[str, float]:
    """Train one of the ranks of a run with some `ExchangeOptions`; return its scores, and the bytes of rows
    that it sent per sample."""
    set_threads(1)
    shards = Shards.open(Path(data))
    config = _training(model, seed)
    exchange = chosen_by(ExchangeOptions(**options), config.epochs * shards.num_training_batches)
    trainer = build_trainer(shards, config, ranks=ranks, exchange=exchange)
    run_steps(trainer, lambda *_: None)
    quality = trainer.predictor.score_run()
    assert quality.auc is not None and quality.log_loss is not None, "other logs are refused"
    sent = trainer.coded.counts.sent_bytes
    num_bytes = sent["vectors"] + sent["gradients"] + sent["synced"]
    return {
        "auc": quality.auc,
        "log_loss": quality.log_loss,
        "bytes_per_sample": num_bytes / trainer.num_samples,
    }


def show_coded(result: dict[str, Any], console: Console) -> None:
    """Print the AUC of each exchange and seed, and its difference from an exact one."""
    table = Table(box=None, pad_edge=False)
    table.add_column("AUC of two ranks, seed")
    for name in result["auc"]:
        table.add_column(name, justify="right")
    for row, seed in enumerate(result["seeds"]):
        table.add_row(str(seed), *(f"{scores[row]:.5f}" for scores in result["auc"].values()))
    table.add_row("mean", *(f"{mean:.5f}" for mean in result["mean_auc"].values()), style="bold")
    for label, key in (("mean difference", "mean_difference"), ("largest difference", "largest_difference")):
        table.add_row(label, *(f"{each:+.5f}" for each in result[key].values()))
    table.add_row(
        "row bytes sent per sample", *(f"{each:,.0f}" for each in result["bytes_per_sample"].values())
    )
    console.print(table)


def is_coded(result: dict[str, Any]) -> bool:
    """Whether a result is one of `coded_quality`."""
    return "bytes_per_sample" in result
