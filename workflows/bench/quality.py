"""AUC over seeds: variations of training, published splits and FuxiCTR.

Each ``--vary`` names options of `hotset train`; all variations are trained with every seed on the same
shards, and differences are those from the first variation with the same seed. ``--protocol`` trains on a
published split by the recipe of its leaderboard, which prints the best of a model's seeds. ``--fuxictr``
trains FuxiCTR's DCN V2. `against_torch` compares with plain torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import shlex
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, get_args

import torch

from ...pipeline.errors import ConfigError, MissingExtraError
from ...pipeline.export import export_shards
from ...pipeline.folders.totals import ShardsTotals
from ...pipeline.preprocess import preprocess
from ...pipeline.stages.count import CountConfig
from ...train.config import TrainConfig
from ...train.data.shards import EvaluationPart, Shards
from ...train.recipe_options import RecipeOptions
from ...train.run import train
from ..recipes import recipe_for, small_real_sample
from .harness import Facts, new_parser, new_run, run_script, scratch_folder, tell, train_in_process

ProtocolName = Literal["criteo-x1", "criteo-x4", "avazu-x1", "avazu-x4"]
FILES = ("train.csv", "valid.csv", "test.csv")
Scores = dict[str, float | None]
Contestant = Callable[[int], Scores]
"""Trains with a seed and returns the scores of the test part."""

PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("--data", type=Path, required=True, help="raw Criteo log, or folder of a split")
PARSER.add_argument("--seeds", type=int, default=5, help="number of seeds")
PARSER.add_argument("--vary", action="append", default=[], help="options of train, in quotes; several times")
PARSER.add_argument("--ranks", type=int, default=1, help="processes of each run of --vary")
PARSER.add_argument("--protocol", choices=get_args(ProtocolName), help="published split that --data holds")
PARSER.add_argument("--fuxictr", action="store_true", help="compare with FuxiCTR's DCN V2")


def measure(options: argparse.Namespace) -> Facts:
    """Train what the options select with every seed; return scores, means, deviations and differences."""
    seeds = list(range(options.seeds))
    logs, recipe = [options.data], small_real_sample()
    if options.protocol:
        logs, recipe = [options.data / name for name in FILES], recipe_for(options.protocol)
        # Hot rows are counted with the state that this training keeps for them.
        recipe = replace(recipe, split=replace(recipe.split, embedding_optimizer="adam"))
    elif options.fuxictr:
        if importlib.util.find_spec("fuxictr") is None:
            raise MissingExtraError("the comparison needs FuxiCTR: pip install '.[interop]'")
        # FuxiCTR wants a validation part, so both leave the samples before the test part out of training.
        recipe = replace(recipe, count=CountConfig(eval_fraction=0.2, valid_fraction=0.1))
    with scratch_folder(options) as folder:
        shards = preprocess(logs, recipe, folder / "data")
        refuse_one_label(Shards.open(shards.folder))
        totals = ShardsTotals.of(shards)
        facts: Facts = {"samples": totals.samples.to_json(), "seeds": seeds, "preprocess": asdict(recipe)}
        if options.protocol:
            contestants = _published_contestants(totals, folder)
            facts |= _published_facts(options.protocol, totals)
        elif options.fuxictr:
            export_shards(shards, "fuxictr", folder / "criteo_export")
            # Rows are looked up a few times only, so the rate of the dense layers alone falls. Full matrices
            # between 429 numbers are too many weights for such a log.
            falling = RecipeOptions(lr_schedule="linear", lr_schedule_of="dense")
            training = TrainConfig(model="dcnv2", recipe=falling, cross_rank=32)
            contestants = {
                "FuxiCTR": partial(_in_fuxictr, folder / "criteo_export"),
                "hotset": partial(_in_hotset, training, folder),
            }
            facts["train"] = asdict(training)
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
    return facts | summary(scores)


def refuse_one_label(shards: Shards) -> None:
    """Raise ConfigError where the labels of the test part do not include both 0 and 1."""
    part = EvaluationPart(shards, "test")
    labels = {label for number in part.numbers for label in part.batch(number).label_B.tolist()}
    if len(labels) < 2:
        raise ConfigError(f"the {part.num_samples:,} samples of the test part have one label or none: no AUC")


def summary(scores: dict[str, list[Scores]]) -> Facts:
    """Return each score by name, with mean and deviation, and the differences from the first name."""
    found: Facts = {}
    for score in ("auc", "log_loss"):
        values = {name: [float(one[score] or 0.0) for one in own] for name, own in scores.items()}
        first = next(iter(values.values()))
        differences = {
            name: [one - other for one, other in zip(own, first, strict=True)] for name, own in values.items()
        }
        for key, of in ((score, values), (f"{score}_difference", differences)):
            found[key] = of
            found[f"mean_{key}"] = {name: fmean(own) for name, own in of.items()}
            found[f"deviation_{key}"] = {
                name: stdev(own) if len(own) > 1 else 0.0 for name, own in of.items()
            }
    return found


def _in_process(words: str, num_ranks: int, folder: Path, seed: int) -> Scores:
    """Return the scores of `hotset train` with some options, in separate processes."""
    given = shlex.split(words)
    base = [] if "--dense-lr" in given else ["--dense-lr", "0.0005"]
    _, found = train_in_process(folder / "data", ["--seed", str(seed), *base, *given], num_ranks)
    return {key: found[key] for key in ("auc", "log_loss")}


def _in_hotset(config: TrainConfig, folder: Path, seed: int) -> Scores:
    found = train(folder / "data", replace(config, seed=seed), new_run(folder))
    return {"auc": found.auc, "log_loss": found.log_loss}


@dataclass(frozen=True, slots=True)
class Protocol:
    """A published split and its leaderboard."""

    samples: tuple[int, int, int]
    """Samples for training, validation and test."""
    leaderboard: dict[str, float]
    """Best AUC over seeds of each model."""


PROTOCOLS: dict[ProtocolName, Protocol] = {
    "criteo-x1": Protocol(
        (33_003_326, 8_250_124, 4_587_167),
        {"LR": 0.7886, "DeepFM": 0.8137, "DLRM": 0.8138, "DCNv2": 0.8142, "FinalMLP": 0.8149},
    ),
    "criteo-x4": Protocol(
        (36_672_493, 4_584_062, 4_584_062),
        {"LR": 0.7934, "DeepFM": 0.8143, "DCNv2": 0.8145, "FinalMLP": 0.8146},
    ),
    "avazu-x1": Protocol(
        (28_300_276, 4_042_897, 8_085_794),
        {"LR": 0.7516, "DLRM": 0.7639, "DeepFM": 0.7648, "DCNv2": 0.7656, "FinalMLP": 0.7666},
    ),
    "avazu-x4": Protocol(
        (32_343_172, 4_042_897, 4_042_898),
        {"LR": 0.7775, "DeepFM": 0.7930, "DCNv2": 0.7931, "FinalMLP": 0.7935},
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


def train_fuxictr(export: Path, seed: int) -> float:
    """Train FuxiCTR's DCN V2 for one epoch on an export; return the AUC of its test part.

    Layers, loader, loop and metrics are FuxiCTR's. It writes to the current folder, prints and sets up
    logging, so this runs in a separate process.
    """
    warnings.simplefilter("ignore")
    os.chdir(export.parent)
    os.dup2(2, 1)
    # FuxiCTR's loader starts Ray, which would join any cluster of this machine, and fail when that ends.
    os.environ["RAY_ADDRESS"] = "local"
    # Imported only here: FuxiCTR is an extra, and importing this module must not need it.
    from fuxictr.features import FeatureMap
    from fuxictr.pytorch.dataloaders import RankDataLoader
    from fuxictr.pytorch.layers import CrossNetV2, FeatureEmbedding, MLP_Block
    from fuxictr.pytorch.models import BaseModel
    from fuxictr.pytorch.torch_utils import seed_everything

    embedding_dim = 16

    class DcnV2(BaseModel):  # type: ignore[misc]
        """Cross network and deep network in parallel, as in FuxiCTR's model of this name."""

        def __init__(self, features: Any) -> None:
            super().__init__(features, model_root="models", metrics=["AUC", "logloss"], verbose=0)
            self.embedding = FeatureEmbedding(features, embedding_dim)
            width = features.sum_emb_out_dim()
            self.cross = CrossNetV2(width, 3)
            self.deep = MLP_Block(width, hidden_units=[512, 256])
            self.last = torch.nn.Linear(width + 256, 1)
            self.compile("adam", "binary_crossentropy", 0.001)
            self.reset_parameters()
            self.model_to_device()

        def forward(self, inputs: Any) -> dict[str, torch.Tensor]:
            found = self.embedding(self.get_inputs(inputs), flatten_emb=True)
            joined = torch.cat([self.cross(found), self.deep(found)], dim=-1)
            return {"y_pred": self.output_activation(self.last(joined))}

    seed_everything(seed)
    features = FeatureMap(export.name, str(export))
    features.load(f"{export}/feature_map.json", {"embedding_dim": embedding_dim})
    paths = {f"{split}_data": f"{export}/{split}.parquet" for split in ("train", "valid", "test")}
    train, valid, test = RankDataLoader(
        features, stage="both", batch_size=512, shuffle=True, data_format="parquet", **paths
    )
    os.makedirs(f"models/{features.dataset_id}", exist_ok=True)
    model = DcnV2(features)
    model.fit(train, validation_data=valid, epochs=1)
    return float(model.evaluate(test)["AUC"])


def _in_fuxictr(export: Path, seed: int) -> Scores:
    """Return the AUC that FuxiCTR reaches on an export, in a separate process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return {"auc": pool.submit(train_fuxictr, export, seed).result(), "log_loss": None}


if __name__ == "__main__":
    sys.exit(run_script(PARSER, measure))
