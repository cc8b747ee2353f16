"""The distinct cold rows of every mixed batch of shards, in files without a name beside the output.

Batches keep their rows whatever the order they are trained in, so the shards are read once for all epochs.
Eight bytes a distinct row and batch lie on the disk while a schedule is made, and in the page cache; in
memory only what the tasks at work have found.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.batches.bags import scatter_bags
from ...stats.staging.cold_rows import add_cold_rows, free_cells
from ..errors import ShardError
from ..folders.manifest import FileEntry, Manifest, first_line
from ..folders.output import PARTIAL, Output
from ..formats.arrow_files import DAMAGE
from ..formats.part_ids import PartIds
from ..formats.tables import is_multi_hot
from ..runtime.memory import spill_errors_explained
from ..runtime.tasks import ProgressCallback, run_tasks
from ..runtime.thread_buffers import scratch

_HINT = "the shards are damaged: run `hotset pack` again"


@dataclass(frozen=True, slots=True)
class Width:
    """The tables of one row width, and how their cold rows are numbered."""

    embedding_dim: int
    tables: tuple[int, ...]
    """Their positions among all tables, ascending."""
    first: NDArray[np.int64]
    """(num_tables,), first cold id of each."""
    last: NDArray[np.int64]
    """(num_tables,), one past its last id."""
    base: NDArray[np.int64]
    """(num_tables,), key of the row ``first``."""

    @property
    def num_rows(self) -> int:
        """Cold rows of all these tables; keys are below it."""
        return int((self.last - self.first).sum())


def widths_of(shards: Manifest) -> list[Width]:
    """The row widths of shards, in the order of the tables."""
    tables, common = shards.totals["tables"], shards.totals["embedding_dim"]
    dims = [int(table.get("embedding_dim", common)) for table in tables]
    widths = []
    for dim in dict.fromkeys(dims):
        chosen = tuple(number for number, found in enumerate(dims) if found == dim)
        first = np.array([tables[number]["num_hot"] for number in chosen], np.int64)
        last = np.array([tables[number]["num_rows"] for number in chosen], np.int64)
        base = np.cumsum(last - first) - (last - first)
        widths.append(Width(dim, chosen, first, last, base))
    return widths


@dataclass(frozen=True, slots=True)
class ColdBatches:
    """Distinct cold rows of one width, batch after batch."""

    offsets: NDArray[np.int64]
    """(num_batches + 1,); where the rows of each mixed batch begin."""
    rows: NDArray[np.int32]
    """(num_entries,), mapped; keys in order of first appearance by sample, then feature."""
    lookups: NDArray[np.int32]
    """(num_entries,), mapped; look-ups of each."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What one file's batches hold of one width."""

    sizes: NDArray[np.int64]
    rows: NDArray[np.int32]
    lookups: NDArray[np.int32]


def mixed_files(shards: Manifest) -> Iterator[tuple[FileEntry, list[int]]]:
    """Files with mixed batches, and which of their batches these are."""
    for entry in shards.files:
        if entry.facts["kind"] == "mixed":
            hot_only = set(entry.facts.get("hot_only_batches", ()))
            yield entry, [number for number in range(entry.facts["batches"]) if number not in hot_only]


def read_cold_batches(
    shards: Manifest,
    widths: Sequence[Width],
    output: Output,
    *,
    workers: int,
    progress: ProgressCallback,
) -> list[ColdBatches]:
    """The mixed batches of ``shards`` in the order of the manifest, for each width.

    Raises:
        ShardError: a file is damaged, or an id outside its table.
        ManifestError: the disk has no room for them.
    """
    done, total = 0, shards.totals["samples"]["mixed"]
    sizes: list[list[NDArray[np.int64]]] = [[] for _ in widths]
    with ExitStack() as stack:
        stack.enter_context(spill_errors_explained(output))
        files = [
            [stack.enter_context(tempfile.TemporaryFile(dir=output.folder / PARTIAL)) for _ in range(2)]
            for _ in widths
        ]
        tasks = ((entry, batches, shards, widths) for entry, batches in mixed_files(shards))
        for num_samples, found_of_widths in run_tasks(_read_file, tasks, workers=workers, here=True):
            for width, found in enumerate(found_of_widths):
                sizes[width].append(found.sizes)
                for file, values in zip(files[width], (found.rows, found.lookups), strict=True):
                    file.write(values.data)
            done += num_samples
            progress("schedule", done, 2 * total)
        return [
            ColdBatches(_offsets(sizes[width]), *(_mapped(file) for file in files[width]))
            for width in range(len(widths))
        ]


def _offsets(sizes: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.concatenate([np.empty(0, np.int64), *sizes]))]).astype(np.int64)


def _mapped(file: Any) -> NDArray[np.int32]:
    file.flush()
    if file.tell() == 0:
        return np.empty(0, np.int32)
    return np.asarray(np.memmap(file, np.int32, "r"))


def _read_file(
    entry: FileEntry, batches: Sequence[int], shards: Manifest, widths: Sequence[Width]
) -> tuple[int, list[_Found]]:
    path, num_samples, distinct = shards.checked_path(entry), 0, DistinctRows()
    parts: list[list[_Batch]] = [[] for _ in widths]
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        for number in batches:
            batch = reader.get_batch(number)
            ids = PartIds.read(batch, shards.totals["tables"])
            num_samples += batch.num_rows
            for width, found in zip(widths, parts, strict=True):
                found.append(distinct.of_batch(ids, batch.num_rows, width))
    except StrayLookupError as error:
        raise ShardError(f"{path}: batch {number}: {error}", hint=_HINT) from error
    except DAMAGE as error:
        raise ShardError(f"{path} cannot be read: {first_line(error)}", hint=_HINT) from error
    return num_samples, [_joined(found) for found in parts]


_Batch = tuple[NDArray[np.int32], NDArray[np.int32]]


def _joined(batches: Sequence[_Batch]) -> _Found:
    nothing = np.empty(0, np.int32)
    rows, lookups = (np.concatenate([nothing, *(batch[i] for batch in batches)]) for i in range(2))
    return _Found(np.array([batch[0].size for batch in batches], np.int64), rows, lookups)


class StrayLookupError(Exception):
    """An id is outside its table."""


class DistinctRows:
    """Finds the distinct cold rows of one batch after the other, in memory that it uses again."""

    def __init__(self) -> None:
        self._cells = np.full(2, -1, np.int32)

    def of_batch(self, ids: PartIds, num_samples: int, width: Width) -> _Batch:
        """Rows and their look-ups; raises StrayLookupError."""
        if any(is_multi_hot(ids.tables[table]) for table in width.tables):
            one = np.ones(1, np.int64)
            return self._find(_keyed(ids, num_samples, width), one, one + width.num_rows, one - 1)
        of_matrix = [table for table, entry in enumerate(ids.tables) if not is_multi_hot(entry)]
        columns = [of_matrix.index(table) for table in width.tables]
        matrix = ids.matrix if len(columns) == ids.matrix.shape[1] else ids.matrix[:, columns]
        try:
            return self._find(matrix, width.first, width.last, width.base)
        except StrayLookupError as error:
            feature = int(error.args[0]) % len(columns)
            raise _stray(matrix[:, feature], width.last[feature], ids.tables[width.tables[feature]]) from None

    def _find(
        self,
        matrix: NDArray[np.int32],
        first: NDArray[np.int64],
        last: NDArray[np.int64],
        base: NDArray[np.int64],
    ) -> _Batch:
        if self._cells.size <= 2 * matrix.size:
            self._cells = np.full(1 << int(2 * matrix.size).bit_length(), -1, np.int32)
        rows, lookups = (scratch(name, (matrix.size,), np.int32) for name in ("cold rows", "cold lookups"))
        num_rows = add_cold_rows(matrix, first, last, base, self._cells, rows, lookups)
        if num_rows < 0:
            raise StrayLookupError(-1 - num_rows)
        free_cells(rows, num_rows, self._cells)
        return rows[:num_rows].copy(), lookups[:num_rows].copy()


def _stray(ids: NDArray[np.int32], limit: int, table: dict[str, Any]) -> StrayLookupError:
    found = ids[(ids < 0) | (ids >= limit)][0]
    return StrayLookupError(f"id {found} in table {table['name']} of {limit} rows")


def _keyed(ids: PartIds, num_samples: int, width: Width) -> NDArray[np.int32]:
    """(num_lookups, 1) look-ups in sample, then feature order: 0 where hot, else 1 + the row's key."""
    num_features = len(width.tables)
    lengths = np.ones((num_samples, num_features), np.int64)
    by_table = dict(enumerate(ids.ids))
    for feature, table in enumerate(width.tables):
        name = ids.tables[table]["name"]
        if name in ids.lists:
            lengths[:, feature] = np.diff(ids.lists[name][0])
    starts = np.cumsum(lengths.reshape(-1)) - lengths.reshape(-1)
    keyed = np.empty(int(lengths.sum()), np.int32)
    for feature, table in enumerate(width.tables):
        found, name = by_table[table], ids.tables[table]["name"]
        if found.size and not 0 <= int(found.min()) <= int(found.max()) < width.last[feature]:
            raise _stray(found, width.last[feature], ids.tables[table])
        first = int(width.first[feature])
        keys = np.where(found < first, 0, found - (first - 1) + int(width.base[feature])).astype(np.int32)
        offsets = ids.lists[name][0] if name in ids.lists else np.arange(num_samples + 1, dtype=np.int32)
        scatter_bags(offsets, keys, starts, feature, num_features, keyed)
    return keyed[:, None]
