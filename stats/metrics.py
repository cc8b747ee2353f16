"""Metrics of predictions from logits and labels.

Areas come from counts of ranks, the other metrics from sums. Logits rather than probabilities, because a
float32 sigmoid ties far predictions that differ. An area under a curve needs all samples in the order of
their logits: each sample becomes one word of 64 bits that sorts as its logit falls. Samples are counted in
groups: all, those whose lookups are all hot, the others, and those with an out-of-vocabulary lookup.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .kernel import kernel

# ruff: noqa: N815  (arrays carry shape suffixes)


GROUPS = ("all", "hot", "mixed", "oov")
"""Groups of samples, in the order of the rows of the counts."""
MOST_SAMPLES = 2**32 - 1
"""More samples would overflow the pairs of clicks and other samples in int64."""
_FLAG_BITS = 3
_CLICK, _HOT, _OOV = 1, 2, 4
_NUM_FLAGS = 8
_CLICKS, _SAMPLES, _TWICE_LOST = 0, 1, 2


class RankCounts(NamedTuple):
    """Counts of samples in the order of falling logits."""

    counts_G3: NDArray[np.int64]
    """Clicks, samples, and twice the pairs that clicks lost, of each group."""
    precision_G: NDArray[np.float64]
    """Sum over clicks of the precision at their logit."""

    @classmethod
    def none(cls) -> RankCounts:
        """Return the counts of no samples."""
        groups = len(GROUPS)
        return cls(np.zeros((groups, 3), np.int64), np.zeros(groups))

    def auc(self, group: int) -> float:
        """Return the area under the ROC curve of a group: the chance that a click scores above a non-click,
        ties one half.

        Returns:
            In [0, 1]; NaN where one of the classes is absent. Exact: pairs are counted in integers.

        Source:
            Mann and Whitney, Ann. Math. Stat. 18 (1947): AUC = U / (clicks * non-clicks).
        """
        clicks, samples, twice_lost = (int(count) for count in self.counts_G3[group])
        pairs = 2 * clicks * (samples - clicks)
        return (pairs - twice_lost) / pairs if pairs else math.nan

    def average_precision(self, group: int) -> float:
        """Return the area under the precision-recall curve of a group, by steps: the mean over clicks of the
        precision at their logit.

        Returns:
            In [0, 1]; NaN without clicks.

        Error:
            Serial float64 sums: ``groups of ties * 2**-53``.

        Source:
            Davis and Goadrich, ICML 23 (2006), on why steps and not a straight line between points.
        """
        clicks = int(self.counts_G3[group, _CLICKS])
        return float(self.precision_G[group]) / clicks if clicks else math.nan


def score_words(
    logit_N: NDArray[np.float32],
    label_N: NDArray[np.float32],
    is_hot_N: NDArray[np.bool_],
    has_oov_N: NDArray[np.bool_],
) -> NDArray[np.uint64]:
    """Return a word for each sample that sorts as its logit falls, with its label and groups in the low bits.

    Args:
        logit_N: (num_samples,); log-odds of a click, no NaN. 0 and -0 are equal.
        label_N: (num_samples,), each 0 or 1.
        is_hot_N: (num_samples,); whether all lookups are of hot rows.
        has_oov_N: (num_samples,); whether a lookup is of an out-of-vocabulary row.

    Returns:
        (num_samples,); exact: two words differ above the low bits just where the logits differ.
    """
    # The bits of positive floats sort as integers; those of negative ones the other way round.
    bits_N = (logit_N + np.float32(0)).view(np.uint32)
    rising_N = np.where(bits_N >> 31 == 1, ~bits_N, bits_N | np.uint32(1 << 31))
    words_N = (~rising_N).astype(np.uint64) << np.uint64(_FLAG_BITS)
    for is_set_N, bit in ((label_N > 0.5, _CLICK), (is_hot_N, _HOT), (has_oov_N, _OOV)):
        words_N |= is_set_N.astype(np.uint64) * np.uint64(bit)
    return words_N


@kernel
def count_sorted(words_N: NDArray[np.uint64], counts: RankCounts) -> None:
    """Count samples, in place.

    Args:
        words_N: (num_samples,); words of `score_words`, ascending.
        counts: those of no samples.
    """
    tie_8 = np.zeros(_NUM_FLAGS, np.int64)
    logit = np.uint64(0)
    for word in words_N:
        key = word >> np.uint64(_FLAG_BITS)
        if key != logit:
            close_tie(tie_8, counts)
            logit = key
        tie_8[word & np.uint64(_NUM_FLAGS - 1)] += 1
    close_tie(tie_8, counts)


@kernel
def close_tie(tie_8: NDArray[np.int64], counts: RankCounts) -> None:
    """Count the samples of equal logits, given by their flags, and forget them."""
    for group in range(counts.counts_G3.shape[0]):
        clicks = 0
        samples = 0
        # The tie holds samples by their flags; each flag says for some groups whether the sample is in them.
        for flags in range(_NUM_FLAGS):
            is_hot = flags & _HOT != 0
            is_in_group = group == 0 or (group == 1 and is_hot) or (group == 2 and not is_hot)
            if is_in_group or (group == 3 and flags & _OOV != 0):
                samples += tie_8[flags]
                clicks += tie_8[flags] * (flags & _CLICK)
        if samples == 0:
            continue
        # A click loses against every other sample above it, and half against those it ties with.
        others_above = counts.counts_G3[group, _SAMPLES] - counts.counts_G3[group, _CLICKS]
        counts.counts_G3[group, _TWICE_LOST] += clicks * (2 * others_above + samples - clicks)
        counts.counts_G3[group, _CLICKS] += clicks
        counts.counts_G3[group, _SAMPLES] += samples
        # The precision at this threshold, once for each click in the tie.
        precision = counts.counts_G3[group, _CLICKS] / counts.counts_G3[group, _SAMPLES]
        counts.precision_G[group] += clicks * precision
    tie_8[:] = 0


def losses(logit_N: NDArray[np.float32], label_N: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the negative log-likelihood of each sample, nats.

    Args:
        logit_N: (num_samples,); log-odds of a click.
        label_N: (num_samples,), each 0 or 1.

    Error:
        Float64 throughout, and ``log1p(exp(-|z|))`` never overflows.
    """
    logit = logit_N.astype(np.float64)
    found_N: NDArray[np.float64] = np.maximum(logit, 0) - logit * label_N + np.log1p(np.exp(-np.abs(logit)))
    return found_N


def probabilities(logit_N: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the probability of a click of each sample, (num_samples,), in float64."""
    # exp of a negative number alone: no overflow.
    small_N = np.exp(-np.abs(logit_N.astype(np.float64)))
    return np.where(logit_N > 0, 1 / (1 + small_N), small_N / (1 + small_N))


def recalibration(negative_rate: float | None) -> float:
    """Return what is added to the logits of a model that was trained on a part of the negatives.

    Args:
        negative_rate: share w of the samples without a click that its log kept, in (0, 1]; None for all.

    Returns:
        ``log(w)``, 0 for all: a prediction p becomes ``q = p / (p + (1 - p) / w)``, with odds
        ``q / (1 - q) = w * p / (1 - p)``.

    Source:
        He et al., ADKDD 2014, section 6.3.
    """
    return math.log(negative_rate) if negative_rate is not None else 0.0


def normalized_entropy(log_loss: float, click_rate: float) -> float:
    """Return the log loss over that of always predicting the click rate; below 1 is better than that.

    Args:
        log_loss: nats per sample.
        click_rate: share of clicks among the same samples, in [0, 1].

    Returns:
        NaN where all labels are equal.

    Source:
        He et al., ADKDD 2014, equation 1.
    """
    if not 0 < click_rate < 1:
        return math.nan
    return log_loss / -(click_rate * math.log(click_rate) + (1 - click_rate) * math.log(1 - click_rate))
