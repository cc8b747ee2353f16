"""Metrics of predictions from logits and labels.

Areas come from ranks, the other metrics from sums. Logits rather than probabilities, because a float32
sigmoid ties far predictions that differ. An area under a curve needs all samples in the order of their
logits: each sample becomes a pair of words that sorts as its logit falls, its weight in it, so sums run in an
order that the samples alone decide. They run in pairs of float64, and divisions are of fractions: areas of
weights that are whole numbers are exact, and those of any weights are the nearest float64 but for rare ties.
Samples are counted in groups: all, those whose lookups are all hot, the others, and those with an
out-of-vocabulary lookup.

`sort_pairs` sorts such pairs in place, by no index of 8 bytes for each: arrays may be mapped files.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .kernel import kernel

# ruff: noqa: N815  (arrays carry shape suffixes)


GROUPS = ("all", "hot", "mixed", "oov")
"""Groups of samples, in the order of the rows of the counts."""
_FLAG_BITS = 3
_CLICK, _HOT, _OOV = 1, 2, 4
_NUM_FLAGS = 8
_CLICKS, _OTHERS, _TWICE_LOST = 0, 1, 2
_SPLIT = 134217729.0
"""2**27 + 1, which cuts a float64 into halves of 26 bits."""
_CLICK_BIT = 1 << 31
_WEIGHT_BITS = _CLICK_BIT - 1
"""Bits of a weight, a float32 of 0 or more."""


class WeightedCounts(NamedTuple):
    """Weights of samples in the order of falling logits."""

    sums_G32: NDArray[np.float64]
    """Weight of clicks, weight of other samples, and twice the product of weights of pairs that clicks lost,
    of each group; each is the sum of the two numbers."""
    precision_G: NDArray[np.float64]
    """Sum over clicks of weight times the precision at their logit."""

    @classmethod
    def none(cls) -> WeightedCounts:
        """Return the counts of no samples."""
        groups = len(GROUPS)
        return cls(np.zeros((groups, 3, 2)), np.zeros(groups))

    def weights(self, group: int) -> tuple[float, float]:
        """Return the weight of the clicks and of the samples of a group."""
        clicks, others, _ = (_whole(sum_2) for sum_2 in self.sums_G32[group])
        return float(clicks), float(clicks + others)

    def auc(self, group: int) -> float:
        """Return the area under the ROC curve of a group: the chance that a click scores above a non-click,
        ties one half, each pair by the product of its weights.

        Returns:
            In [0, 1]; NaN where a class has no weight.

        Error:
            ``samples * 2**-102`` before the rounding to float64; none where weights are whole numbers whose
            sums have a product below ``2**106``.

        Source:
            Mann and Whitney, Ann. Math. Stat. 18 (1947): AUC = U / (clicks * non-clicks).
        """
        clicks, others, twice_lost = (_whole(sum_2) for sum_2 in self.sums_G32[group])
        pairs = 2 * clicks * others
        return float(max((pairs - twice_lost) / pairs, Fraction(0))) if pairs else math.nan

    def average_precision(self, group: int) -> float:
        """Return the area under the precision-recall curve of a group, by steps: the mean over clicks of the
        precision at their logit, by weight.

        Returns:
            In [0, 1]; NaN without clicks.

        Error:
            Serial float64 sums: ``groups of ties * 2**-53``.

        Source:
            Davis and Goadrich, ICML 23 (2006), on why steps and not a straight line between points.
        """
        clicks, _ = self.weights(group)
        return float(self.precision_G[group]) / clicks if clicks else math.nan


def _whole(sum_2: NDArray[np.float64]) -> Fraction:
    high, low = sum_2.tolist()
    return Fraction(high) + Fraction(low)


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


def weighted_words(
    logit_N: NDArray[np.float32],
    label_N: NDArray[np.float32],
    weight_N: NDArray[np.float32],
    is_hot_N: NDArray[np.bool_],
    has_oov_N: NDArray[np.bool_],
) -> NDArray[np.uint64]:
    """Return a pair of words of each sample, (num_samples, 2): that of `score_words`, and the weight's bits.

    Args:
        weight_N: (num_samples,), each above 0 and finite.
    """
    words_N2 = np.empty((logit_N.size, 2), np.uint64)
    words_N2[:, 0] = score_words(logit_N, label_N, is_hot_N, has_oov_N)
    words_N2[:, 1] = weight_N.view(np.uint32)
    return words_N2


def words_of_groups(
    logit_N: NDArray[np.float32],
    label_N: NDArray[np.float32],
    weight_N: NDArray[np.float32],
    group_N: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    """Return a pair of words of each sample, (num_samples, 2): its group; and its logit, click and weight.

    Args:
        weight_N: (num_samples,), each above 0 and finite.
        group_N: (num_samples,); any numbers.
    """
    none_N = np.zeros(logit_N.size, np.bool_)
    scores_N = score_words(logit_N, label_N, none_N, none_N)
    words_N2 = np.empty((logit_N.size, 2), np.uint64)
    words_N2[:, 0] = group_N
    words_N2[:, 1] = (scores_N >> np.uint64(_FLAG_BITS)) << np.uint64(32)
    words_N2[:, 1] |= (scores_N & np.uint64(_CLICK)) << np.uint64(31)
    words_N2[:, 1] |= weight_N.view(np.uint32)
    return words_N2


@kernel
def add_float(sum_2: NDArray[np.float64], number: float) -> None:
    """Add a number to a sum of two floats, in place.

    Error:
        Relative ``2**-104``.

    Source:
        Knuth, The Art of Computer Programming 2, section 4.2.2, theorem B, for the error of an addition.
    """
    high = sum_2[0] + number
    part = high - sum_2[0]
    low = sum_2[1] + ((sum_2[0] - (high - part)) + (number - part))
    sum_2[0] = high + low
    sum_2[1] = low - (sum_2[0] - high)


@kernel
def add_sum(sum_2: NDArray[np.float64], other_2: NDArray[np.float64]) -> None:
    """Add such a sum to another, in place."""
    add_float(sum_2, other_2[0])
    add_float(sum_2, other_2[1])


@kernel
def add_product(
    sum_2: NDArray[np.float64], left_2: NDArray[np.float64], right_2: NDArray[np.float64]
) -> None:
    """Add the product of two such sums to a third, in place.

    Error:
        Relative ``2**-102``.

    Source:
        Dekker, Numerische Mathematik 18 (1971), for the error of a product.
    """
    product = left_2[0] * right_2[0]
    cut = _SPLIT * left_2[0]
    left_high = cut - (cut - left_2[0])
    left_low = left_2[0] - left_high
    cut = _SPLIT * right_2[0]
    right_high = cut - (cut - right_2[0])
    right_low = right_2[0] - right_high
    error = left_high * right_high - product + left_high * right_low + left_low * right_high
    error += left_low * right_low
    add_float(sum_2, product)
    add_float(sum_2, error + (left_2[0] * right_2[1] + left_2[1] * right_2[0]))


@kernel
def count_weighted(words_N2: NDArray[np.uint64], counts: WeightedCounts) -> None:
    """Count samples, in place.

    Args:
        words_N2: (num_samples, 2); pairs of `weighted_words`, ascending.
        counts: those of no samples.
    """
    tie_82 = np.zeros((_NUM_FLAGS, 2))
    tie_32 = np.zeros((3, 2))
    bits_1 = np.zeros(1, np.uint32)
    weight_1 = bits_1.view(np.float32)
    logit = np.uint64(0)
    for place in range(words_N2.shape[0]):
        word = words_N2[place, 0]
        key = word >> np.uint64(_FLAG_BITS)
        if key != logit:
            close_weighted_tie(tie_82, tie_32, counts)
            logit = key
        bits_1[0] = words_N2[place, 1]
        add_float(tie_82[word & np.uint64(_NUM_FLAGS - 1)], np.float64(weight_1[0]))
    close_weighted_tie(tie_82, tie_32, counts)


@kernel
def close_weighted_tie(
    tie_82: NDArray[np.float64], tie_32: NDArray[np.float64], counts: WeightedCounts
) -> None:
    """Count the samples of equal logits, given by the weights of their flags, and forget them.

    Args:
        tie_32: zeros, for the tie of a group.
    """
    for group in range(counts.sums_G32.shape[0]):
        for flags in range(_NUM_FLAGS):
            # Most ties are of one sample.
            if tie_82[flags, 0] == 0:
                continue
            is_hot = flags & _HOT != 0
            is_in_group = group == 0 or (group == 1 and is_hot) or (group == 2 and not is_hot)
            if is_in_group or (group == 3 and flags & _OOV != 0):
                add_sum(tie_32[_CLICKS if flags & _CLICK else _OTHERS], tie_82[flags])
        clicks = tie_32[_CLICKS, 0]
        if clicks == 0 and tie_32[_OTHERS, 0] == 0:
            continue
        sums_32 = counts.sums_G32[group]
        close_tie(sums_32, tie_32)
        # The precision at this threshold, by the weight of the clicks in the tie.
        if clicks > 0:
            samples = sums_32[_CLICKS, 0] + sums_32[_OTHERS, 0]
            counts.precision_G[group] += clicks * (sums_32[_CLICKS, 0] / samples)
    tie_82[:] = 0


@kernel
def close_tie(sums_32: NDArray[np.float64], tie_32: NDArray[np.float64]) -> None:
    """Count samples of equal logits after those above them, and forget them.

    Args:
        sums_32: weight of clicks and of others above, and twice the weight of pairs that clicks lost.
        tie_32: weight of clicks and of others in the tie; the last is for an intermediate sum.
    """
    # A click loses against every other sample above it, and half against those it ties with.
    if tie_32[_CLICKS, 0] > 0:
        for part in range(2):
            tie_32[_TWICE_LOST, part] = 2 * sums_32[_OTHERS, part]
        add_sum(tie_32[_TWICE_LOST], tie_32[_OTHERS])
        add_product(sums_32[_TWICE_LOST], tie_32[_CLICKS], tie_32[_TWICE_LOST])
        add_sum(sums_32[_CLICKS], tie_32[_CLICKS])
    add_sum(sums_32[_OTHERS], tie_32[_OTHERS])
    tie_32[:] = 0


class GroupCounts(NamedTuple):
    """The groups of samples that have both classes."""

    sums_22: NDArray[np.float64]
    """Sum over groups of weight times AUC, and of the weight."""
    num_groups_1: NDArray[np.int64]

    @classmethod
    def none(cls) -> GroupCounts:
        """Return the counts of no groups."""
        return cls(np.zeros((2, 2)), np.zeros(1, np.int64))

    def gauc(self) -> float:
        """Return the mean AUC of the groups with clicks and others, each by the weight of its samples.

        Returns:
            In [0, 1]; NaN without such a group. A sample without a weight has weight 1, so that a group
            counts by its impressions.

        Error:
            ``2**-52``, from the AUC of each group.

        Source:
            Zhou et al., Deep Interest Network, KDD 2018, section on metrics.
        """
        areas, weights = (_whole(sum_2) for sum_2 in self.sums_22)
        return float(areas / weights) if weights else math.nan


@kernel
def count_groups(words_N2: NDArray[np.uint64], counts: GroupCounts) -> None:
    """Count groups, in place.

    Args:
        words_N2: (num_samples, 2); pairs of `words_of_groups`, ascending.
        counts: those of no groups.
    """
    sums_32 = np.zeros((3, 2))
    tie_32 = np.zeros((3, 2))
    bits_1 = np.zeros(1, np.uint32)
    weight_1 = bits_1.view(np.float32)
    for place in range(words_N2.shape[0]):
        word = words_N2[place, 1]
        if place > 0:
            is_other = words_N2[place, 0] != words_N2[place - 1, 0]
            if is_other or word >> np.uint64(32) != words_N2[place - 1, 1] >> np.uint64(32):
                close_tie(sums_32, tie_32)
            if is_other:
                close_group(sums_32, counts)
        bits_1[0] = word & np.uint64(_WEIGHT_BITS)
        is_click = word & np.uint64(_CLICK_BIT) != 0
        add_float(tie_32[_CLICKS if is_click else _OTHERS], np.float64(weight_1[0]))
    close_tie(sums_32, tie_32)
    close_group(sums_32, counts)


@kernel
def close_group(sums_32: NDArray[np.float64], counts: GroupCounts) -> None:
    """Count a group where it has both classes, given by the sums of its samples, and forget it."""
    pairs_2 = np.zeros(2)
    add_product(pairs_2, sums_32[_CLICKS], sums_32[_OTHERS])
    if pairs_2[0] > 0:
        twice_won_2 = 2 * pairs_2
        add_sum(twice_won_2, -sums_32[_TWICE_LOST])
        auc_2 = np.zeros(2)
        auc_2[0] = max(twice_won_2[0] / (2 * pairs_2[0]), 0.0)
        add_sum(sums_32[_OTHERS], sums_32[_CLICKS])
        add_product(counts.sums_22[0], auc_2, sums_32[_OTHERS])
        add_sum(counts.sums_22[1], sums_32[_OTHERS])
        counts.num_groups_1[0] += 1
    sums_32[:] = 0


def sort_pairs(pairs_N2: NDArray[np.uint64]) -> None:
    """Sort pairs by their first word, then by their second one, ascending and in place.

    Args:
        pairs_N2: (num_pairs, 2), perhaps of a mapped file; equal pairs may occur any number of times.
    """
    # As texts of 16 bytes, the highest first, which NumPy compares whole.
    pairs_N2.byteswap(inplace=True)
    pairs_N2.view("S16")[:, 0].sort()
    pairs_N2.byteswap(inplace=True)


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
