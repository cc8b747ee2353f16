"""Scores of one group of samples, and the counter that makes them batch by batch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError
from ...stats import metrics
from .sorted_scores import SortedScores


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
    """The scores of a run: those of the test part, and beside them those of the validation part."""

    validation: Quality | None
    """Scores of the validation part; None where the log has none."""

    def of_test(self) -> dict[str, Any]:
        """The scores of the test part as plain data."""
        every = asdict(self)
        return {each.name: every[each.name] for each in fields(Quality)}


class ScoreCounter:
    """Adds up the scores of samples, batch by batch; memory does not grow with their number.

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
        # What is averaged is summed by group at once; only the ranks must be kept for the whole evaluation.
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
