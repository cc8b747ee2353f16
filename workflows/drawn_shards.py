"""Shards with drawn ids, for models of any size without a log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..pipeline.folders.manifest import ShardFacts, ShardKind
from ..pipeline.folders.output import Output
from ..pipeline.folders.totals import KindCounts, PlannedTable, ShardsTotals
from ..pipeline.formats.arrow_files import as_fixed_lists, open_writer
from ..pipeline.stages.pack import VERSION, PackConfig
from ..stats.ranking.row_bytes import row_bytes

_ZIPF_ONE = 1e-9
"""Exponents nearer to 1 than this count as 1, whose integral is a logarithm."""


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

    @property
    def is_multi_hot(self) -> bool:
        """Whether the features are lists."""
        return self.pooling > 1

    @property
    def table_names(self) -> list[str]:
        """Names of the tables."""
        return [f"C{number + 1}" for number in range(self.num_tables)]

    def write(self, folder: Path) -> None:
        """Draw the samples and write them as `pack` writes shards."""
        inputs = [{"name": "plan", "fingerprint": 32 * "0"}]
        output = Output.begin("pack", VERSION, PackConfig(batch_size=self.batch_size), inputs, folder)
        rng = np.random.default_rng(0)
        if self.num_hot_batches:
            self._write_file(output, "hot_only", self.num_hot_batches * self.batch_size, rng)
        num_mixed = self.num_batches - self.num_hot_batches
        self._write_file(output, "mixed", num_mixed * self.batch_size, rng)
        self._write_file(output, "evaluation", self.num_evaluation, rng)
        output.seal(self._totals())

    def _write_file(
        self, output: Output, kind: ShardKind, num_samples: int, rng: np.random.Generator
    ) -> None:
        num_batches = -(-num_samples // self.batch_size)
        facts = ShardFacts(kind=kind, num_batches=num_batches)
        is_tagged = kind == "evaluation"
        num_rows = self.hot_rows_of_table if kind == "hot_only" else self.rows_of_table
        fields = [
            pa.field("label", pa.float32()),
            pa.field("dense", pa.list_(pa.float32(), self.num_dense)),
            pa.field("ids", pa.list_(pa.int32(), 0 if self.is_multi_hot else self.num_tables)),
        ]
        if self.is_multi_hot:
            fields += [pa.field(name, pa.list_(pa.int32())) for name in self.table_names]
        schema = pa.schema(fields + ([pa.field("is_hot", pa.uint8())] if is_tagged else []))
        with (
            output.writing(f"{kind}-00000.arrow", num_samples, facts) as path,
            open_writer(path, schema) as writer,
        ):
            for number in range(num_batches):
                count = min(self.batch_size, num_samples - number * self.batch_size)
                shape = (count, self.num_tables * self.pooling)
                ids = self._draw_ids(shape, num_rows, rng)
                columns = [
                    pa.array(rng.integers(0, 2, count).astype(np.float32)),
                    as_fixed_lists(rng.random((count, self.num_dense), np.float32)),
                    as_fixed_lists(ids[:, :0] if self.is_multi_hot else ids),
                ]
                if self.is_multi_hot:
                    columns += self._bags(ids)
                if is_tagged:
                    columns.append(pa.array((ids < self.hot_rows_of_table).all(axis=1).astype(np.uint8)))
                writer.write_batch(pa.record_batch(columns, schema=schema))

    def _draw_ids(
        self, shape: tuple[int, int], num_rows: int, rng: np.random.Generator
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        return zipf_ids(rng.random(shape), num_rows, self.skew)

    def _bags(self, ids: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> list[pa.Array]:
        """One column of lists for each table, every list of the same length."""
        offsets = pa.array(np.arange(ids.shape[0] + 1, dtype=np.int32) * np.int32(self.pooling))
        of_tables = np.split(ids, self.num_tables, axis=1)
        return [pa.ListArray.from_arrays(offsets, pa.array(own.ravel())) for own in of_tables]

    def _totals(self) -> ShardsTotals:
        tables = tuple(
            PlannedTable(
                name=name,
                num_rows=self.rows_of_table,
                oov_id=self.rows_of_table - 1,
                missing_id=self.rows_of_table - 1,
                is_multi_hot=self.is_multi_hot,
                num_hot=self.hot_rows_of_table,
            )
            for name in self.table_names
        )
        width = row_bytes(self.embedding_dim, self.optimizer)
        num_hot = self.num_tables * self.hot_rows_of_table
        num_evaluation = -(-self.num_evaluation // self.batch_size)
        num_mixed = self.num_batches - self.num_hot_batches
        return ShardsTotals(
            tables=tables,
            row_bytes=width,
            num_rows=self.num_tables * self.rows_of_table,
            num_hot_rows=num_hot,
            hot_bytes=num_hot * width,
            embedding_dim=self.embedding_dim,
            embedding_optimizer=self.optimizer,
            has_label=True,
            dense=tuple(f"I{number + 1}" for number in range(self.num_dense)),
            samples=KindCounts(
                hot_only=self.num_hot_batches * self.batch_size,
                mixed=num_mixed * self.batch_size,
                evaluation=self.num_evaluation,
            ),
            batches=KindCounts(hot_only=self.num_hot_batches, mixed=num_mixed, evaluation=num_evaluation),
        )


def zipf_ids(
    uniform: np.ndarray[tuple[int, ...], np.dtype[np.float64]], num_rows: int, skew: float
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Turn numbers drawn evenly from [0, 1) into ids by Zipf's law.

    The law is continuous: id k has the part of the density ``x**-skew`` between k + 1 and k + 2.
    """
    if abs(skew - 1) < _ZIPF_ONE:
        drawn = (num_rows + 1.0) ** uniform
    else:
        power = 1 - skew
        drawn = (1 + uniform * ((num_rows + 1.0) ** power - 1)) ** (1 / power)
    return np.minimum(drawn - 1, num_rows - 1).astype(np.int32)
