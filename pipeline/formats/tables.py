"""One-hot and multi-hot tables in manifests, and the look-ups of list-valued columns.

Files of stages keep a multi-hot feature as a column of lists, none of which is null. The elements of all
lists, one behind the other, are its look-ups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import ManifestError
from ..folders.manifest import Manifest


def is_multi_hot(table: dict[str, Any]) -> bool:
    """Whether samples have any number of look-ups in a table and not one each."""
    return bool(table.get("is_multi_hot", False))


def one_hot(tables: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tables whose ids stand in the column ``ids``, in its order."""
    return [table for table in tables if not is_multi_hot(table)]


def multi_hot(tables: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tables that have a list column of their own."""
    return [table for table in tables if is_multi_hot(table)]


def mark_of(name: str, columns: Manifest) -> dict[str, Any]:
    """What the entry of a table says of being multi-hot; nothing where it is not."""
    return {"is_multi_hot": True} if name in columns.totals.get("lists", ()) else {}


def lookups_of(array: Any, num_samples: int) -> tuple[Any, int]:
    """The look-ups of a column, the elements of lists where it has some; how many the first samples have."""
    if not pa.types.is_list(array.type):
        return array, num_samples
    return array.values, int(offsets_of(array)[num_samples])


def offsets_of(array: Any) -> NDArray[np.int32]:
    """(len + 1,): where the elements of each list begin; a kernel may trust them.

    Raises:
        ManifestError: the array is no list column as stages write it, or its offsets run backwards.
    """
    if array.offset or array.null_count or not pa.types.is_list(array.type):
        raise ManifestError(f"a column of {array.type} is not one of lists that are all there")
    buffer, num_lookups = array.buffers()[1], len(array.values)
    if not len(array) and not num_lookups:
        return np.zeros(1, np.int32)
    offsets = np.frombuffer(buffer, np.int32)[: len(array) + 1]
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
