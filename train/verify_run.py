"""Verifies a training run: every checksum of its folder, and that files are consistent.

Settings, vocabulary, weights, states and batches must fit each other; so must the log and the summary. Every
evaluated sample is hot or mixed, so an average over all samples is that of both groups: an edited score
breaks this, whatever the checksums are.

Where the shards are still there, `verify_run` recomputes what they determine. The order of the batches
follows from the seed, and the scores from the weights, so edited weights show in the scores. Rows that no
evaluated sample looks up, optimizer states, logged losses and settings that only scale a step cannot be
checked without training again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..pipeline.errors import HotsetError, first_line
from ..pipeline.folders.disk import paths_in
from ..pipeline.folders.manifest import MANIFEST, Manifest, checksum_of
from ..pipeline.folders.totals import VocabularyTotals
from ..pipeline.formats.arrow_files import read_batch
from .build_model import ModelSource, build_model
from .checkpoints.files import (
    BATCHES,
    CHECKPOINTS,
    CheckpointRecord,
    read_record,
    record_paths,
    refuse_damaged_files,
)
from .checkpoints.tensors import is_optimizer_state, read_part, read_tensors
from .config import TrainConfig
from .data.batch_order import BATCH_ORDER, SeededOrder, read_batch_order
from .data.shards import ShardOrigin, Shards, vocabulary_of, with_hot_bytes
from .evaluate import evaluate
from .metrics import TRAINING_KINDS
from .model.choose_model import choose_model, recorded_model, recorded_name
from .model.shapes import ModelInputs
from .rows.optimizers import RowOptimizer
from .run_config import RunConfig, read_settings
from .run_folder.files import (
    CONFIG,
    METRICS,
    RUN_FILES,
    STATES,
    SUMMARY,
    VOCABULARY,
    is_unfinished,
    settings_of,
)
from .run_folder.reader import (
    read_config,
    read_finite,
    read_manifest,
    read_states,
    read_weights,
    refuse_changed_files,
    refuse_other_weights,
)

_MOST_SCORES = {
    "auc": 1.0,
    "pr_auc": 1.0,
    "accuracy": 1.0,
    "log_loss": math.inf,
    "normalized_entropy": math.inf,
    "calibration": math.inf,
}
"""The largest value of each score; the least is 0."""
_MEANS = ("log_loss", "accuracy")
"""Scores that are means over samples."""
_ROUNDING = 1e-9
"""Relative error of a mean that was added up in another order."""
_WAYS = ("bytes_to_fast", "bytes_to_slow")


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """The sum of what the lines of a log say of a run."""

    step: int
    """The step of the last line."""
    num_samples: int | None
    """Training samples at the last line of losses; None where there is none."""
    evaluation: Mapping[str, Any] | None
    """The last scores of the test part; None where there are none."""
    validation: Mapping[str, Any] | None
    """The last scores of the validation part; None where there are none."""


def check_log(lines: Sequence[bytes | str], where: str, batch_size: int | None) -> LoggedRun:
    """Check the lines of a log.

    Steps must not fall, and losses and scores must be possible values.

    Args:
        lines: as the run wrote them.
        where: the file, for messages.
        batch_size: the most samples of a step; None where the run does not say.

    Raises:
        HotsetError: a line is damaged.
    """
    step = 0
    num_samples = 0
    scores: dict[str, Mapping[str, Any]] = {}
    has_losses = False
    for number, text in enumerate(lines, 1):
        own = f"{where}, line {number},"
        line = parse_object(text, own)
        found = line.get("step", step)
        if type(found) is not int or found < step:
            raise HotsetError(f"{own} is damaged: it is of step {found!r}, the one before of {step}")
        step = found
        # A line has a mean loss, or the scores of a part.
        if "loss" in line:
            _number(line, "loss", own)
            samples = int(_number(line, "samples", own, whole=True))
            most = math.inf if batch_size is None else step * batch_size
            if (has_losses and samples <= num_samples) or samples > most:
                raise HotsetError(f"{own} is damaged: {samples} samples at step {step}")
            has_losses = True
            num_samples = samples
        for part in ("evaluation", "validation"):
            if isinstance(line.get(part), dict):
                _refuse_scores(line[part], f"{own} {part}")
                scores[part] = line[part]
    return LoggedRun(
        step, num_samples if has_losses else None, scores.get("evaluation"), scores.get("validation")
    )


def check_summary(run: Path, summary: Mapping[str, Any], config: RunConfig, settings: TrainConfig) -> None:
    """Check the summary of a run, alone and against its settings.

    Raises:
        HotsetError: it has a figure that no such run has.
    """
    where = str(run / SUMMARY)
    _refuse_scores(summary, where)
    if isinstance(summary.get("validation"), dict):
        _refuse_scores(summary["validation"], f"{where}: validation")
    # What the settings and the tables decide.
    _refuse_others(where, summary, _decided(config, settings))
    for name in ("samples_per_second", "num_training_samples", *_WAYS):
        _number(summary, name, where)
    most = int(_number(summary, "num_steps", where, whole=True))
    best = summary.get("best_step")
    if best is not None and not (type(best) is int and 0 <= best <= most):
        raise HotsetError(f"{where} is damaged: best_step is {best!r}, and there are {most} steps")
    recipe = settings.recipe
    if summary.get("stopped") is not None and recipe.may_stop is None and recipe.max_steps is None:
        raise HotsetError(f"{where} is damaged: it stopped early, and no setting lets it")
    if settings.placement != "fae" and summary.get("test_losses"):
        raise HotsetError(f"{where} is damaged: it has test losses, which {settings.placement} does not take")
    for way in _WAYS:
        _refuse_other_sum(where, summary, way, f"{way}_by_kind")


def check_against_log(run: Path, summary: Mapping[str, Any], log: LoggedRun) -> None:
    """Check that a summary ends with what its run logged last; raises HotsetError."""
    where = str(run / SUMMARY)
    if log.evaluation is None:
        raise HotsetError(f"{run / METRICS} is damaged: it lacks the evaluation at the end of the run")
    wanted = dict(log.evaluation)
    if log.num_samples is not None:
        wanted["num_training_samples"] = log.num_samples
    # The last scores of the validation part are of the weights that the run ended with.
    if "validation" in summary:
        wanted["validation"] = log.validation
    for name, value in wanted.items():
        # As text: a score that is no number is not equal to itself.
        found = json.dumps(summary.get(name))
        if found != json.dumps(value):
            raise HotsetError(f"{where} is damaged: {name} is {found}, and {json.dumps(value)} in {METRICS}")


def parse_object(text: bytes | str, where: str) -> dict[str, Any]:
    """Return a JSON object; raises HotsetError where ``text`` is none."""
    try:
        parsed = json.loads(text)
        if not isinstance(parsed, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        raise HotsetError(f"{where} is damaged: {first_line(error)}") from error
    return parsed


def _decided(config: RunConfig, settings: TrainConfig) -> dict[str, Any]:
    """Return the summary's figures that settings and tables decide."""
    decided: dict[str, Any] = {
        "placement": settings.placement,
        "num_rows": sum(table.num_rows for table in config.tables),
    }
    if config.num_hot is not None:
        decided["num_hot_rows"] = sum(config.num_hot)
    return decided


def _refuse_others(where: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        if found.get(name) != value:
            raise HotsetError(f"{where} is damaged: {name} is {found.get(name)!r}, want {value!r}")


def _refuse_other_sum(where: str, summary: Mapping[str, Any], total: str, by_kind: str) -> None:
    """Raise HotsetError unless a figure sums those by kind of work.

    Evaluation is apart.
    """
    parts = summary.get(by_kind)
    if not isinstance(parts, dict):
        raise HotsetError(f"{where} is damaged: {by_kind} is {parts!r}")
    known = {kind: _number(parts, kind, f"{where}: {by_kind}") for kind in parts}
    wanted = sum(known.get(kind, 0) for kind in TRAINING_KINDS)
    if summary.get(total) != wanted:
        raise HotsetError(f"{where} is damaged: {total} is {summary.get(total)!r}, by kind {wanted:.0f}")


def _refuse_scores(scores: Mapping[str, Any], where: str) -> None:
    """Raise HotsetError if scores are invalid or groups do not add up."""
    groups = [name for name in ("hot", "mixed", "oov") if isinstance(scores.get(name), dict)]
    for own, group in [(where, scores), *((f"{where}: {name}", scores[name]) for name in groups)]:
        for fault in _faults_of_group(group):
            raise HotsetError(f"{own} is damaged: {fault}")
    if "hot" not in groups or "mixed" not in groups:
        return
    # Every sample is hot or mixed.
    counts = [each.get("num_samples", 0) for each in (scores["hot"], scores["mixed"])]
    total = scores.get("num_samples")
    if sum(counts) != total:
        raise HotsetError(
            f"{where} is damaged: {total} samples, of which {counts[0]} hot and {counts[1]} mixed"
        )
    for name in _MEANS:
        parts = [
            count * scores[group][name]
            for count, group in zip(counts, ("hot", "mixed"), strict=True)
            if count and scores[group].get(name) is not None
        ]
        whole = scores.get(name)
        if whole is None or not total:
            continue
        if not math.isclose(whole, sum(parts) / total, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            raise HotsetError(f"{where} is damaged: {name} is {whole}, of its groups {sum(parts) / total}")


def _faults_of_group(group: Mapping[str, Any]) -> Iterator[str]:
    for name, most in _MOST_SCORES.items():
        score = group.get(name)
        # A score that is not defined is None; one that is no number was so where it was written.
        if score is None or (isinstance(score, float) and math.isnan(score)):
            continue
        if type(score) not in (int, float) or not 0 <= score <= most:
            yield f"{name} is {score!r}"
    count = group.get("num_samples", 0)
    if type(count) is not int or count < 0:
        yield f"num_samples is {count!r}"


def _number(values: Mapping[str, Any], name: str, where: str, *, whole: bool = False) -> float:
    """Return a finite number of at least 0, else raise HotsetError."""
    value = values.get(name)
    is_number = type(value) is int or (type(value) is float and not whole and math.isfinite(value))
    if not is_number or value < 0:  # type: ignore[operator]
        raise HotsetError(f"{where} is damaged: {name} is {value!r}")
    return value  # type: ignore[return-value]


_DENSE = "dense."
_OPTIMIZER = "optimizer."
_SQUARES = ("adagrad", "rowwise-adagrad")
"""Optimizers whose state is sums of squares."""


def check_config(run: Path, config: RunConfig, settings: TrainConfig) -> None:
    """Check what a config repeats or derives; raise HotsetError."""
    path = run / CONFIG
    raw = parse_object(path.read_bytes(), str(path))
    # Runs of earlier versions record less.
    wanted: dict[str, Any] = {}
    if "dense_dtype" in raw and "dense_dtype" in raw["config"]:
        wanted["dense_dtype"] = raw["config"]["dense_dtype"]
    if config.dense_model is not None:
        try:
            wanted["dense_model"] = choose_model(settings, config.embedding_dim).to_json()
            wanted["model"] = recorded_name(settings, config.embedding_dim)
        except HotsetError as error:
            raise HotsetError(f"{path} is damaged: {first_line(error)}") from error
    for name, value in wanted.items():
        if raw.get(name) != value:
            raise HotsetError(
                f"{path} is damaged: {name} is {raw.get(name)!r}, and its settings say {value!r}"
            )


def check_vocabulary(run: Path, config: RunConfig, inputs: dict[str, str]) -> Iterator[str]:
    """Yield the faults of a run's inputs, and of the vocabulary that it keeps.

    Args:
        inputs: fingerprints in the manifest of the run, by folder.
    """
    raw = parse_object((run / CONFIG).read_bytes(), str(run / CONFIG))
    if inputs.get("shards") != raw.get("shards"):
        yield f"{run / CONFIG} is of the shards {raw.get('shards')}, the manifest of {inputs.get('shards')}"
    if VOCABULARY not in inputs:
        return
    if inputs[VOCABULARY] != config.vocabulary:
        yield f"{run / CONFIG} is of the vocabulary {config.vocabulary}, the manifest of {inputs[VOCABULARY]}"
    # Its tables are those of the run, and no category has two ids.
    kept = Manifest.read(run / VOCABULARY)
    tables = VocabularyTotals.of(kept).tables
    found = [(table.name, table.num_rows, table.is_multi_hot) for table in tables]
    wanted = [(table.name, table.num_rows, table.is_multi_hot) for table in config.tables]
    if found != wanted:
        yield f"{run / VOCABULARY} has the tables {found}, the run {wanted}"
    elif kept.stage == "rank":
        for table in tables:
            categories = read_batch(kept, kept.entry(f"{table.name}.arrow")).column("category").drop_null()
            if len(categories.unique()) != len(categories):
                yield f"{run / VOCABULARY}: {table.name} has a category twice"


def check_weights(run: Path, config: RunConfig) -> None:
    """Check that the weights are finite, and those of the config; raises HotsetError."""
    weights = read_weights(run)
    chosen = recorded_model(config)
    # A user's class is not imported to verify bytes: its parameters are those that were written.
    model = None
    if chosen.kind != "module":
        model = build_model(chosen, ModelInputs.of(config), 0)
    refuse_other_weights(run, weights, config, model)
    for name in weights:
        read_finite(run, weights, name)


def check_states(run: Path, config: RunConfig) -> None:
    """Check that optimizer states are finite, and those of the weights; raises HotsetError."""
    path = run / STATES
    if not path.exists():
        return
    states = read_states(run)
    dense = read_weights(run).shapes
    _refuse_other_states(path, states.shapes, config)
    for name in states:
        tensor = states[name]
        if not torch.isfinite(tensor).all():
            raise HotsetError(f"{path} is damaged: {name} holds values that are not finite")
        if not is_optimizer_state(name):
            if _optimizer_of(config) in _SQUARES and tensor.numel() and float(tensor.min()) < 0:
                raise HotsetError(f"{path} is damaged: {name} holds sums of squares below 0")
            continue
        # The state of a parameter has its shape, or is a number.
        shape = dense.get(_DENSE + name.removeprefix(_OPTIMIZER).partition(" ")[0])
        if shape is None or tuple(tensor.shape) not in (shape, ()):
            raise HotsetError(
                f"{path} is damaged: {name} of shape {tuple(tensor.shape)} is of no dense layer"
            )


def _refuse_other_states(path: Path, shapes: Mapping[str, tuple[int, ...]], config: RunConfig) -> None:
    """Raise HotsetError unless tables have the states of their optimizer.

    The config names it.
    """
    if config.config is None:
        return
    optimizer = RowOptimizer(config.config.embedding_optimizer, 1.0)
    sizes = {
        table.name: (table.num_rows, optimizer.state_width(table.embedding_dim)) for table in config.tables
    }
    wanted = {name: shape for name, shape in sizes.items() if shape[1]}
    found = {name: shape for name, shape in shapes.items() if not is_optimizer_state(name)}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise HotsetError(
                f"{path} is damaged: the states of {name} have the shape {found.get(name)}, "
                f"with {optimizer.name} {wanted.get(name)}"
            )


def _optimizer_of(config: RunConfig) -> str | None:
    return None if config.config is None else config.config.embedding_optimizer


def check_order(run: Path, num_epochs: int | None, summary: dict[str, Any]) -> None:
    """Check the batches for whole epochs and the summary's number.

    Raises HotsetError.
    """
    path = run / BATCH_ORDER
    order = read_batch_order(path)
    if order.min(initial=0) < 0:
        raise HotsetError(f"{path} is damaged: it has a batch below 0")
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
    """Yield faults of the folder's files, which must match its manifest."""
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
    """Return the folders that a run keeps, with their fingerprints."""
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
    # Run each check separately, so that one damaged file does not hide another.
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
    """Check that the log and the summary of a run agree."""
    path = run / METRICS
    log = check_log(path.read_bytes().splitlines(), str(path), config.batch_size)
    summary = parse_object((run / SUMMARY).read_bytes(), str(run / SUMMARY))
    check_against_log(run, summary, log)
    num_steps = log.step
    with suppress(HotsetError):  # the check of the order reports it
        num_steps = read_batch_order(run / BATCH_ORDER).size
    if log.step not in (0, num_steps):
        raise HotsetError(f"{path} is damaged: it ends at step {log.step}, {BATCH_ORDER} has {num_steps}")
    if settings is not None:
        check_summary(run, summary, config, settings)


def _summary_of(run: Path) -> dict[str, Any]:
    """Return the summary, empty where it is damaged, which another check reports."""
    try:
        return parse_object((run / SUMMARY).read_bytes(), str(run / SUMMARY))
    except HotsetError:
        return {}


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
    """Check the order of batches against the seed, and sizes against the shards.

    The losses or another run may have decided the order instead.
    """
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
    """Yield differences of vocabulary and schema from the shards' folder.

    The folder may be gone.
    """
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
    """Yield the scores that differ: names, recorded, found."""
    for name, score in found.items():
        recorded = summary.get(name)
        if isinstance(score, dict) and isinstance(recorded, dict):
            yield from _differences(recorded, score, tolerance, f"{prefix}{name}.")
        elif recorded != score and not _is_near(recorded, score, tolerance):
            yield f"{prefix}{name}", recorded, score


def _is_near(recorded: object, score: object, tolerance: float) -> bool:
    numbers = [each for each in (recorded, score) if isinstance(each, float)]
    return len(numbers) == 2 and math.isclose(*numbers, rel_tol=tolerance)
