"""Dense values to float32: as they are, or under log1p.

Integers under log1p, the values of the Criteo logs, have a faster kernel with a table of the small ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import prefetch
from ..kernel import kernel

_VALUES_AHEAD = np.uint64(64)
"""Values between asking for one and reading it."""


def log1p_table(num_entries: int) -> NDArray[np.float32]:
    """Return log1p of 0, 1, ... computed in float64 and rounded once: the same on any machine."""
    return np.log1p(np.arange(num_entries, dtype=np.float64)).astype(np.float32)


@kernel
def transform_dense(
    values: NDArray[np.int32],
    is_valid: NDArray[np.uint8],
    chosen: NDArray[np.int32],
    table: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write log1p(max(x, 0)) of some samples as float32, 0 where missing.

    Args:
        values: (num_samples,).
        is_valid: Arrow validity bitmap of ``values``, or length 0 where none is missing.
        chosen: (num_chosen,), positions in ``values``.
        table: log1p of the small values, as `log1p_table` computes it.
        out: (num_chosen,) out; may be a strided column.

    Source:
        Naumov et al., arXiv 1906.00091, as its released preprocessing does it.
    """
    has_nulls = is_valid.shape[0] > 0
    num_chosen = np.uint64(chosen.shape[0])
    # Places are unsigned: each signed one would be compared with 0, to count from the end. 1.4 times as fast.
    for place in range(num_chosen):
        # Ask for a later value: where few are chosen, most of the time is waiting for memory.
        if place + _VALUES_AHEAD < num_chosen:
            prefetch(values, np.uint64(chosen[place + _VALUES_AHEAD]))
        i = np.uint64(chosen[place])
        value = np.uint64(max(values[i], 0))
        if has_nulls:  # by arithmetic: a branch for each value is often mispredicted
            value *= np.uint64((is_valid[i >> np.uint64(3)] >> np.uint8(i & np.uint64(7))) & np.uint8(1))
        is_small = value < np.uint64(table.shape[0])
        out[place] = table[value] if is_small else np.float32(np.log1p(np.float64(value)))


@kernel
def transform_values(
    values: NDArray[np.float64],
    is_valid: NDArray[np.uint8],
    chosen: NDArray[np.int32],
    is_log: bool,
    out: NDArray[np.float32],
) -> None:
    """Write log1p(max(x, 0)) in float64, or x itself, of some samples, rounded once; 0 where missing.

    Args:
        values: (num_samples,), float64 or int32.
        is_valid: Arrow validity bitmap of ``values``, or length 0 where none is missing.
        chosen: (num_chosen,), positions in ``values``.
        is_log: whether it is log1p and not the value itself, which a float32 must be able to hold.
        out: (num_chosen,) out; may be strided.
    """
    has_nulls = is_valid.shape[0] > 0
    for place in range(chosen.shape[0]):
        i = chosen[place]
        value = float(values[i])
        if has_nulls and not (is_valid[i >> 3] >> np.uint8(i & 7)) & 1:
            value = 0.0
        if is_log:
            value = float(np.log1p(value)) if value > 0 else 0.0
        out[place] = np.float32(value)
