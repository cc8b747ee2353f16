"""``verify`` of a training run: every checksum of its folder, and what the files mean together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...pipeline.errors import HotsetError, first_line
from ...pipeline.folders.disk import paths_in
from ...pipeline.folders.manifest import MANIFEST, Manifest
from ..checkpoints.checkpoint_files import CHECKPOINTS, read_record, record_paths, refuse_damaged_files
from ..checkpoints.tensor_file import read_tensors
from ..data.batch_order import BATCH_ORDER, read_batch_order
from ..model_building.build_model import build_model
from ..model_building.choose_model import recorded_model
from ..model_building.model_inputs import ModelInputs
from .run_files import CONFIG, METRICS, RUN_FILES, STATES, SUMMARY, VOCABULARY
from .run_reader import (
    read_config,
    read_finite,
    read_manifest,
    read_states,
    read_weights,
    refuse_changed_files,
    refuse_other_weights,
)
from .run_settings import read_settings
from .unfinished_run import is_unfinished


def verify_run(run: Path) -> list[str]:
    """Check a run folder; returns the faults found, one line each.

    The bytes come first: what the files mean is looked at only where all are as they were sealed.
    """
    try:
        manifest = read_manifest(run)
    except HotsetError as error:
        return [str(error)]
    # Without a manifest the run is unfinished or old, and both are said.
    if manifest is None:
        if is_unfinished(run):
            return list(_faults_of_unfinished(run))
        return [f"{run} has no {MANIFEST}: it is unfinished, or an earlier version of hotset wrote it"]
    return list(_faults_of_bytes(run, manifest)) or list(_faults_of_meaning(run))


def _faults_of_unfinished(run: Path) -> Iterator[str]:
    """That the run is unfinished, and every checkpoint of it that cannot be resumed."""
    # Newest first: the first whole one is where the run would resume.
    whole = []
    for path in record_paths(run / CHECKPOINTS):
        try:
            record = read_record(path)
            refuse_damaged_files(run / CHECKPOINTS, record)
            read_tensors(run / CHECKPOINTS / record.dense.path)
        except HotsetError as error:
            yield str(error)
        else:
            whole.append(record.state.step)
    state = f"its command resumes it from step {whole[0]}" if whole else "it has no checkpoint that is whole"
    yield f"{run} has no {MANIFEST}: it is unfinished, and {state}"


def _faults_of_bytes(run: Path, manifest: Manifest) -> Iterator[str]:
    """The folder holds the files of a run, with the bytes of its manifest, and no others."""
    for name in RUN_FILES:
        if name not in manifest.entries:
            yield f"{run / MANIFEST} lists no {name}"
    for entry in manifest.files:
        try:
            refuse_changed_files(manifest, (entry.path,))
        except HotsetError as error:
            yield str(error)
    for path in paths_in(run):
        # A kill at the very end leaves the checkpoints, which nothing reads any more.
        if path.name not in {*manifest.entries, MANIFEST, CHECKPOINTS, *_kept(manifest)}:
            yield f"{path} is no part of the run: its manifest does not list it"
    for name, fingerprint in _kept(manifest).items():
        yield from _faults_of_kept(run / name, fingerprint)


def _kept(manifest: Manifest) -> dict[str, str]:
    """The folders that a run keeps beside its files: their names and fingerprints."""
    fingerprints = {source["name"]: source["fingerprint"] for source in manifest.inputs}
    return {name: fingerprints[name] for name in (VOCABULARY,) if name in fingerprints}


def _faults_of_kept(folder: Path, fingerprint: str) -> Iterator[str]:
    """The folder is the one that the run was trained with, and whole."""
    try:
        kept = Manifest.read(folder)
        if kept.fingerprint != fingerprint:
            yield f"{folder} is another folder: its fingerprint is {kept.fingerprint}, want {fingerprint}"
        for entry in kept.files:
            kept.hashed_path(entry)
    except HotsetError as error:
        yield str(error)


def _faults_of_meaning(run: Path) -> Iterator[str]:
    """The files are what a run writes, and the weights those of its config."""
    try:
        num_epochs = _check_settings(run)
    except HotsetError as error:  # what it would have to agree with is unknown
        yield str(error)
        return
    # Each check by itself, so that one damaged file does not hide another.
    checks: tuple[Callable[[], None], ...] = (
        partial(_check_weights, run),
        partial(_check_states, run),
        partial(_check_order, run, num_epochs),
        partial(_check_metrics, run),
        partial(_check_summary, run),
    )
    for check in checks:
        try:
            check()
        except HotsetError as error:
            yield str(error)


def _check_settings(run: Path) -> int | None:
    """The config and its settings are such as a run has; returns the epochs, None where it does not say."""
    if read_config(run).config is None:
        return None
    return read_settings(run / CONFIG).epochs


def _check_weights(run: Path) -> None:
    config = read_config(run)
    weights = read_weights(run)
    chosen = recorded_model(config)
    # A user's class is not imported to verify bytes: its parameters are those that were written.
    model = None
    if chosen.kind != "module":
        model = build_model(chosen, ModelInputs.of(config), 0)
    refuse_other_weights(run, weights, config, model)
    for name in weights:
        read_finite(run, weights, name)


def _check_states(run: Path) -> None:
    if (run / STATES).exists():
        states = read_states(run)
        for name in states:
            if not torch.isfinite(states[name]).all():
                raise HotsetError(f"{run / STATES} is damaged: {name} holds values that are not finite")


def _check_order(run: Path, num_epochs: int | None) -> None:
    """The batches are those of whole epochs, as many as the summary says."""
    path = run / BATCH_ORDER
    order = read_batch_order(path)
    if order.min(initial=0) < 0:
        raise HotsetError(f"{path} is damaged: it has a batch below 0")
    summary = _summary_of(run)
    num_steps = summary.get("num_steps", order.size)
    if order.size != num_steps:
        raise HotsetError(f"{path} is damaged: it has {order.size} steps, {SUMMARY} has {num_steps}")
    # The last epoch of a run that stopped before its end is not whole.
    if num_epochs is None or summary.get("stopped"):
        return
    is_whole = order.size % num_epochs == 0
    epochs = np.sort(order.reshape(num_epochs, -1), axis=1) if is_whole else order
    if not is_whole or (epochs != np.arange(epochs.shape[1])).any():
        raise HotsetError(f"{path} is damaged: it has not each batch once in each epoch")


def _check_metrics(run: Path) -> None:
    """Lines are objects, of steps that do not fall."""
    last = 0
    for number, line in enumerate(_lines_of(run), 1):
        where = f"{run / METRICS}, line {number},"
        step = _parse_object(line, where).get("step", last)
        if type(step) is not int or step < last:
            raise HotsetError(f"{where} is damaged: it is of step {step!r}, the one before of {last}")
        last = step


def _check_summary(run: Path) -> None:
    """The scores are those of the last evaluation that the run logged."""
    path = run / SUMMARY
    summary = _parse_object(path.read_bytes(), str(path))
    for line in reversed(_lines_of(run)):
        with suppress(HotsetError):  # told by the check of the log
            scores = _parse_object(line, str(run / METRICS)).get("evaluation")
            if isinstance(scores, dict):
                break
    else:
        return
    for name, score in scores.items():
        # As text: a score that is no number is not equal to itself.
        found = json.dumps(summary.get(name))
        if found != json.dumps(score):
            raise HotsetError(f"{path} is damaged: {name} is {found}, and {json.dumps(score)} in {METRICS}")


def _summary_of(run: Path) -> dict[str, Any]:
    """The summary, empty where it is damaged, which another check tells."""
    try:
        return _parse_object((run / SUMMARY).read_bytes(), str(run / SUMMARY))
    except HotsetError:
        return {}


def _lines_of(run: Path) -> list[bytes]:
    return (run / METRICS).read_bytes().splitlines()


def _parse_object(text: bytes, where: str) -> dict[str, Any]:
    """Return a JSON object; raises HotsetError where ``text`` is none."""
    try:
        parsed = json.loads(text)
        if not isinstance(parsed, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        raise HotsetError(f"{where} is damaged: {first_line(error)}") from error
    return parsed
