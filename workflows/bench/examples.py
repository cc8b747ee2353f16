"""The models of docs/examples: AUC beside plain torch, and conversions of all impressions.

Plain torch has the layers, batches and initial values of hotset's run, and tables, optimizers and a loop of
its own. On the drawn log it is known what would have followed a click on each impression, which no real log
tells.
With ``--data``, models of one label without histories are also trained on a log of Criteo.

The drawn log has impressions with known chances of a click, and of a conversion after it.
A click depends on the user, the item, the price, the place, and how many of the items that the user saw are
of its group; whether a conversion would follow a click on other values of these.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from ...pipeline.preprocess import preprocess as preprocess_recipe
from ...train.build import build_trainer
from ...train.config import TrainConfig
from ...train.data.shards import EvaluationPart, Shards
from ...train.loop import run_steps
from ...train.model.shapes import ModelInputs
from ..library import preprocess
from ..recipes import small_real_sample
from . import harness
from .harness import Facts, Options, over_seeds, tell
from .plain_torch import Logits, PlainExample, TorchOptimizers, batches_of, scores_of

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


PARSER = harness.new_parser(__spec__, __doc__)
PARSER.add_argument("--samples", type=int, default=120_000, help="impressions of the drawn log")
PARSER.add_argument("--seeds", type=int, default=3, help="number of seeds")
PARSER.add_argument("--epochs", type=int, default=1, help="epochs on the drawn log")
PARSER.add_argument("--data", type=Path, help="raw Criteo log to train on, too")

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


def measure(options: Options, folder: Path) -> Facts:
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
    found = _on_drawn_log(Shards.open(data), chances, seeds, options.epochs)
    if options.data is not None:
        real = Shards.open(preprocess_recipe([options.data], small_real_sample(), folder / "real").folder)
        (of_model,) = _train_both(real, "deepfm:DeepFM", seeds, 1, ())[0].values()
        found["real"] = {"samples": _samples(real), "auc": {"deepfm:DeepFM": of_model}}
    return found


def _on_drawn_log(shards: Shards, chances: dict[str, Logits], seeds: list[int], epochs: int) -> Facts:
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
    shards: Shards,
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


def _samples(shards: Shards) -> dict[str, int]:
    return {"training": shards.num_training_samples, "test": EvaluationPart(shards, "test").num_samples}


def _labels(shards: Shards, names: Sequence[str]) -> dict[str, Logits]:
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
    shards: Shards, name: str, seeds: Sequence[int], epochs: int, labels: Sequence[str]
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


def _train(shards: Shards, config: TrainConfig, source: Any = None) -> Logits:
    """Train with hotset; return the logits of the test part, (N, L)."""
    trainer = build_trainer(shards, config, model_source=source)
    run_steps(trainer, lambda *_: None)
    logits = [logit.reshape(logit.shape[0], -1) for _, logit in trainer.predictor.logits("test")]
    return np.concatenate(logits).astype(np.float64)


def _train_plain(shards: Shards, config: TrainConfig, labels: Sequence[str]) -> Logits:
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
