"""A shard folder as tables and batches by number."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError, ShardError
from ...pipeline.folders.manifest import Manifest, first_line
from ...pipeline.folders.output import hash_file
from ...pipeline.formats.arrow_files import DAMAGE
from ...pipeline.runtime.tasks import run_tasks
from ...stats.batches.row_slots import first_stray_lookup
from ...stats.ranking.row_bytes import row_bytes
from .batch import Batch, Table
from .shard_file import PACK_AGAIN, Columns, ShardFile

_STAGE, _VERSION = "pack", 1
_KINDS = ("hot_only", "mixed", "evaluation")


@dataclass(frozen=True, slots=True)
class _Place:
    file: int
    index: int
    is_hot_only: bool


class Shards:
    """A sealed shard folder: its tables, and its batches by number.

    Training batches are numbered in the order of the manifest: those of the hot-only files, then those
    of the mixed ones. The number says nothing of when a batch is visited.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        totals = manifest.totals
        try:
            self.tables = tuple(
                Table(
                    str(table["name"]),
                    int(table["num_rows"]),
                    int(table["num_hot"]),
                    int(table.get("embedding_dim", totals["embedding_dim"])),
                    bool(table.get("is_multi_hot", False)),
                )
                for table in totals["tables"]
            )
            self.num_dense = len(totals["dense"])
            multi_hot = tuple(table.name for table in self.tables if table.is_multi_hot)
            self._columns = Columns(self.num_dense, len(self.tables) - len(multi_hot), multi_hot)
            if not totals["has_label"]:
                raise ShardError(
                    f"{manifest.folder} has no labels: its log was read with --no-label",
                    hint="train and evaluate need a log with labels",
                )
            self.embedding_dim = int(totals["embedding_dim"])
            self.embedding_optimizer = str(totals["embedding_optimizer"])
            row_bytes(self.embedding_dim, self.embedding_optimizer)  # refuses an unknown one
            self.batch_size = int(manifest.config["batch_size"])
            self.has_packed_budget = True
            self.is_grouped = manifest.config["order"] == "grouped"
            self._num_rows_F = np.array([table.num_rows for table in self.tables], np.int64)
            self._num_hot_F = np.array([table.num_hot for table in self.tables], np.int64)
            widths = [table.embedding_dim for table in self.tables]
            if min(self.embedding_dim, self.batch_size, *widths) < 1:
                raise ValueError("embedding_dim or batch_size below 1")
            self._files = [ShardFile(manifest.checked_path(entry), entry) for entry in manifest.files]
            self._training, self._evaluation = self._places()
        except HotsetError:
            raise
        except DAMAGE as error:
            raise ShardError(
                f"the manifest of {manifest.folder} is damaged or lacks {first_line(error)}", hint=PACK_AGAIN
            ) from error

    @classmethod
    def open(cls, folder: Path) -> Shards:
        """Open ``folder``, or its ``shards/``.

        Raises:
            ManifestError: missing, unfinished or damaged.
            ShardError: of another stage or version, or unlike what its manifest says.
        """
        inner = folder / "shards"
        manifest = Manifest.read(inner if inner.is_dir() else folder)
        if manifest.stage != _STAGE:
            raise ShardError(
                f"{manifest.folder} holds the stage {manifest.stage!r}, want {_STAGE!r}",
                hint="name the folder that `hotset preprocess --out` made, or its shards/",
            )
        if manifest.version != _VERSION:
            raise ShardError(
                f"{manifest.folder} has shards of version {manifest.version}, want {_VERSION}",
                hint="run `hotset pack` again with this version of hotset",
            )
        return cls(manifest)

    def with_hot_rows(self, num_hot: Sequence[int]) -> Shards:
        """The same batches where other prefixes of the tables are hot; all of them count as mixed."""
        other = copy.copy(self)
        other.tables = tuple(
            replace(table, num_hot=count) for table, count in zip(self.tables, num_hot, strict=True)
        )
        other._num_hot_F = np.array(num_hot, np.int64)
        other._training = [replace(place, is_hot_only=False) for place in self._training]
        other.__dict__.pop("is_hot_only", None)
        other.has_packed_budget = False
        return other

    def refuse_damage(self, kinds: Collection[str] = _KINDS) -> None:
        """Hash the files of these kinds: a flipped byte may well be a good number.

        Runs at the speed of memory, and what it reads stays in the page cache for the training to come.

        Raises:
            ShardError: the first file whose bytes are not those that were sealed.
        """
        files = [file for file in self._files if file.entry.facts["kind"] in kinds]
        found = run_tasks(hash_file, ((file.path,) for file in files))
        for file, (_, checksum) in zip(files, found, strict=True):
            if checksum != file.entry.xxh3_128:
                raise ShardError(
                    f"{file.path} is damaged: its checksum is {checksum}, want {file.entry.xxh3_128}",
                    hint=PACK_AGAIN,
                )

    def _places(self) -> tuple[list[_Place], list[_Place]]:
        places: dict[str, list[_Place]] = {kind: [] for kind in _KINDS}
        for number, entry in enumerate(self.manifest.files):
            kind = entry.facts["kind"]
            if kind not in places:
                raise ShardError(f"{self.manifest.folder / entry.path} is of an unknown kind {kind!r}")
            hot_only = set(entry.facts.get("hot_only_batches", ()))
            for index in range(entry.facts["batches"]):
                is_hot_only = kind == "hot_only" or index in hot_only
                places[kind].append(_Place(number, index, is_hot_only))
        return places["hot_only"] + places["mixed"], places["evaluation"]

    @cached_property
    def is_hot_only(self) -> NDArray[np.bool_]:
        """(num_training_batches,); whether each training batch looks up hot rows only."""
        return np.array([place.is_hot_only for place in self._training], np.bool_)

    @property
    def num_training_batches(self) -> int:
        return len(self._training)

    @property
    def num_evaluation_batches(self) -> int:
        return len(self._evaluation)

    @property
    def num_training_samples(self) -> int:
        counts = self.manifest.totals["samples"]
        return int(counts["hot_only"]) + int(counts["mixed"])

    def training_batch(self, number: int) -> Batch:
        """The training batch ``number``."""
        return self._read(self._training[number])

    def evaluation_batch(self, number: int) -> Batch:
        """The evaluation batch ``number``, in log order."""
        place = self._evaluation[number]
        batch = self._read(place)
        if batch.is_hot_B is None:
            raise ShardError(f"{self._files[place.file].path}: no column 'is_hot'", hint=PACK_AGAIN)
        return batch

    def _read(self, place: _Place) -> Batch:
        file = self._files[place.file]
        batch = file.read(place.index, self._columns, is_hot_only=place.is_hot_only)
        where = f"{file.path}: batch {place.index}"
        left = self.manifest.files[place.file].num_samples - place.index * self.batch_size
        if batch.num_samples != min(left, self.batch_size):
            raise ShardError(
                f"{where} has {batch.num_samples} samples, want {min(left, self.batch_size)}",
                hint=PACK_AGAIN,
            )
        self._refuse_strays(batch, where)
        return batch

    def _refuse_strays(self, batch: Batch, where: str) -> None:
        """Raise ShardError where an id is not in its table, or not hot in a hot-only batch."""
        limit_F = self._num_hot_F if batch.is_hot_only else self._num_rows_F
        one_hot = [number for number, table in enumerate(self.tables) if not table.is_multi_hot]
        stray = first_stray_lookup(batch.ids_BF, limit_F[one_hot])
        if stray >= 0:
            self._refuse_stray(one_hot[stray % len(one_hot)], batch.ids_BF.flat[stray], batch, where)
        multi_hot = [number for number, table in enumerate(self.tables) if table.is_multi_hot]
        for number, bags in zip(multi_hot, batch.bags, strict=True):
            stray = first_stray_lookup(bags.ids_N[:, None], limit_F[number : number + 1])
            if stray >= 0:
                self._refuse_stray(number, bags.ids_N[stray], batch, where)

    def _refuse_stray(self, number: int, found: int, batch: Batch, where: str) -> NoReturn:
        table = self.tables[number]
        wanted = f"{table.num_hot} hot rows" if batch.is_hot_only else f"{table.num_rows} rows"
        raise ShardError(f"{where}: id {found} in table {table.name} of {wanted}", hint=PACK_AGAIN)
