"""Columns of samples in shards that are no features: labels, weight and group.

They travel through the shuffle as words of 32 bits in the row of their sample. A label and a weight are one,
the bits of a float32, which is NaN where a label is missing. A group is three: the halves of its number, and
whether there is one, because every number may be a group.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schema.schema import GROUP
from .arrow_files import values_of


def type_of(name: str) -> Any:
    """Return the Arrow type of a column in shards."""
    return pa.uint64() if name == GROUP else pa.float32()


def num_words(name: str) -> int:
    """Return the words that a sample's value of a column takes in its row."""
    return 3 if name == GROUP else 1


def is_there(column: Any) -> NDArray[np.bool_]:
    """Return which samples have a value, (num_samples,)."""
    found: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def clicks_and_gaps(column: Any) -> NDArray[np.bool_]:
    """Return which samples have label 1, and which have none, of a column of columns/: (2, num_samples).

    A label that is any number counts as 1 where it is not 0.
    """
    is_missing = ~is_there(column)
    return np.stack([(values_of(column) != 0) & ~is_missing, is_missing])


def write_words(name: str, column: Any, chosen: NDArray[np.int32], words: NDArray[np.int32]) -> None:
    """Write some samples' values of a column of columns/.

    Args:
        name: of the column.
        column: Arrow array of all samples of a part.
        chosen: (num_chosen,), positions of the samples.
        words: (num_words, num_chosen) out.
    """
    if name == GROUP:
        halves = values_of(column, np.uint64)[chosen].view(np.int32).reshape(-1, 2)
        words[:2] = halves.T
        words[2] = is_there(column)[chosen]
        return
    values = words[0].view(np.float32)
    values[:] = values_of(column)[chosen]
    if column.null_count:
        values[~is_there(column)[chosen]] = np.nan


def column_of(name: str, words: NDArray[np.int32]) -> Any:
    """Return the Arrow array of a column in shards; ``words``: (num_samples, num_words)."""
    if name == GROUP:
        values = np.ascontiguousarray(words[:, :2]).view(np.uint64)[:, 0]
        is_missing = words[:, 2] == 0
    else:
        values = np.ascontiguousarray(words[:, 0]).view(np.float32)
        is_missing = np.isnan(values)
    return pa.array(values, mask=is_missing) if is_missing.any() else pa.array(values)
