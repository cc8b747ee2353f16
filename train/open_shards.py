"""Shards from Python: `hotset.Shards`, their tables, batches and counts as NumPy arrays and Polars frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..pipeline.errors import ConfigError
from ..pipeline.folders.manifest import Manifest
from ..pipeline.schema.schema import nearest
from ..pipeline.stages.row_order import read_tables
from .data import shards as _shards
from .data.batch import Batch
from .data.shard_origin import ShardOrigin

if TYPE_CHECKING:
    import polars as pl

BatchKind = Literal["hot_only", "mixed", "training", "evaluation"]


class Shards:
    """The shards that `hotset.preprocess` wrote.

    Args:
        data: the folder of all stages, or its ``shards/`` alone.

    Raises:
        HotsetError: there are none, or they are damaged or without labels.

    Example:
        ``shards = hotset.Shards("data"); print(shards.tables); batch = next(shards.batches())``
    """

    def __init__(self, data: str | Path) -> None:
        self._shards = _shards.Shards.open(Path(data))

    @property
    def folder(self) -> Path:
        """Folder of the shards."""
        return self._shards.manifest.folder

    @property
    def batch_size(self) -> int:
        """Samples of a batch; the last one of each kind may have fewer."""
        return self._shards.batch_size

    @property
    def num_dense(self) -> int:
        """Number of dense features."""
        return self._shards.num_dense

    @property
    def num_samples(self) -> dict[str, int]:
        """Samples of the training part and of the evaluation part."""
        return {
            "training": self._shards.num_training_samples,
            "evaluation": self._shards.num_evaluation_samples,
        }

    @property
    def tables(self) -> pl.DataFrame:
        """A row for each table: `table`, `num_rows`, `num_hot`, `embedding_dim` and `is_multi_hot`."""
        import polars as pl

        tables = self._shards.tables
        return pl.DataFrame(
            {
                "table": [table.name for table in tables],
                "num_rows": [table.num_rows for table in tables],
                "num_hot": [table.num_hot for table in tables],
                "embedding_dim": [table.embedding_dim for table in tables],
                "is_multi_hot": [table.is_multi_hot for table in tables],
            }
        )

    def batches(self, kind: BatchKind = "training") -> Iterator[dict[str, Any]]:
        """Yield the batches of a kind in the order in which they are stored.

        Returns:
            Dictionaries of read-only arrays: ``label`` (B,) float32, ``dense`` (B, K) float32, and of each
            table its ids: (B,) int32, or for a multi-hot table a pair of offsets, (B + 1,) int32, and ids.
            ``is_hot``, (B,) bool, tells of evaluation samples whether all of their rows are hot.

        Raises:
            ConfigError: there is no such kind.
            ShardError: a damaged file.
        """
        # Evaluation batches are numbered apart from those that are trained on.
        shards = self._shards
        if kind == "evaluation":
            for number in range(shards.num_evaluation_batches):
                yield self._arrays(shards.evaluation_batch(number))
            return
        wanted = {"hot_only": (True,), "mixed": (False,), "training": (True, False)}
        if kind not in wanted:
            raise ConfigError(f"there are no batches {kind!r}", hint=nearest(kind, [*wanted, "evaluation"]))
        for number, is_hot_only in enumerate(shards.is_hot_only.tolist()):
            if is_hot_only in wanted[kind]:
                yield self._arrays(shards.training_batch(number))

    def counts(self, table: str) -> NDArray[np.int64]:
        """Return how often the training part looked up each row of a table, (num_rows,) in the order of ids.

        Raises:
            ConfigError: there is no such table, or the vocabulary is not beside the shards.
        """
        names = [each.name for each in self._shards.tables]
        if table not in names:
            raise ConfigError(f"{self.folder} has no table {table!r}", hint=nearest(table, names))
        return read_tables(self._vocabulary(), "count")[names.index(table)]

    def _vocabulary(self) -> Manifest:
        origin = ShardOrigin.of(self._shards)
        if origin is None:
            raise ConfigError(f"{self.folder} has no vocabulary beside it: open the folder of all stages")
        return origin.vocabulary

    def _arrays(self, batch: Batch) -> dict[str, Any]:
        # Ids of one-hot tables are columns of one matrix, those of the others are bags, both in table order.
        columns = iter(batch.ids_BF.T)
        bags = iter(batch.bags)
        arrays: dict[str, Any] = {"label": batch.label_B.numpy(), "dense": batch.dense_BK.numpy()}
        if batch.is_hot_B is not None:
            arrays["is_hot"] = batch.is_hot_B.astype(np.bool_)
        for table in self._shards.tables:
            if table.is_multi_hot:
                of_table = next(bags)
                arrays[table.name] = (of_table.offsets_B1, of_table.ids_N)
            else:
                arrays[table.name] = next(columns)
        return arrays
