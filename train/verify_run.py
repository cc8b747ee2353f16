"""Verifies a training run: its checksums, and what the shards recompute.

The bytes of a finished run must be those that were sealed. Its weights must fit its settings, and each epoch
must have each batch once. `faults_against_shards` recomputes the rest: the order of the batches from the
seed, and the scores from the weights. Rows that no evaluated sample looks up, optimizer states, logged losses
and settings that only scale a step cannot be checked without training again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..pipeline.errors import HotsetError
from ..pipeline.folders.disk import paths_in
from ..pipeline.folders.manifest import MANIFEST, Manifest, checksum_of
from .build_embeddings import with_options
from .build_model import build_model
from .checkpoints.files import read_record, record_paths, refuse_damaged_files
from .config import CONFIG, SUMMARY, TrainConfig, read_config, read_object, read_settings
from .data.batch import BATCH_ORDER, SeededOrder, read_batch_order
from .data.shards import ShardSet, with_hot_bytes
from .evaluate import evaluate
from .model.shapes import ModelInputs
from .run_folder.files import (
    BEST_PREFIX,
    CHECKPOINTS,
    RUN_FILES,
    VOCABULARY,
    differences,
    is_unfinished,
    settings_of,
)
from .run_folder.weights import (
    read_finite,
    read_manifest,
    read_weights,
    refuse_changed_files,
    refuse_other_weights,
)

_TOLERANCE = 1e-6
"""Relative difference of scores that another processor may make, which adds in another order: a run that was
trained elsewhere is not damaged."""
_ROUNDED_TOLERANCE = 1e-4
"""That of another device, and of products in bfloat16."""


def verify_run(run: Path) -> list[str]:
    """Check a run folder; returns the faults found, one line each.

    The bytes come first: what the files mean is looked at only where all are as they were sealed.
    """
    if is_unfinished(run):
        return list(_faults_of_unfinished(run))
    try:
        manifest = read_manifest(run)
    except HotsetError as error:
        return [str(error)]
    return list(_faults_of_bytes(run, manifest)) or list(_faults_of_meaning(run))


def _faults_of_unfinished(run: Path) -> Iterator[str]:
    """Yield every checkpoint that cannot be resumed, and that the run is unfinished."""
    # Newest first: the first whole one is where the run would resume.
    whole = []
    for path in record_paths(run / CHECKPOINTS):
        try:
            record = read_record(path)
            refuse_damaged_files(run / CHECKPOINTS, record)
            if record.run != checksum_of(settings_of(read_object(run / CONFIG))):
                raise HotsetError(f"{path} is of a run with other settings")
        except HotsetError as error:
            yield str(error)
        else:
            whole.append(record.state.step)
    state = f"its command resumes it from step {whole[0]}" if whole else "it has no checkpoint that is whole"
    yield f"{run} has no {MANIFEST}: it is unfinished, and {state}"


def _faults_of_bytes(run: Path, manifest: Manifest) -> Iterator[str]:
    """Yield faults of the folder's files, which must match its manifest."""
    for name in RUN_FILES:
        if name not in manifest.entries:
            yield f"{run / MANIFEST} lists no {name}"
    for entry in manifest.files:
        try:
            refuse_changed_files(manifest, (entry.path,))
        except HotsetError as error:
            yield str(error)
    # The vocabulary is a folder of its stage, whose fingerprint the run has.
    kept = {source["name"]: source["fingerprint"] for source in manifest.inputs}.get(VOCABULARY)
    for path in paths_in(run):
        # A kill at the very end leaves checkpoints and best weights, which nothing reads any more.
        known = {*manifest.entries, MANIFEST, CHECKPOINTS, VOCABULARY if kept else MANIFEST}
        if path.name not in known and not path.name.startswith(BEST_PREFIX):
            yield f"{path} is no part of the run: its manifest does not list it"
    if kept:
        yield from _faults_of_kept(run / VOCABULARY, kept)


def _faults_of_kept(folder: Path, fingerprint: str) -> Iterator[str]:
    """Yield faults of the vocabulary that a run keeps."""
    try:
        kept = Manifest.read(folder)
        if kept.fingerprint != fingerprint:
            yield f"{folder} is another folder: its fingerprint is {kept.fingerprint}, want {fingerprint}"
        for entry in kept.files:
            kept.hashed_path(entry)
    except HotsetError as error:
        yield str(error)


def _faults_of_meaning(run: Path) -> Iterator[str]:
    """Yield files that are not what a run writes, or do not fit each other."""
    try:
        settings = read_settings(run / CONFIG)
    except HotsetError as error:  # what the other files would have to agree with is unknown
        yield str(error)
        return
    # Run each check separately, so that one damaged file does not hide another.
    for check in (partial(_check_weights, run), partial(_check_order, run, settings)):
        try:
            check()
        except HotsetError as error:
            yield str(error)


def _check_weights(run: Path) -> None:
    """Check that the weights are finite, and those of the config; raises HotsetError."""
    config = read_config(run)
    weights = read_weights(run)
    chosen = config.dense_model
    # A user's class is not imported to verify bytes: its parameters are those that were written.
    model = None
    if chosen.kind != "module":
        model = build_model(chosen, ModelInputs.of(config), 0)
    refuse_other_weights(run, weights, config, model)
    for name in weights:
        read_finite(run, weights, name)


def _check_order(run: Path, settings: TrainConfig) -> None:
    """Check that the order has the steps of the run, in whole epochs; raises HotsetError."""
    path = run / BATCH_ORDER
    order = read_batch_order(path)
    summary = read_object(run / SUMMARY)
    num_steps = summary.get("num_steps", order.size)
    if order.size != num_steps:
        raise HotsetError(f"{path} is damaged: it has {order.size} steps, {SUMMARY} has {num_steps}")
    # The last epoch of a run that stopped before its end is not whole.
    if summary.get("stopped"):
        return
    is_whole = order.size % settings.epochs == 0
    epochs = np.sort(order.reshape(settings.epochs, -1), axis=1) if is_whole else order
    if not is_whole or (epochs != np.arange(epochs.shape[1])).any():
        raise HotsetError(f"{path} is damaged: it has not each batch once in each epoch")


def faults_against_shards(
    run: Path,
    shards: Path,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[str]:
    """Yield the faults of a finished run that its shards show.

    Args:
        run: its folder, in which `verify_run` found nothing.
        shards: the shards that it was trained on, or the folder that holds them.

    Raises:
        HotsetError: the shards are damaged, or do not fit the run.
    """
    config = read_object(run / CONFIG)
    settings = read_settings(run / CONFIG)
    opened = ShardSet.open(shards)
    if opened.manifest.fingerprint != config.get("shards"):
        yield f"{opened.manifest.folder} is not what {run} was trained on: its fingerprint is another"
        return
    optimizer = settings.row_optimizer(opened.embedding_optimizer)
    opened = with_options(with_hot_bytes(opened, settings.tagging_hot_bytes, optimizer), settings)
    opened.refuse_damage()
    summary = read_object(run / SUMMARY)
    yield from _faults_of_batches(run, opened, settings, summary, is_replay=bool(config.get("is_replay")))
    quality = evaluate(run, shards, progress=progress)
    # As the run writes them: plain data.
    validation = None if quality.validation is None else quality.validation.to_dict()
    found = json.loads(json.dumps({**quality.of_test(), "validation": validation}))
    is_rounded = settings.device.startswith("cuda") or config.get("dense_dtype") == "bf16"
    tolerance = _ROUNDED_TOLERANCE if is_rounded else _TOLERANCE
    recorded = {name: summary.get(name) for name in found}
    for name, pair in differences(recorded, found):
        if not (all(type(each) is float for each in pair) and math.isclose(*pair, rel_tol=tolerance)):
            yield f"{run / SUMMARY}: {name} is {pair[0]}, and the weights reach {pair[1]}"


def _faults_of_batches(
    run: Path, shards: ShardSet, settings: TrainConfig, summary: Mapping[str, Any], *, is_replay: bool
) -> Iterator[str]:
    """Check the order of batches against the seed, and samples against the shards.

    The losses or another run may have decided the order instead.
    """
    numbers = read_batch_order(run / BATCH_ORDER)
    if numbers.max(initial=0) >= shards.num_training_batches:
        yield f"{run / BATCH_ORDER} has batch {numbers.max()} of {shards.num_training_batches}"
        return
    if (settings.placement != "fae" or settings.engine != "hotset") and not is_replay:
        order = SeededOrder(shards.is_hot_only, settings.seed, settings.epochs, is_grouped=shards.is_grouped)
        wanted = np.array(list(chain.from_iterable(order.epochs())), np.int32)
        if not np.array_equal(numbers, wanted[: numbers.size]):
            yield f"{run / BATCH_ORDER} is not the order of the seed {settings.seed}"
    # Whole epochs have every sample once each.
    found = summary.get("num_training_samples")
    total = shards.num_training_samples * settings.epochs
    if not summary.get("stopped") and found != total:
        yield f"{run / SUMMARY}: num_training_samples is {found}, the shards have {total}"
