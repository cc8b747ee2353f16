"""The quality of predictions: AUC, log loss and accuracy from logits and labels, exact or in float64.

Logits rather than probabilities, because a float32 sigmoid ties far predictions that differ.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def auc(logit_N: NDArray[np.float32], label_N: NDArray[np.float32]) -> float:
    """Return the area under the ROC curve: the chance that a click scores above a non-click, ties one half.

    Args:
        logit_N: (num_samples,); any monotone score, no NaN.
        label_N: (num_samples,), each 0 or 1.

    Returns:
        In [0, 1]; NaN where one of the classes is absent. Exact: pairs are counted in integers.

    Source:
        Mann and Whitney, Ann. Math. Stat. 18 (1947): AUC = U / (clicks * non-clicks).
    """
    order = np.argsort(logit_N, kind="stable")
    is_click = label_N[order] > 0.5
    is_last_of_tie = np.append(np.diff(logit_N[order]) != 0, True)[: is_click.size]
    # Clicks and samples up to the end of each group of equal logits.
    clicks_through = np.cumsum(is_click, dtype=np.int64)[is_last_of_tie]
    samples_through = np.flatnonzero(is_last_of_tie).astype(np.int64) + 1
    others_through = samples_through - clicks_through
    num_clicks = int(is_click.sum())
    num_others = int(is_click.size - is_click.sum())
    if num_clicks == 0 or num_others == 0:
        return math.nan
    # A click wins against all non-clicks before its group, and half against those in it; twice that is whole.
    clicks_in_tie = np.diff(clicks_through, prepend=0)
    others_in_tie = np.diff(others_through, prepend=0)
    twice_won = np.sum(clicks_in_tie * (2 * others_through - others_in_tie))
    return int(twice_won) / (2 * num_clicks * num_others)


def log_loss(logit_N: NDArray[np.float32], label_N: NDArray[np.float32]) -> float:
    """Return the mean negative log-likelihood, nats per sample; NaN without samples.

    Args:
        logit_N: (num_samples,); log-odds of a click.
        label_N: (num_samples,), each 0 or 1.

    Error:
        Float64 throughout, and ``log1p(exp(-|z|))`` never overflows: as exact as the mean itself.
    """
    if logit_N.size == 0:
        return math.nan
    logit = logit_N.astype(np.float64)
    losses = np.maximum(logit, 0) - logit * label_N + np.log1p(np.exp(-np.abs(logit)))
    return float(losses.mean())


def accuracy(logit_N: NDArray[np.float32], label_N: NDArray[np.float32]) -> float:
    """Return the share of samples on the right side of probability one half; NaN without samples.

    Args:
        logit_N: (num_samples,); exactly 0 predicts no click.
        label_N: (num_samples,), each 0 or 1.
    """
    if logit_N.size == 0:
        return math.nan
    return float(np.mean((logit_N > 0) == (label_N > 0.5)))
