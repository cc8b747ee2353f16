"""Checks of what a run measured: its log and its summary, each by itself and against each other.

Scores of one evaluation hang together: every sample is hot or mixed, and what is averaged over all samples is
the average of both groups. A figure that was edited by itself breaks that, whatever the checksums say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...pipeline.errors import HotsetError, first_line
from ..config import TrainConfig
from ..meter import TRAINING_KINDS
from ..run_config import RunConfig
from .run_files import METRICS, SUMMARY

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
    """Check the lines of a log: objects of steps that do not fall, with losses and scores that can be.

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
    """Check the summary of a run by itself, and against its settings.

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
    """Return the figures of a summary that the settings and the tables of a run decide."""
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
    """Raise HotsetError unless a figure is the sum of those by kind of work, evaluation apart."""
    parts = summary.get(by_kind)
    if not isinstance(parts, dict):
        raise HotsetError(f"{where} is damaged: {by_kind} is {parts!r}")
    known = {kind: _number(parts, kind, f"{where}: {by_kind}") for kind in parts}
    wanted = sum(known.get(kind, 0) for kind in TRAINING_KINDS)
    if summary.get(total) != wanted:
        raise HotsetError(f"{where} is damaged: {total} is {summary.get(total)!r}, by kind {wanted:.0f}")


def _refuse_scores(scores: Mapping[str, Any], where: str) -> None:
    """Raise HotsetError where scores of a part are none, or its groups do not add up."""
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
    """Return a finite number that is not below 0; raises HotsetError where it is none."""
    value = values.get(name)
    is_number = type(value) is int or (type(value) is float and not whole and math.isfinite(value))
    if not is_number or value < 0:  # type: ignore[operator]
        raise HotsetError(f"{where} is damaged: {name} is {value!r}")
    return value  # type: ignore[return-value]
