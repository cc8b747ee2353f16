"""Lookups of multi-hot features: bags of ids put into sample order, and where their rows stand.

A bag is the lookups of one feature in one sample; bag ``sample * num_features + feature``. One-hot
features have one lookup per bag and need none of this.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .row_slots import slot_of


@kernel
def interleave_bags(
    offsets_B1: NDArray[np.int32],
    values: NDArray[np.int32],
    starts_P: NDArray[np.int64],
    feature: int,
    num_features: int,
    ids_N: NDArray[np.int32],
) -> None:
    """Copy the ids of one feature between those of all features, exactly.

    Args:
        offsets_B1: (num_samples + 1,), ascending; where each sample's ids begin in ``values``.
        values: ids of the feature, sample after sample.
        starts_P: (num_samples * num_features,); where each bag begins in ``ids``.
        feature: which of the features this is.
        num_features: of all of them.
        ids_N: (num_lookups,), written at the bags of ``feature``.
    """
    for sample in range(offsets_B1.size - 1):
        place = starts_P[sample * num_features + feature]
        for i in range(offsets_B1[sample], offsets_B1[sample + 1]):
            ids_N[place] = values[i]
            place += 1


@kernel
def locate_bags(
    ids_N: NDArray[np.int32],
    bags_N: NDArray[np.int64],
    first_F: NDArray[np.int64],
    last_F: NDArray[np.int64],
    base_F: NDArray[np.int64],
    slots_N: NDArray[np.int64],
) -> int:
    """Do as `row_slots.locate_rows`, for lookups that name their bag.

    Args:
        ids_N: (num_lookups,).
        bags_N: (num_lookups,); bag of each, its feature is ``bag % num_features``.
        first_F: (num_features,); first id of each table the tier holds.
        last_F: (num_features,); one past its last.
        base_F: (num_features,); slot of the row ``first``.
        slots_N: (num_lookups,), written; -1 where the row is not on this tier.

    Returns:
        How many lookups are not on this tier, ids outside any table among them. Exact.
    """
    num_absent = 0
    num_features = np.uint64(first_F.size)  # the remainder of unsigned numbers takes half the time
    for i in range(ids_N.size):
        feature = np.uint64(bags_N[i]) % num_features
        row = np.int64(ids_N[i])
        slot = slot_of(row, first_F[feature], last_F[feature], base_F[feature])
        num_absent += slot < 0
        slots_N[i] = slot
    return num_absent
