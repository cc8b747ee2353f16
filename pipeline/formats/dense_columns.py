"""Dense columns of a log as a model takes them: float32, under their transform, 0 where missing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.batch_work import log1p_table, transform_dense, transform_values
from ...stats.kernel import read_only
from .arrow_files import validity_of, values_of

_LOG1P = log1p_table(1 << 16)


def transform_column(
    array: Any, chosen: NDArray[np.int32], out: NDArray[np.float32], *, is_float: bool, is_log: bool
) -> None:
    """Write the transformed values of some samples.

    Args:
        array: Arrow column of int32, or of float64 where ``is_float``, that starts at offset 0.
        chosen: (num_chosen,), positions of the samples.
        out: (num_chosen,) out; may be strided.
        is_float: whether the feature is a float instead of a whole number.
        is_log: whether its transform is log1p(max(x, 0)) and not the value itself.
    """
    values = read_only(values_of(array, np.float64 if is_float else np.int32))
    is_valid = read_only(validity_of(array))
    if is_log and not is_float:  # small whole numbers have their logarithm in a table
        transform_dense(values, is_valid, chosen, _LOG1P, out)
    else:
        transform_values(values, is_valid, chosen, is_log, out)
