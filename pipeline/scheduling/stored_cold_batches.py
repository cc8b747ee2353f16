"""Distinct cold rows of mixed batches from lookups/, where that is beside the shards: no row is hashed.

The schedule is the same with and without, so lookups are no input of it; but those of other shards, or
damaged ones, are refused and never passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...stats.staging.cold_rows import stored_cold_rows
from ..errors import ManifestError, first_line, refuse_system_fault
from ..folders.file_facts import LookupsFacts
from ..folders.manifest import FileEntry, Manifest, is_sealed
from ..folders.stage_totals import ShardsTotals
from ..formats.arrow_files import DAMAGE, open_hashed
from ..formats.lookup_files import is_lookup_schema, stored_lookups
from ..stage_commands import hint_to_rewrite

_STAGE = ("transpose", 1)


class ColdTables(Protocol):
    """The tables of one row width, and how their cold rows are numbered; see `cold_batches.ColdWidth`."""

    @property
    def tables(self) -> tuple[int, ...]: ...

    @property
    def first(self) -> NDArray[np.int64]: ...

    @property
    def last(self) -> NDArray[np.int64]: ...

    @property
    def base(self) -> NDArray[np.int64]: ...


def lookups_beside(shards: Manifest) -> Manifest | None:
    """Return the lookups beside ``shards``; None where there are none.

    Raises:
        ManifestError: they are of other shards, or their manifest is damaged.
    """
    # An unfinished folder counts as none: lookups only save time.
    folder = shards.folder.parent / "lookups"
    if not is_sealed(folder):
        return None
    lookups = Manifest.read(folder)
    if (lookups.stage, lookups.version) != _STAGE:
        raise ManifestError(
            f"{folder} holds {lookups.stage!r} of version {lookups.version}, want 'transpose' of 1",
            hint=hint_to_rewrite(folder),
        )
    if all(source.get("fingerprint") != shards.fingerprint for source in lookups.inputs):
        raise ManifestError(
            f"{folder} was written for other shards than {shards.folder}", hint=hint_to_rewrite(folder)
        )
    return lookups


def stored_rows_of_file(
    lookups: Manifest,
    shards: Manifest,
    entry: FileEntry,
    batches: Sequence[int],
    widths: Sequence[ColdTables],
) -> Iterator[list[tuple[NDArray[np.int32], NDArray[np.int32]]]]:
    """Yield, for each of these batches of a file, the distinct cold rows of each width and their lookups.

    Raises:
        ManifestError: the file is missing, or not what `transpose` writes for these shards.
    """
    own = lookups.entry(entry.path)
    path = lookups.folder / own.path
    tables = ShardsTotals.of(shards).tables
    places = [np.array(width.tables, np.int64) for width in widths]
    number = 0
    try:
        # The checksum comes first: the kernels trust what is read from here on.
        reader = open_hashed(lookups, own)
        if not is_lookup_schema(reader.schema):
            raise TypeError("its columns are not those of lookups by row")
        if reader.num_record_batches != LookupsFacts.of(lookups, own).num_batches:
            raise ValueError(f"it has {reader.num_record_batches} batches")
        for number in batches:
            stored = stored_lookups(reader.get_batch(number), len(tables))
            yield [
                stored_cold_rows(stored, place, width.first, width.last, width.base)
                for place, width in zip(places, widths, strict=True)
            ]
    except ManifestError:
        raise
    except DAMAGE as error:
        refuse_system_fault(path, error)
        # The kernel names the table at fault by its number.
        fault = first_line(error)
        if isinstance(error, ValueError) and error.args and isinstance(error.args[0], int):
            fault = f"its rows of {tables[error.args[0]].name} are not in order, or outside the table"
        raise ManifestError(
            f"{path} is damaged: batch {number}: {fault}", hint=hint_to_rewrite(path.parent)
        ) from error
