"""Shards with drawn ids, for models of any size without a log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..pipeline.folders.output import Output
from ..pipeline.folders.totals import KindCounts, PlannedTable, ShardFacts, ShardKind, ShardsTotals
from ..pipeline.formats.arrow_files import as_fixed_lists
from ..pipeline.formats.batch_checksums import note_checksums, write_checksums, write_shard
from ..pipeline.stages.pack import VERSION, PackConfig
from ..stats.row_bytes import row_bytes

_ZIPF_ONE = 1e-9
"""Exponents nearer to 1 than this count as 1, whose integral is a logarithm."""
_FILE_SAMPLES = 1 << 22
"""Approximate samples of a file; stages work on files in parallel."""

Samples = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]
"""Labels (B,), dense values (B, K), and ids (B, F * pooling), those of a table next to each other."""
Part = tuple[int, Callable[[int, int], Samples]]
"""The number of samples of a kind, and a function that returns those from a first one to a last."""


def write_shards(
    folder: Path,
    tables: Sequence[PlannedTable],
    parts: Mapping[ShardKind, Part],
    *,
    num_dense: int,
    batch_size: int,
    embedding_dim: int,
    optimizer: str,
) -> None:
    """Write samples as `pack` writes shards; only the last batch of a kind is short.

    Args:
        folder: the new folder of the shards.
        tables: features in order; either all or none are multi-hot.
        parts: samples by kind. Hot-only ones look up hot rows alone.
        num_dense: K.
        batch_size: samples of a batch.
        embedding_dim: of all tables.
        optimizer: of the rows whose bytes the hot ones are counted with.
    """
    # No plan was made for these shards, so its fingerprint is a made-up one.
    inputs = [{"name": "plan", "fingerprint": 32 * "0"}]
    output = Output.begin("pack", VERSION, PackConfig(batch_size=batch_size), inputs, folder)
    for kind, part in parts.items():
        _write_part(output, kind, part, tables, batch_size)
    width = row_bytes(embedding_dim, optimizer)
    num_hot_rows = sum(table.num_hot for table in tables)
    write_checksums(output)
    output.seal(
        ShardsTotals(
            tables=tuple(tables),
            row_bytes=width,
            num_rows=sum(table.num_rows for table in tables),
            num_hot_rows=num_hot_rows,
            hot_bytes=num_hot_rows * width,
            embedding_dim=embedding_dim,
            embedding_optimizer=optimizer,
            has_label=True,
            dense=tuple(f"I{number + 1}" for number in range(num_dense)),
            samples=KindCounts(**{kind: number for kind, (number, _) in parts.items()}),
            batches=KindCounts(**{kind: -(-number // batch_size) for kind, (number, _) in parts.items()}),
        )
    )


def _write_part(
    output: Output, kind: ShardKind, part: Part, tables: Sequence[PlannedTable], batch_size: int
) -> None:
    num_samples, draw = part
    file_samples = batch_size * max(_FILE_SAMPLES // batch_size, 1)
    for file, first in enumerate(range(0, num_samples, file_samples)):
        stop = min(first + file_samples, num_samples)
        starts = range(first, stop, batch_size)
        facts = ShardFacts(kind=kind, num_batches=len(starts))
        batches = (
            _as_batch(draw(start, min(start + batch_size, stop)), tables, is_tagged=kind == "evaluation")
            for start in starts
        )
        head = next(batches)
        name = f"{kind}-{file:05}.arrow"
        with output.writing(name, stop - first, facts) as path:
            note_checksums(output, name, write_shard(path, head.schema, chain([head], batches)))


def _as_batch(samples: Samples, tables: Sequence[PlannedTable], *, is_tagged: bool) -> pa.RecordBatch:
    label_B, dense_BK, ids_BX = samples
    is_multi_hot = tables[0].is_multi_hot
    pooling = ids_BX.shape[1] // len(tables)
    columns = {
        "label": pa.array(label_B),
        "dense": as_fixed_lists(dense_BK),
        "ids": as_fixed_lists(ids_BX[:, :0] if is_multi_hot else ids_BX),
    }
    if is_multi_hot:
        # One column of lists for each table, every list of the same length.
        offsets = pa.array(np.arange(label_B.size + 1, dtype=np.int32) * np.int32(pooling))
        for table, ids in zip(tables, np.split(ids_BX, len(tables), axis=1), strict=True):
            columns[table.name] = pa.ListArray.from_arrays(offsets, pa.array(ids.ravel()))
    if is_tagged:
        num_hot_X = np.repeat([table.num_hot for table in tables], pooling)
        columns["is_hot"] = pa.array((ids_BX < num_hot_X).all(axis=1).astype(np.uint8))
    return pa.record_batch(columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnShards:
    """A drawn log: the sizes of its tables, all alike, and what its samples look up."""

    num_tables: int = 26
    rows_of_table: int
    hot_rows_of_table: int = 0
    num_hot_batches: int = 0
    """Batches among ``num_batches`` that look up hot rows alone; they have the first numbers."""
    skew: float
    """Exponent of Zipf's law that lookups follow; 0: rows are alike."""
    num_dense: int = 13
    pooling: int = 1
    """Lookups of a sample in each table; more than one makes the features multi-hot."""
    batch_size: int = 2048
    num_batches: int
    num_evaluation: int = 1
    """Samples of the evaluation part."""
    embedding_dim: int = 16
    optimizer: str = "sgd"
    """Optimizer of the rows whose bytes the hot ones are counted with."""

    def write(self, folder: Path) -> None:
        """Draw the samples and write them as `pack` writes shards."""
        rng = np.random.default_rng(0)

        def draw(num_rows: int, first: int, stop: int) -> Samples:
            num_samples = stop - first
            ids = self._draw_ids((num_samples, self.num_tables * self.pooling), num_rows, rng)
            labels = rng.integers(0, 2, num_samples).astype(np.float32)
            return labels, rng.random((num_samples, self.num_dense), np.float32), ids

        of_all = partial(draw, self.rows_of_table)
        num_hot = self.num_hot_batches * self.batch_size
        parts: dict[ShardKind, Part] = {
            "hot_only": (num_hot, partial(draw, self.hot_rows_of_table)),
            "mixed": (self.num_batches * self.batch_size - num_hot, of_all),
            "evaluation": (self.num_evaluation, of_all),
        }
        tables = [
            PlannedTable(
                name=f"C{number + 1}",
                num_rows=self.rows_of_table,
                oov_id=self.rows_of_table - 1,
                missing_id=self.rows_of_table - 1,
                is_multi_hot=self.pooling > 1,
                num_hot=self.hot_rows_of_table,
            )
            for number in range(self.num_tables)
        ]
        write_shards(
            folder,
            tables,
            parts,
            num_dense=self.num_dense,
            batch_size=self.batch_size,
            embedding_dim=self.embedding_dim,
            optimizer=self.optimizer,
        )

    def _draw_ids(self, shape: tuple[int, int], num_rows: int, rng: np.random.Generator) -> NDArray[np.int32]:
        return zipf_ids(rng.random(shape), num_rows, self.skew)


def zipf_ids(uniform: NDArray[np.float64], num_rows: int, skew: float) -> NDArray[np.int32]:
    """Turn numbers drawn evenly from [0, 1) into ids by Zipf's law.

    The law is continuous: id k has the part of the density ``x**-skew`` between k + 1 and k + 2.
    """
    if abs(skew - 1) < _ZIPF_ONE:
        drawn = (num_rows + 1.0) ** uniform
    else:
        power = 1 - skew
        drawn = (1 + uniform * ((num_rows + 1.0) ** power - 1)) ** (1 / power)
    return np.minimum(drawn - 1, num_rows - 1).astype(np.int32)
