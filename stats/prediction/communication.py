"""The traffic of a training step in each regime: rows that a device receives, forward and backward.

Exact expectations for independent lookups, from access rates alone. Rows are counted each time one crosses
a link; bytes follow by the width of a vector or of a row with its state. With ``f = (D - 1) / D`` and
``U(n)`` distinct rows among the lookups of n samples:

    sharded, every lookup      f n           each way
    sharded, deduplicated       f U(b)        each way
    pooled all-to-all           f b           each way, per table
    replicated, sparse          2 f U(D b)    backward only
    top k replicated            the others deduplicated, and 2 f U(D b) of the top k backward
    host, cache of the top k    U(b) of the others, each way, over the host's link

Replicated rows that synchronise every m-th step cost ``2 f U(m D b) / m``.

Source:
    Erdogan et al., SCARS, arXiv 2411.01611 (expected unique rows as the cost of a regime); the formulas are
    derived from linearity of expectation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .access_rates import AccessRates, expected_unique_rows, presence


@dataclass(frozen=True, slots=True)
class RowTraffic:
    """The expected rows that one device receives in one step."""

    forward: float
    """Before the forward pass: the step waits for them."""
    backward: float
    """After it: gradients, or rows written back."""

    @property
    def total(self) -> float:
        """Rows received forward and backward together."""
        return self.forward + self.backward

    def num_bytes(self, vector_bytes: int) -> float:
        """Return the bytes of both, at ``vector_bytes`` per row."""
        return self.total * vector_bytes

    def __add__(self, other: RowTraffic) -> RowTraffic:
        return RowTraffic(self.forward + other.forward, self.backward + other.backward)


@dataclass(frozen=True, slots=True)
class ParallelStep:
    """The samples and devices that take part in a step."""

    samples: int
    """Samples of one device."""
    num_devices: int = 1

    def __post_init__(self) -> None:
        if self.samples < 1 or self.num_devices < 1:
            raise ValueError(f"samples and num_devices must be 1 or more, got {self}")

    @property
    def remote_share(self) -> float:
        """Share of rows that another device owns, ``(D - 1) / D``."""
        return (self.num_devices - 1) / self.num_devices


def _unique(rates: AccessRates, num_samples: float) -> float:
    return expected_unique_rows(rates.rates, num_samples, rates.num_rows)


def sharded(rates: AccessRates, step: ParallelStep) -> RowTraffic:
    """Rows spread over the devices, one vector per lookup."""
    moved = step.remote_share * step.samples * rates.lookups_per_sample
    return RowTraffic(moved, moved)


def sharded_deduplicated(rates: AccessRates, step: ParallelStep) -> RowTraffic:
    """Rows spread over the devices, one vector for each distinct row of a device's batch."""
    moved = step.remote_share * _unique(rates, step.samples)
    return RowTraffic(moved, moved)


def pooled(num_tables: int, step: ParallelStep) -> RowTraffic:
    """Whole tables spread over the devices, one pooled vector for each sample and table."""
    moved = step.remote_share * step.samples * num_tables
    return RowTraffic(moved, moved)


def replicated_sparse(rates: AccessRates, step: ParallelStep, sync_every: int = 1) -> RowTraffic:
    """Every row on every device, the gradients of touched rows summed every ``sync_every`` steps."""
    touched = _unique(rates, sync_every * step.num_devices * step.samples)
    return RowTraffic(0.0, 2 * step.remote_share * touched / sync_every)


def hybrid(rates: AccessRates, num_replicated: int, step: ParallelStep, sync_every: int = 1) -> RowTraffic:
    """The likeliest rows replicated, the others sharded and deduplicated."""
    top, rest = rates.split(num_replicated)
    return sharded_deduplicated(rest, step) + replicated_sparse(top, step, sync_every)


def host_cache(rates: AccessRates, num_cached: int, step: ParallelStep) -> RowTraffic:
    """Rows on the host, the likeliest ones cached: each other row of a batch is loaded and written back."""
    moved = _unique(rates.split(num_cached)[1], step.samples)
    return RowTraffic(moved, moved)


def rows_worth_replicating(rates: AccessRates, step: ParallelStep, sync_every: int) -> int:
    """Return how many rows, the likeliest, cost less with deferred synchronisation than when fetched.

    A row is worth it when ``U(m D b) / m < U(b)`` for it. With a synchronisation every step none is: more
    draws never make a row less likely to occur, so replication moves at least what deduplication does.
    """
    gain = _gain(rates.rates, step, sync_every)
    return int(rates.num_rows[gain > 0].sum())


def _gain(rates: NDArray[np.float64], step: ParallelStep, sync_every: int) -> NDArray[np.float64]:
    # Rows fetched in a step without the row replicated, less rows synchronised per step with it.
    synchronised = presence(rates, sync_every * step.num_devices * step.samples) / sync_every
    return presence(rates, step.samples) - synchronised
