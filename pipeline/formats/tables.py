"""One-hot and multi-hot tables in manifests, and the lookups of list-valued columns.

Stages store a multi-hot feature as a column of lists, none of which is null. Its lookups are the elements of
all lists, concatenated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import ManifestError, hint_to_rewrite
from ..folders.manifest import MANIFEST, Manifest
from ..folders.totals import MappedTable, NamedTable

Table = TypeVar("Table", bound=NamedTable)
OwnTable = TypeVar("OwnTable", bound=NamedTable | MappedTable)


def one_hot(tables: Iterable[Table]) -> list[Table]:
    """Return the tables whose ids are in the column ``ids``, in its order."""
    return [table for table in tables if not table.is_multi_hot]


def multi_hot(tables: Iterable[Table]) -> list[Table]:
    """Return the tables that have a separate list column."""
    return [table for table in tables if table.is_multi_hot]


def table_named(manifest: Manifest, tables: Iterable[OwnTable], name: str) -> OwnTable:
    """Return the table called ``name``, one of those in ``manifest``.

    Raises:
        ManifestError: none is called so, or several are.
    """
    found = [table for table in tables if table.name == name]
    if len(found) != 1:
        raise ManifestError(
            f"{manifest.folder / MANIFEST} is damaged: it has {len(found)} tables {name!r}, want 1",
            hint=hint_to_rewrite(manifest.folder),
        )
    return found[0]


def lookups_of(array: Any, num_samples: int) -> tuple[Any, int]:
    """Return the lookups of a column, elements of its lists if any, and how many the first samples have."""
    if not pa.types.is_list(array.type):
        return array, num_samples
    return array.values, int(offsets_of(array)[num_samples])


def offsets_of(array: Any) -> NDArray[np.int32]:
    """Return where the elements of each list begin, (len + 1,); a kernel may trust them.

    Raises:
        ManifestError: the array is no list column as stages write it, or its offsets run backwards.
    """
    if array.offset or array.null_count or not pa.types.is_list(array.type):
        raise ManifestError(f"a column of {array.type} is not one of lists that are all there")
    buffer = array.buffers()[1]
    num_lookups = len(array.values)
    if not len(array) and not num_lookups:
        return np.zeros(1, np.int32)
    offsets = np.frombuffer(buffer, np.int32)[: len(array) + 1]
    # Kernels read between offsets without a check, so they must rise and end with the elements.
    is_whole = offsets.shape[0] == len(array) + 1 and offsets[0] == 0 and offsets[-1] == num_lookups
    if not is_whole or (offsets[1:] < offsets[:-1]).any():
        raise ManifestError(
            f"the offsets of a list column do not cut its {num_lookups} elements into {len(array)} lists",
            hint="remove its folder and run its stage again",
        )
    return offsets


def as_lists(offsets: NDArray[np.int32], values: NDArray[Any]) -> Any:
    """``values``, (offsets[-1],), as a list array of the same memory."""
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
