"""The distinct rows of every training batch of shards with the ranks that use them, beside the output.

As `cold_batches`, but of all rows, hot ones too: ranks exchange both. Five bytes for each distinct row and
batch lie on the disk for up to 8 ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...stats.exchange.home_plan import RowUses
from ...stats.exchange.rank_masks import Masks, mask_type, ranks_of_samples
from ...stats.exchange.row_users import RowMarks, mark_users, take_marked, unset_marks
from ..folders.file_facts import ShardFacts
from ..folders.manifest import FileEntry, Manifest
from ..folders.output import Output
from ..folders.stage_totals import ShardsTotals
from ..folders.temporary_files import AppendedArray
from ..formats.arrow_files import damage_named, open_hashed
from ..formats.part_ids import PartIds
from ..formats.stage_settings import ShardSettings
from ..formats.tables import one_hot
from ..runtime.resources import Resources
from ..runtime.tasks import run_tasks
from .cold_batches import ColdWidth, cold_widths

_Found = tuple[list[int], NDArray[np.int32], Masks]
"""Distinct rows of each batch of a file in a width, their keys, and the ranks that use them."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """The arguments of the tasks beside their file."""

    shards: Manifest
    widths: tuple[ColdWidth, ...]
    num_ranks: int


def whole_widths(shards: Manifest) -> list[ColdWidth]:
    """Return the row widths of shards with all of their rows."""
    return cold_widths(shards, [0] * len(ShardsTotals.of(shards).tables))


def training_files(shards: Manifest) -> Iterator[FileEntry]:
    """Yield the files of training batches in the order in which a trainer numbers these: hot-only first."""
    for kind in ("hot_only", "mixed"):
        yield from (entry for entry in shards.files if ShardFacts.of(shards, entry).kind == kind)


def read_ranked_batches(ranked: Ranked, output: Output, resources: Resources) -> list[RowUses]:
    """Read all training batches in the order of their numbers, for each width.

    Raises:
        ManifestError: a file is damaged, an id outside its table, or the disk has no room.
    """
    done = 0
    total = ShardsTotals.of(ranked.shards).samples
    kind = mask_type(ranked.num_ranks)
    sizes: list[list[int]] = [[0] for _ in ranked.widths]
    with ExitStack() as stack:
        keys, masks = (
            [stack.enter_context(closing(AppendedArray(output, dtype))) for _ in ranked.widths]
            for dtype in (np.int32, kind)
        )
        tasks = ((entry, ranked) for entry in training_files(ranked.shards))
        # Results come in the order of files, so appending keeps the order of batches.
        for num_samples, found_of_widths in run_tasks(
            _read_file, tasks, workers=resources.workers, shares_memory=True
        ):
            for width, (found_sizes, found_keys, found_masks) in enumerate(found_of_widths):
                sizes[width] += found_sizes
                keys[width].append(found_keys)
                masks[width].append(found_masks)
            done += num_samples
            resources.progress("schedule", done, 2 * (total.hot_only + total.mixed))
        return [
            RowUses(np.cumsum(sizes[n]), keys[n].map(), masks[n].map(), width.num_rows, ranked.num_ranks)
            for n, width in enumerate(ranked.widths)
        ]


def _read_file(entry: FileEntry, ranked: Ranked) -> tuple[int, list[_Found]]:
    """Hash a file and read its batches: a flipped bit may well be the id of another row."""
    shards = ranked.shards
    path = shards.checked_path(entry)
    batch_size = ShardSettings.of(shards).batch_size
    found: list[list[tuple[NDArray[np.int32], Masks]]] = [[] for _ in ranked.widths]
    marks = [unset_marks(width.num_rows, ranked.num_ranks) for width in ranked.widths]
    with damage_named(path):
        reader = open_hashed(shards, entry)
        for number in range(ShardFacts.of(shards, entry).num_batches):
            batch = reader.get_batch(number)
            ids = PartIds.read(batch, ShardsTotals.of(shards).tables)
            ids.refuse_strays(path)
            ranks_B = ranks_of_samples(batch.num_rows, batch_size, ranked.num_ranks, ranked.num_ranks)
            for width, of_width, rows in zip(ranked.widths, marks, found, strict=True):
                rows.append(_rows_of(ids, ranks_B, width, of_width))
    kind = mask_type(ranked.num_ranks)
    return entry.num_samples, [
        (
            [keys.size for keys, _ in rows],
            np.concatenate([np.empty(0, np.int32), *(keys for keys, _ in rows)]),
            np.concatenate([np.empty(0, kind), *(masks for _, masks in rows)]),
        )
        for rows in found
    ]


def _rows_of(
    ids: PartIds, ranks_B: NDArray[np.uint8], width: ColdWidth, marks: RowMarks
) -> tuple[NDArray[np.int32], Masks]:
    """Return the distinct rows of a batch, ascending, and the ranks that use each."""
    names = [table.name for table in one_hot(ids.tables)]
    first_keys = {
        ids.tables[table].name: int(base) for table, base in zip(width.tables, width.base, strict=True)
    }
    # Rows of all tables are numbered through: those of one-hot tables are marked at once, then list by list.
    columns = [column for column, name in enumerate(names) if name in first_keys]
    bases_F = np.array([first_keys[names[column]] for column in columns], np.int64)
    num_rows = mark_users(ids.matrix, np.array(columns, np.int64), bases_F, ranks_B, marks)
    for name in first_keys.keys() & ids.lists.keys():
        offsets_B1, ids_N = ids.lists[name]
        ranks_N = np.repeat(ranks_B, np.diff(offsets_B1))
        base = np.array([first_keys[name]], np.int64)
        num_rows += mark_users(ids_N.reshape(-1, 1), np.zeros(1, np.int64), base, ranks_N, marks)
    return take_marked(marks, num_rows)
