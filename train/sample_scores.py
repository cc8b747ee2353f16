"""Adds up the scores of samples that have weights, groups or several labels, batch by batch.

Each label takes 16 bytes for a sample, and 16 more with groups; like those of `ScoreCounter`, they are sorted
at the end, in memory or in a mapped file. Where all weights are 1, the scores have the bits of that counter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipeline.schema.schema import GROUP, WEIGHT
from ..stats import metrics
from ..stats.weighted_metrics import (
    GroupCounts,
    WeightedCounts,
    count_groups,
    count_weighted,
    sort_pairs,
    weighted_words,
    words_of_groups,
)
from .data.shard_file import HAS_GROUP
from .metrics import Answers, Quality, Scores, defined, refuse_not_a_number, words_for


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
