"""AUC over seeds: variations of training, and published splits.

Each ``--vary`` names options of `hotset train`; all variations are trained with every seed on the same
shards, and differences are those from the first variation with the same seed. ``--protocol`` trains on a
published split by the recipe of its leaderboard, which prints the best of a model's seeds. `against_torch`
compares with plain torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from ...pipeline.errors import ConfigError
from ...pipeline.folders.totals import ShardsTotals
from ...pipeline.preprocess import preprocess
from ...train.config import TrainConfig
from ...train.run import train
from ..recipes import recipe_for, small_real_sample
from . import harness
from .harness import Facts, Options, tell

ProtocolName = Literal["criteo-x1", "criteo-x4", "avazu-x1", "avazu-x4"]
FILES = ("train.csv", "valid.csv", "test.csv")
Scores = dict[str, float]
Contestant = Callable[[int], Scores]
"""Trains with a seed and returns the scores of the test part."""

PARSER = harness.new_parser(__spec__, __doc__)
PARSER.add_argument("--data", type=Path, required=True, help="raw Criteo log, or folder of a split")
PARSER.add_argument("--seeds", type=int, default=5, help="number of seeds")
PARSER.add_argument("--vary", action="append", default=[], help="options of train, in quotes; several times")
PARSER.add_argument("--ranks", type=int, default=1, help="processes of each run of --vary")
PARSER.add_argument("--protocol", choices=get_args(ProtocolName), help="published split that --data holds")


def measure(options: Options, folder: Path) -> Facts:
    """Train what the options select with every seed; return scores, means, deviations and differences."""
    seeds = list(range(options.seeds))
    logs, recipe = [options.data], small_real_sample()
    if options.protocol:
        logs, recipe = [options.data / name for name in FILES], recipe_for(options.protocol)
        # Hot rows are counted with the state that this training keeps for them.
        recipe = replace(recipe, split=replace(recipe.split, embedding_optimizer="adam"))
    shards = preprocess(logs, recipe, folder / "data")
    totals = ShardsTotals.of(shards)
    facts: Facts = {"samples": totals.samples.to_json(), "seeds": seeds, "preprocess": asdict(recipe)}
    if options.protocol:
        contestants = _published_contestants(totals, folder)
        facts |= _published_facts(options.protocol, totals)
    else:
        contestants = {
            words or "defaults": partial(_in_process, words, options.ranks, folder)
            for words in options.vary or [""]
        }
    scores: dict[str, list[Scores]] = {name: [] for name in contestants}
    for seed in seeds:
        for name, run in contestants.items():
            scores[name].append(run(seed))
            tell(f"seed {seed}, {name}: AUC {scores[name][-1]['auc']}")
    return facts | harness.scores_over_seeds(scores)


def _in_process(words: str, num_ranks: int, folder: Path, seed: int) -> Scores:
    """Return the scores of `hotset train` with some options, in separate processes."""
    given = shlex.split(words)
    base = [] if "--dense-lr" in given else ["--dense-lr", "0.0005"]
    _, found = harness.train_in_process(folder / "data", ["--seed", str(seed), *base, *given], num_ranks)
    return _both(found["auc"], found["log_loss"])


def _in_hotset(config: TrainConfig, folder: Path, seed: int) -> Scores:
    found = train(folder / "data", replace(config, seed=seed), harness.new_run(folder))
    return _both(found.auc, found.log_loss)


def _both(auc: float | None, log_loss: float | None) -> Scores:
    if auc is None or log_loss is None:
        raise ConfigError("the samples of the test part have one label or none: no AUC")
    return {"auc": auc, "log_loss": log_loss}


class Protocol(NamedTuple):
    """A published split and its leaderboard."""

    samples: tuple[int, int, int]
    """Samples for training, validation and test."""
    leaderboard: dict[str, float]
    """Best AUC over seeds of each model."""


PROTOCOLS: dict[ProtocolName, Protocol] = {
    "criteo-x1": Protocol(
        (33_003_326, 8_250_124, 4_587_167),
        dict(LR=0.7886, DeepFM=0.8137, DLRM=0.8138, DCNv2=0.8142, FinalMLP=0.8149),
    ),
    "criteo-x4": Protocol(
        (36_672_493, 4_584_062, 4_584_062), dict(LR=0.7934, DeepFM=0.8143, DCNv2=0.8145, FinalMLP=0.8146)
    ),
    "avazu-x1": Protocol(
        (28_300_276, 4_042_897, 8_085_794),
        dict(LR=0.7516, DLRM=0.7639, DeepFM=0.7648, DCNv2=0.7656, FinalMLP=0.7666),
    ),
    "avazu-x4": Protocol(
        (32_343_172, 4_042_897, 4_042_898), dict(LR=0.7775, DeepFM=0.7930, DCNv2=0.7931, FinalMLP=0.7935)
    ),
}
"""Source: BARS (Zhu et al., CIKM 2021), docs/CTR/leaderboard of reczoo/BARS at 5b5e61f; splits of
reczoo/Datasets at 71dc577. The settings of criteo-x4 are those of Criteo_x4_001, of avazu-x4 Avazu_x4_001."""


def published_training(model: str = "dlrm") -> TrainConfig:
    """Return a training run by the recipe of the leaderboards.

    Adam at 0.001, a tenth of that after an epoch without improvement, and an end after two such epochs;
    hidden layers of 400, normalized, a fifth of their outputs dropped, rows with a weight decay of 1e-5.

    Source: DLRM on Criteo_x1, reczoo/BARS at 5b5e61f.
    """
    config = TrainConfig(
        model=model,
        bottom_mlp=(400, 400) if model == "dlrm" else None,
        top_mlp=(400, 400, 400),
        dropout=0.2,
        batch_norm=True,
        epochs=20,
        embedding_optimizer="adam",
    )
    recipe = replace(config.recipe, lr_schedule="plateau", patience=2, embedding_decay=1e-5)
    return replace(config, recipe=recipe)


def _published_contestants(totals: ShardsTotals, folder: Path) -> dict[str, Contestant]:
    # An evaluation at the end of each epoch.
    num_batches = totals.batches.hot_only + totals.batches.mixed
    return {
        model: partial(
            _in_hotset,
            replace(published_training(model), placement="lookahead", evaluate_every=num_batches),
            folder,
        )
        for model in ("dlrm", "dcnv2")
    }


def _published_facts(protocol: ProtocolName, totals: ShardsTotals) -> Facts:
    # The validation part is counted among the evaluation samples; what is left of them is the test part.
    samples, num_valid = totals.samples, totals.num_valid_samples
    counts = (samples.hot_only + samples.mixed, num_valid, samples.evaluation - num_valid)
    return {
        "is_published_split": counts == PROTOCOLS[protocol].samples,
        "samples": dict(zip(("training", "validation", "test"), counts, strict=True)),
        "leaderboard": PROTOCOLS[protocol].leaderboard,
    }


if __name__ == "__main__":
    harness.main(PARSER, measure)
