"""Predicts a raw log or a table in memory with a run, whose tables it finds by category.

Categories are 64-bit numbers, compared as signed ones: integers as they are (unsigned ones above 2**63 as
negative), 8 hex digits by their value, texts by xxh3-64. Exported rows are as trained, half as wide, or 8
bits with a scale of each row: a row of 16 floats takes 64 bytes in fp32, 32 in fp16 and bf16, and 24 in int8.
The description of the model in an exported folder is enough to build it again from the tensors.

Threads parse and encode ahead while batches are scored in order, so memory holds some parts of the log
whatever its length. Batches are cut from the encoded samples wherever the parts of the log end. At the batch
size and type of an evaluation, the logits have its bits.

A run whose shards' folder had a vocabulary keeps it, as links where the disk allows it: such a run predicts
alone, wherever it is moved. One that was trained on shards alone needs the folder that `preprocess` wrote.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import MIB, ConfigError, FormatError, HotsetError, ManifestError, first_line
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.totals import ColumnsTotals, VocabularyTotals
from ...pipeline.formats.arrow_files import read_batch, values_of
from ...pipeline.formats.columns import score_columns, write_scores
from ...pipeline.raw.columnar_parts import TableParts
from ...pipeline.raw.log_files import inspect_logs
from ...pipeline.raw.log_parts import beside, check_columns, kept_columns, open_parts, refuse_name
from ...pipeline.raw.part import RawParts
from ...pipeline.raw.raw_file import RawFile
from ...pipeline.runtime.tasks import ProgressCallback, silent
from ...pipeline.schema.schema import Schema
from ...pipeline.schema.schema_file import schema_of
from ...pipeline.stages.encode import EncodedSamples, SampleEncoder, encode_parts
from ...stats.metrics import probabilities
from ..build_embeddings import set_threads
from ..build_model import ModelSource
from ..config import CONFIG, ROW_TYPES, PredictConfig, RowType, RunConfig, read_config, read_object
from ..data.batch import Batch, EmbeddingTable, FeatureBags, join
from ..data.shards import CRITEO
from ..evaluate import answers_of, load_model
from ..run_folder.files import VOCABULARY
from ..run_folder.weights import WEIGHTS, Weights, read_manifest, read_weights
from ..threads import BackgroundIterator

_STAGES = ("rank", "adopt")
_OTHER_HINT = "name the folder whose shards the run was trained on"


@dataclass(frozen=True, slots=True)
class TableCategories:
    """The categories of one table that have a row."""

    table: EmbeddingTable
    oov_id: int
    """Row of all other categories."""
    missing_id: int
    """Row of a missing one."""
    categories_N: NDArray[np.int64]
    """Ascending, distinct."""
    ids_N: NDArray[np.int32]
    """The row of each."""


@dataclass(frozen=True, slots=True)
class RunTables:
    """The parts of a run that an export reads."""

    run: Path
    config: RunConfig
    weights: Weights
    schema: Schema
    vocabulary: Manifest
    """The sealed vocabulary by which the lines of a log become samples."""
    tables: tuple[EmbeddingTable, ...]
    """Tables of the run; none of their rows counts as hot."""
    fingerprint: str
    """That of the run."""
    schema_text: str
    """The schema as a setting."""

    @classmethod
    def open(cls, run: Path, vocabulary: Path | None = None) -> RunTables:
        """Open a finished run, its files hashed.

        Args:
            vocabulary: folder that `preprocess` wrote, for a run that keeps no vocabulary.

        Raises:
            HotsetError: the run is unfinished or damaged, or has no vocabulary.
        """
        # Cheap checks before anything is hashed.
        config = read_config(run)
        weights = read_weights(run)
        folder, text = open_vocabulary(run, config, vocabulary)
        schema = schema_of(text)
        tables = _tables(run, config, folder, schema)
        fingerprint = read_manifest(run, (CONFIG, WEIGHTS)).fingerprint
        return cls(run, config, weights, schema, folder, tables, fingerprint, text)

    def categories(self, progress: ProgressCallback = silent) -> Iterator[TableCategories]:
        """Yield the categories of each table, in their order.

        Args:
            progress: called with how far the caller is with them, in rows.
        """
        infos = VocabularyTotals.of(self.vocabulary).tables
        done = 0
        total = sum(table.num_rows for table in self.tables)
        progress("rows", done, total)
        for table, info in zip(self.tables, infos, strict=True):
            batch = read_batch(self.vocabulary, self.vocabulary.entry(f"{table.name}.arrow"))
            array = batch.column("category")
            found = values_of(array).astype(np.uint64).view(np.int64)
            if found.size != table.num_rows:
                folder = self.vocabulary.folder
                raise HotsetError(f"{folder} has {found.size} rows of {table.name}, want {table.num_rows}")
            # The rows of oov and of missing values are among the others, without a category.
            ids = np.arange(table.num_rows, dtype=np.int32)
            own = (ids != info.oov_id) & (ids != info.missing_id)
            order = np.argsort(found[own], kind="stable")
            yield TableCategories(table, info.oov_id, info.missing_id, found[own][order], ids[own][order])
            done += table.num_rows
            progress("rows", done, total)


def open_vocabulary(run: Path, config: RunConfig, given: Path | None = None) -> tuple[Manifest, str]:
    """Return the vocabulary that a run or a preprocessed folder keeps, and its schema as a setting.

    Args:
        given: folder that `preprocess` wrote; it comes before what the run keeps.

    Raises:
        ConfigError: the run keeps none, and none is given.
        ManifestError: it is damaged, or not the one whose ids the rows of the run have.
    """
    if given is not None:
        folder = Manifest.read(given / VOCABULARY)
        schema = ColumnsTotals.of(Manifest.read(given / "columns")).schema or CRITEO
    elif config.schema is not None and (run / VOCABULARY).is_dir():
        folder = Manifest.read(run / VOCABULARY)
        schema = config.schema
    else:
        raise ConfigError(
            f"{run} keeps no vocabulary: there was none next to the shards it was trained on",
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
    return folder, schema


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
        # The first table that differs, in words.
        described = f"{len(found) - 1} tables, the run {len(wanted) - 1}"
        for (name, size), (other, other_size) in zip(found, wanted, strict=False):
            if (name, size) != (other, other_size):
                described = f"{size} rows of {name}, the run {other_size} of {other}"
                break
        raise ManifestError(
            f"{folder.folder} is not the vocabulary of {run}: it has {described}", hint=_OTHER_HINT
        )
    return tuple(
        EmbeddingTable(
            table.name, table.num_rows, 0, width.embedding_dim, table.is_multi_hot, features=table.features
        )
        for table, width in zip(own, config.tables, strict=True)
    )


_TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_MOST_CODE = 255
_MOST = {"fp16": 65504.0, "int8": 1.7e38}
"""Largest values of a type: a code of int8 times its step is to stay within float32."""


def pack_rows(rows_ND: torch.Tensor, row_type: RowType) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return rows in another type.

    Args:
        rows_ND: (N, D) float32, finite.
        row_type: the type to store.

    Returns:
        (N, D) of that type, uint8 for int8; and for int8 (N, 2) float32, the least value of each row and the
        step between two codes, else None.

    Error:
        fp16 and bf16 round to the nearest; int8 is off by at most half a step, a 510th of the range of the
        row. Values beyond 65504 in fp16, and 1.7e38 in int8, are cut to these.
    """
    if row_type in _MOST:
        rows_ND = rows_ND.clamp(-_MOST[row_type], _MOST[row_type])
    if row_type != "int8":
        return rows_ND.to(_TORCH[row_type]), None
    low_N1 = rows_ND.amin(1, keepdim=True)
    step_N1 = (rows_ND.amax(1, keepdim=True) - low_N1) / _MOST_CODE
    # Rows of one value have a step of 0, and all their codes are 0.
    divisor_N1 = torch.where(step_N1 > 0, step_N1, torch.ones_like(step_N1))
    codes_ND = ((rows_ND - low_N1) / divisor_N1).round().clamp(0, _MOST_CODE).to(torch.uint8)
    return codes_ND, torch.cat([low_N1, step_N1], dim=1)


def unpack_rows(packed_ND: torch.Tensor, scale_N2: torch.Tensor | None) -> torch.Tensor:
    """Return rows that `pack_rows` packed as float32; exact but for what packing lost."""
    rows_ND = packed_ND.to(torch.float32)
    return rows_ND if scale_N2 is None else scale_N2[:, :1] + rows_ND * scale_N2[:, 1:]


MODEL = "model.json"


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """The model of an exported folder."""

    config: RunConfig
    """That of the run; its tables say which of them are multi-hot."""
    schema_text: str
    """Schema of the log, as a setting."""
    row_type: RowType

    @classmethod
    def of(cls, found: RunTables, row_type: RowType) -> Self:
        """Describe the model of a run."""
        pairs = zip(found.config.tables, found.tables, strict=True)
        tables = tuple(
            replace(own, is_multi_hot=table.is_multi_hot, features=table.features) for own, table in pairs
        )
        return cls(replace(found.config, tables=tables), found.schema_text, row_type)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file of an exported folder.

        Raises:
            HotsetError: it is missing or damaged.
        """
        path = folder / MODEL
        found = read_object(path, None)
        try:
            row_type = found["row_type"]
            text = found["schema"]
            if row_type not in ROW_TYPES or not isinstance(text, str):
                raise ValueError(f"row_type is {row_type!r}")
            config = found["config"]
        except (ValueError, KeyError, TypeError) as error:
            raise HotsetError(f"{path} cannot be read: {first_line(error)}") from error
        return cls(RunConfig.read(config, str(path)), text, row_type)

    @property
    def schema(self) -> Schema:
        """The schema of the log."""
        return schema_of(self.schema_text)

    def to_json(self) -> dict[str, Any]:
        """Return the contents of the file."""
        return {"row_type": self.row_type, "schema": self.schema_text, "config": self.config.to_json()}


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
