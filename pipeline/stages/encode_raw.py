"""Encode samples of a raw log or table for a trained model.

A log that is only predicted becomes no folders: its parts are parsed and encoded in threads, in order, and
at most some of them are in memory at a time. Every sample is kept: a line that does not match the schema is
refused, whatever `ingest` may skip.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import InputError, ManifestError
from ..folders.manifest import Manifest
from ..folders.totals import VocabularyTotals, one_hot
from ..formats.columns import transform_column
from ..formats.ids import FoundIds, PartIds
from ..raw.part import Fault, Part, RawParts, UnreadPart
from ..runtime.tasks import run_tasks
from ..schema.schema import Schema
from .encode import LoadedPiece, load_piece, whole_tables


@dataclass(frozen=True, slots=True)
class EncodedSamples:
    """Consecutive samples of a log."""

    dense: NDArray[np.float32]
    """(num_samples, dense features); transformed, 0 where missing."""
    ids: PartIds
    num_raw_bytes: int = 0
    """Bytes of the raw file that they were parsed from; of Parquet, their share of them."""

    @property
    def num_samples(self) -> int:
        return int(self.dense.shape[0])


class SampleEncoder:
    """Encode parsed samples by a finished vocabulary, whose hash tables are in memory.

    Args:
        schema: schema of the log that the vocabulary was made from.
        vocabulary: its sealed folder.
        workers: threads that build the hash tables; 0: one for each core.

    Raises:
        ManifestError: the vocabulary is damaged, or has other features than the schema.
    """

    def __init__(self, schema: Schema, vocabulary: Manifest, workers: int = 0) -> None:
        self.schema = schema
        self.tables = VocabularyTotals.of(vocabulary).tables
        names = tuple(table.name for table in self.tables)
        if names != schema.sparse:
            raise ManifestError(
                f"{vocabulary.folder} has the features {', '.join(names)}, "
                f"the schema has {', '.join(schema.sparse)}"
            )
        # Whole tables are loaded once and shared by the threads: lines are looked up as they arrive.
        loading = ((vocabulary, piece, None) for piece in whole_tables(vocabulary))
        self._pieces: list[LoadedPiece] = list(
            run_tasks(load_piece, loading, workers=workers, shares_memory=True)
        )

    def encode(self, part: Part) -> EncodedSamples:
        """Encode the samples of a part; the result shares no memory with the part."""
        arrays = [self._categories(piece, part) for piece in self._pieces]
        batch = pa.record_batch(arrays, names=[table.name for table in self.tables])
        found = FoundIds.unset(batch, self.tables)
        for piece, ids_N in zip(self._pieces, found.ids, strict=True):
            piece.find(batch, ids_N)
        # Categories without an id get that of oov, as in every stage.
        matrix = np.empty((part.num_samples, len(one_hot(self.tables))), np.int32)
        ids, _ = found.settle(part.num_samples, matrix)
        lists = {name: (offsets.copy(), flat) for name, (offsets, flat) in ids.lists.items()}
        return EncodedSamples(self._transform(part), replace(ids, lists=lists), part.num_raw_bytes)

    def _categories(self, piece: LoadedPiece, part: Part) -> Any:
        # A table in memory has 64 bits where Criteo's text has 32: the hash table decides.
        array = part.columns[piece.piece.table.name]
        is_short = piece.piece.category_bytes == 4
        return array.cast(pa.uint32()) if is_short and array.type != pa.uint32() else array

    def _transform(self, part: Part) -> NDArray[np.float32]:
        schema = self.schema
        every_sample = np.arange(part.num_samples, dtype=np.int32)
        dense = np.empty((part.num_samples, len(schema.dense)), np.float32)
        for column, name in zip(dense.T, schema.dense, strict=True):
            is_log = name not in schema.untransformed
            transform_column(
                part.columns[name], every_sample, column, is_float=name in schema.floats, is_log=is_log
            )
        return dense


def encode_parts(
    parts: RawParts, source: str, encoder: SampleEncoder, workers: int = 0
) -> Generator[EncodedSamples]:
    """Yield the samples of all parts in order; the threads end when the generator is closed.

    Args:
        parts: those of a raw file, or of a table in memory.
        source: name of the log in messages.
        workers: threads that parse and encode; 0: one for each core.

    Raises:
        InputError: a line does not match the schema.
    """
    tasks = ((part, encoder) for part in parts.iterate({}))
    num_lines = 0
    with closing(run_tasks(_encode_part, tasks, workers=workers, shares_memory=True)) as results:
        for found in results:
            if isinstance(found, Fault):
                # Lines count from the beginning of the log, its header included.
                line = num_lines + found.line_in_block + 1 + parts.num_header_lines
                raise InputError(f"{source}, {parts.unit} {line}{found.text}", hint=_hint(found))
            if found is not None:
                num_lines += found.num_samples
                yield found


def _encode_part(unread: UnreadPart, encoder: SampleEncoder) -> EncodedSamples | Fault | None:
    part = unread.read()
    if part is None:
        return None
    return part.fault or encoder.encode(part)


def _hint(fault: Fault) -> str:
    if fault.is_label_off:
        return "a log without labels is read with --no-label, one that has them without"
    return "fix the line: every line gets a prediction, so none is skipped"
