"""The models of docs/examples: AUC beside plain torch, and conversions of all impressions.

Plain torch has the layers, batches and initial values of hotset's run, and tables, optimizers and a loop of
its own. On the drawn log it is known what would have followed a click on each impression, which no real log
tells.
With ``--data``, models of one label without histories are also trained on a log of Criteo.
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
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from ....pipeline.preprocess import preprocess as preprocess_recipe
from ....train.build import build_trainer
from ....train.config import TrainConfig
from ....train.data.shards import EvaluationPart, Shards
from ....train.loop import run_steps
from ....train.model.shapes import ModelInputs
from ...library import preprocess
from ...recipes import small_real_sample
from .. import harness
from ..harness import Facts, Options, over_seeds, tell
from ..plain_torch import Logits, PlainExample, TorchOptimizers, batches_of, scores_of
from .drawn_impressions import LABELS, LONGEST, SCHEMA, draw_log

PARSER = harness.new_parser(__spec__, __doc__)
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
