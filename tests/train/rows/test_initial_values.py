"""Initial values, the same on any device."""

from __future__ import annotations

import numpy as np
import torch

from hotset.train.rows.initial_values import InitialValues, initial_values_with_torch


def test_torch_makes_the_bits_numba_makes() -> None:
    initial = InitialValues.of(5, [0, 3], [10, 1_000_000])
    tables_N, ids_N = np.array([0, 1, 1, 0, 1]), np.array([0, 999_999, 3, 9, 123_456])
    rows = torch.empty(5, 7)
    initial.write(tables_N, ids_N, rows, np.arange(5))
    streams = torch.from_numpy(initial.streams_F[tables_N].view(np.int64))
    bounds = torch.from_numpy(initial.bounds_F[tables_N])
    assert torch.equal(initial_values_with_torch(streams, torch.from_numpy(ids_N), bounds, 7), rows)


def test_tables_count_by_their_number_in_the_shards() -> None:
    first, alone = InitialValues.of(5, [0, 3], [10, 20]), InitialValues.of(5, [3], [20])
    assert first.streams_F[1] == alone.streams_F[0] and first.bounds_F[1] == alone.bounds_F[0]
