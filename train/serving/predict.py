"""Predicts a raw log or a table in memory with a run.

Threads parse and encode ahead while batches are scored in order, so memory holds some parts of the log
whatever its length. Batches are cut from the encoded samples wherever the parts of the log end. At the batch
size and type of an evaluation, the logits have its bits.

A run whose shards' folder had a vocabulary keeps it, as links where the disk allows it: such a run predicts
alone, wherever it is moved. One that was trained on shards alone needs the folder that `preprocess` wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import MIB, ConfigError, FormatError, HotsetError, ManifestError
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.totals import ColumnsTotals, VocabularyTotals
from ...pipeline.formats.columns import score_writer
from ...pipeline.raw.log_parts import open_parts
from ...pipeline.raw.parquet_parts import TableParts
from ...pipeline.raw.part import RawParts
from ...pipeline.raw.raw_file import RawFile
from ...pipeline.schema.schema import Schema
from ...pipeline.schema.schema_file import schema_of
from ...pipeline.stages.encode_raw import EncodedSamples, SampleEncoder, encode_parts
from ...stats.metrics import probabilities
from ..build_embeddings import set_threads
from ..build_model import ModelSource
from ..data.batch import Batch, EmbeddingTable, FeatureBags, join
from ..data.shards import CRITEO
from ..evaluate import LoadedModel
from ..run_config import RunConfig
from ..run_folder.files import CONFIG, VOCABULARY, WEIGHTS
from ..run_folder.reader import read_config, read_manifest, read_weights, refuse_changed_files
from ..threads import BackgroundIterator
from .configs import PredictConfig


def batches_of(encoded: Iterable[EncodedSamples], batch_size: int) -> Iterator[Batch]:
    """Yield batches of ``batch_size`` samples in order; labels are zeros.

    The last batch may be shorter.
    """
    waiting: list[Batch] = []
    missing = batch_size
    for samples in encoded:
        batch = _batch_of(samples)
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


def _batch_of(samples: EncodedSamples) -> Batch:
    bags = tuple(FeatureBags(*arrays) for arrays in samples.ids.lists.values())
    label_B = torch.zeros(samples.num_samples)
    return Batch(label_B, torch.from_numpy(samples.dense), samples.ids.matrix, None, False, bags)


_STAGES = ("rank", "adopt")
_OTHER_HINT = "name the folder whose shards the run was trained on"


@dataclass(frozen=True, slots=True)
class RunVocabulary:
    """The schema and vocabulary by which the lines of a log become samples."""

    schema: Schema
    folder: Manifest
    """The sealed vocabulary."""
    tables: tuple[EmbeddingTable, ...]
    """Tables of the run; none of their rows counts as hot."""
    schema_text: str
    """The schema as a setting."""

    @classmethod
    def open(cls, run: Path, config: RunConfig, given: Path | None = None) -> RunVocabulary:
        """Open the vocabulary that a run or a preprocessed folder keeps.

        Raises:
            ConfigError: the run keeps none, and none is given.
            ManifestError: it is damaged, or not the one whose ids the rows of the run have.
        """
        # The folder that is named comes first, then what the run keeps; its schema comes from the same place.
        if given is not None:
            folder = Manifest.read(given / VOCABULARY)
            schema = ColumnsTotals.of(Manifest.read(given / "columns")).schema or CRITEO
        elif config.schema is not None and (run / VOCABULARY).is_dir():
            folder = Manifest.read(run / VOCABULARY)
            schema = config.schema
        else:
            raise ConfigError(
                f"{run} keeps no vocabulary: there was none beside the shards it was trained on",
                hint="name the folder that preprocess wrote: --vocabulary DIR",
            )
        if folder.stage not in _STAGES:
            raise ManifestError(f"{folder.folder} holds the stage {folder.stage!r}, want a vocabulary")
        # With the ids of another vocabulary each category would get the row of another one.
        if config.vocabulary is not None and folder.fingerprint != config.vocabulary:
            raise ManifestError(
                f"{folder.folder} is not the vocabulary of {run}: its fingerprint is "
                f"{folder.fingerprint[:8]}, want {config.vocabulary[:8]}",
                hint=_OTHER_HINT,
            )
        return cls(schema_of(schema), folder, _tables(run, config, folder, schema_of(schema)), schema)


def _tables(run: Path, config: RunConfig, folder: Manifest, schema: Schema) -> tuple[EmbeddingTable, ...]:
    """The tables of the run; raises ManifestError where the vocabulary has others."""
    own = VocabularyTotals.of(folder).tables
    # Ids index the rows of the run, so their numbers must be equal.
    found = [*((table.name, table.num_rows) for table in own), ("dense features", len(schema.dense))]
    wanted = [
        *((table.name, table.num_rows) for table in config.tables),
        ("dense features", config.num_dense),
    ]
    if found != wanted:
        raise ManifestError(
            f"{folder.folder} is not the vocabulary of {run}: it has {_described(found, wanted)}",
            hint=_OTHER_HINT,
        )
    return tuple(
        EmbeddingTable(table.name, table.num_rows, 0, width.embedding_dim, table.is_multi_hot)
        for table, width in zip(own, config.tables, strict=True)
    )


def _described(found: Sequence[tuple[str, int]], wanted: Sequence[tuple[str, int]]) -> str:
    """The first table that differs, in words."""
    for (name, size), (other, other_size) in zip(found, wanted, strict=False):
        if (name, size) != (other, other_size):
            return f"{size} rows of {name}, the run {other_size} of {other}"
    return f"{len(found) - 1} tables, the run {len(wanted) - 1}"


_BLOCK_BYTES = 4 * MIB
_ROWS_OF_PART = 1 << 15
_BATCHES_AHEAD = 4
_BATCH_SIZE = 2048
"""Samples of a batch for runs of versions that did not record theirs."""
OnPart = Callable[[EncodedSamples], None]
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
        # Cheap checks before anything is hashed.
        recorded = read_config(run)
        weights = read_weights(run)
        origin = RunVocabulary.open(run, recorded, vocabulary)
        if (manifest := read_manifest(run)) is not None:
            refuse_changed_files(manifest, (CONFIG, WEIGHTS))
        self._threads = set_threads(config.threads or recorded.threads)
        self._batch_size = config.batch_size or recorded.batch_size or _BATCH_SIZE
        # The time that divides a log into parts decides nothing about a sample.
        self.schema: Schema = replace(origin.schema, time=None)
        self._encoder = SampleEncoder(self.schema, origin.folder, self._threads)
        self._model = LoadedModel.load(
            run,
            recorded,
            weights,
            origin.tables,
            self._batch_size,
            threads=self._threads,
            slow_bytes=config.slow_bytes,
            model_source=model_source,
        )

    def logits(
        self, parts: RawParts, source: str, on_part: OnPart = lambda part: None
    ) -> Generator[NDArray[np.float32]]:
        """Yield the logits of each batch, (B,), in order.

        Args:
            source: name of the log in messages.
            on_part: called with each part once it is encoded, by another thread.

        Raises:
            InputError: a line does not match the schema.
        """
        # Parsing and encoding run ahead in a thread while batches are scored.
        encoded = encode_parts(parts, source, self._encoder, self._threads)
        ahead = BackgroundIterator(_batches(encoded, self._batch_size, on_part), _BATCHES_AHEAD, "samples")
        held: dict[int, Batch] = {}
        embeddings = self._model.embeddings
        try:
            with embeddings.rows_written_back(), torch.no_grad():
                for step in embeddings.evaluation_steps(_numbered(ahead, held), held.__getitem__):
                    logit_B = self._model.dense.predict(step.batch, embeddings.look_up(step)).numpy()
                    # A batch that was scored is let go, so memory does not grow with the log.
                    del held[step.number]
                    if np.isnan(logit_B).any():
                        raise HotsetError(
                            f"a prediction for {source} is no number: the weights have diverged"
                        )
                    yield logit_B
        finally:
            ahead.close()

    def probabilities(
        self, parts: RawParts, source: str, on_part: OnPart = lambda part: None
    ) -> Generator[NDArray[np.float32]]:
        """Yield the probabilities of each batch, (B,), as `logits` yields them."""
        with closing(self.logits(parts, source, on_part)) as batches:
            for logit_B in batches:
                yield probabilities(logit_B).astype(np.float32)

    def parts_of_file(self, log: Path, *, has_label: bool = True) -> RawParts:
        """Open a raw log; a label column with a name is not read.

        Raises:
            InputError: the log cannot be read, is of another format, or lacks a column of the schema.
        """
        # Where a line begins with the label, or its fields have no names, the label counts as a field.
        needs_label = self.schema.format == "criteo" or bool(self.schema.fields)
        try:
            return open_parts(
                RawFile.inspect(log),
                0,
                self.schema,
                block_bytes=_BLOCK_BYTES,
                has_label=has_label and needs_label,
                strict=True,
            )
        except FormatError as error:
            # The schema is the run's, so no other can be given.
            raise FormatError(
                str(error), hint="give a log in the format of those that the run was trained on"
            ) from error

    def parts_of_table(self, table: Any) -> RawParts:
        """Take the rows of an Arrow table as samples.

        Raises:
            InputError: it lacks a column of the schema, or has one of another type.
        """
        return TableParts(table, self.schema, rows_of_part=_ROWS_OF_PART)


def predict_file(
    predictor: RunPredictor,
    log: Path,
    out: Path,
    *,
    has_label: bool = True,
    overwrite: bool = False,
    progress: Progress = lambda done, total: None,
) -> int:
    """Write the probabilities of ``log`` to Parquet; return their number.

    Args:
        out: file that appears when it is whole.
        has_label: whether the lines of a log without column names have labels.
        progress: called after each batch with the samples so far and those expected in all, 0 where the log
            is compressed; once more at the end with what there were.

    Raises:
        HotsetError: the log cannot be read, or the file cannot be written.
    """
    parts = predictor.parts_of_file(log, has_label=has_label)
    length = _LogLength(RawFile.inspect(log))
    with score_writer(out, overwrite=overwrite) as writer:
        with closing(predictor.probabilities(parts, str(log), length.add)) as batches:
            for probability_B in batches:
                writer.add(probability_B)
                progress(writer.num_samples, length.num_samples())
        progress(writer.num_samples, writer.num_samples)
        return writer.num_samples


class _LogLength:
    """The number of samples of a log, estimated while reading."""

    def __init__(self, log: RawFile) -> None:
        # The text of a compressed file has an unknown length.
        self._num_bytes = 0 if log.compression else log.num_bytes
        self._read = (0, 0)
        """Samples and bytes so far, replaced together: another thread reads them."""

    def add(self, part: EncodedSamples) -> None:
        """Count the next part."""
        samples, num_bytes = self._read
        self._read = (samples + part.num_samples, num_bytes + part.num_raw_bytes)

    def num_samples(self) -> int:
        """Return the estimate, exact after reading; 0 where there is none."""
        samples, num_bytes = self._read
        return samples * self._num_bytes // num_bytes if num_bytes else 0


def _batches(encoded: Generator[EncodedSamples], batch_size: int, on_part: OnPart) -> Generator[Batch]:
    def told() -> Iterator[EncodedSamples]:
        for part in encoded:
            on_part(part)
            yield part

    with closing(encoded):
        yield from batches_of(told(), batch_size)


def _numbered(batches: Iterable[Batch], held: dict[int, Batch]) -> Iterator[int]:
    """Yield the number of each batch, which is held until it is predicted.

    A stream is read once.
    """
    for number, batch in enumerate(batches):
        held[number] = batch
        yield number
