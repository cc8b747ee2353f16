"""The models of docs/examples: AUC beside plain torch, and conversions of all impressions.

On the drawn log it is known what would have followed a click on each impression, which no real log tells.
With ``--data``, models of one label without histories are also trained on a log of Criteo.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import logsigmoid

from ....pipeline.preprocess import preprocess as preprocess_recipe
from ....train.build import build_trainer
from ....train.config import TrainConfig
from ....train.data.shards import EvaluationPart, Shards
from ....train.loop import run_steps
from ....train.model.shapes import ModelInputs
from ...library import preprocess
from ...recipes import small_real_sample
from ..harness import Facts, clock, new_parser, run_script, scratch_folder, seconds_since, tell
from .drawn_impressions import LABELS, LONGEST, SCHEMA, draw_log
from .plain_torch import Logits, train_plain

PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("--samples", type=int, default=120_000, help="impressions of the drawn log")
PARSER.add_argument("--seeds", type=int, default=3, help="number of seeds")
PARSER.add_argument("--epochs", type=int, default=1, help="epochs on the drawn log")
PARSER.add_argument("--data", type=Path, help="raw Criteo log to train on, too")

EXAMPLES = Path(__file__).resolve().parents[3] / "docs/examples"
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


def measure(options: argparse.Namespace) -> Facts:
    """Train every example with every seed; return AUCs by label, and those of conversions."""
    sys.path.insert(0, str(EXAMPLES))
    torch.set_num_threads(1)
    seeds = list(range(options.seeds))
    with scratch_folder(options) as folder:
        log, chances = draw_log(options.samples)
        log.write_parquet(folder / "log.parquet")
        (folder / "log.toml").write_text(SCHEMA)
        sizes: dict[str, Any] = {"batch_size": 256, "embedding_dim": 8, "eval_fraction": 0.4}
        data = preprocess(
            folder / "log.parquet",
            folder / "data",
            schema=folder / "log.toml",
            hot_bytes="64KiB",
            progress=False,
            **sizes,
        )
        shards = Shards.open(data)
        found = _on_drawn_log(shards, chances, seeds, options.epochs)
        if options.data is not None:
            real = Shards.open(preprocess_recipe([options.data], small_real_sample(), folder / "real").folder)
            found["real"] = {"samples": _samples(real), "auc": _beside_torch(real, "deepfm:DeepFM", seeds)}
    return found


def _on_drawn_log(shards: Shards, chances: dict[str, Logits], seeds: list[int], epochs: int) -> Facts:
    truth = _labels(shards, LABELS)
    samples = _samples(shards)
    of_test = {name: chance_N[-samples["test"] :] for name, chance_N in chances.items()}
    examples, logits_of = {}, {}
    for name, labels in MODELS.items():
        own = [_train_both(shards, name, seed, epochs, labels) for seed in seeds]
        logits_of[name] = [hotset for hotset, _ in own]
        examples[name] = {
            label: _compared(
                {
                    program: [auc(both[program][:, number], truth[label]) for both in map(_named, own)]
                    for program in ("hotset", "plain torch")
                }
            )
            for number, label in enumerate(labels)
        }
    return {
        "samples": samples,
        "seeds": seeds,
        "shares": {label: float(np.nanmean(values)) for label, values in truth.items()},
        "auc": examples,
        "best": {
            "click": auc(of_test["click"], truth["click"]),
            "conversion": auc(of_test["click"] * of_test["would"], truth["conversion"]),
        },
        "conversions": _conversions(shards, of_test, truth, logits_of["esmm:ESMM"], seeds, epochs),
    }


def _named(both: tuple[Logits, Logits]) -> dict[str, Logits]:
    return dict(zip(("hotset", "plain torch"), both, strict=True))


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
        alone = {
            label: _log_chance(_train(shards, _config(Tower, seed, epochs, (label,)), Tower)[:, 0])
            for label in ("click", "bought")
        }
        click_N, conversion_N = _log_chance(logit_NL[:, 0]), _log_chance(logit_NL[:, 1])
        after["ESMM"].append(auc(conversion_N - click_N, truth["would"]))
        after["trained on clicks"].append(auc(alone["bought"], truth["would"]))
        both["ESMM"].append(auc(conversion_N, truth["conversion"]))
        both["trained on clicks"].append(auc(alone["bought"], truth["conversion"]))
        both["product of two models"].append(auc(alone["click"] + alone["bought"], truth["conversion"]))
        tell(f"seed {seed}: conversions")
    best = auc(chances["would"], truth["would"])
    return {
        "after a click": _compared(after) | {"best": best},
        "click and conversion": _compared(both),
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


def auc(score_N: Logits, label_N: Logits) -> float:
    """Return the chance that a positive sample scores above a negative one, ties one half."""
    values_V, place_N = np.unique(score_N, return_inverse=True)
    positive_V = np.bincount(place_N, label_N == 1, values_V.size)
    negative_V = np.bincount(place_N, label_N == 0, values_V.size)
    below_V = np.cumsum(negative_V) - negative_V
    pairs = positive_V.sum() * negative_V.sum()
    return float(((below_V + negative_V / 2) * positive_V).sum() / pairs)


def _compared(values: dict[str, list[float]]) -> Facts:
    """Return AUCs with mean and deviation over seeds, and the mean difference from the first name."""
    first = next(iter(values.values()))
    return {
        "auc": values,
        "mean": {name: fmean(own) for name, own in values.items()},
        "deviation": {name: stdev(own) if len(own) > 1 else 0.0 for name, own in values.items()},
        "mean_difference": {
            name: fmean(one - other for one, other in zip(own, first, strict=True))
            for name, own in values.items()
        },
    }


def _config(model: Any, seed: int, epochs: int = 1, labels: Sequence[str] = ()) -> TrainConfig:
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


def _beside_torch(shards: Shards, name: str, seeds: list[int]) -> Facts:
    (label_N,) = _labels(shards, ()).values()
    own = [_named(_train_both(shards, name, seed)) for seed in seeds]
    return {
        name: _compared(
            {
                program: [auc(both[program][:, 0], label_N) for both in own]
                for program in ("hotset", "plain torch")
            }
        )
    }


def _train_both(
    shards: Shards, name: str, seed: int, epochs: int = 1, labels: Sequence[str] = ()
) -> tuple[Logits, Logits]:
    config = _config(name, seed, epochs, labels)
    begin = clock()
    found = _train(shards, config), train_plain(shards, config, labels)
    tell(f"seed {seed}: {name}, {seconds_since(begin)[1]:.0f} s")
    return found


def _train(shards: Shards, config: TrainConfig, source: Any = None) -> Logits:
    """Train with hotset; return the logits of the test part, (N, L)."""
    trainer = build_trainer(shards, config, model_source=source)
    run_steps(trainer, lambda *_: None)
    logits = [logit.reshape(logit.shape[0], -1) for _, logit in trainer.predictor.logits("test")]
    return np.concatenate(logits).astype(np.float64)


if __name__ == "__main__":
    sys.exit(run_script(PARSER, measure))
