"""Sizes of two codes whose length depends on the rows.

They are compared with codes of fixed width. Both code numbers that were rounded to multiples of twice a bound
of the range, ``rint(x / (2 e r))``. Their bytes are not known before the rows are, so sizes would have to be
exchanged before every message. Training uses neither, and only their sizes are computed here.

vector-LZ: a token is a row, in a byte per number, or a repetition of up to 255 rows that begins up to 32 rows
before, in 2 bytes. A bit says which; a block of 2,048 rows is independent and takes 8 bytes more.

Huffman: the best prefix code of single numbers, without the bytes of its codebook.

Source:
    Feng et al., SC'24, arXiv 2407.04272, and the code published with it; Huffman, Proc. IRE 40 (1952).

Shapes: N rows, D numbers of a row.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel

_WINDOW = 32
_BLOCK = 2048
_BLOCK_BYTES = 8
_MATCH_BYTES = 2
_LONGEST = 255


def levels_of(rows: NDArray[np.float32], bound: float) -> NDArray[np.uint8]:
    """Return the codes of rows, (N, D): numbers rounded to within ``bound`` of their range, from 0.

    Args:
        rows: (N, D), finite.
        bound: at least 1/508, so that codes fit in a byte wherever the range begins.
    """
    spread = float(np.ptp(rows)) if rows.size else 0.0
    if spread == 0:
        return np.zeros(rows.shape, np.uint8)
    codes = np.rint(rows / (2 * bound * spread))
    levels: NDArray[np.uint8] = (codes - codes.min()).astype(np.uint8)
    return levels


@kernel
def _vector_lz_bytes(codes_ND: NDArray[np.uint8]) -> int:
    num_rows = codes_ND.shape[0]
    num_bytes = 0
    for start in range(0, num_rows, _BLOCK):
        stop = min(start + _BLOCK, num_rows)
        row = start
        num_tokens = 0
        while row < stop:
            # The longest repetition of rows that begins within the window.
            longest = 0
            for distance in range(1, min(_WINDOW, row - start) + 1):
                # Rows are compared one by one, so a repetition may run into itself.
                length = 0
                while row + length < stop and length < _LONGEST:
                    is_same = True
                    for column in range(codes_ND.shape[1]):
                        if codes_ND[row + length, column] != codes_ND[row + length - distance, column]:
                            is_same = False
                            break
                    if not is_same:
                        break
                    length += 1
                longest = max(longest, length)
            # A row that repeats nothing is a token by itself.
            num_bytes += _MATCH_BYTES if longest else codes_ND.shape[1]
            row += max(longest, 1)
            num_tokens += 1
        num_bytes += (num_tokens + 7) // 8 + _BLOCK_BYTES
    return num_bytes


def vector_lz_bytes(codes: NDArray[np.uint8]) -> int:
    """Return the bytes of vector-LZ for the codes of rows, (N, D). Exact."""
    return int(_vector_lz_bytes(np.ascontiguousarray(codes)))


def huffman_bytes(codes: NDArray[np.uint8]) -> int:
    """Return the bytes of the best prefix code of some codes, one bit each where all are alike. Exact."""
    counts = np.bincount(codes.reshape(-1), minlength=1)
    weights: list[int] = counts[counts > 0].tolist()
    if len(weights) < 2:
        return -(-sum(weights) // 8)
    # A code is a bit longer for each node above it: the bits of all are the weights of the inner nodes.
    heapq.heapify(weights)
    num_bits = 0
    while len(weights) > 1:
        both = heapq.heappop(weights) + heapq.heappop(weights)
        num_bits += both
        heapq.heappush(weights, both)
    return -(-num_bits // 8)
