"""Another budget of hot rows than the shards were packed with.

A hot set is a prefix of the order over all tables, so any budget will do where batches were not made by it:
in shards of order `original`, whose samples were shuffled all together.
"""

from __future__ import annotations

from ...pipeline.errors import ConfigError
from ...pipeline.folders.manifest import Manifest
from ...pipeline.hot_rows.hot_order import HotOrder
from ...stats.ranking.row_bytes import row_bytes
from .shards import Shards


def with_hot_bytes(shards: Shards, hot_bytes: int, embedding_optimizer: str) -> Shards:
    """The same shards with as many hot rows as fit in ``hot_bytes``, counted with their optimizer's state.

    Raises:
        ConfigError: the shards are grouped by their own budget, or there is no vocabulary beside them.
    """
    if shards.is_grouped:
        raise ConfigError(
            f"the batches of {shards.manifest.folder} are grouped by the budget they were packed with",
            hint="leave --hot-bytes out, or pack with --order original",
        )
    folder = shards.manifest.folder.parent / "vocabulary"
    if not (folder / "manifest.json").exists():
        raise ConfigError(
            f"--hot-bytes needs the order of the rows, and there is no {folder}",
            hint="name the folder that `hotset preprocess --out` made",
        )
    vocabulary = Manifest.read(folder)
    found = [(table["name"], table["num_rows"]) for table in vocabulary.totals["tables"]]
    if found != [(table.name, table.num_rows) for table in shards.tables]:
        raise ConfigError(f"{folder} is not the vocabulary of {shards.manifest.folder}")
    sizes = [row_bytes(table.embedding_dim, embedding_optimizer) for table in shards.tables]
    num_hot, _ = HotOrder(vocabulary, sizes).num_hot(hot_bytes)
    return shards.with_hot_rows(num_hot)
