"""Predictions for the evaluation part of shards, and their scores."""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..stats.analysis import metrics
from .data.shards import Shards
from .execution.embeddings import Embeddings
from .meter import Meter
from .model.dense_step import DenseStep


@dataclass(frozen=True, slots=True)
class Scores:
    """The quality of predictions; None where a score is undefined."""

    auc: float | None
    log_loss: float | None
    """Log loss in nats per sample."""
    accuracy: float | None
    num_samples: int

    @classmethod
    def of(cls, logit_N: NDArray[np.float32], label_N: NDArray[np.float32]) -> Scores:
        """Score logits against labels, each (num_samples,)."""
        found = [score(logit_N, label_N) for score in (metrics.auc, metrics.log_loss, metrics.accuracy)]
        auc, log_loss, accuracy = [None if math.isnan(value) else value for value in found]
        return cls(auc, log_loss, accuracy, int(label_N.size))


@dataclass(frozen=True, slots=True)
class Predictions:
    """Logits of evaluation samples in log order, with the label and kind of each."""

    logit_N: NDArray[np.float32]
    label_N: NDArray[np.float32]
    is_hot_N: NDArray[np.bool_]
    """Whether all lookups of the sample are hot."""

    @property
    def scores(self) -> Scores:
        """The scores of all samples."""
        return Scores.of(self.logit_N, self.label_N)

    def scores_of(self, *, hot: bool) -> Scores:
        """The scores of the samples all of whose lookups are hot, or of the others."""
        chosen = self.is_hot_N == hot
        return Scores.of(self.logit_N[chosen], self.label_N[chosen])


class Predictor:
    """Predicts with a model and its rows as they are at the moment."""

    def __init__(self, shards: Shards, dense: DenseStep, embeddings: Embeddings, meter: Meter) -> None:
        self._shards = shards
        self._dense = dense
        self._embeddings = embeddings
        self._meter = meter

    def predict(
        self, max_samples: int | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> Predictions:
        """Predict the evaluation part, or its first ``max_samples``; counted as evaluation.

        Args:
            progress: called after each batch with the samples so far and their number in all.
        """
        logits: list[torch.Tensor] = []
        labels: list[NDArray[np.float32]] = []
        is_hot: list[NDArray[np.uint8]] = []
        num_samples = 0
        # Evaluation reads cold rows on the slow tier, so staged ones are written back first.
        with self._meter.during("evaluation"), self._embeddings.rows_written_back(), torch.no_grad():
            numbers = range(self._shards.num_evaluation_batches)
            for step in self._embeddings.evaluation_steps(numbers, self._shards.evaluation_batch):
                if max_samples is not None and num_samples >= max_samples:
                    break
                batch = step.batch
                logits.append(self._dense.predict(batch, self._embeddings.look_up(step)))
                labels.append(batch.label_B.numpy())
                assert batch.is_hot_B is not None, "evaluation batches have it"
                is_hot.append(batch.is_hot_B)
                num_samples += batch.num_samples
                if progress is not None:
                    progress(num_samples, self._shards.num_evaluation_samples)
            logit_N = torch.cat(logits).cpu().numpy() if logits else np.empty(0, np.float32)
        # Whole batches were predicted; the last may reach past ``max_samples``.
        label_N = np.concatenate([np.empty(0, np.float32), *labels])
        is_hot_N = np.concatenate([np.empty(0, np.uint8), *is_hot]).astype(np.bool_)
        return Predictions(logit_N[:max_samples], label_N[:max_samples], is_hot_N[:max_samples])

    def mean_loss(self, max_samples: int) -> float | None:
        """Log loss of the first ``max_samples`` evaluation samples; None where there is none."""
        predictions = self.predict(max_samples)
        return predictions.scores.log_loss if predictions.label_N.size else None
