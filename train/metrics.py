"""Measures a run: seconds and bytes by kind of work, and scores.

On the GPU the host runs ahead, so seconds are measured between events in the stream and read long after they
have passed; the device never stops for them. Time in which kernels are compiled counts as no work. Scores are
computed by group of samples, batch by batch. AUC needs the ranks of all samples: for each label a sample
takes 16 bytes, and 16 more with groups, which are sorted at the end, up to 32 MiB in memory and more in a
mapped file without a name.
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..pipeline.errors import HotsetError
from ..pipeline.schema.schema import GROUP, WEIGHT
from ..stats import metrics
from ..stats.compile_notice import working_clock
from ..stats.metrics import (
    GroupCounts,
    WeightedCounts,
    count_groups,
    count_weighted,
    sort_pairs,
    weighted_words,
    words_of_groups,
)
from .data.shard_file import HAS_GROUP

Kind = Literal["hot_only", "mixed", "switch", "flush", "evaluation", "checkpoint"]
TRAINING_KINDS: tuple[Kind, ...] = ("hot_only", "mixed", "switch", "flush")
KINDS: tuple[Kind, ...] = (*TRAINING_KINDS, "evaluation", "checkpoint")
_MAX_OPEN_LAPS = 256
"""Laps whose events are kept before those that have passed are read."""

_Instant = float | tuple[float, torch.cuda.Event]
"""Seconds of `working_clock`; on a GPU those in which the host compiled, and an event in the stream."""


class Meter:
    """A clock that is always in one kind of work, or stopped."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self.bytes_to_fast: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self.bytes_to_slow: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        # The loop and the transfer thread both count bytes; the clock is the loop's alone.
        self._lock = threading.Lock()
        self.device = device
        self._on_gpu = device.type == "cuda"
        self.kind: Kind | None = None
        """The kind of work that the clock counts now; None where it is stopped."""
        self._start: _Instant = 0.0
        self._laps: deque[tuple[Kind, _Instant, _Instant]] = deque()

    def enter(self, kind: Kind | None) -> None:
        """Count what follows as work of ``kind``; None stops the clock."""
        if kind == self.kind:
            return
        now = self._now()
        if self.kind is not None:
            self._laps.append((self.kind, self._start, now))
        self.kind = kind
        self._start = now
        # Open laps hold events, so those that the GPU has passed are read now and then; the last ones are
        # waited for.
        if kind is None:
            self._add_up()
        elif len(self._laps) > _MAX_OPEN_LAPS:
            self._add_up(only_passed=True)

    @contextmanager
    def during(self, kind: Kind) -> Iterator[None]:
        """Count the block as work of ``kind`` inside other work."""
        before = self.kind
        self.enter(kind)
        try:
            yield
        finally:
            self.enter(before)

    def moved(self, *, to_fast: int = 0, to_slow: int = 0, kind: Kind | None = None) -> None:
        """Count bytes moved between the tiers for ``kind`` of work.

        None is the current kind. A thread that does not run the clock has to name the kind.
        """
        kind = kind or self.kind
        if kind is not None:
            with self._lock:
                self.bytes_to_fast[kind] += to_fast
                self.bytes_to_slow[kind] += to_slow

    @property
    def training_seconds(self) -> float:
        """Seconds of the training steps and switches, evaluation apart; the clock must be stopped."""
        return sum(self.seconds[kind] for kind in TRAINING_KINDS)

    def training_bytes(self) -> tuple[int, int]:
        """Bytes to the fast and to the slow tier, evaluation apart."""
        to_fast = sum(self.bytes_to_fast[kind] for kind in TRAINING_KINDS)
        return to_fast, sum(self.bytes_to_slow[kind] for kind in TRAINING_KINDS)

    def restore(
        self, seconds: Mapping[str, float], bytes_to_fast: Mapping[str, int], bytes_to_slow: Mapping[str, int]
    ) -> None:
        """Go on from an earlier process's counts, of kinds that still exist."""
        for kind in KINDS:
            self.seconds[kind] = seconds.get(kind, 0.0)
            self.bytes_to_fast[kind] = bytes_to_fast.get(kind, 0)
            self.bytes_to_slow[kind] = bytes_to_slow.get(kind, 0)

    def _now(self) -> _Instant:
        if not self._on_gpu:
            return working_clock()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return time.perf_counter() - working_clock(), event

    def _add_up(self, *, only_passed: bool = False) -> None:
        # On a GPU the time between two events is read once the later one has passed.
        while self._laps:
            kind, start, end = self._laps[0]
            if isinstance(start, tuple) and isinstance(end, tuple):
                if only_passed and not end[1].query():  # type: ignore[no-untyped-call]
                    return
                end[1].synchronize()
                elapsed = start[1].elapsed_time(end[1]) / 1e3
                self.seconds[kind] += max(elapsed - (end[0] - start[0]), 0.0)
            elif isinstance(start, float) and isinstance(end, float):
                self.seconds[kind] += end - start
            self._laps.popleft()


_WORDS_IN_MEMORY = 1 << 22


def words_for(num_samples: int, folder: Path | None, words_each: int) -> NDArray[np.uint64]:
    """Return room for words of each sample, in memory or in a nameless file.

    Raises:
        HotsetError: the file cannot be written.
    """
    num_words = num_samples * words_each
    if num_words <= _WORDS_IN_MEMORY:
        return np.empty(num_words, np.uint64)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # A page that finds no room when it is written would end the process.
            os.posix_fallocate(file.fileno(), 0, 8 * num_words)
            return np.asarray(np.memmap(file, np.uint64, "r+", shape=(num_words,)))
    except OSError as error:
        where = folder or tempfile.gettempdir()
        raise HotsetError(
            f"{where} has no room for the scores of an evaluation: {error.strerror or error}",
            hint=f"free {8 * words_each} bytes of disk space there for each sample that is evaluated",
        ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """The quality of predictions; None where a score is undefined."""

    auc: float | None = None
    """Area under the ROC curve."""
    pr_auc: float | None = None
    """Area under the precision-recall curve: average precision."""
    log_loss: float | None = None
    """Log loss in nats per sample."""
    normalized_entropy: float | None = None
    """Log loss over that of always predicting the click rate of these samples."""
    calibration: float | None = None
    """Mean prediction over the click rate."""
    accuracy: float | None = None
    """Share of samples on the right side of probability one half."""
    num_samples: int = 0
    """Number of samples that have the label, without those of weight 0."""
    total_weight: float | None = None
    """Sum of the weights of these samples, by which all scores are; None where the log has no weights."""
    gauc: float | None = None
    """Mean AUC of the groups of the log that have both classes, by their weight; None without groups."""
    num_groups: int | None = None
    """Number of these groups."""
    mean_squared_error: float | None = None
    """Mean square of prediction minus label, of a run that predicts values; None for probabilities."""

    def __repr__(self) -> str:
        """Return the main scores in one line; the others are attributes."""
        names = ["auc", "log_loss", *(name for name in _MAIN_OF_SOME if getattr(self, name) is not None)]
        shown = ", ".join(f"{name}={_four_digits(getattr(self, name))}" for name in names)
        return f"{type(self).__name__}({shown}, num_samples={self.num_samples:,})"

    def _repr_html_(self) -> str:
        """Return the scores as a notebook shows them: a column for all samples and one for each group."""
        groups = {"all samples": self} | {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if isinstance(getattr(self, each.name), Scores)
        }
        groups |= getattr(self, "labels", None) or {}
        rows = [["", *groups]]
        for each in fields(Scores):
            values = [getattr(group, each.name) for group in groups.values()]
            if each.name not in OF_SOME or values != [None] * len(values):
                rows.append([each.name, *map(_four_digits, values)])
        return html_table(rows)


OF_SOME = ("total_weight", "gauc", "num_groups", "mean_squared_error")
"""Scores that few runs have, and their records name only where they do."""
_MAIN_OF_SOME = ("gauc", "mean_squared_error")


def plain_scores(record: Any) -> dict[str, Any]:
    """Return a record with scores as plain data, without the scores and labels that it does not have."""
    return _without_absent(asdict(record))


def _without_absent(scores: Mapping[str, Any]) -> dict[str, Any]:
    kept = {
        name: value for name, value in scores.items() if value is not None or name not in (*OF_SOME, "labels")
    }
    for name in ("hot", "mixed", "oov", "validation"):
        if isinstance(kept.get(name), dict):
            kept[name] = _without_absent(kept[name])
    if "labels" in kept:
        kept["labels"] = {name: _without_absent(of_label) for name, of_label in kept["labels"].items()}
    return kept


def _four_digits(value: float | None) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "-" if value is None else f"{value:,}"


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of HTML, the first row of which has the names of its columns."""
    head, *others = ([escape(cell) for cell in row] for row in rows)
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in others]
    names = "".join(f"<th>{cell}</th>" for cell in head)
    return f"<table><tr>{names}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Quality(Scores):
    """The scores of all samples, and of groups of them."""

    hot: Scores
    """Scores of the samples all of whose lookups hit rows that are hot in the run."""
    mixed: Scores
    """Scores of the other samples."""
    oov: Scores
    """Scores of the samples with an out-of-vocabulary lookup."""
    labels: dict[str, Scores] | None = None
    """Scores of each label of a run that predicts several, of which the other scores are of the first; None
    elsewhere."""

    def to_dict(self) -> dict[str, Any]:
        """The scores as plain data."""
        return plain_scores(self)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class RunQuality(Quality):
    """The scores of a run on the test part and on the validation part."""

    validation: Quality | None
    """Scores of the validation part; None where the log has none."""

    def of_test(self) -> dict[str, Any]:
        """The scores of the test part as plain data."""
        every = plain_scores(self)
        return {each.name: every[each.name] for each in fields(Quality) if each.name in every}


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """The meaning of the numbers that a model returns; by default logits of the label of the log."""

    labels: tuple[str, ...] = ()
    """Names of the labels, in the order of the logits; empty for one label without a name."""
    predicts: Literal["probability", "value"] = "probability"
    """Whether they are logits, or the predictions themselves."""
    negative_rate: float | None = None
    """Share of the samples without a click that the log of the training kept; None: all."""

    @property
    def shift(self) -> float:
        """The number that recalibrates logits where it is added to them."""
        return metrics.recalibration(self.negative_rate)


CLICKS = Answers()
"""Logits of one label, of a log that kept all its samples."""


def refuse_not_a_number(answer_N: NDArray[np.float32]) -> None:
    """Raise HotsetError where a prediction is NaN: it would be sorted to one end, and give an AUC."""
    if np.isnan(answer_N).any():
        raise HotsetError(
            "a prediction of the evaluation is no number: the weights have diverged",
            hint="train again with lower --embedding-lr or --dense-lr",
        )


class SampleScores:
    """Scores of samples by all that their log says of them.

    Args:
        num_samples: samples that are added at most.
        answers: labels and meaning of the predictions.
        columns: names of the columns of samples that the log has.
        negative_rate: share of the samples without a click that the log of these samples kept: each of them
            counts as ``1 / negative_rate``. None: all.
        folder: folder for a file of what does not fit in memory; None: that of temporary files.

    Raises:
        HotsetError: the disk is full.
    """

    def __init__(
        self,
        num_samples: int,
        answers: Answers,
        columns: Collection[str],
        negative_rate: float | None = None,
        folder: Path | None = None,
    ) -> None:
        self._answers = answers
        self._has_weight = WEIGHT in columns
        self._negative_rate = negative_rate
        num_labels = max(1, len(answers.labels))
        words_each = 4 if GROUP in columns else 2
        # One file for all of them.
        words = words_for(num_samples, folder, words_each * num_labels)
        words_LN = words.reshape(num_labels, words_each * num_samples)
        self._counters = [
            _LabelScores(
                words_N[: 2 * num_samples].reshape(-1, 2),
                words_N[2 * num_samples :].reshape(-1, 2) if GROUP in columns else None,
                is_value=answers.predicts == "value",
            )
            for words_N in words_LN
        ]

    def add(
        self,
        answer_NL: NDArray[np.float32],
        label_NL: NDArray[np.float32],
        is_hot_N: NDArray[np.bool_],
        has_oov_N: NDArray[np.bool_],
        of_samples: Mapping[str, NDArray[Any]],
    ) -> None:
        """Add samples.

        Args:
            answer_NL: (num_samples, num_labels), or (num_samples,) for one label.
            label_NL: (num_samples, num_labels), NaN where missing.
            of_samples: `Batch.of_samples`, cut to these samples.

        Raises:
            HotsetError: a prediction is no number.
        """
        refuse_not_a_number(answer_NL)
        answer_NL = answer_NL.reshape(label_NL.shape)
        weight_N = of_samples.get(WEIGHT, np.ones(label_NL.shape[0], np.float32))
        if self._negative_rate is not None:
            more_N = np.minimum(weight_N / np.float64(self._negative_rate), np.finfo(np.float32).max)
            weight_N = np.where(label_NL[:, 0] > 0.5, weight_N, more_N.astype(np.float32))
        for number, counter in enumerate(self._counters):
            # Samples of weight 0 are left out, as those without the label are.
            kept = np.flatnonzero(~np.isnan(label_NL[:, number]) & (weight_N > 0))
            answer_N, label_N, kept_weight_N = answer_NL[kept, number], label_NL[kept, number], weight_N[kept]
            counter.add(answer_N, label_N, kept_weight_N, is_hot_N[kept], has_oov_N[kept])
            if GROUP in of_samples:
                has_group_N = of_samples[HAS_GROUP][kept]
                counter.add_groups(
                    answer_N[has_group_N],
                    label_N[has_group_N],
                    kept_weight_N[has_group_N],
                    of_samples[GROUP][kept][has_group_N],
                )

    def quality(self) -> Quality:
        """Return the scores of the samples added: those of the first label, and of each where several are."""
        is_weighted = self._has_weight or self._negative_rate is not None
        first, *others = (counter.quality(is_weighted=is_weighted) for counter in self._counters)
        if not others:
            return first
        names = [each for each in Scores.__dataclass_fields__]
        of_labels = {
            label: Scores(**{name: getattr(scores, name) for name in names})
            for label, scores in zip(self._answers.labels, (first, *others), strict=True)
        }
        return replace(first, labels=of_labels)


class _LabelScores:
    """The scores of one label.

    Args:
        words_N2: room for a pair of words of each sample.
        group_words_N2: the same for the samples with a group; None where the log has none.
        is_value: whether predictions are values, not logits.
    """

    def __init__(
        self, words_N2: NDArray[np.uint64], group_words_N2: NDArray[np.uint64] | None, *, is_value: bool
    ) -> None:
        self._words_N2 = words_N2
        self._group_words_N2 = group_words_N2
        self._is_value = is_value
        self._num_samples = 0
        self._num_grouped = 0
        self._sums_G4 = np.zeros((len(metrics.GROUPS), 4))
        """Loss in nats or squared errors, predictions, samples on the right side, and labels, of each group
        of samples; each times the weight."""
        self._nums_G = np.zeros(len(metrics.GROUPS), np.int64)

    def add(
        self,
        answer_N: NDArray[np.float32],
        label_N: NDArray[np.float32],
        weight_N: NDArray[np.float32],
        is_hot_N: NDArray[np.bool_],
        has_oov_N: NDArray[np.bool_],
    ) -> None:
        """Add samples that have the label and a weight above 0."""
        words_N2 = weighted_words(answer_N, label_N, weight_N, is_hot_N, has_oov_N)
        self._words_N2[self._num_samples : self._num_samples + label_N.size] = words_N2
        self._num_samples += label_N.size
        if self._is_value:
            predicted_N = answer_N.astype(np.float64)
            loss_N = (predicted_N - label_N) ** 2
        else:
            predicted_N = metrics.probabilities(answer_N)
            loss_N = metrics.losses(answer_N, label_N)
        figures_N4 = np.stack([loss_N, predicted_N, (answer_N > 0) == (label_N > 0.5), label_N], axis=1)
        figures_N4 *= weight_N[:, None]
        is_all_N = np.ones(label_N.size, np.bool_)
        for group, is_in_N in enumerate((is_all_N, is_hot_N, ~is_hot_N, has_oov_N)):
            self._sums_G4[group] += figures_N4[is_in_N].sum(axis=0)
            self._nums_G[group] += np.count_nonzero(is_in_N)

    def add_groups(
        self,
        answer_N: NDArray[np.float32],
        label_N: NDArray[np.float32],
        weight_N: NDArray[np.float32],
        group_N: NDArray[np.uint64],
    ) -> None:
        """Add samples that have the label, a weight above 0 and a group."""
        assert self._group_words_N2 is not None, "the log has groups"
        words_N2 = words_of_groups(answer_N, label_N, weight_N, group_N)
        self._group_words_N2[self._num_grouped : self._num_grouped + label_N.size] = words_N2
        self._num_grouped += label_N.size

    def quality(self, *, is_weighted: bool) -> Quality:
        """Return the scores of the samples added."""
        words_N2 = self._words_N2[: self._num_samples]
        sort_pairs(words_N2)
        counts = WeightedCounts.none()
        count_weighted(words_N2, counts)
        every, hot, mixed, oov = (
            self._scores(group, counts, is_weighted=is_weighted) for group in range(len(metrics.GROUPS))
        )
        return Quality(**asdict(replace(every, **self._of_groups())), hot=hot, mixed=mixed, oov=oov)

    def _of_groups(self) -> dict[str, Any]:
        if self._group_words_N2 is None or self._is_value:
            return {}
        words_N2 = self._group_words_N2[: self._num_grouped]
        sort_pairs(words_N2)
        groups = GroupCounts.none()
        count_groups(words_N2, groups)
        return {"gauc": defined(groups.gauc()), "num_groups": int(groups.num_groups_1[0])}

    def _scores(self, group: int, counts: WeightedCounts, *, is_weighted: bool) -> Scores:
        num_samples = int(self._nums_G[group])
        if num_samples == 0:
            return Scores()
        clicks, weight = counts.weights(group)
        loss, predicted, right, labels = (float(figure) / weight for figure in self._sums_G4[group])
        found = Scores(num_samples=num_samples, total_weight=weight if is_weighted else None)
        if self._is_value:
            calibration = predicted / labels if labels else None
            return replace(found, calibration=calibration, mean_squared_error=loss)
        return replace(
            found,
            auc=defined(counts.auc(group)),
            pr_auc=defined(counts.average_precision(group)),
            log_loss=loss,
            normalized_entropy=defined(metrics.normalized_entropy(loss, clicks / weight)),
            calibration=predicted * weight / clicks if clicks else None,
            accuracy=right,
        )


def defined(value: float) -> float | None:
    """Return a score; None where it is NaN."""
    return None if math.isnan(value) else value
