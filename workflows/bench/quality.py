"""AUC over seeds: variations of training, published splits, plain torch and FuxiCTR.

Each ``--vary`` names options of `hotset train`; all variations are trained with every seed on the same
shards, and differences are those from the first variation with the same seed. ``--protocol`` trains on a
published split by the recipe of its leaderboard, which prints the best of a model's seeds. ``--torch`` trains
a DLRM in plain torch from the same initial values on the same batches; ``--fuxictr`` FuxiCTR's DCN V2.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np
import torch

from ...pipeline.errors import ConfigError, HotsetError, MissingExtraError
from ...pipeline.export import export_shards
from ...pipeline.folders.totals import ShardsTotals
from ...pipeline.preprocess import preprocess
from ...pipeline.stages.count import CountConfig
from ...train.config import TrainConfig
from ...train.data.batch_order import SeededOrder
from ...train.data.shards import EvaluationPart, Shards
from ...train.dense.gradients import cpu_features, has_bf16
from ...train.metrics import ScoreCounter
from ...train.model.dlrm import Dlrm
from ...train.model.shapes import dlrm_shape
from ...train.rows.tiers import InitialValues
from ...train.run import train
from ..recipes import recipe_for, small_real_sample, small_real_sample_training
from .harness import Facts, new_parser, run_hotset, run_script, scratch_folder, tell
from .train_step import ReferenceBatch, ReferenceDlrm, ReferenceTraining

ProtocolName = Literal["criteo-x1", "criteo-x4", "avazu-x1", "avazu-x4"]
FILES = ("train.csv", "valid.csv", "test.csv")
Scores = dict[str, float | None]
_PACKAGES = Path(__file__).resolve().parents[3]


def parser() -> argparse.ArgumentParser:
    """Return the options of the script."""
    found = new_parser(__spec__.name if __spec__ else "quality", __doc__ or "")
    found.add_argument("--data", type=Path, required=True, help="raw Criteo log, or folder of a split")
    found.add_argument("--seeds", type=int, default=5, help="number of seeds")
    found.add_argument(
        "--vary", action="append", default=[], help="options of train, in quotes; several times"
    )
    found.add_argument("--ranks", type=int, default=1, help="processes of each run of --vary")
    found.add_argument("--protocol", choices=tuple(PROTOCOLS), help="published split that --data holds")
    found.add_argument("--torch", action="store_true", help="compare with a DLRM in plain torch")
    found.add_argument("--fuxictr", action="store_true", help="compare with FuxiCTR's DCN V2")
    return found


def measure(options: argparse.Namespace) -> Facts:
    """Train what the options select with every seed; return scores, means, deviations and differences."""
    seeds = list(range(options.seeds))
    with scratch_folder(options) as folder:
        if options.protocol:
            return published(options.protocol, options.data, seeds, folder)
        if options.fuxictr:
            return against_fuxictr(options.data, seeds, folder)
        recipe = small_real_sample()
        shards = preprocess([options.data], recipe, folder / "data")
        refuse_one_label(Shards.open(shards.folder))
        if options.torch:
            contestants = _torch_contestants(folder)
        else:
            contestants = _variations(options.vary or [""], options.ranks, folder)
        scores: dict[str, list[Scores]] = {name: [] for name in contestants}
        for seed in seeds:
            for name, run in contestants.items():
                scores[name].append(run(seed))
                tell(f"seed {seed}, {name}: AUC {scores[name][-1]['auc']}")
    samples = ShardsTotals.of(shards).samples.to_json()
    return {"samples": samples, "seeds": seeds, "preprocess": asdict(recipe)} | summary(scores)


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


def _variations(varied: list[str], num_ranks: int, folder: Path) -> dict[str, Callable[[int], Scores]]:
    """Return a run of `hotset train` for each variation, in separate processes."""

    def run(words: str, seed: int) -> Scores:
        out = folder / "runs" / f"{varied.index(words)}-{seed}"
        given = shlex.split(words)
        base = [] if "--dense-lr" in given else ["--dense-lr", "0.0005"]
        command = ["train", str(folder / "data"), "--out", str(out), "-q", "--seed", str(seed), *base]
        run_hotset([*command, *given], folder, num_ranks)
        found = json.loads((out / "summary.json").read_text())
        kept = ("auc", "log_loss", "samples_per_second", "bytes_by_rank")
        return {key: found.get(key) for key in kept}

    def of(words: str) -> Callable[[int], Scores]:
        return lambda seed: run(words, seed)

    return {words or "defaults": of(words) for words in varied}


def _torch_contestants(folder: Path) -> dict[str, Callable[[int], Scores]]:
    fp32 = replace(small_real_sample_training(), placement="all-fast")

    def hotset(config: TrainConfig) -> Callable[[int], Scores]:
        def run(seed: int) -> Scores:
            out = folder / f"{config.dense_dtype}-{seed}"
            found = train(folder / "data", replace(config, seed=seed), out)
            return {"auc": found.auc, "log_loss": found.log_loss}

        return run

    def reference(seed: int) -> Scores:
        return train_reference(Shards.open(folder / "data"), replace(fp32, seed=seed))

    contestants = {"torch fp32": reference, "hotset fp32": hotset(fp32)}
    if has_bf16(cpu_features()):
        contestants["hotset bf16"] = hotset(replace(fp32, dense_dtype="bf16"))
    return contestants


def train_reference(shards: Shards, config: TrainConfig) -> Scores:
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
        ids = np.arange(num_rows[number])
        initial.write(np.full(ids.size, number), ids, table.weight.detach(), ids)
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
    # Torch's Adagrad makes sparse tensors internally, and would warn that it does not check them.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        for numbers in order.epochs():
            for batch in numbers:
                training.step(ReferenceBatch.of(shards.training_batch(batch)))
    return _score(model, shards)


def _optimizer(name: str) -> Any:
    return {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[name]


@torch.no_grad()
def _score(model: ReferenceDlrm, shards: Shards) -> Scores:
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


def published(protocol: ProtocolName, data: Path, seeds: list[int], folder: Path) -> Facts:
    """Train a DLRM and a DCN V2 with every seed on the files of a published split."""
    recipe = recipe_for(protocol)
    # Hot rows are counted with the state that this training keeps for them.
    recipe = replace(recipe, split=replace(recipe.split, embedding_optimizer="adam"))
    shards = preprocess([data / name for name in FILES], recipe, folder / "data")
    refuse_one_label(Shards.open(shards.folder))
    totals = ShardsTotals.of(shards)
    samples = totals.samples
    # An evaluation at the end of each epoch.
    num_batches = totals.batches.hot_only + totals.batches.mixed
    scores: dict[str, list[Scores]] = {}
    for model in ("dlrm", "dcnv2"):
        config = replace(published_training(model), placement="lookahead", evaluate_every=num_batches)
        for seed in seeds:
            found = train(shards.folder, replace(config, seed=seed), folder / f"{model}-{seed}")
            scores.setdefault(model, []).append({"auc": found.auc, "log_loss": found.log_loss})
            tell(f"seed {seed}, {model}: AUC {found.auc}")
    # The validation part is counted among the evaluation samples; what is left of them is the test part.
    num_valid = totals.num_valid_samples
    counts = (samples.hot_only + samples.mixed, num_valid, samples.evaluation - num_valid)
    return {
        "is_published_split": counts == PROTOCOLS[protocol].samples,
        "samples": dict(zip(("training", "validation", "test"), counts, strict=True)),
        "seeds": seeds,
        "leaderboard": PROTOCOLS[protocol].leaderboard,
        "preprocess": asdict(recipe),
    } | summary(scores)


def against_fuxictr(data: Path, seeds: list[int], folder: Path) -> Facts:
    """Train FuxiCTR's DCN V2 on an export of the shards that hotset trains on, and score both alike."""
    if importlib.util.find_spec("fuxictr") is None:
        raise MissingExtraError("the comparison needs FuxiCTR: pip install '.[interop]'")
    # FuxiCTR wants a validation part, so both leave the samples before the test part out of training.
    recipe = replace(small_real_sample(), count=CountConfig(eval_fraction=0.2, valid_fraction=0.1))
    shards = preprocess([data], recipe, folder / "data")
    refuse_one_label(Shards.open(shards.folder))
    export_shards(shards, "fuxictr", folder / "criteo_export")
    training = small_real_sample_training("dcnv2")
    scores: dict[str, list[Scores]] = {"FuxiCTR": [], "hotset": []}
    for seed in seeds:
        scores["FuxiCTR"].append({"auc": _fuxictr_auc(folder / "criteo_export", seed), "log_loss": None})
        found = train(folder / "data", replace(training, seed=seed), folder / f"run-{seed}")
        scores["hotset"].append({"auc": found.auc, "log_loss": found.log_loss})
    return {"seeds": seeds, "preprocess": asdict(recipe), "train": asdict(training)} | summary(scores)


def train_fuxictr(folder: str, seed: int) -> None:
    """Train FuxiCTR's DCN V2 for one epoch on an export, and print the AUC of its test part.

    Layers, loader, loop and metrics are FuxiCTR's. It writes to the current folder and sets up logging, so
    this runs in a separate process.
    """
    warnings.simplefilter("ignore")
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
    features = FeatureMap(os.path.basename(folder), folder)
    features.load(f"{folder}/feature_map.json", {"embedding_dim": embedding_dim})
    paths = {f"{split}_data": f"{folder}/{split}.parquet" for split in ("train", "valid", "test")}
    train, valid, test = RankDataLoader(
        features, stage="both", batch_size=512, shuffle=True, data_format="parquet", **paths
    )
    os.makedirs(f"models/{features.dataset_id}", exist_ok=True)
    model = DcnV2(features)
    model.fit(train, validation_data=valid, epochs=1)
    print("AUC", model.evaluate(test)["AUC"])


def _fuxictr_auc(export: Path, seed: int) -> float:
    """Return the AUC that FuxiCTR reaches on an export, in a separate process."""
    program = f"from {__package__}.quality import train_fuxictr as train; train({str(export)!r}, {seed})"
    paths = os.pathsep.join([str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=export.parent,
        # FuxiCTR's loader starts Ray, which would join any cluster of this machine, and fail when that ends.
        env=os.environ | {"PYTHONPATH": paths, "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise HotsetError(f"FuxiCTR failed: {(done.stderr.strip().splitlines() or ['it wrote nothing'])[-1]}")
    return float(done.stdout.rpartition("AUC")[2])


if __name__ == "__main__":
    sys.exit(run_script(parser(), measure))
