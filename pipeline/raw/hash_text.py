"""Text categories as 64-bit numbers: xxh3 of the bytes.

Each distinct text of a block is hashed once. Two of n texts share a number with a probability of about
n**2 / 2**65: 3e-6 for ten million; such a pair would share a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from .text_fields import join_spans


@dataclass(frozen=True, slots=True)
class DistinctTexts:
    """The distinct texts of a column, in the order of their first occurrence."""

    hashes: NDArray[np.uint64]
    """(num_texts,)."""
    counts: NDArray[np.int64]
    """(num_texts,); occurrences of each."""
    texts: Any
    """(num_texts,), an Arrow array of large_binary."""


def hash_text(
    text: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], DistinctTexts]:
    """Return the xxh3-64 (seed 0) of each span ``text[start:stop]``; exact.

    Args:
        text: bytes of all spans.
        starts: (num_spans,).
        stops: (num_spans,).

    Returns:
        (num_spans,), the hash of no bytes for an empty span; and the distinct texts.

    Source:
        Collet, XXH3 (xxHash 0.8, which froze its output).
    """
    # Join the spans to one Arrow array, which finds the distinct ones; each of these is hashed once.
    offsets = np.zeros(starts.shape[0] + 1, np.int64)
    np.cumsum(stops - starts, out=offsets[1:])
    joined = np.empty(int(offsets[-1]), np.uint8)
    join_spans(text, starts, offsets, joined)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    encoded = pa.Array.from_buffers(pa.large_binary(), starts.shape[0], buffers).dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    hashes: NDArray[np.uint64] = np.fromiter(
        (xxhash.xxh3_64_intdigest(each) for each in texts), np.uint64, len(texts)
    )
    indices: NDArray[np.int32] = encoded.indices.to_numpy()
    counts = np.bincount(indices, minlength=len(texts)).astype(np.int64)
    return hashes[indices], DistinctTexts(hashes, counts, encoded.dictionary)
