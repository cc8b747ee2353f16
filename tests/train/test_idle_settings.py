"""A setting that changes nothing in a run is refused or named, whatever the placement and the model.

Runs are compared by all that they write but times and their own settings.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hotset.pipeline.errors import HotsetError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import LinearNet
from hotset.train.config import TrainConfig
from hotset.train.config_parts import CheckpointSettings, RecipeOptions
from hotset.train.run import RunOptions, train

PLACEMENTS = ("all-fast", "hybrid", "hybrid-dedup", "hybrid-uva", "fae", "cache", "lookahead")
SPEC = ShardSpec(
    num_rows=(30, 40, 90),
    num_hot=(2, 3, 4),
    batch_size=12,
    num_hot_only=24,
    num_mixed=64,
    num_evaluation=40,
    num_validation=20,
    skew=1.2,
    equal_lengths=True,
)
LOGS = {
    "lists": replace(SPEC, multi_hot=(0, 1, 2), order="original"),
    "no lists": replace(SPEC, order="original"),
    "no dense features": replace(SPEC, num_dense=0, order="original"),
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dlrm": ("no lists", {"model": "dlrm"}),
    "dlrm on lists": ("lists", {"model": "dlrm"}),
    "dlrm without layers": ("no lists", {"model": "dlrm", "bottom_mlp": (), "top_mlp": ()}),
    "dlrm without dense features": ("no dense features", {"model": "dlrm"}),
    "dcnv2": ("no lists", {"model": "dcnv2"}),
    "dcnv2 without dense features": ("no dense features", {"model": "dcnv2"}),
    "dcnv2 without layers": ("no lists", {"model": "dcnv2", "top_mlp": ()}),
    "tbsm": ("lists", {"model": "tbsm"}),
    "module": ("no lists", {"model": f"{LinearNet.__module__}:LinearNet"}),
}
VALUES: dict[str, Any] = {
    "hot_bytes": 2000,
    "staging_bytes": 1500,
    "slow_bytes": 1000,
    "prefetch": 4,
    "cache_policy": "lru",
    "cache_warmup": 0.1,
    "cache_batches": 2,
    "bottom_mlp": (8,),
    "top_mlp": (8,),
    "cross_layers": 1,
    "cross_rank": 2,
    "dropout": 0.5,
    "batch_norm": True,
    "pooling": "mean",
    "model_args": '{"structure": "parallel"}',
    "epochs": 3,
    "last_batch": "drop",
    "freeze": ("C1",),
    "seed": 1,
    "kernels": "torch",
    "embedding_optimizer": "adam",
    "embedding_lr": 0.5,
    "dense_optimizer": "sgd",
    "dense_lr": 0.5,
    "fae_variant": "code",
    "evaluate_every": 3,
    "negative_rate": 0.1,
    "log_every": 5,
    "threads": 2,
    "micro_batches": 2,
    "lr_schedule": "linear",
    "lr_schedule_of": "rows",
    "warmup_steps": 3,
    "decay_steps": 2,
    "final_lr": 0.5,
    "clip_gradient": 0.01,
    "dense_decay": 0.1,
    "embedding_decay": 0.1,
    "loss": f"{__name__}:doubled",
    "loss_weights": "label=2",
    "max_steps": 4,
    "max_time": "1h",
    "patience": 1,
    "stop_at_auc": 0.01,
    "keep_best": True,
    "best_by": "log-loss",
}
"""A value of each setting that is another than the default, and decides something where it can."""
ELSEWHERE = {"placement", "engine", "model", "device", "dense_dtype", "recipe"}
"""Settings that the cases vary, or that depend on the machine."""
LIMITS = {"slow_bytes", "max_time", "threads", "prefetch", "hot_bytes", "staging_bytes"}
"""Settings of memory, speed or time alone, which may well change no weight."""


def doubled(logit_B: torch.Tensor, label_B: torch.Tensor, weight_B: torch.Tensor) -> torch.Tensor:
    """A loss of one's own."""
    losses_B = torch.nn.functional.binary_cross_entropy_with_logits(logit_B, label_B, reduction="none")
    return 2 * losses_B


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("idle")
    return {name: write_shards(folder / name, spec) for name, spec in LOGS.items()}


def config_of(**settings: Any) -> TrainConfig:
    of_recipe = {each.name for each in fields(RecipeOptions)} & settings.keys()
    recipe = RecipeOptions(**{name: settings.pop(name) for name in of_recipe})
    base: dict[str, Any] = {"threads": 1, "epochs": 2, "log_every": 2, "embedding_optimizer": "adagrad"}
    return TrainConfig(**(base | settings), recipe=recipe)


def written(folder: Path, out: Path, **settings: Any) -> str:
    """Train, and return a hash of all that the run wrote but times and settings."""
    options = RunOptions(checkpoints=CheckpointSettings(checkpoint_every="off"))
    train(folder, config_of(**settings), out, options)
    found = hashlib.sha256((out / "weights.safetensors").read_bytes())
    for line in (out / "metrics.jsonl").read_text().splitlines():
        found.update(json.dumps(_without_times(json.loads(line)), sort_keys=True).encode())
    summary = _without_times(json.loads((out / "summary.json").read_text()))
    found.update(json.dumps(summary, sort_keys=True).encode())
    return found.hexdigest()


def _without_times(found: Any) -> Any:
    if isinstance(found, dict):
        return {
            name: _without_times(value)
            for name, value in found.items()
            if "second" not in name and name not in ("run", "transfers", "memory")
        }
    return found


def settings_of_case(placement: str, model: str) -> list[str]:
    """A seventh of the settings; each is tried with every placement and with every model."""
    number = PLACEMENTS.index(placement) + list(MODELS).index(model)
    return list(VALUES)[number % 7 :: 7]


def test_every_setting_is_tried_with_every_placement_and_every_model() -> None:
    for placement in PLACEMENTS:
        assert {name for model in MODELS for name in settings_of_case(placement, model)} == VALUES.keys()
    for model in MODELS:
        assert {name for each in PLACEMENTS for name in settings_of_case(each, model)} == VALUES.keys()


def test_every_setting_has_a_value_here() -> None:
    names = {each.name for kind in (TrainConfig, RecipeOptions) for each in fields(kind)}
    assert names - ELSEWHERE == VALUES.keys()


@pytest.mark.parametrize(
    ("placement", "model"),
    [
        pytest.param(
            placement,
            model,
            marks=[] if (placement, model) in (("cache", "module"), ("hybrid", "dlrm")) else pytest.mark.slow,
        )
        for placement in PLACEMENTS
        for model in MODELS
    ],
)
def test_a_setting_that_changes_nothing_is_refused_or_named(
    folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, placement: str, model: str
) -> None:
    log, settings = MODELS[model]
    settings = settings | {"placement": placement}
    if placement == "cache":
        # Slots for a batch and fewer than rows, so that some are evicted.
        settings["staging_bytes"] = 2600 if log == "lists" else 500
    base = written(folders[log], tmp_path / "base", **settings)
    assert written(folders[log], tmp_path / "again", **settings) == base, "runs differ by themselves"
    wrong = []
    for name in settings_of_case(placement, model):
        value = VALUES[name]
        if name in settings and settings[name] == value:
            continue
        caplog.clear()
        try:
            with caplog.at_level(logging.WARNING):
                found = written(folders[log], tmp_path / name, **(settings | {name: value}))
        except HotsetError:
            continue
        is_named = bool(re.search(rf"--{name.replace('_', '-')}\b.* changes nothing", caplog.text))
        if is_named and found != base:
            wrong.append(f"{name} is said to change nothing")
        # Two policies may evict the same rows.
        may_agree = name in LIMITS or (name, log) == ("cache_policy", "lists")
        if not is_named and found == base and not may_agree:
            wrong.append(f"{name} changes nothing")
    assert wrong == []
