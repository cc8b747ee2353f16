"""Dense values other than integers under log1p, which have a faster kernel in `shuffle`, to float32."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(cache=True, nogil=True)
def transform_values(
    values: NDArray[np.float64], is_valid: NDArray[np.uint8], is_log: bool, out: NDArray[np.float32]
) -> None:
    """log1p(max(x, 0)) in float64, or x itself, rounded once to float32; 0 where missing.

    Args:
        values: (num_samples,), float64 or int32.
        is_valid: Arrow validity bitmap of ``values``, or length 0 where none is missing.
        is_log: whether it is log1p and not the value itself, which a float32 must be able to hold.
        out: (num_samples,) out; may be strided.
    """
    has_nulls = is_valid.shape[0] > 0
    for i in range(values.shape[0]):
        value = float(values[i])
        if has_nulls and not (is_valid[i >> 3] >> np.uint8(i & 7)) & 1:
            value = 0.0
        if is_log:
            value = float(np.log1p(value)) if value > 0 else 0.0
        out[i] = np.float32(value)
