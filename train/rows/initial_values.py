"""Initial values of rows: a function of (seed, table, id) and of the number of rows of the table alone.

Uniform in (-b, b) with b = sqrt(1 / num_rows), as DLRM draws them, from a hash of the three. Numba computes
them on the host, torch the same bits on any device, so that a row can be initialized where it is first
needed.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.id_tables import mix64_pair
from .row_kernels import fill_initial, fill_initial_rows

# The constants of `stats.hashing.mix64`.
_MIX_ADD = 0x9E3779B97F4A7C15
_MIX_FIRST = 0xBF58476D1CE4E5B9
_MIX_SECOND = 0x94D049BB133111EB


@dataclass(frozen=True, slots=True)
class HeldIds:
    """The ids of some rows of each table, which are numbered from 0 in each."""

    ids_R: NDArray[np.int32]
    """(num_rows,), ascending in a table, table after table."""
    first_F1: NDArray[np.int64]
    """(num_tables + 1,); where those of each table begin."""

    def of(self, tables_N: NDArray[np.int64], numbers_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of rows by their numbers."""
        ids_N: NDArray[np.int64] = self.ids_R[self.first_F1[tables_N] + numbers_N].astype(np.int64)
        return ids_N

    def of_table(self, table: int) -> NDArray[np.int32]:
        """Return the ids of a table's rows, ascending."""
        return self.ids_R[self.first_F1[table] : self.first_F1[table + 1]]


@dataclass(frozen=True, slots=True)
class InitialValues:
    """The inputs of the initial values of the tables of one row width."""

    streams_F: NDArray[np.uint64]
    """Hash of (seed, table) of each table."""
    bounds_F: NDArray[np.float32]
    """Values of the table lie in (-bound, bound)."""
    held: HeldIds | None = None
    """The ids of rows, where tiers number some rows of each table; None: their numbers are their ids."""

    @classmethod
    def of(cls, seed: int, tables: Sequence[int], num_rows: Sequence[int]) -> InitialValues:
        """The inputs of tables with these numbers among all tables of the shards, and these numbers of
        rows."""
        streams = [mix64_pair(np.uint64(seed), np.uint64(table)) for table in tables]
        bounds = [math.sqrt(1 / max(count, 1)) for count in num_rows]
        return cls(np.array(streams, np.uint64), np.array(bounds, np.float32))

    def fill(self, table: int, first: int, weights_ND: NDArray[np.float32]) -> None:
        """Write the values of rows ``first, first + 1, ...`` of a table."""
        stream = self.streams_F[table]
        bound = self.bounds_F[table]
        if self.held is None:
            fill_initial(stream, first, bound, weights_ND)
            return
        numbers_N = np.arange(weights_ND.shape[0])
        ids_N = self.held.of(np.full(numbers_N.size, table), numbers_N + first)
        streams_N = np.full(ids_N.size, stream)
        bounds_N = np.full(ids_N.size, bound)
        fill_initial_rows(streams_N, ids_N, bounds_N, weights_ND, numbers_N)

    def write(
        self,
        tables_N: NDArray[np.int64],
        ids_N: NDArray[np.int64],
        weights_SD: torch.Tensor,
        slots_N: NDArray[np.int64],
    ) -> None:
        """Write the values of single rows to ``slots_N`` of ``weights_SD``, wherever that is."""
        if self.held is not None:
            ids_N = self.held.of(tables_N, ids_N)
        streams_N = self.streams_F[tables_N]
        bounds_N = self.bounds_F[tables_N]
        if weights_SD.device.type == "cpu":
            fill_initial_rows(streams_N, ids_N, bounds_N, weights_SD.numpy(), slots_N)
            return
        # On another device the same function runs in torch: values are computed where they will lie.
        device = weights_SD.device
        values_ND = initial_values_with_torch(
            torch.from_numpy(streams_N.view(np.int64)).to(device),
            torch.from_numpy(ids_N).to(device),
            torch.from_numpy(bounds_N).to(device),
            weights_SD.shape[1],
        )
        weights_SD.index_copy_(0, torch.from_numpy(slots_N).to(device), values_ND)


def initial_values_with_torch(
    streams_N: torch.Tensor, ids_N: torch.Tensor, bounds_N: torch.Tensor, dim: int
) -> torch.Tensor:
    """(N, dim) initial values; ``streams_N`` are 64-bit hashes as int64, ``ids_N`` int64."""
    row_streams_N = _mix(_mix(streams_N) ^ ids_N)
    columns_D = torch.arange(dim, device=ids_N.device)
    # The highest 24 bits of the hash, as an odd number in (-2**24, 2**24): see `row_kernels.fill_initial`.
    bits_ND = _shift(_mix(_mix(row_streams_N).unsqueeze(1) ^ columns_D), 40)
    odd_ND = (2 * bits_ND + 1 - (1 << 24)).float()
    return (odd_ND * 2.0**-24) * bounds_N.unsqueeze(1)


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """``stats.hashing.mix64`` on int64, whose sums and products wrap as those of uint64 do."""
    bits = bits + _signed(_MIX_ADD)
    bits = (bits ^ _shift(bits, 30)) * _signed(_MIX_FIRST)
    bits = (bits ^ _shift(bits, 27)) * _signed(_MIX_SECOND)
    return bits ^ _shift(bits, 31)


def _shift(bits: torch.Tensor, count: int) -> torch.Tensor:
    """A logical shift to the right; torch's own on int64 copies the sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64)
