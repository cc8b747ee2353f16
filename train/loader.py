"""Shards as batches: memory-mapped Arrow files, wrapped by torch without a copy.

The files are mapped copy-on-write, which makes them writable to torch (it warns of read-only arrays)
and never writes a byte back. A batch costs a few dozen microseconds to wrap; what it holds is read
from the page cache when it is used.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from ..pipeline.arrow_files import DAMAGE
from ..pipeline.errors import HotsetError, ShardError
from ..pipeline.manifest import FileEntry, Manifest, first_line
from ..pipeline.output import hash_file
from ..pipeline.tasks import run_tasks
from ..stats.step_plans import first_stray_lookup

_STAGE, _VERSION = "pack", 1
_KINDS = ("hot_only", "mixed", "evaluation")
_PACK_AGAIN = "the shards are damaged: run `hotset pack` again"


@dataclass(frozen=True, slots=True)
class Table:
    """One embedding table as the shards know it."""

    name: str
    num_rows: int
    num_hot: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of samples on the host. Shapes: B samples, F tables, K dense features."""

    label_B: torch.Tensor
    """float32, each 0 or 1."""
    dense_BK: torch.Tensor
    """float32."""
    ids_BF: NDArray[np.int32]
    is_hot_B: NDArray[np.uint8] | None
    """1 where all look-ups of a sample are hot; evaluation batches only."""
    is_hot_only: bool
    """Whether every look-up is of a hot row; False for evaluation batches."""

    @property
    def num_samples(self) -> int:
        return int(self.ids_BF.shape[0])


@dataclass(frozen=True, slots=True)
class _Place:
    file: int
    index: int
    is_hot_only: bool


class ShardFile:
    """One Arrow IPC file, mapped; every array it gives is a view of the map."""

    def __init__(self, path: Path, entry: FileEntry) -> None:
        self.path, self.entry = path, entry
        try:
            self._map = np.memmap(path, np.uint8, mode="c")
            self._reader = pa.ipc.open_file(pa.py_buffer(self._map))
            num_batches = self._reader.num_record_batches
        except DAMAGE as error:
            raise _damaged(path, error) from error
        if num_batches != entry.facts.get("batches"):
            raise ShardError(
                f"{path} has {num_batches} batches, want {entry.facts.get('batches')}", hint=_PACK_AGAIN
            )

    def read(self, index: int, num_dense: int, num_features: int, *, is_hot_only: bool) -> Batch:
        """Wrap batch ``index``; raises ShardError where the columns are not those of a shard."""
        try:
            batch = self._reader.get_batch(index)
            batch.validate()
            names = set(batch.schema.names)
            label_B = self._array(batch, "label", pa.float32())
            is_hot_B = self._array(batch, "is_hot", pa.uint8()) if "is_hot" in names else None
            dense_BK = self._matrix(batch, "dense", pa.float32(), num_dense)
            ids_BF = self._matrix(batch, "ids", pa.int32(), num_features)
        except DAMAGE as error:
            raise _damaged(self.path, error) from error
        return Batch(torch.from_numpy(label_B), torch.from_numpy(dense_BK), ids_BF, is_hot_B, is_hot_only)

    def _array(self, batch: Any, name: str, kind: Any) -> NDArray[Any]:
        column = batch.column(name)
        if column.type != kind:
            raise TypeError(f"column {name!r} is {column.type}, want {kind}")
        return self._view(column.buffers()[1], column.offset, len(column), kind)

    def _matrix(self, batch: Any, name: str, kind: Any, width: int) -> NDArray[Any]:
        column = batch.column(name)
        if column.type != pa.list_(kind, width):
            raise TypeError(f"column {name!r} is {column.type}, want {pa.list_(kind, width)}")
        first, count = column.offset * width, len(column) * width
        return self._view(column.values.buffers()[1], first, count, kind).reshape(len(column), width)

    def _view(self, buffer: Any, first: int, count: int, kind: Any) -> NDArray[Any]:
        dtype = np.dtype(kind.to_pandas_dtype())
        if count == 0:
            return np.empty(0, dtype)
        start = buffer.address - self._map.ctypes.data + first * dtype.itemsize
        stop = start + count * dtype.itemsize
        if start < 0 or stop > self._map.size or first + count > buffer.size // dtype.itemsize:
            raise ValueError(f"a buffer of {buffer.size} bytes holds no {count} values of {dtype}")
        return np.asarray(self._map[start:stop]).view(dtype)


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
                Table(str(table["name"]), int(table["num_rows"]), int(table["num_hot"]))
                for table in totals["tables"]
            )
            self.num_dense = len(totals["dense"])
            if not totals["has_label"]:
                raise ShardError(
                    f"{manifest.folder} has no labels: its log was read with --no-label",
                    hint="train and evaluate need a log with labels",
                )
            self.embedding_dim = int(totals["embedding_dim"])
            self.row_bytes = int(totals["row_bytes"])
            self.batch_size = int(manifest.config["batch_size"])
            self.is_grouped = manifest.config["order"] == "grouped"
            self._num_rows_F = np.array([table.num_rows for table in self.tables], np.int64)
            self._num_hot_F = np.array([table.num_hot for table in self.tables], np.int64)
            if min(self.embedding_dim, self.row_bytes, self.batch_size) < 1:
                raise ValueError("embedding_dim, row_bytes or batch_size below 1")
            self._files = [ShardFile(manifest.checked_path(entry), entry) for entry in manifest.files]
            self._training, self._evaluation = self._places()
        except HotsetError:
            raise
        except DAMAGE as error:
            raise ShardError(
                f"the manifest of {manifest.folder} is damaged or lacks {first_line(error)}", hint=_PACK_AGAIN
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
                    hint=_PACK_AGAIN,
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
            raise ShardError(f"{self._files[place.file].path}: no column 'is_hot'", hint=_PACK_AGAIN)
        return batch

    def _read(self, place: _Place) -> Batch:
        file = self._files[place.file]
        batch = file.read(place.index, self.num_dense, len(self.tables), is_hot_only=place.is_hot_only)
        where = f"{file.path}: batch {place.index}"
        left = self.manifest.files[place.file].num_samples - place.index * self.batch_size
        if batch.num_samples != min(left, self.batch_size):
            raise ShardError(
                f"{where} has {batch.num_samples} samples, want {min(left, self.batch_size)}",
                hint=_PACK_AGAIN,
            )
        stray = first_stray_lookup(batch.ids_BF, self._num_hot_F if batch.is_hot_only else self._num_rows_F)
        if stray >= 0:
            table, found = self.tables[stray % len(self.tables)], batch.ids_BF.flat[stray]
            wanted = f"{table.num_hot} hot rows" if batch.is_hot_only else f"{table.num_rows} rows"
            raise ShardError(f"{where}: id {found} in table {table.name} of {wanted}", hint=_PACK_AGAIN)
        return batch


def _damaged(path: Path, error: Exception) -> ShardError:
    return ShardError(f"{path} cannot be read: {first_line(error)}", hint=_PACK_AGAIN)
