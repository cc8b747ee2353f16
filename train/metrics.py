"""Measures a run: seconds and bytes by kind of work, and scores.

On the GPU the host runs ahead, so seconds are measured between events in the stream and read long after they
have passed; the device never stops for them. Scores are computed by group of samples, batch by batch. AUC
needs the ranks of all samples: a sample takes 8 bytes; up to 4 million (32 MiB) are sorted in place, more go
to a nameless file in sorted parts that are merged at the end. The counts are those of one sort, whatever the
size of a part.
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..pipeline.errors import HotsetError
from ..stats import metrics
from ..stats.counting import ascending_windows
from ..stats.metrics import MOST_SAMPLES, RankCounts, close_tie, count_sorted

Kind = Literal["hot_only", "mixed", "switch", "flush", "evaluation", "checkpoint"]
TRAINING_KINDS: tuple[Kind, ...] = ("hot_only", "mixed", "switch", "flush")
KINDS: tuple[Kind, ...] = (*TRAINING_KINDS, "evaluation", "checkpoint")
_MAX_OPEN_LAPS = 256
"""Laps whose events are kept before those that have passed are read."""

_Instant = float | torch.cuda.Event
"""Seconds of the host's clock, or an event in the stream of a GPU."""


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
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _add_up(self, *, only_passed: bool = False) -> None:
        # On a GPU the time between two events is read once the later one has passed.
        while self._laps:
            kind, start, end = self._laps[0]
            if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
                if only_passed and not end.query():  # type: ignore[no-untyped-call]
                    return
                end.synchronize()
                self.seconds[kind] += start.elapsed_time(end) / 1e3
            elif isinstance(start, float) and isinstance(end, float):
                self.seconds[kind] += end - start
            self._laps.popleft()


_PART_WORDS = 1 << 22
_FEWEST_MERGED = 1 << 9
"""Words of each part that are read at a time, at least."""


class SortedScores:
    """Samples as words, counted in the order of falling logits.

    Args:
        folder: folder of the file, where one is needed; None: that of temporary files.
        part_words: words that are in memory at a time.
    """

    def __init__(self, folder: Path | None = None, part_words: int = _PART_WORDS) -> None:
        self._folder = folder
        self._part_words = part_words
        self._words_N = np.empty(0, np.uint64)
        self._used = 0
        self._file: IO[bytes] | None = None
        self._num_parts = 0

    def add(self, words_N: NDArray[np.uint64]) -> None:
        """Add samples in any order; raises HotsetError where the file cannot be written."""
        while words_N.size:
            # Room grows with the samples, so that a small evaluation takes little memory.
            if self._used == self._words_N.size < self._part_words:
                room = min(self._part_words, max(1 << 12, 2 * self._used, words_N.size))
                self._words_N = np.concatenate([self._words_N, np.empty(room - self._used, np.uint64)])
            taken = words_N[: self._words_N.size - self._used]
            self._words_N[self._used : self._used + taken.size] = taken
            self._used += taken.size
            words_N = words_N[taken.size :]
            if self._used == self._part_words and words_N.size:
                self._spill()

    def count(self) -> RankCounts:
        """Count the samples added, and forget them.

        Raises HotsetError where the file cannot be read.
        """
        counts = RankCounts.none()
        if self._num_parts == 0:
            words_N = self._words_N[: self._used]
            words_N.sort()
            count_sorted(words_N, counts)
        else:
            self._spill()
            self._merge(counts)
        close_tie(counts)
        self.close()
        return counts

    def close(self) -> None:
        """Give memory and file back."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._num_parts = self._used = 0
        self._words_N = np.empty(0, np.uint64)

    def _spill(self) -> None:
        """Write the words in memory as one sorted part, padded if short."""
        # The counts of pairs are products of two numbers of samples, and must fit in 63 bits.
        if (self._num_parts + 1) * self._part_words > MOST_SAMPLES:
            raise HotsetError(f"an evaluation of more than {MOST_SAMPLES:,} samples cannot be counted")
        part_N = self._words_N[: self._used]
        part_N.sort()
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)
            part_N.tofile(self._file)
        except OSError as error:
            where = self._folder or tempfile.gettempdir()
            raise HotsetError(
                f"{where} has no room for the scores of an evaluation: {error.strerror or error}",
                hint="free 8 bytes of disk space there for each sample that is evaluated",
            ) from error
        self._num_parts += 1
        self._last_words = self._used
        self._used = 0

    def _merge(self, counts: RankCounts) -> None:
        """Count the words of all parts in order, a piece at a time."""
        assert self._file is not None
        # Every part but the last is full, so their places in the file follow from their number.
        starts = [part * self._part_words for part in range(self._num_parts)]
        stops = [*starts[1:], starts[-1] + self._last_words]
        self._file.flush()
        if os.fstat(self._file.fileno()).st_size != 8 * stops[-1]:
            raise HotsetError("the file of the scores of an evaluation is cut short")
        words_N = np.memmap(self._file, np.uint64, "r")
        parts = [words_N[start:stop] for start, stop in zip(starts, stops, strict=True)]
        num_read = max(_FEWEST_MERGED, self._part_words // self._num_parts)
        # What lies below the limit in any part is complete: sorted together, it is counted and forgotten.
        for windows in ascending_windows(parts, num_read):
            joined_N = np.concatenate([part[window] for part, window in zip(parts, windows, strict=True)])
            joined_N.sort()
            count_sorted(joined_N, counts)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality(Scores):
    """The scores of all samples, and of groups of them."""

    hot: Scores
    """Scores of the samples all of whose lookups hit rows that are hot in the run."""
    mixed: Scores
    """Scores of the other samples."""
    oov: Scores
    """Scores of the samples with an out-of-vocabulary lookup."""

    def to_dict(self) -> dict[str, Any]:
        """The scores as plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunQuality(Quality):
    """The scores of a run on the test part and on the validation part."""

    validation: Quality | None
    """Scores of the validation part; None where the log has none."""

    def of_test(self) -> dict[str, Any]:
        """The scores of the test part as plain data."""
        every = asdict(self)
        return {each.name: every[each.name] for each in fields(Quality)}


class ScoreCounter:
    """Adds up the scores of samples, batch by batch, in constant memory.

    Args:
        folder: folder for a file of what does not fit in memory; None: that of temporary files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._ranks = SortedScores(folder)
        self._sums_G3 = np.zeros((len(metrics.GROUPS), 3))
        """Loss in nats, predicted clicks, and samples on the right side, of each group."""

    def add(
        self,
        logit_N: NDArray[np.float32],
        label_N: NDArray[np.float32],
        is_hot_N: NDArray[np.bool_],
        has_oov_N: NDArray[np.bool_],
    ) -> None:
        """Add samples; each array has one entry per sample.

        Raises:
            HotsetError: a prediction is no number, or the disk is full.
        """
        # A NaN would be sorted to one end and give an AUC that looks like one.
        if np.isnan(logit_N).any():
            raise HotsetError(
                "a prediction of the evaluation is no number: the weights have diverged",
                hint="train again with lower --embedding-lr or --dense-lr",
            )
        self._ranks.add(metrics.score_words(logit_N, label_N, is_hot_N, has_oov_N))
        # Averages are summed by group as batches come; only the ranks must be kept for the whole evaluation.
        figures_N3 = np.stack(
            [
                metrics.losses(logit_N, label_N),
                metrics.probabilities(logit_N),
                (logit_N > 0) == (label_N > 0.5),
            ],
            axis=1,
        )
        is_all_N = np.ones(logit_N.size, np.bool_)
        for group, is_in_N in enumerate((is_all_N, is_hot_N, ~is_hot_N, has_oov_N)):
            self._sums_G3[group] += figures_N3[is_in_N].sum(axis=0)

    def quality(self) -> Quality:
        """Return the scores of the samples added, and forget their ranks."""
        ranks = self._ranks.count()
        every, hot, mixed, oov = (self._scores(group, ranks) for group in range(len(metrics.GROUPS)))
        return Quality(**asdict(every), hot=hot, mixed=mixed, oov=oov)

    def close(self) -> None:
        """Give memory and file back."""
        self._ranks.close()

    def _scores(self, group: int, ranks: metrics.RankCounts) -> Scores:
        num_clicks, num_samples, _ = (int(count) for count in ranks.counts_G3[group])
        # A group without samples has no scores, rather than scores of 0.
        if num_samples == 0:
            return Scores()
        loss, predicted, right = (float(figure) / num_samples for figure in self._sums_G3[group])
        return Scores(
            auc=_defined(ranks.auc(group)),
            pr_auc=_defined(ranks.average_precision(group)),
            log_loss=loss,
            normalized_entropy=_defined(metrics.normalized_entropy(loss, num_clicks / num_samples)),
            calibration=predicted * num_samples / num_clicks if num_clicks else None,
            accuracy=right,
            num_samples=num_samples,
        )


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
