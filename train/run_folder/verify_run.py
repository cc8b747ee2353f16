"""``verify`` of a training run: every checksum of its folder, and what the files mean together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...pipeline.errors import HotsetError
from ...pipeline.folders.disk import paths_in
from ...pipeline.folders.manifest import MANIFEST, Manifest, checksum_of
from ..checkpoints.checkpoint_files import (
    CHECKPOINTS,
    CheckpointRecord,
    read_record,
    record_paths,
    refuse_damaged_files,
)
from ..checkpoints.run_state import BATCHES
from ..checkpoints.tensor_file import read_part, read_tensors
from ..config import TrainConfig
from ..data.batch_order import BATCH_ORDER, read_batch_order
from ..rows.row_optimizers import RowOptimizer
from ..run_config import RunConfig
from .check_results import check_against_log, check_log, check_summary, parse_object
from .check_run import check_config, check_order, check_states, check_vocabulary, check_weights
from .run_description import settings_of
from .run_files import CONFIG, METRICS, RUN_FILES, SUMMARY, VOCABULARY
from .run_reader import read_config, read_manifest, refuse_changed_files
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
    return list(_faults_of_bytes(run, manifest)) or list(_faults_of_meaning(run, manifest))


def _faults_of_unfinished(run: Path) -> Iterator[str]:
    """That the run is unfinished, and every checkpoint of it that cannot be resumed."""
    # Newest first: the first whole one is where the run would resume.
    whole = []
    for path in record_paths(run / CHECKPOINTS):
        try:
            record = read_record(path)
            refuse_damaged_files(run / CHECKPOINTS, record)
            _refuse_other_checkpoint(run, path, record)
        except HotsetError as error:
            yield str(error)
        else:
            whole.append(record.state.step)
    state = f"its command resumes it from step {whole[0]}" if whole else "it has no checkpoint that is whole"
    yield f"{run} has no {MANIFEST}: it is unfinished, and {state}"


def _refuse_other_checkpoint(run: Path, path: Path, record: CheckpointRecord) -> None:
    """Raise HotsetError unless a checkpoint is one of the run's settings, tables and steps."""
    config = read_config(run, must_be_finished=False)
    raw = parse_object((run / CONFIG).read_bytes(), str(run / CONFIG))
    if record.run != checksum_of(settings_of(raw)):
        raise HotsetError(f"{path} is of a run with other settings")
    state = record.state
    check_log(state.metrics, f"{path}: metrics", config.batch_size)
    most = None if config.batch_size is None else state.step * config.batch_size
    if (most is not None and state.num_samples > most) or state.num_samples < state.step:
        raise HotsetError(f"{path} is damaged: {state.num_samples} samples at step {state.step}")
    # The batches of its steps, and rows of its tables, each once in a file.
    batches = read_tensors(path.parent / record.dense.path).get(BATCHES)
    if batches is None or batches.dtype != torch.int32 or tuple(batches.shape) != (state.step,):
        raise HotsetError(f"{path} is damaged: it lacks the batches of its steps")
    if config.config is None:
        return
    optimizer = RowOptimizer(config.config.embedding_optimizer, 1.0)
    widths = [(table.embedding_dim, optimizer.state_width(table.embedding_dim)) for table in config.tables]
    for entry in record.rows:
        read_part(path.parent / entry.path, [table.num_rows for table in config.tables], widths)


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


def _fingerprints(manifest: Manifest) -> dict[str, str]:
    """The fingerprints of what a run was made from, by name."""
    return {source["name"]: source["fingerprint"] for source in manifest.inputs}


def _kept(manifest: Manifest) -> dict[str, str]:
    """The folders that a run keeps beside its files: their names and fingerprints."""
    fingerprints = _fingerprints(manifest)
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


def _faults_of_meaning(run: Path, manifest: Manifest) -> Iterator[str]:
    """The files are what a run writes, and agree with each other."""
    try:
        config = read_config(run)
        settings = None if config.config is None else read_settings(run / CONFIG)
    except HotsetError as error:  # what the other files would have to agree with is unknown
        yield str(error)
        return
    summary = _summary_of(run)
    num_epochs = None if settings is None else settings.epochs
    checks: list[Callable[[], None]] = [
        partial(check_weights, run, config),
        partial(check_states, run, config),
        partial(check_order, run, num_epochs, summary),
        partial(_check_results, run, config, settings),
    ]
    if settings is not None:
        checks.insert(0, partial(check_config, run, config, settings))
    # Each check by itself, so that one damaged file does not hide another.
    for check in checks:
        try:
            check()
        except HotsetError as error:
            yield str(error)
    try:
        yield from check_vocabulary(run, config, _fingerprints(manifest))
    except HotsetError as error:
        yield str(error)


def _check_results(run: Path, config: RunConfig, settings: TrainConfig | None) -> None:
    """The log and the summary are such as the run has, and end with the same figures."""
    path = run / METRICS
    log = check_log(path.read_bytes().splitlines(), str(path), config.batch_size)
    summary = parse_object((run / SUMMARY).read_bytes(), str(run / SUMMARY))
    check_against_log(run, summary, log)
    num_steps = log.step
    with suppress(HotsetError):  # told by the check of the order
        num_steps = read_batch_order(run / BATCH_ORDER).size
    if log.step not in (0, num_steps):
        raise HotsetError(f"{path} is damaged: it ends at step {log.step}, {BATCH_ORDER} has {num_steps}")
    if settings is not None:
        check_summary(run, summary, config, settings)


def _summary_of(run: Path) -> dict[str, Any]:
    """The summary, empty where it is damaged, which another check tells."""
    try:
        return parse_object((run / SUMMARY).read_bytes(), str(run / SUMMARY))
    except HotsetError:
        return {}
