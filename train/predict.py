"""Predictions for the validation and test parts of shards, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .data.batch import Batch
from .data.evaluation_part import EvaluationPart, Part
from .data.shards import Shards
from .execution.embeddings import Embeddings
from .meter import Meter
from .metrics.scores import Quality, RunQuality, ScoreCounter
from .model.dense_step import DenseStep
from .ranks.ranks import OneRank, Ranks


class Predictor:
    """Predicts with a model and its rows as they are at the moment.

    Args:
        shards: the batches of both parts.
        dense: the dense layers.
        embeddings: the rows.
        meter: counts the work as evaluation.
        folder: folder for a file of what does not fit in memory; None: that of temporary files.
        ranks: share the batches; all of them score the predictions of all.
    """

    def __init__(
        self,
        shards: Shards,
        dense: DenseStep,
        embeddings: Embeddings,
        meter: Meter,
        folder: Path | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._ranks = ranks or OneRank()
        self._shards = shards
        self._dense = dense
        self._embeddings = embeddings
        self._meter = meter
        self._folder = folder

    def logits(self, part: Part = "test") -> Generator[tuple[Batch, NDArray[np.float32]]]:
        """Yield the batches of a part in log order, each with its logits, (B,); counted as evaluation.

        The caller closes the iterator, or takes all of it.
        """
        # Evaluation reads cold rows on the slow tier, so staged ones are written back first.
        with self._meter.during("evaluation"), self._embeddings.rows_written_back(), torch.no_grad():
            batches = EvaluationPart(self._shards, part)
            # Each rank has predicted one of the batches that follow; their logits go to all.
            left = iter(batches.numbers)
            for step in self._embeddings.evaluation_steps(batches.numbers, batches.batch):
                embeddings = self._embeddings.look_up(step)
                logit_B = torch.empty(0)
                if step.batch.num_samples:
                    logit_B = self._dense.predict(step.batch, embeddings).cpu()
                if self._ranks.num_ranks == 1:
                    yield step.batch, logit_B.numpy()
                    continue
                padded_B = torch.zeros(self._shards.batch_size)
                padded_B[: logit_B.numel()] = logit_B
                for found_B, number in zip(self._ranks.gather(padded_B), left, strict=False):
                    batch = batches.batch(number)
                    yield batch, found_B[: batch.num_samples].numpy()

    def score(
        self,
        max_samples: int | None = None,
        *,
        part: Part = "test",
        progress: Callable[[int, int], None] | None = None,
    ) -> Quality:
        """Score the predictions for a part of the log, or for its first ``max_samples``.

        Args:
            progress: called after each batch with the samples so far and their number in all.

        Raises:
            HotsetError: a prediction is no number, or there is no disk space for scores beyond the memory.
        """
        total = EvaluationPart(self._shards, part).num_samples
        left = total if max_samples is None else min(max_samples, total)
        num_samples = 0
        with closing(ScoreCounter(self._folder)) as counter, closing(self.logits(part)) as batches:
            while left > num_samples:
                batch, logit_B = next(batches)
                # Whole batches are predicted; the last may reach past ``max_samples``.
                counted = slice(min(batch.num_samples, left - num_samples))
                assert batch.is_hot_B is not None, "evaluation batches have it"
                counter.add(
                    logit_B[counted],
                    batch.label_B.numpy()[counted],
                    batch.is_hot_B[counted].astype(np.bool_),
                    self._shards.has_oov(batch)[counted],
                )
                num_samples += batch.num_samples
                if progress is not None:
                    progress(num_samples, total)
            return counter.quality()

    def score_run(self, *, progress: Callable[[int, int], None] | None = None) -> RunQuality:
        """Score both parts; raises what `score` raises."""
        validation = None
        if self._shards.num_validation_samples:
            validation = self.score(part="validation", progress=progress)
        quality = self.score(progress=progress)
        return RunQuality(
            **{each.name: getattr(quality, each.name) for each in fields(quality)}, validation=validation
        )

    def mean_loss(self, max_samples: int) -> float | None:
        """Log loss of the first ``max_samples`` samples that may steer training: those of the validation part
        where there is one, else of the test part, as the paper of FAE has it; None where there is none."""
        return self.score(max_samples, part=self.steering_part).log_loss

    @property
    def steering_part(self) -> Part:
        """The part that evaluations during training are of."""
        return "validation" if self._shards.num_validation_samples else "test"
