"""Draw shards of the Criteo Kaggle shape: tables, frequencies and clicks.

A category's id is its rank of frequency, as `rank` would make it, so nothing has to be counted or encoded,
and every row of the full shape exists although few samples are drawn. Rows are hot where they are looked up
often in the drawn samples; hot-only samples and the others are batched apart, as `pack` does.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...pipeline.folders.totals import PlannedTable, ShardKind
from ...pipeline.generate.generate import load_profile, scaled_num_rows, world_of
from ...pipeline.generate.kernel import draw_samples
from ...pipeline.runtime.tasks import num_workers
from ...train.data.shards import Shards
from ..drawn_shards import Samples, write_shards

HOT_SHARE = 0.0075
"""Share of all rows that is hot, by default."""
_PROFILE = "criteo-kaggle"
_PART_SAMPLES = 1 << 16
"""Samples that a core draws at a time, as int64."""


@dataclass(frozen=True, slots=True)
class KaggleSamples:
    """Drawn samples, before they are batched."""

    ids_NF: NDArray[np.int32]
    dense_NK: NDArray[np.float32]
    label_N: NDArray[np.float32]
    names: tuple[str, ...]
    num_rows: tuple[int, ...]

    def num_hot(self, share: float) -> tuple[int, ...]:
        """Return the prefix of each table that is hot, all together about ``share`` of the rows."""
        # The prefix with all rows looked up at least so often ends where no later row is. So take the largest
        # count from a row on, which only falls. The first row of a table is hot whatever its count.
        falling = []
        for table in range(len(self.num_rows)):
            counts = np.bincount(self.ids_NF[:, table], minlength=1)
            falling.append(np.maximum.accumulate(counts[::-1])[::-1][1:])
        # Rows of all prefixes by their least count, from which the lowest that is within the share follows.
        rows_by_count = np.bincount(np.concatenate(falling))
        num_hot = len(falling) + np.cumsum(rows_by_count[::-1])[::-1]
        least = max(1, int(np.count_nonzero(num_hot > share * sum(self.num_rows))))
        return tuple(1 + int(np.count_nonzero(each >= least)) for each in falling)


def draw_kaggle(num_samples: int, scale: float = 1.0) -> KaggleSamples:
    """Draw samples; ``scale`` divides the cardinalities of the tables, as `hotset generate` does."""
    world = world_of(_PROFILE, scale)
    columns = load_profile(_PROFILE).columns
    is_dense = np.array([column.is_dense for column in columns])
    tables = [column for column in columns if not column.is_dense]
    num_rows = [scaled_num_rows(column.num_rows, scale) for column in tables]
    ids_NF = np.empty((num_samples, len(tables)), np.int32)
    dense_NK = np.empty((num_samples, len(columns) - len(tables)), np.float32)
    label_N = np.empty(num_samples, np.float32)

    # Parts of a bounded size, drawn by all cores: a sample depends on its number alone.
    def draw(first: int) -> None:
        part = slice(first, min(first + _PART_SAMPLES, num_samples))
        num_drawn = part.stop - first
        ranks_NC = np.empty((num_drawn, len(columns)), np.int64)
        labels_N = np.empty(num_drawn, np.uint8)
        draw_samples(world, np.uint64(0), first, ranks_NC, np.empty(num_drawn, np.int64), labels_N)
        # Missing values are the first id, which most tables' missing values have by frequency.
        ids_NF[part] = np.minimum(np.maximum(ranks_NC[:, ~is_dense], 0), np.array(num_rows) - 1)
        dense_NK[part] = np.log1p(np.maximum(ranks_NC[:, is_dense], 0))
        label_N[part] = labels_N

    with ThreadPoolExecutor(num_workers(0)) as pool:
        list(pool.map(draw, range(0, num_samples, _PART_SAMPLES)))
    names = tuple(column.name for column in tables)
    return KaggleSamples(ids_NF, dense_NK, label_N, names, tuple(num_rows))


def write_kaggle_shards(
    samples: KaggleSamples,
    folder: Path,
    *,
    batch_size: int,
    embedding_dim: int,
    hot_share: float = HOT_SHARE,
    optimizer: str = "sgd",
    num_evaluation: int = 4096,
) -> Shards:
    """Write shards as `pack` does, the last samples for evaluation, and open them."""
    num_hot = samples.num_hot(hot_share)
    num_training = samples.label_N.size - num_evaluation
    # As the first rows of each table are hot, all ids of a hot sample are below their number.
    parts = np.split(samples.ids_NF[:num_training], range(_PART_SAMPLES, num_training, _PART_SAMPLES))
    is_hot_N = np.concatenate([(part < np.array(num_hot, np.int32)).all(axis=1) for part in parts])
    numbers: dict[ShardKind, NDArray[np.int64]] = {
        "hot_only": np.flatnonzero(is_hot_N),
        "mixed": np.flatnonzero(~is_hot_N),
        "evaluation": np.arange(num_training, samples.label_N.size),
    }

    def take(chosen: NDArray[np.int64], first: int, stop: int) -> Samples:
        part = chosen[first:stop]
        return samples.label_N[part], samples.dense_NK[part], samples.ids_NF[part]

    write_shards(
        folder,
        [
            PlannedTable(name=name, num_rows=rows, oov_id=rows - 1, missing_id=0, num_hot=hot)
            for name, rows, hot in zip(samples.names, samples.num_rows, num_hot, strict=True)
        ],
        {kind: (chosen.size, partial(take, chosen)) for kind, chosen in numbers.items()},
        num_dense=samples.dense_NK.shape[1],
        batch_size=batch_size,
        embedding_dim=embedding_dim,
        optimizer=optimizer,
    )
    return Shards.open(folder)
