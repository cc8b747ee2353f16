"""Shards for other programs: a file for each split with named columns, or what a program's loader wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import ConfigError
from ..folders.disk import new_folder, paths_in
from ..folders.manifest import Manifest
from ..folders.partial_folder import write_errors_explained
from ..runtime.resources import DEFAULT_RESOURCES, Resources
from .column_files import BatchWriter, csv_writer, parquet_writer
from .column_map import write_column_map
from .fuxictr_files import FIRST_ID, write_feature_map
from .named_batches import NamedBatches, Split
from .planner_files import write_planner_files

ExportFormat = Literal["parquet", "csv", "fuxictr", "torchrec"]
"""Files of named columns, Parquet with FuxiCTR's feature map, or Parquet with the inputs of TorchRec's
planner."""
_WRITERS = {
    "parquet": parquet_writer,
    "csv": csv_writer,
    "fuxictr": parquet_writer,
    "torchrec": parquet_writer,
}
_SUFFIX = {"parquet": "parquet", "csv": "csv", "fuxictr": "parquet", "torchrec": "parquet"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedFile:
    """A file that was written."""

    name: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedShards:
    """The files and counts that `export_shards` wrote."""

    num_samples: dict[Split, int]
    """Samples of each split that is not empty."""
    files: tuple[ExportedFile, ...]


def export_shards(
    shards: Manifest, to: ExportFormat, out: Path, resources: Resources = DEFAULT_RESOURCES
) -> ExportedShards:
    """Write the samples of ``shards`` into the new folder ``out``, in the format ``to``.

    Training samples alternate evenly between hot-only and mixed batches, see `named_batches`. No more than a
    row group of each split is in memory.

    Raises:
        ConfigError: the format has no place for what the log has.
        ManifestError: ``out`` exists, or ``shards`` are damaged or no shards.
        ShardError: a batch is not what a shard holds.
    """
    batches = NamedBatches(shards, first_id=FIRST_ID if to == "fuxictr" else 0)
    # FuxiCTR takes one category a feature, and labels: other logs are refused before a file is written.
    if to == "fuxictr":
        refuse_other_logs(batches, to)
    # Parts without samples get no file.
    splits: list[Split] = [split for split, count in batches.num_samples.items() if count]
    total = sum(batches.num_samples.values())
    # The folder takes its name when everything is in it.
    with new_folder(out) as folder:
        done = 0
        for num_samples in _written(batches, to, splits, folder, resources.workers):
            done += num_samples
            resources.progress("export", done, total)
        if to == "fuxictr":
            write_feature_map(batches, folder, out.name)
        else:
            write_column_map(batches, folder)
        if to == "torchrec":
            write_planner_files(shards, folder)
    files = tuple(ExportedFile(name=path.name, num_bytes=path.stat().st_size) for path in paths_in(out))
    return ExportedShards(num_samples={split: batches.num_samples[split] for split in splits}, files=files)


def refuse_other_logs(batches: NamedBatches, to: str) -> None:
    """Raise ConfigError for a log with lists or without labels, which some programs cannot train on."""
    hint = "take --to parquet"
    lists = [table.name for table in batches.totals.tables if table.is_multi_hot]
    if lists:
        raise ConfigError(f"{to} holds one category a feature, and {lists[0]} has lists", hint=hint)
    if not batches.totals.has_label:
        raise ConfigError(f"{to} is for training, and the log has no labels", hint=hint)


def _written(
    batches: NamedBatches, to: ExportFormat, splits: list[Split], folder: Path, workers: int
) -> Iterator[int]:
    """Write all files of samples; yields the samples of each batch as it is written."""
    # One file for each part, batch by batch, so that memory does not grow with the log.
    for split in splits:
        path = folder / f"{split}.{_SUFFIX[to]}"
        opened: AbstractContextManager[BatchWriter] = _WRITERS[to](path, batches.schema)
        with write_errors_explained(path), opened as write:
            for batch in batches.batches(split, workers):
                write(batch)
                yield len(batch)
