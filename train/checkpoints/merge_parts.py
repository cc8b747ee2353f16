"""Merges the row files of a run's checkpoints: of each row only its newest value stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..execution.row_parts import RowsPart
from .checkpoint_files import FileRecord
from .tensor_file import read_part

_PART_BYTES = 16 * 2**20
_MOST_COPIES = 2
"""Files that have more rows than so many times those that there are, are merged. So a row is written at most
twice as often as it is saved, and files take at most three times the bytes of all rows."""


def is_worth_merging(files: Sequence[FileRecord], num_used: int) -> bool:
    """Return whether files hold so many old values that they are to be merged."""
    return len(files) > 1 and sum(entry.rows for entry in files) > _MOST_COPIES * num_used


def merge_parts(
    folder: Path, files: Sequence[FileRecord], num_rows: list[int], widths: list[tuple[int, int]]
) -> Iterator[RowsPart]:
    """Yield every row of the files once, with its newest value, in parts of a bounded size.

    Args:
        files: the oldest first.
        num_rows: of each table.
        widths: floats of a row of each table, and of its state.

    Raises:
        HotsetError: a file is damaged.
    """
    # A row's number over all tables, so that one bitmap says which rows have their newest value already.
    first_F = np.concatenate([[0], np.cumsum(num_rows)])
    seen = np.zeros(int(first_F[-1]), np.bool_)
    # From the newest file to the oldest: of each row the first value met is the one to keep.
    held: dict[int, list[RowsPart]] = {}
    for entry in reversed(files):
        part = read_part(folder / entry.path, num_rows, widths)
        rows_N = first_F[part.tables_N] + part.ids_N
        is_new_N = ~seen[rows_N]
        seen[rows_N] = True
        if not is_new_N.any():
            continue
        # Parts of one width collect until they are worth a write.
        of_width = held.setdefault(part.weights_ND.shape[1], [])
        of_width.append(part.chosen(is_new_N))
        if sum(each.num_bytes for each in of_width) >= _PART_BYTES:
            yield _joined(of_width)
            of_width.clear()
    for of_width in held.values():
        if of_width:
            yield _joined(of_width)


def _joined(parts: Sequence[RowsPart]) -> RowsPart:
    return RowsPart(
        np.concatenate([part.tables_N for part in parts]),
        np.concatenate([part.ids_N for part in parts]),
        np.concatenate([part.weights_ND for part in parts]),
        np.concatenate([part.state_NW for part in parts]),
    )
