"""Evaluates a finished run on the test and validation parts of shards.

Loads dense layers and rows of the run, predicts the samples of both parts, and scores them. `EvaluationCheck`
hashes these shards in the background of a run that trains.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..pipeline.errors import HotsetError, ShardError, format_byte_size
from ..pipeline.folders.totals import by_feature
from ..pipeline.runtime.limits import available_bytes
from ..pipeline.schema.schema import DENSE_PREFIX, GROUP, WEIGHT
from .build_embeddings import RowTools, build_groups, open_device, set_threads
from .build_model import ModelSource, build_model, pooled_step
from .config import CONFIG, RunConfig, read_config
from .config_parts import require_share
from .data.batch import Batch, EmbeddingTable, LookupsOfBatch, MicroBatches, with_histories
from .data.shard_file import HAS_GROUP
from .data.shards import EvaluationPart, Part, ShardSet
from .metrics import CLICKS, Answers, Meter, Quality, RunQuality, SampleScores
from .model.dense_step import DenseStep, build_dense_step
from .model.dlrm import DenseModel
from .model.shapes import ModelInputs, tables_by_dim
from .placements.placements import AllFast, Hybrid
from .ranks.ranks import OneRank, Ranks, gather_arrays, wait_for_all
from .rows.backends import RowOptimizer
from .rows.embeddings import Embeddings
from .run_folder.weights import (
    WEIGHTS,
    SavedTier,
    Weights,
    read_finite,
    read_manifest,
    read_weights,
    refuse_not_finite,
    refuse_other_tables,
    refuse_other_weights,
)
from .threads import WorkThreads


class Predictor:
    """Predicts with a model and its rows as they are at the moment.

    Args:
        meter: counts the work as evaluation; None: nothing counts it.
        folder: folder for a file of what does not fit in memory; None: that of temporary files.
        ranks: share the batches; all of them score the predictions of all.
        answers: the meaning of the model's predictions.
        negative_rate: share of the samples without a click that the log of ``shards`` kept; None: all.
        read_lookups: returns the lookups of an evaluation batch; None: they are read from ``shards``.
    """

    def __init__(
        self,
        shards: ShardSet,
        dense: DenseStep,
        embeddings: Embeddings,
        meter: Meter | None = None,
        folder: Path | None = None,
        ranks: Ranks | None = None,
        answers: Answers = CLICKS,
        negative_rate: float | None = None,
        read_lookups: Callable[[int], LookupsOfBatch] | None = None,
    ) -> None:
        self._ranks = ranks or OneRank()
        self._answers = answers
        self._shape = (len(answers.labels),) if len(answers.labels) > 1 else ()
        self._negative_rate = negative_rate
        self._shards = shards
        self._dense = dense
        self._embeddings = embeddings
        self._meter = meter or Meter(_HOST)
        self._folder = folder
        self._read_lookups = read_lookups

    def logits(self, part: Part = "test") -> Generator[tuple[Batch, NDArray[np.float32]]]:
        """Yield the batches of a part in log order, with their logits, (B,), or (B, L) for several labels.

        Each of W ranks has every W-th batch; those beyond the last one are empty. Counted as evaluation. The
        caller closes the iterator, or takes all of it.
        """
        # Evaluation reads cold rows on the slow tier, so staged ones are written back first.
        with self._meter.during("evaluation"), self._embeddings.rows_written_back(), torch.no_grad():
            batches = EvaluationPart(self._shards, part, self._ranks.num_ranks, self._read_lookups)
            readers = (batches.batch, batches.lookups)
            for step in self._embeddings.evaluation_steps(batches.numbers, *readers):
                embeddings = self._embeddings.look_up(step)
                logit_B = torch.empty(0, *self._shape, dtype=torch.float32, device="cpu")
                if step.batch.num_samples:
                    logit_B = self._dense.predict(step.batch, embeddings).cpu()
                    if self._answers.shift:
                        logit_B = logit_B + self._answers.shift
                yield step.batch, logit_B.numpy()

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
        columns = {WEIGHT, GROUP} & {*self._shards.sample_columns}
        counter = SampleScores(left, self._answers, columns, self._negative_rate, self._folder)
        with closing(self.logits(part)) as batches:
            while left > num_samples:
                for found in self._of_all_ranks(*next(batches)):
                    # Whole batches are predicted; those of a round may reach past the last sample.
                    if num_samples == left:
                        break
                    counted = {name: values[: left - num_samples] for name, values in found.items()}
                    logit_B, label_BL, is_hot_B, has_oov_B = (counted.pop(name) for name in _SCORED)
                    counter.add(logit_B, label_BL, is_hot_B, has_oov_B, counted)
                    num_samples += logit_B.shape[0]
                    if progress is not None:
                        progress(num_samples, total)
        return counter.quality()

    def _of_all_ranks(self, batch: Batch, logit_B: NDArray[np.float32]) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield what scores need of this rank's batch and of those of the others, in log order."""
        assert batch.is_hot_B is not None, "evaluation batches have it"
        label_BL = self._shards.labels_of(batch, self._answers.labels)
        columns = (logit_B, label_BL, batch.is_hot_B.astype(np.bool_), self._shards.has_oov(batch))
        own: dict[str, NDArray[Any]] = dict(zip(_SCORED, columns, strict=True))
        own |= {name: batch.of_samples[name] for name in _OF_SAMPLES if name in batch.of_samples}
        for arrays in gather_arrays(self._ranks, [*own.values()]):
            yield dict(zip(own, arrays, strict=True))

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
        """Return the log loss of the samples that may steer training.

        It is that of the first ``max_samples`` of the validation part if there is one, else of the test part,
        as the paper of FAE has it; None where there is none.
        """
        return self.score(max_samples, part=self.steering_part).log_loss

    @property
    def steering_part(self) -> Part:
        """The part that evaluations during training are of."""
        return "validation" if self._shards.num_validation_samples else "test"


_log = logging.getLogger(__name__)
_SCORED = ("logit", "label", "is_hot", "has_oov")
_OF_SAMPLES = (WEIGHT, GROUP, HAS_GROUP)
"""What scores need of each sample, and what they need where the log has it."""

_HOST = torch.device("cpu")
_NO_TRAINING = RowOptimizer("sgd", 0.1)


def load_model(
    run: Path,
    config: RunConfig,
    weights: Weights,
    tables: Sequence[EmbeddingTable],
    batch_size: int,
    *,
    device: torch.device = _HOST,
    threads: int | None = None,
    slow_bytes: int | None = None,
    model_source: ModelSource | None = None,
) -> tuple[DenseStep, Embeddings]:
    """Load the dense layers and the rows of a run, ready to predict.

    Args:
        tables: those of the run, as the data to predict has them.
        threads: those of the dense layers; None: as many as trained.
        slow_bytes: memory for embedding rows, see `evaluate`.

    Raises:
        HotsetError: the weights are damaged, or not those that the config describes.
    """
    # Seeds and optimizer do not matter: every weight is overwritten, and none is trained.
    model = load_dense_layers(run, config, weights, model_source).to(device)
    if model.histories:
        _refuse_other_lists(run, config, tables)
        tables = with_histories(tables, model.histories)
    workers = WorkThreads(threads or config.threads)
    step = build_dense_step(model, MicroBatches(batch_size), workers, config.dense_dtype)
    dense = pooled_step(step, model, config.dense_model.pooling, tables)
    tools = RowTools(
        device=device, meter=Meter(device), threads=workers, micro_batches=MicroBatches(batch_size)
    )
    # All rows in memory where they fit, because reading them for each batch is far slower.
    num_bytes = sum(4 * table.num_rows * table.embedding_dim for table in tables)
    room = _room_for_rows(num_bytes) if slow_bytes is None else slow_bytes
    groups = {
        dim: [tables[number] for number in numbers]
        for dim, numbers in tables_by_dim([table.embedding_dim for table in tables]).items()
    }
    if room is None or num_bytes <= room:
        placements = {dim: AllFast(of_dim) for dim, of_dim in groups.items()}
        embeddings = Embeddings(len(tables), build_groups(tables, placements, _NO_TRAINING, 0, tools))
        # One table at a time: only the current one is in memory twice.
        for number, table in enumerate(tables):
            embeddings.set_table(number, read_finite(run, weights, table.name))
        return dense, embeddings
    _log.info("the rows take %s: they are read as batches need them", format_byte_size(num_bytes))
    # Rows are checked while they are read in parts: they may not fit in memory together.
    for table in tables:
        refuse_not_finite(run, weights, table.name)
    # The memory is divided among table groups by the bytes of their rows.
    tiers = {
        dim: SavedTier(
            of_dim, dim, weights, room * 4 * dim * sum(table.num_rows for table in of_dim) // num_bytes
        )
        for dim, of_dim in groups.items()
    }
    hybrids = {dim: Hybrid(of_dim) for dim, of_dim in groups.items()}
    rows = build_groups(tables, hybrids, _NO_TRAINING, 0, tools, slow_tiers=tiers)
    return dense, Embeddings(len(tables), rows)


def load_dense_layers(
    run: Path, config: RunConfig, weights: Weights, model_source: ModelSource | None
) -> DenseModel:
    """Return the dense layers of a run with their trained weights.

    Raises:
        HotsetError: the weights are damaged, or not those that the config describes.
    """
    # Seeds do not matter: every weight is overwritten.
    model = build_model(config.dense_model, ModelInputs.of(config), 0, model_source)
    refuse_other_weights(run, weights, config, model)
    model.load_state_dict(
        {name: read_finite(run, weights, f"{DENSE_PREFIX}{name}") for name in model.state_dict()}
    )
    return model


def _refuse_other_lists(run: Path, config: RunConfig, tables: Sequence[EmbeddingTable]) -> None:
    """Raise HotsetError unless histories of training are exactly the lists here."""
    for own, table in zip(by_feature(config.tables), by_feature(tables), strict=True):
        if own.is_multi_hot != table.is_multi_hot:
            found, wanted = ("a list" if each.is_multi_hot else "one value" for each in (table, own))
            raise HotsetError(f"{table.name} is {found} in each sample, and the run {run} has {wanted}")


def _room_for_rows(num_bytes: int) -> int | None:
    """Return the memory for rows if they exceed what is available, else None."""
    # A quarter is left for the dense layers, batches and the page cache.
    available = available_bytes()
    return available // 2 if available is not None and num_bytes > 3 * available // 4 else None


def evaluate(
    run: Path,
    shards: Path,
    *,
    device: str = "cpu",
    slow_bytes: int | None = None,
    model_source: ModelSource | None = None,
    weights: Weights | None = None,
    negative_rate: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RunQuality:
    """Predict the test and validation parts of ``shards`` with the weights of ``run``.

    Args:
        device: where the model and its rows are.
        slow_bytes: memory for embedding rows; if not all fit, those of some batches at a time are read from
            the file of weights. None: as much as there is.
        weights: weights to score in place of those of the run, of the same names and shapes.
        negative_rate: share of the samples without a click that the log of ``shards`` kept, in (0, 1]: each
            of them counts as ``1 / negative_rate``. None: that of the log of the training.
        progress: called after each batch with the samples so far and their number in all.

    Raises:
        ConfigError: no such device.
        HotsetError: ``run`` is not a finished run, or damaged.
        ShardError: the shards have no labels, or tables that are not those of the run.
    """
    # Cheap checks before anything is hashed.
    opened_device = open_device(device)
    require_share("negative_rate", negative_rate)
    config = read_config(run)
    answers = answers_of(config)
    weights = read_weights(run) if weights is None else weights
    opened = ShardSet.open(shards)
    for name in config.labels:
        opened.column_of(name)  # refuses shards without it
    hint = "evaluate on the shards the run was trained on, or on shards of the same vocabulary"
    refuse_other_tables(config, opened, hint)
    # A run may have had another budget than its shards, and its scores of hot samples are by its own rows.
    num_hot = [table.num_hot for table in config.tables]
    if num_hot != [table.num_hot for table in opened.tables]:
        opened = opened.with_hot_rows(num_hot)
    read_manifest(run, (CONFIG, WEIGHTS))
    opened.verify(["evaluation"])
    set_threads(config.threads)
    dense, embeddings = load_model(
        run,
        config,
        weights,
        opened.tables,
        opened.batch_size,
        device=opened_device,
        slow_bytes=slow_bytes,
        model_source=model_source,
    )
    rate = answers.negative_rate if negative_rate is None else negative_rate
    predictor = Predictor(
        opened, dense, embeddings, answers=answers, negative_rate=None if rate == 1 else rate
    )
    return predictor.score_run(progress=progress)


def answers_of(config: RunConfig) -> Answers:
    """Return the meaning of the predictions of a run."""
    return Answers(labels=config.labels, predicts=config.predicts, negative_rate=config.config.negative_rate)


class EvaluationCheck:
    """The thread that hashes evaluation shards during the first steps; it ends with the process.

    Runs on large shards begin without hashing them, since each batch is verified when it is read. Evaluation
    batches may be read only at the end of days of training, so damage among them is looked for at once.

    Args:
        shards: with these files.
        ranks: each hashes a part of the files.
    """

    def __init__(self, shards: ShardSet, ranks: Ranks) -> None:
        self._ranks = ranks
        self._files = shards.hashing(["evaluation"], slice(ranks.rank, None, ranks.num_ranks), workers=1)
        self._is_closed = False
        self._is_over = False
        self.fault: ShardError | None = None
        """What is wrong with a file, as far as it is known."""
        self._thread = threading.Thread(target=self._work, name="evaluation shards", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the last file; raises what is wrong, at every rank. All ranks call this."""
        if self._is_over:
            return
        # Ranks may need minutes longer than others for their part.
        wait_for_all(self._ranks, self._wait)
        self._is_over = True

    def _wait(self) -> None:
        self._thread.join()
        if self.fault is not None:
            raise self.fault

    def close(self) -> None:
        """Leave the files that are not hashed yet, once that of the moment is."""
        self._is_closed = True
        self._thread.join()

    def _work(self) -> None:
        try:
            for _ in self._files:
                if self._is_closed:
                    return
        except ShardError as error:
            self.fault = error
        except HotsetError as error:  # of the system: ranks stop for it as for a damaged file
            self.fault = ShardError(str(error), hint=error.hint)
