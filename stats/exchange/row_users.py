"""Finds the distinct rows of a batch and the ranks that use each, by a mask for every row of a width.

Each lookup adds its rank to the mask of its row. The first one notes the row in a map of bits, and each 64
bits that have one in a map of these, so rows are found in ascending order without sorting: a lookup takes a
third of the CPU time that sorting takes (`lookups_by_row`). Memory: a mask and 0.14 bytes per row.

Shapes: B samples, F tables of one lookup per sample, K rows of the width, N distinct rows of the batch.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import prefetch
from ..kernel import kernel, read_only
from .rank_masks import Masks, lowest_bit, mask_type

_WORD_BITS: Final = np.uint64(6)
_LOW_BITS: Final = np.uint64(63)
"""A word of a map has 64 bits: a number is that of its word, and of the bit in it."""
_AHEAD = 4
"""Samples between asking memory for a mask and its use."""


class RowMarks(NamedTuple):
    """The rows that lookups of a batch have met so far; all zeros before and after each batch."""

    masks_K: Masks
    """The ranks that look up each row."""
    rows_W: NDArray[np.uint64]
    """Bit ``key % 64`` of word ``key // 64`` says whether the row is looked up."""
    words_V: NDArray[np.uint64]
    """The same of the words of ``rows_W``."""


def unset_marks(num_rows: int, num_ranks: int) -> RowMarks:
    """Allocate the marks of a width."""
    num_words = num_rows // 64 + 1
    return RowMarks(
        np.zeros(num_rows, mask_type(num_ranks)),
        np.zeros(num_words, np.uint64),
        np.zeros(num_words // 64 + 1, np.uint64),
    )


def mark_bytes(num_rows: int, num_ranks: int) -> int:
    """Return the bytes of the marks of a width."""
    return num_rows * np.dtype(mask_type(num_ranks)).itemsize + num_rows // 7 + 64


@kernel
def _mark_users(
    ids_BF: NDArray[np.int32],
    columns_F: NDArray[np.int64],
    first_keys_F: NDArray[np.int64],
    ranks_B: NDArray[np.uint8],
    marks: RowMarks,
) -> int:
    num_new = 0
    last = ids_BF.shape[0] - 1
    for i in range(ids_BF.shape[0]):
        own = np.uint64(1) << np.uint64(ranks_B[i])
        later = np.uint64(min(i + _AHEAD, last))
        for j in range(columns_F.shape[0]):
            column = np.uint64(columns_F[j])
            # Masks of cold rows lie anywhere, so memory is asked for them some samples ahead.
            prefetch(marks.masks_K, np.uint64(first_keys_F[j] + ids_BF[later, column]))
            key = np.uint64(first_keys_F[j] + ids_BF[np.uint64(i), column])
            mask = np.uint64(marks.masks_K[key])
            # Most lookups are of rows that another sample of the batch has met.
            if mask == np.uint64(0):
                word = key >> _WORD_BITS
                marks.rows_W[word] |= np.uint64(1) << (key & _LOW_BITS)
                marks.words_V[word >> _WORD_BITS] |= np.uint64(1) << (word & _LOW_BITS)
                num_new += 1
            marks.masks_K[key] = mask | own
    return num_new


def mark_users(
    ids: NDArray[np.int32],
    columns: NDArray[np.int64],
    first_keys: NDArray[np.int64],
    ranks: NDArray[np.uint8],
    marks: RowMarks,
) -> int:
    """Note the lookups of a batch; return how many rows were not looked up before. Exact.

    Args:
        ids: (num_samples, all one-hot tables), of each sample a row of each table; all within their tables.
        columns: (num_tables,), which of them belong to the width.
        first_keys: (num_tables,), number of the first row of each of these.
        ranks: (num_samples,), the rank of each sample.
        marks: of the width, changed.
    """
    return int(_mark_users(read_only(ids), columns, first_keys, ranks, marks))


@kernel
def _take_marked(marks: RowMarks, keys_N: NDArray[np.int32], masks_N: Masks) -> None:
    end = 0
    for number in range(marks.words_V.shape[0]):
        words = marks.words_V[number]
        marks.words_V[number] = np.uint64(0)
        while words:
            word = 64 * number + lowest_bit(words)
            words &= words - np.uint64(1)
            rows = marks.rows_W[word]
            marks.rows_W[word] = np.uint64(0)
            while rows:
                key = 64 * word + lowest_bit(rows)
                rows &= rows - np.uint64(1)
                keys_N[end] = key
                masks_N[end] = marks.masks_K[key]
                marks.masks_K[key] = 0
                end += 1


def take_marked(marks: RowMarks, num_rows: int) -> tuple[NDArray[np.int32], Masks]:
    """Return the rows of a batch, ascending, with the ranks that use each, and unset the marks. Exact.

    Args:
        marks: of the batch, changed.
        num_rows: how many rows have one.
    """
    keys_N = np.empty(num_rows, np.int32)
    masks_N = np.empty(num_rows, marks.masks_K.dtype)
    _take_marked(marks, keys_N, masks_N)
    return keys_N, masks_N
