"""Predicts a raw log or a table in memory with a run.

Threads parse and encode ahead while batches are scored in order, so memory holds some parts of the log
whatever its length. Batches are cut from the encoded samples wherever the parts of the log end. At the batch
size and type of an evaluation, the logits have its bits.

A run whose shards' folder had a vocabulary keeps it, as links where the disk allows it: such a run predicts
alone, wherever it is moved. One that was trained on shards alone needs the folder that `preprocess` wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import MIB, FormatError, HotsetError
from ...pipeline.formats.columns import score_columns, write_scores
from ...pipeline.raw.columnar_parts import TableParts
from ...pipeline.raw.log_files import inspect_logs
from ...pipeline.raw.log_parts import beside, check_columns, kept_columns, open_parts, refuse_name
from ...pipeline.raw.part import RawParts
from ...pipeline.raw.raw_file import RawFile
from ...pipeline.schema.schema import Schema
from ...pipeline.stages.encode import EncodedSamples, SampleEncoder, encode_parts
from ...stats.metrics import probabilities
from ..build_embeddings import set_threads
from ..build_model import ModelSource
from ..config import PredictConfig
from ..data.batch import Batch, FeatureBags, join
from ..evaluate import answers_of, load_model
from ..threads import BackgroundIterator
from .run_tables import RunTables

_log = logging.getLogger(__name__)

OpenLogs = Sequence[tuple[str, RawParts]]
"""The files of a log, or a table: what each is called in messages, and its parts."""


def batches_of(encoded: Iterable[EncodedSamples], batch_size: int) -> Iterator[Batch]:
    """Yield batches of ``batch_size`` samples, the last perhaps shorter; labels are zeros."""
    waiting: list[Batch] = []
    missing = batch_size
    for samples in encoded:
        bags = tuple(FeatureBags(*arrays) for arrays in samples.ids.lists.values())
        dense_BK = torch.from_numpy(samples.dense)
        batch = Batch(
            torch.zeros(samples.num_samples, dtype=torch.float32, device="cpu"),
            dense_BK,
            samples.ids.matrix,
            None,
            False,
            bags,
        )
        first = 0
        while batch.num_samples - first >= missing:
            yield join([*waiting, batch.cut(first, first + missing)])
            first += missing
            waiting = []
            missing = batch_size
        if first < batch.num_samples:
            waiting.append(batch.cut(first, batch.num_samples))
            missing -= batch.num_samples - first
    if waiting:
        yield join(waiting)


_BLOCK_BYTES = 4 * MIB
_ROWS_OF_PART = 1 << 15
_BATCHES_AHEAD = 4
Progress = Callable[[int, int], None]


class RunPredictor:
    """Predicts with a finished run.

    Args:
        run: its folder.
        config: how samples are predicted.
        vocabulary: folder that `preprocess` wrote, for a run that keeps no vocabulary.
        model_source: makes the user's module of the run; None imports the class that the run records.

    Raises:
        HotsetError: ``run`` is not a finished run, or damaged.
    """

    def __init__(
        self,
        run: Path,
        config: PredictConfig | None = None,
        *,
        vocabulary: Path | None = None,
        model_source: ModelSource | None = None,
    ) -> None:
        config = config or PredictConfig()
        found = RunTables.open(run, vocabulary)
        recorded = found.config
        self.columns = score_columns(recorded.labels, recorded.predicts)
        """Names of the predictions of a sample."""
        self._predicts = recorded.predicts
        self._threads = set_threads(config.threads or recorded.threads)
        self._batch_size = config.batch_size or recorded.batch_size
        self._shift = answers_of(recorded).shift
        self.num_read = (0, 0)
        """Samples and bytes that are encoded so far, replaced together: another thread encodes."""
        self.schema: Schema = found.schema.of_predicted
        self._encoder = SampleEncoder(self.schema, found.vocabulary, self._threads)
        self._dense, self._embeddings = load_model(
            run,
            recorded,
            found.weights,
            found.tables,
            self._batch_size,
            threads=self._threads,
            slow_bytes=config.slow_bytes,
            model_source=model_source,
        )

    def logits(self, logs: OpenLogs) -> Generator[NDArray[np.float32]]:
        """Yield the logits of each batch, (B,), or (B, L) for several labels, in order.

        Raises:
            InputError: a line does not match the schema.
        """

        # Parsing and encoding run ahead in a thread while batches are scored.
        def encode() -> Generator[EncodedSamples]:
            for source, parts in logs:
                with closing(encode_parts(parts, source, self._encoder, self._threads)) as encoded:
                    for part in encoded:
                        samples, num_bytes = self.num_read
                        self.num_read = (samples + part.num_samples, num_bytes + part.num_raw_bytes)
                        yield part

        encoded = encode()
        ahead = BackgroundIterator(batches_of(encoded, self._batch_size), _BATCHES_AHEAD, "samples")
        held: dict[int, Batch] = {}
        try:
            with self._embeddings.rows_written_back(), torch.no_grad():
                for step in self._embeddings.evaluation_steps(_numbered(ahead, held), held.__getitem__):
                    logit_B = self._dense.predict(step.batch, self._embeddings.look_up(step)).numpy()
                    # A batch that was scored is let go, so memory does not grow with the log.
                    del held[step.number]
                    if np.isnan(logit_B).any():
                        raise HotsetError(
                            f"a prediction for {logs[0][0]} is no number: the weights have diverged"
                        )
                    yield logit_B + np.float32(self._shift) if self._shift else logit_B
        finally:
            ahead.close()
            encoded.close()

    def predictions(self, logs: OpenLogs) -> Generator[NDArray[np.float32]]:
        """Yield the probabilities of each batch, or values where the run predicts these, as `logits` does."""
        with closing(self.logits(logs)) as batches:
            for logit_B in batches:
                if self._predicts == "value":
                    yield logit_B
                else:
                    yield probabilities(logit_B).astype(np.float32)

    def expected_in(self, files: Sequence[RawFile]) -> int:
        """Estimate the samples of logs by those read; 0 where one is compressed: its length is unknown."""
        samples, num_bytes = self.num_read
        if any(file.compression for file in files) or not num_bytes:
            return 0
        return samples * sum(file.num_bytes for file in files) // num_bytes

    def open_log(self, log: Path, *, has_label: bool = True) -> OpenLogs:
        """Open a raw log, or the files of a folder; a label column with a name is not read.

        Raises:
            InputError: the log cannot be read, is of another format, or lacks a column of the schema.
        """
        if not has_label and not self._counts_label:
            _log.warning("--no-label changes nothing: a label in a column with a name is not read")
        logs = [(str(file.path), self._parts_of(file, has_label)) for file in inspect_logs([log])]
        check_columns(parts for _, parts in logs)
        return logs

    @property
    def _counts_label(self) -> bool:
        """Whether the label is one of the fields: its line begins with it, or columns have no names."""
        return self.schema.format == "criteo" or bool(self.schema.fields)

    def _parts_of(self, file: RawFile, has_label: bool) -> RawParts:
        try:
            return open_parts(
                file,
                0,
                self.schema,
                block_bytes=_BLOCK_BYTES,
                has_label=has_label and self._counts_label,
                strict=True,
            )
        except FormatError as error:
            # The schema is the run's, so no other can be given.
            raise FormatError(
                str(error), hint="give a log in the format of those that the run was trained on"
            ) from error

    def open_table(self, table: Any) -> OpenLogs:
        """Take the rows of an Arrow table as samples.

        Raises:
            InputError: it lacks a column of the schema, or has one of another type.
        """
        return [("the frame", TableParts(table, self.schema, rows_of_part=_ROWS_OF_PART))]


def predict_file(
    predictor: RunPredictor,
    log: Path,
    out: Path,
    *,
    has_label: bool = True,
    keep: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress = lambda done, total: None,
) -> int:
    """Write the predictions of ``log`` to Parquet; return their number.

    Args:
        out: file that appears when it is whole.
        has_label: whether the lines of a log without column names have labels.
        keep: columns of the log that are copied, named as there or in the schema.
        progress: called after each batch with the samples so far and those expected in all, 0 where the log
            is compressed; once more at the end with what there were.

    Raises:
        HotsetError: the log cannot be read, or the file cannot be written.
    """
    logs = predictor.open_log(log, has_label=has_label)
    files = inspect_logs([log])
    others: Callable[[Iterator[Any]], Iterator[Any]] = iter
    if keep:
        refuse_name(keep, predictor.columns)
        kept = kept_columns(files, predictor.schema, keep, block_bytes=_BLOCK_BYTES, has_label=has_label)
        others = partial(beside, kept=kept, logs=files)
    num_before, _ = predictor.num_read
    with closing(predictor.predictions(logs)) as batches:
        scores = reported(batches, progress, partial(predictor.expected_in, files))
        write_scores(out, predictor.columns, scores, others=others, overwrite=overwrite)
    return predictor.num_read[0] - num_before


def reported(
    batches: Iterable[NDArray[np.float32]], progress: Progress, expected: Callable[[], int]
) -> Iterator[NDArray[np.float32]]:
    """Yield batches of predictions; report the samples so far and in all, at the end what there were."""
    num_samples = 0
    for scores in batches:
        yield scores
        num_samples += scores.shape[0]
        progress(num_samples, expected())
    progress(num_samples, num_samples)


def _numbered(batches: Iterable[Batch], held: dict[int, Batch]) -> Iterator[int]:
    """Yield each batch's number, held until predicted: a stream is read once."""
    for number, batch in enumerate(batches):
        held[number] = batch
        yield number
