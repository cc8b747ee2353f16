"""``verify`` of a training run beside its shards: what they decide is worked out again, and compared.

The order of the batches follows from the seed, and the scores from the weights: edited weights are found by
the scores that they no longer have. Rows that no evaluated sample looks up, optimizer states, logged losses
and settings that decide only how far a step goes would take another training to check.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from .config import TrainConfig
from .data.batch_order import BATCH_ORDER, SeededOrder, read_batch_order
from .data.shard_origin import ShardOrigin, vocabulary_of
from .data.shards import Shards, with_hot_bytes
from .evaluate import evaluate
from .model_building.user_code import ModelSource
from .run_folder.check_results import parse_object
from .run_folder.run_files import CONFIG, SUMMARY
from .run_folder.run_settings import read_settings

_TOLERANCE = 1e-6
"""Relative difference of scores that another processor may make, which adds in another order: a run that was
trained elsewhere is not damaged."""
_ROUNDED_TOLERANCE = 1e-4
"""That of another device, and of products in bfloat16."""


def faults_against_shards(
    run: Path,
    shards: Path,
    *,
    model_source: ModelSource | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[str]:
    """Yield the faults of a finished run that its shards show.

    Args:
        run: its folder, in which `verify_run` found nothing.
        shards: the shards that it was trained on, or the folder that holds them.
        model_source: makes the module of a user; None imports the class that the run records.
        progress: called with the samples evaluated so far and their number in all.

    Raises:
        HotsetError: the shards are damaged, or do not fit the run.
    """
    config = parse_object((run / CONFIG).read_bytes(), str(run / CONFIG))
    settings = read_settings(run / CONFIG)
    opened = Shards.open(shards)
    if opened.manifest.fingerprint != config.get("shards"):
        yield f"{opened.manifest.folder} is not what {run} was trained on: its fingerprint is another"
        return
    if settings.hot_bytes is not None:
        opened = with_hot_bytes(
            opened, settings.hot_bytes, settings.row_optimizer(opened.embedding_optimizer)
        )
    opened.refuse_damage()
    # As the run writes them: plain data.
    summary = parse_object((run / SUMMARY).read_bytes(), str(run / SUMMARY))
    yield from _faults_of_batches(run, opened, settings, summary, is_replay=bool(config.get("is_replay")))
    yield from _faults_of_tables(run, opened, config)
    yield from _faults_of_origin(run, opened, config)
    quality = evaluate(run, shards, model_source=model_source, progress=progress)
    found = json.loads(json.dumps({**quality.of_test(), "validation": _plain(quality.validation)}))
    is_rounded = settings.device.startswith("cuda") or config.get("dense_dtype") == "bf16"
    tolerance = _ROUNDED_TOLERANCE if is_rounded else _TOLERANCE
    for name, wanted, score in _differences(summary, found, tolerance):
        yield f"{run / SUMMARY}: {name} is {wanted}, and the weights reach {score}"


def _faults_of_batches(
    run: Path, shards: Shards, settings: TrainConfig, summary: Mapping[str, Any], *, is_replay: bool
) -> Iterator[str]:
    """The order follows from the seed, unless the losses or another run decided it; sizes are the shards'."""
    numbers = read_batch_order(run / BATCH_ORDER)
    if numbers.max(initial=0) >= shards.num_training_batches:
        yield f"{run / BATCH_ORDER} has batch {numbers.max()} of {shards.num_training_batches}"
        return
    if settings.placement != "fae" and not is_replay:
        order = SeededOrder(shards.is_hot_only, settings.seed, settings.epochs, is_grouped=shards.is_grouped)
        wanted = np.array(list(chain.from_iterable(order.epochs())), np.int32)
        if not np.array_equal(numbers, wanted[: numbers.size]):
            yield f"{run / BATCH_ORDER} is not the order of the seed {settings.seed}"
    # Whole epochs have every sample once each.
    found = summary.get("num_training_samples")
    total = shards.num_training_samples * settings.epochs
    if not summary.get("stopped") and found != total:
        yield f"{run / SUMMARY}: num_training_samples is {found}, the shards have {total}"


def _faults_of_tables(run: Path, shards: Shards, config: Mapping[str, Any]) -> Iterator[str]:
    """The config describes the shards that it names."""
    wanted = {
        "batch_size": shards.batch_size,
        "embedding_dim": shards.embedding_dim,
        "num_dense": shards.num_dense,
        "tables": [
            (table.name, table.num_rows, table.embedding_dim, table.num_hot, table.is_multi_hot)
            for table in shards.tables
        ],
    }
    found = {name: config.get(name) for name in wanted}
    found["tables"] = [
        (
            table.get("name"),
            table.get("num_rows"),
            table.get("embedding_dim"),
            table.get("num_hot"),
            table.get("is_multi_hot", False),
        )
        for table in config["tables"]
    ]
    for name, value in wanted.items():
        if found[name] != value:
            yield f"{run / CONFIG}: {name} is {found[name]}, the shards have {value}"


def _faults_of_origin(run: Path, shards: Shards, config: Mapping[str, Any]) -> Iterator[str]:
    """The vocabulary and the schema are those beside the shards, where their folders are still there."""
    found: dict[str, str | None] = {"vocabulary": vocabulary_of(shards)}
    origin = ShardOrigin.of(shards)
    if origin is not None:
        found["schema"] = origin.schema
    for name, value in found.items():
        if value is not None and config.get(name) != value:
            yield f"{run / CONFIG}: {name} is {config.get(name)!r}, that of the shards is {value!r}"


def _plain(quality: Any) -> dict[str, Any] | None:
    return None if quality is None else quality.to_dict()


def _differences(
    summary: Mapping[str, Any], found: Mapping[str, Any], tolerance: float, prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the scores that differ: their names, what the summary has, and what was found."""
    for name, score in found.items():
        recorded = summary.get(name)
        if isinstance(score, dict) and isinstance(recorded, dict):
            yield from _differences(recorded, score, tolerance, f"{prefix}{name}.")
        elif recorded != score and not _is_near(recorded, score, tolerance):
            yield f"{prefix}{name}", recorded, score


def _is_near(recorded: object, score: object, tolerance: float) -> bool:
    numbers = [each for each in (recorded, score) if isinstance(each, float)]
    return len(numbers) == 2 and math.isclose(*numbers, rel_tol=tolerance)
