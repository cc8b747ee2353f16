"""Scores over seeds: of variations of training, and next to plain torch programs.

``seeds``: each ``--vary`` names options of `hotset train`; all variations are trained with every seed on the
same shards, and differences are those from the first variation with the same seed.

``torch``: hotset and a plain torch program on the same logs, by the same recipes. The program is written as
such programs are. It keeps the parsed samples in memory, shuffles all of them anew in each epoch, has a table
module for each feature, and leaves gradients and steps to torch. With hotset it shares the values and ids of
samples, the sizes of the model, the batch size, the learning rates and the distributions of initial values;
not their draws, batches, optimizers, kernels or scores. Other programs of ``--programs`` have more in common
with hotset, or less. A difference is a program's score minus that of the first program with the same seed.
Its interval over seeds is Student's, of 95%.

``examples``: the models of docs/examples, by AUC of hotset and plain torch, and conversions of all
impressions. Plain torch has the layers, batches and initial values of hotset's run, and tables, optimizers
and a loop that are not hotset's. The drawn log has impressions with known chances of a click, and of a
conversion after it, which no real log has. A click depends on the user, the item, the price, the place, and
how many of the items that the user saw are of its group; whether a conversion would follow a click on other
values of these. With ``--data``, models of one label without histories are also trained on a log of Criteo.
"""

from __future__ import annotations

import copy
import json
import math
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from ...pipeline.errors import ConfigError
from ...pipeline.folders.totals import ShardsTotals
from ...pipeline.preprocess import preprocess as preprocess_recipe
from ...train.build import build_trainer
from ...train.build_model import build_model
from ...train.config import TrainConfig
from ...train.data.batch import Batch
from ...train.data.shards import EvaluationPart, ShardSet
from ...train.loop import run_steps
from ...train.model.shapes import ModelInputs, choose_model
from ...train.rows.tiers import InitialValues
from ...train.run import train
from ..library import preprocess
from ..recipes import small_real_sample
from . import harness
from .harness import Facts, Options, over_seeds, tell
from .plain_torch import (
    Logits,
    PlainDcn,
    PlainDlrm,
    PlainExample,
    PlainNet,
    TorchOptimizers,
    bags,
    batches_of,
    scores_of,
)

PARSER, _JOBS = harness.new_parsers(
    __spec__, __doc__, seeds="variations of train", torch="plain torch", examples="models of docs/examples"
)
_SEEDS, _TORCH, _EXAMPLES = _JOBS.values()
_SEEDS.add_argument("--data", type=Path, required=True, help="raw Criteo log")
_SEEDS.add_argument("--seeds", type=int, default=5, help="number of seeds")
_SEEDS.add_argument("--vary", action="append", default=[], help="options of train, in quotes; several times")
_SEEDS.add_argument("--ranks", type=int, default=1, help="processes of each run")


def measure(options: Options, folder: Path) -> Facts:
    """Measure what the options select."""
    jobs = {"seeds": compare_variations, "torch": compare_programs, "examples": compare_examples}
    return jobs[options.what](options, folder)


def compare_variations(options: Options, folder: Path) -> Facts:
    """Train every variation with every seed; return scores, means, deviations and differences."""
    seeds, recipe = list(range(options.seeds)), small_real_sample()
    totals = ShardsTotals.of(preprocess_recipe([options.data], recipe, folder / "data"))
    variations = {words or "defaults": shlex.split(words) for words in options.vary or [""]}
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in variations}
    for seed in seeds:
        for name, given in variations.items():
            base = [] if "--dense-lr" in given else ["--dense-lr", "0.0005"]
            words = ["--seed", str(seed), *base, *given]
            _, found = harness.train_in_process(folder / "data", words, options.ranks)
            if found["auc"] is None:
                raise ConfigError("the samples of the test part have one label or none: no AUC")
            scores[name].append({score: found[score] for score in ("auc", "log_loss")})
            tell(f"seed {seed}, {name}: AUC {found['auc']}")
    facts: Facts = {"samples": totals.samples.to_json(), "seeds": seeds, "preprocess": asdict(recipe)}
    return facts | harness.scores_over_seeds(scores)


DIM = 16
"""Width of the rows."""
LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int | None]] = {
    "kaggle": ((512, 256, 64), (512, 256), None),
    "small": ((64,), (64,), 32),
}
"""Hidden widths of DLRM before the interaction and of both models after it, and the rank of cross layers."""
RECIPES = {
    # Adagrad for rows and Adam for the dense layers; Adam for all, as FuxiCTR has it, by the rate of rows of
    # hotset and by that of torch; SGD for all, as DLRM.
    "adagrad": TrainConfig(embedding_optimizer="adagrad", threads=1),
    "adam": TrainConfig(embedding_optimizer="adam", threads=1),
    "adam-0.001": TrainConfig(embedding_optimizer="adam", embedding_lr=0.001, threads=1),
    "sgd": TrainConfig(embedding_optimizer="sgd", dense_optimizer="same", threads=1),
}
Scores = dict[str, float]


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
HOTSET, BOTH_OF_HOTSET, LAZY_ADAM = "hotset", "torch, both of hotset", "torch, SparseAdam"
"""Programs: hotset; torch from its initial values and on its batches; with rows that do not move unused."""

_TORCH.add_argument("--data", type=Path, help="raw Criteo log, the one called real")
_TORCH.add_argument("--logs", nargs="+", choices=LOGS, default=["small", "kaggle", "sparse"])
_TORCH.add_argument("--models", nargs="+", choices=("dlrm", "dcnv2"), default=["dlrm", "dcnv2"])
_TORCH.add_argument("--layers", choices=LAYERS, default="kaggle", help="widths, by hotset's preset")
_TORCH.add_argument("--optimizers", nargs="+", choices=RECIPES, default=["adagrad", "adam"])
_TORCH.add_argument(
    "--programs", nargs="+", choices=(HOTSET, "torch", BOTH_OF_HOTSET, LAZY_ADAM), default=[HOTSET, "torch"]
)
_TORCH.add_argument("--seeds", type=int, choices=range(2, 11), default=5, help="number of seeds")
_TORCH.add_argument("--train-samples", type=int, default=120_000, help="of a generated log, over its epochs")
_TORCH.add_argument("--test-samples", type=int, default=100_000, help="of a generated log")


def compare_programs(options: Options, folder: Path) -> Facts:
    """Train every program on every log with each model, optimizer and seed; return scores and differences."""
    if "real" in options.logs and options.data is None:
        raise ConfigError("the log called real needs --data")
    torch.set_num_threads(1)
    logs = {name: Data(folder / name, name, options) for name in options.logs}
    cases: list[Facts] = []
    for optimizer, model, log in product(options.optimizers, options.models, options.logs):
        scores: dict[str, list[Scores]] = {program: [] for program in options.programs}
        for seed, program in product(range(options.seeds), options.programs):
            scores[program].append(logs[log].scores(program, model, optimizer, seed))
            tell(f"{optimizer}, {model}, {log}, seed {seed}, {program}: {scores[program][-1]}")
        cases.append({"log": log, "model": model, "optimizer": optimizer} | harness.scores_over_seeds(scores))
    return {
        "logs": {name: data.facts() for name, data in logs.items()},
        "recipes": {name: asdict(config.optimizers("")) for name, config in RECIPES.items()},
        "cases": cases,
        "together": {
            name: together([case for case in cases if case["optimizer"] == name])
            for name in options.optimizers
        },
    }


def together(cases: Sequence[Facts]) -> Facts:
    """Return differences from the first program, of the means over cases by seed."""
    found: Facts = {}
    for score in ("auc", "log_loss"):
        of_cases = [case[score] for case in cases]
        means = {name: np.mean([each[name] for each in of_cases], axis=0).tolist() for name in of_cases[0]}
        found[score] = harness.over_seeds(means)["difference"]
    return found


class Data:
    """A preprocessed log.

    Args:
        folder: a new one, for the log and the runs.
        name: one of `LOGS`.
        options: those of the script.
    """

    def __init__(self, folder: Path, name: str, options: Options) -> None:
        folder.mkdir()
        self.log, self._layers, self._folder = LOGS[name], LAYERS[options.layers], folder
        raw, eval_fraction = options.data, 0.2
        if name != "real":
            num_samples = options.train_samples // self.log.epochs + options.test_samples
            raw = harness.new_log(folder, num_samples, scale=self.log.scale)
            eval_fraction = options.test_samples / num_samples
        self._settings: dict[str, Any] = {
            "batch_size": self.log.batch_size,
            "embedding_dim": DIM,
            "min_count": self.log.min_count,
            "eval_fraction": eval_fraction,
        }
        schema: str | Path = "criteo-kaggle"
        if self.log.num_sparse is not None:
            schema = folder / "schema.toml"
            schema.write_text(schema_of_sparse(self.log.num_sparse))
        preprocess(raw, folder / "data", schema=schema, workers=1, progress=False, **self._settings)
        self.shards = ShardSet.open(folder / "data")
        self.rows = [table.num_rows for table in self.shards.tables]
        numbers = range(self.shards.num_training_batches)
        self.training = Samples([self.shards.training_batch(number) for number in numbers])
        part = EvaluationPart(self.shards, "test")
        self.test = Samples([part.batch(number) for number in part.numbers])

    def facts(self) -> Facts:
        """Return sizes and settings."""
        samples = {"training": self.shards.num_training_samples, "test": self.shards.num_evaluation_samples}
        return asdict(self.log) | {"samples": samples, "rows": sum(self.rows), "settings": self._settings}

    def scores(self, program: str, model: str, optimizer: str, seed: int) -> Scores:
        """Train a program; return its scores of the test part."""
        bottom, top, rank = self._layers
        own: Any = {"cross_rank": rank} if model == "dcnv2" else {"bottom_mlp": bottom}
        config = replace(
            RECIPES[optimizer], seed=seed, epochs=self.log.epochs, model=model, top_mlp=top, **own
        )
        if program != HOTSET:
            return train_torch(self, program, config)
        out = harness.new_run(self._folder)
        found = train(self._folder / "data", config, out)
        shutil.rmtree(out)
        assert found.auc is not None and found.log_loss is not None, "both labels occur"
        return {"auc": found.auc, "log_loss": found.log_loss}


def schema_of_sparse(num_sparse: int) -> str:
    """Return the schema of a Criteo log of which some categorical columns are read."""
    columns = ["label", *(f"I{i + 1}" for i in range(13)), *(f"C{i + 1}" for i in range(26))]
    text = ['format = "csv"', 'separator = "\\t"', "header = false", f"fields = {json.dumps(columns)}"]
    text += ['label = "label"', "dense = []", "[sparse]"]
    return "\n".join(text + [f'{name} = "hex8"' for name in columns[14 : 14 + num_sparse]]) + "\n"


class Samples:
    """Parsed samples of some batches in memory, as a torch program has them."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.dense_NK = torch.cat([batch.dense_BK for batch in batches])
        self.ids_NF = torch.cat([torch.from_numpy(batch.ids_BF.astype(np.int64)) for batch in batches])
        self.label_N = torch.cat([batch.label_B for batch in batches])
        self.of_batches = torch.split(
            torch.arange(self.label_N.numel()), [batch.num_samples for batch in batches]
        )
        """Samples of each batch that they were read in."""


def train_torch(data: Data, program: str, config: TrainConfig) -> Scores:
    """Train a torch program; return its scores of the test part."""
    torch.manual_seed(config.seed)
    chosen = config.optimizers("")
    # Rows without a gradient stay as they are under SGD and Adagrad, so sparse gradients do the same and are
    # quicker. Under torch's Adam such rows move on.
    is_sparse = chosen.embedding_optimizer != "adam" or program == LAZY_ADAM
    tables, shape = bags(data.rows, DIM, is_sparse), (data.shards.num_dense, len(data.rows), DIM)
    bottom, top = config.bottom_mlp or (), config.top_mlp or ()
    net: PlainNet = PlainDlrm(tables, shape, bottom, top)
    if config.model == "dcnv2":
        net = PlainDcn(tables, shape, top, config.cross_rank)
    draw_values(net)
    if program == BOTH_OF_HOTSET:
        take_values_of_hotset(net, data.shards, config)
    lazy = program == LAZY_ADAM
    optimizers = TorchOptimizers(chosen, net.tables.parameters(), net.layers(), has_lazy_adam=lazy)
    samples = data.training
    # Torch's Adagrad makes sparse tensors internally, and would warn that it does not check them.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        for batch in _batches(data, program, config):
            logit_B = net(samples.dense_NK[batch], samples.ids_NF[batch].T)
            optimizers.step(binary_cross_entropy_with_logits(logit_B, samples.label_N[batch]))
    parts = zip(*(torch.split(each, 8192) for each in (data.test.dense_NK, data.test.ids_NF)), strict=True)
    with torch.no_grad():
        logit_N = torch.cat([net(dense, ids.T) for dense, ids in parts])
    return scores_of(logit_N.double().numpy(), data.test.label_N.double().numpy())


def _batches(data: Data, program: str, config: TrainConfig) -> Iterator[torch.Tensor]:
    """Yield the samples of each batch: those of hotset in its order, or all shuffled anew in each epoch."""
    if program == BOTH_OF_HOTSET:
        yield from (data.training.of_batches[number] for number in batches_of(data.shards, config))
        return
    for _ in range(config.epochs):
        yield from torch.split(torch.randperm(data.training.label_N.numel()), data.log.batch_size)


@torch.no_grad()
def draw_values(net: PlainNet) -> None:
    """Draw initial values from DLRM's distributions, which are hotset's too."""
    for table in net.tables:
        bound = math.sqrt(1 / table.num_embeddings)
        table.weight.uniform_(-bound, bound)
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                layer.bias.normal_(std=0 if name.startswith("cross") else math.sqrt(1 / layer.out_features))


@torch.no_grad()
def take_values_of_hotset(net: PlainNet, shards: ShardSet, config: TrainConfig) -> None:
    """Set the initial values that hotset has with this seed."""
    model = build_model(choose_model(config, DIM), ModelInputs.of(shards), config.seed)
    for own, other in zip(net.layers(), model.parameters(), strict=True):
        own.copy_(other)
    rows = [table.num_embeddings for table in net.tables]
    initial = InitialValues.of(config.seed, range(len(rows)), rows)
    for number, table in enumerate(net.tables):
        ids = np.arange(rows[number])
        initial.write(np.full(ids.size, number), ids, table.weight, ids)


Chances = NDArray[np.float64]
LABELS = ("click", "conversion", "bought", "would")
"""``bought`` is the conversion of a click, missing without one; ``would`` what would follow a click."""
SCHEMA = f"""
format = "parquet"
labels = {list(LABELS)}
dense = ["price"]

[sparse]
user = "integer"
place = "integer"
item = "integer"
seen = {{ kind = "integer", list = true, table = "item" }}
"""
LONGEST = 12
"""Elements of the longest history."""


def draw_log(num_samples: int, seed: int = 0) -> tuple[pl.DataFrame, dict[str, Chances]]:
    """Draw impressions; return them with the chances of a click, and of a conversion after it."""
    rng = np.random.default_rng(seed)
    sizes = {"users": 2000, "items": 1000, "groups": 40, "places": 10}
    users = {name: rng.normal(0, 1, sizes["users"]) for name in ("click", "would")}
    items = {name: rng.normal(0, 1, sizes["items"]) for name in ("click", "would")}
    user_N = np.minimum(rng.zipf(1.3, num_samples) - 1, sizes["users"] - 1)
    place_N = rng.integers(0, sizes["places"], num_samples)
    price_N = rng.integers(1, 100, num_samples)
    # Three groups interest a user now; most of what was seen is of them, and a third of what is shown. Item i
    # is of group i modulo their number.
    groups, per_group = sizes["groups"], sizes["items"] // sizes["groups"]
    interests_N3 = rng.integers(0, groups, (num_samples, 3))
    pick_NT = rng.integers(0, 3, (num_samples, LONGEST + 1))
    of_interest_NT = np.take_along_axis(interests_N3, pick_NT, axis=1)
    of_interest_NT += groups * rng.integers(0, per_group, of_interest_NT.shape)
    any_NT = np.minimum(rng.zipf(1.2, of_interest_NT.shape) - 1, sizes["items"] - 1)
    is_of_interest_NT = rng.random(of_interest_NT.shape) < np.append(np.full(LONGEST, 0.8), 1 / 3)
    items_NT = np.where(is_of_interest_NT, of_interest_NT, any_NT)
    seen_NT, item_N = items_NT[:, :LONGEST], items_NT[:, LONGEST]
    length_N = rng.integers(0, LONGEST + 1, num_samples)
    is_alike_NT = seen_NT % groups == item_N[:, None] % groups
    alike_N = (is_alike_NT & (np.arange(LONGEST) < length_N[:, None])).sum(1)
    cheap_N = 1 - price_N / 50
    like_N, place_click = np.log1p(alike_N), rng.normal(0, 0.3, sizes["places"])
    click_N = -3.6 + 0.5 * users["click"][user_N] + 0.6 * items["click"][item_N] + place_click[place_N]
    click_N += 1.1 * like_N + 0.5 * cheap_N
    would_N = -1.8 + 0.8 * users["would"][user_N] + 0.8 * items["would"][item_N]
    would_N += 0.4 * like_N + 0.8 * cheap_N
    chances = {"click": _sigmoid(click_N), "would": _sigmoid(would_N)}
    is_click_N = rng.random(num_samples) < chances["click"]
    would_follow_N = rng.random(num_samples) < chances["would"]
    frame = pl.DataFrame(
        {
            "click": is_click_N.astype(int),
            "conversion": (is_click_N & would_follow_N).astype(int),
            "bought": [
                int(own) if click else None for click, own in zip(is_click_N, would_follow_N, strict=True)
            ],
            "would": would_follow_N.astype(int),
            "price": price_N,
            "user": user_N,
            "place": place_N,
            "item": item_N,
            "seen": [row[:length].tolist() for row, length in zip(seen_NT, length_N, strict=True)],
        }
    )
    return frame, chances


def _sigmoid(logit_N: Chances) -> Chances:
    found: Chances = 1 / (1 + np.exp(-logit_N))
    return found


_EXAMPLES.add_argument("--samples", type=int, default=120_000, help="impressions of the drawn log")
_EXAMPLES.add_argument("--seeds", type=int, default=3, help="number of seeds")
_EXAMPLES.add_argument("--epochs", type=int, default=1, help="epochs on the drawn log")
_EXAMPLES.add_argument("--data", type=Path, help="raw Criteo log to train on, too")

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"
MODELS = {
    "deepfm:DeepFM": ("click",),
    "din:DIN": ("click",),
    "esmm:ESMM": ("click", "conversion"),
    "mmoe:MMoE": ("click", "conversion"),
}
"""Labels that each example is trained on."""
_ARGUMENTS = {"din:DIN": f'{{"longest": {LONGEST}, "attention": [32, 16], "hidden": [64, 32]}}'}


class Tower(nn.Module):
    """An MLP of one label, as large as a tower of ESMM."""

    per_sample = True

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        widths = (inputs.num_dense + inputs.total_dim, 64, 32)
        hidden = [(nn.Linear(*pair), nn.ReLU()) for pair in pairwise(widths)]
        self.layers = nn.Sequential(*(layer for pair in hidden for layer in pair), nn.Linear(widths[-1], 1))

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.layers(torch.cat([dense, *embeddings.values()], dim=1))
        return logits.squeeze(1)


def compare_examples(options: Options, folder: Path) -> Facts:
    """Train every example with every seed; return AUCs by label, and those of conversions."""
    sys.path.insert(0, str(EXAMPLES))
    torch.set_num_threads(1)
    seeds = list(range(options.seeds))
    log, chances = draw_log(options.samples)
    log.write_parquet(folder / "log.parquet")
    (folder / "log.toml").write_text(SCHEMA)
    sizes: dict[str, Any] = {"batch_size": 256, "embedding_dim": 8, "eval_fraction": 0.4}
    sizes |= {"hot_bytes": "64KiB", "progress": False}
    data = preprocess(folder / "log.parquet", folder / "data", schema=folder / "log.toml", **sizes)
    found = _on_drawn_log(ShardSet.open(data), chances, seeds, options.epochs)
    if options.data is not None:
        real = ShardSet.open(preprocess_recipe([options.data], small_real_sample(), folder / "real").folder)
        (of_model,) = _train_both(real, "deepfm:DeepFM", seeds, 1, ())[0].values()
        found["real"] = {"samples": _samples(real), "auc": {"deepfm:DeepFM": of_model}}
    return found


def _on_drawn_log(shards: ShardSet, chances: dict[str, Logits], seeds: list[int], epochs: int) -> Facts:
    truth, samples = _labels(shards, LABELS), _samples(shards)
    of_test = {name: chance_N[-samples["test"] :] for name, chance_N in chances.items()}
    both = {name: _train_both(shards, name, seeds, epochs, labels) for name, labels in MODELS.items()}
    return {
        "samples": samples,
        "seeds": seeds,
        "shares": {label: float(np.nanmean(values)) for label, values in truth.items()},
        "auc": {name: of_labels for name, (of_labels, _) in both.items()},
        "best": {
            "click": _auc(of_test["click"], truth["click"]),
            "conversion": _auc(of_test["click"] * of_test["would"], truth["conversion"]),
        },
        "conversions": _conversions(shards, of_test, truth, both["esmm:ESMM"][1], seeds, epochs),
    }


def _conversions(
    shards: ShardSet,
    chances: dict[str, Logits],
    truth: dict[str, Logits],
    of_esmm: Sequence[Logits],
    seeds: list[int],
    epochs: int,
) -> Facts:
    """Return AUCs of ESMM, of a model of clicks alone, and of the product of two models.

    ``after a click`` ranks all impressions by the chance of a conversion if they were clicked, and compares
    with what would have followed. ``click and conversion`` is what a log has.
    """
    after: dict[str, list[float]] = {"ESMM": [], "trained on clicks": []}
    both: dict[str, list[float]] = {"ESMM": [], "trained on clicks": [], "product of two models": []}
    for seed, logit_NL in zip(seeds, of_esmm, strict=True):
        click, bought = (
            _log_chance(_train(shards, _config(Tower, seed, epochs, (label,)), Tower)[:, 0])
            for label in ("click", "bought")
        )
        click_N, conversion_N = _log_chance(logit_NL[:, 0]), _log_chance(logit_NL[:, 1])
        after["ESMM"].append(_auc(conversion_N - click_N, truth["would"]))
        after["trained on clicks"].append(_auc(bought, truth["would"]))
        both["ESMM"].append(_auc(conversion_N, truth["conversion"]))
        both["trained on clicks"].append(_auc(bought, truth["conversion"]))
        both["product of two models"].append(_auc(click + bought, truth["conversion"]))
        tell(f"seed {seed}: conversions")
    best = _auc(chances["would"], truth["would"])
    return {
        "after a click": over_seeds(after) | {"best": best},
        "click and conversion": over_seeds(both),
    }


def _log_chance(logit_N: Logits) -> Logits:
    found: Logits = logsigmoid(torch.from_numpy(logit_N)).numpy()
    return found


def _samples(shards: ShardSet) -> dict[str, int]:
    return {"training": shards.num_training_samples, "test": EvaluationPart(shards, "test").num_samples}


def _labels(shards: ShardSet, names: Sequence[str]) -> dict[str, Logits]:
    """Return the labels of the test part, NaN where missing."""
    part = EvaluationPart(shards, "test")
    found = np.concatenate([shards.labels_of(part.batch(number), names) for number in part.numbers])
    return dict(zip(names or ("label",), found.T.astype(np.float64), strict=True))


def _auc(score_N: Logits, label_N: Logits) -> float:
    return scores_of(score_N, label_N)["auc"]


def _config(model: Any, seed: int, epochs: int, labels: Sequence[str]) -> TrainConfig:
    name = model if isinstance(model, str) else f"{model.__module__}:{model.__qualname__}"
    weights = ",".join(f"{label}={int(label in labels)}" for label in LABELS) if labels else None
    return TrainConfig(
        model=name,
        seed=seed,
        epochs=epochs,
        loss_weights=weights,
        model_args=_ARGUMENTS.get(name),
        threads=1,
        placement="lookahead",
        dense_optimizer="adam",
        dense_lr=0.001,
    )


def _train_both(
    shards: ShardSet, name: str, seeds: Sequence[int], epochs: int, labels: Sequence[str]
) -> tuple[dict[str, Facts], list[Logits]]:
    """Train an example in both programs; return AUCs by label, and hotset's logits by seed."""
    logits: dict[str, list[Logits]] = {"hotset": [], "plain torch": []}
    for seed in seeds:
        config = _config(name, seed, epochs, labels)
        logits["hotset"].append(_train(shards, config))
        logits["plain torch"].append(_train_plain(shards, config, labels))
        tell(f"seed {seed}: {name}")
    of_labels = {
        label: over_seeds(
            {
                program: [_auc(logit_NL[:, number], label_N) for logit_NL in own]
                for program, own in logits.items()
            }
        )
        for number, (label, label_N) in enumerate(_labels(shards, labels).items())
    }
    return of_labels, logits["hotset"]


def _train(shards: ShardSet, config: TrainConfig, source: Any = None) -> Logits:
    """Train with hotset; return the logits of the test part, (N, L)."""
    trainer = build_trainer(shards, config, model_source=source)
    run_steps(trainer, lambda *_: None)
    logits = [logit.reshape(logit.shape[0], -1) for _, logit in trainer.predictor.logits("test")]
    return np.concatenate(logits).astype(np.float64)


def _train_plain(shards: ShardSet, config: TrainConfig, labels: Sequence[str]) -> Logits:
    """Train in plain torch from the initial values of hotset's run; return logits of the test part."""
    begun = build_trainer(shards, replace(config, placement="all-fast"))
    weights = {table.name: begun.weights()[table.name] for table in shards.tables}
    layers: Any = copy.deepcopy(begun.model).cpu()
    model = PlainExample(shards, layers.module, weights)
    chosen = config.optimizers(shards.embedding_optimizer)
    optimizers = TorchOptimizers(chosen, model.tables.parameters(), model.layers.parameters())
    model.train()
    for number in batches_of(shards, config):
        batch = shards.training_batch(number)
        label_BL = torch.from_numpy(shards.labels_of(batch, labels))
        is_there_BL = ~label_BL.isnan()
        losses = binary_cross_entropy_with_logits(model(batch), label_BL.nan_to_num(), reduction="none")
        optimizers.step((losses * is_there_BL).sum() / shards.batch_size)
    model.eval()
    part = EvaluationPart(shards, "test")
    with torch.no_grad():
        found = [model(part.batch(number)).double().numpy() for number in part.numbers]
    return np.concatenate(found)


if __name__ == "__main__":
    harness.main(PARSER, measure)
