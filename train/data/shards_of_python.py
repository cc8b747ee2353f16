"""`hotset.Shards`: tables, batches, counts and categories of shards, as arrays and frames."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError, local_path
from ...pipeline.formats.user_data import CategoryIds, array_of
from ...pipeline.schema.schema import nearest
from ...pipeline.schema.schema_file import schema_of
from ...pipeline.stages.row_order import read_tables
from .batch import Batch
from .shards import ShardOrigin
from .shards import Shards as Opened

if TYPE_CHECKING:
    import polars as pl

_CATEGORY = "category"


def categories_of(found: CategoryIds, ids: Any) -> pl.Series:
    """Return the category of each id as a column; raises ConfigError for what is no id of the table."""
    import polars as pl

    numbers = array_of(ids)
    if not pa.types.is_integer(numbers.type) or numbers.null_count:
        raise ConfigError(f"ids must be whole numbers, got {numbers.type}")
    return pl.Series(_CATEGORY, found.categories(numbers.to_numpy(zero_copy_only=False)))


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
        self._shards = Opened.open(local_path(data))

    def __repr__(self) -> str:
        """Return folder, tables, rows and samples in one line."""
        tables = self._shards.tables
        samples = ", ".join(f"{count:,} {part} samples" for part, count in self.num_samples.items())
        num_rows = sum(table.num_rows for table in tables)
        return f"Shards({str(self.folder)!r}, {len(tables)} tables, {num_rows:,} rows, {samples})"

    def _repr_html_(self) -> str:
        """Return the line above and the tables, as a notebook shows them."""
        return f"<p>{escape(repr(self))}</p>{self.tables._repr_html_()}"

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
            ``is_hot``, (B,) bool, says of evaluation samples whether all of their rows are hot. Where the log
            has them: ``label_NAME`` and ``weight``, float32, ``group``, uint64, and ``has_group``, bool.

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
        """Return how often the training part looked up each row of a table.

        The array is (num_rows,) in the order of ids.

        Raises:
            ConfigError: there is no such table, or the folder has no vocabulary.
        """
        names = [each.name for each in self._shards.tables]
        if table not in names:
            raise ConfigError(f"{self.folder} has no table {table!r}", hint=nearest(table, names))
        return read_tables(self._origin().vocabulary, "count")[names.index(table)]

    def ids(self, table: str, categories: Any) -> NDArray[np.int32]:
        """Return the id of each category of a table, (N,); see `FittedRun.vectors`."""
        return self._categories_of(table).ids(array_of(categories))

    def categories(self, table: str, ids: Any) -> pl.Series:
        """Return the category of each id of a table, as the log writes it; see `FittedRun.categories`."""
        return categories_of(self._categories_of(table), ids)

    def _categories_of(self, table: str) -> CategoryIds:
        origin = self._origin()
        return CategoryIds(origin.vocabulary, schema_of(origin.schema), table)

    def _origin(self) -> ShardOrigin:
        origin = ShardOrigin.of(self._shards)
        if origin is None:
            raise ConfigError(f"{self.folder} has no vocabulary next to it: open the folder of all stages")
        return origin

    def _arrays(self, batch: Batch) -> dict[str, Any]:
        arrays: dict[str, Any] = {"label": batch.label_B.numpy(), "dense": batch.dense_BK.numpy()}
        arrays |= batch.of_samples
        if batch.is_hot_B is not None:
            arrays["is_hot"] = batch.is_hot_B.astype(np.bool_)
        for name, ids, offsets in batch.features(self._shards.tables):
            arrays[name] = ids if offsets is None else (offsets, ids)
        return arrays
