"""What a training step moves in each regime: rows that a device receives, forward and backward.

Exact expectations for independent look-ups, from access rates alone. Rows are counted each time one crosses
a link; bytes follow by the width of a vector or of a row with its state. With ``f = (D - 1) / D`` and
``U(n)`` different rows among the look-ups of n samples:

    sharded, every look-up      f n           each way
    sharded, deduplicated       f U(b)        each way
    pooled all-to-all           f b           each way, a table
    replicated, dense           2 f N         backward only
    replicated, sparse          2 f U(D b)    backward only
    top k replicated            the others deduplicated, and 2 f U(D b) of the top k backward
    host, cache of the top k    U(b) of the others, each way, over the host's link
    host, look-ahead of W       U(W b) / W    each way, over the host's link

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
class Traffic:
    """Expected rows one device receives in one step."""

    forward: float
    """Before the forward pass: the step waits for them."""
    backward: float
    """After it: gradients, or rows written back."""

    @property
    def total(self) -> float:
        """Both together."""
        return self.forward + self.backward

    def num_bytes(self, vector_bytes: int) -> float:
        """Of both, at ``vector_bytes`` a row."""
        return self.total * vector_bytes

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.forward + other.forward, self.backward + other.backward)


@dataclass(frozen=True, slots=True)
class Step:
    """Who takes part in a step."""

    samples: int
    """Of one device."""
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


def sharded(rates: AccessRates, step: Step) -> Traffic:
    """Rows spread over the devices, one vector a look-up."""
    moved = step.remote_share * step.samples * rates.lookups_per_sample
    return Traffic(moved, moved)


def sharded_deduplicated(rates: AccessRates, step: Step) -> Traffic:
    """Rows spread over the devices, one vector for each different row of a device's batch."""
    moved = step.remote_share * _unique(rates, step.samples)
    return Traffic(moved, moved)


def pooled(num_tables: int, step: Step) -> Traffic:
    """Whole tables spread over the devices, one pooled vector for each sample and table."""
    moved = step.remote_share * step.samples * num_tables
    return Traffic(moved, moved)


def replicated_dense(num_rows: int, step: Step) -> Traffic:
    """Every row on every device, the gradients of whole tables summed (ring all-reduce)."""
    return Traffic(0.0, 2 * step.remote_share * num_rows)


def replicated_sparse(rates: AccessRates, step: Step, sync_every: int = 1) -> Traffic:
    """Every row on every device, the gradients of touched rows summed every ``sync_every`` steps."""
    touched = _unique(rates, sync_every * step.num_devices * step.samples)
    return Traffic(0.0, 2 * step.remote_share * touched / sync_every)


def hybrid(rates: AccessRates, num_replicated: int, step: Step, sync_every: int = 1) -> Traffic:
    """The likeliest rows replicated, the others sharded and deduplicated."""
    top, rest = rates.split(num_replicated)
    return sharded_deduplicated(rest, step) + replicated_sparse(top, step, sync_every)


def host_cache(rates: AccessRates, num_cached: int, step: Step) -> Traffic:
    """Rows on the host, the likeliest ones cached: each other row of a batch comes up and goes back."""
    moved = _unique(rates.split(num_cached)[1], step.samples)
    return Traffic(moved, moved)


def host_look_ahead(rates: AccessRates, num_cached: int, step: Step, window: int) -> Traffic:
    """Rows on the host, the likeliest ones cached, any other fetched once in ``window`` batches."""
    if window < 1:
        raise ValueError(f"window must be 1 or more batches, got {window}")
    moved = _unique(rates.split(num_cached)[1], window * step.samples) / window
    return Traffic(moved, moved)


def rows_worth_replicating(rates: AccessRates, step: Step, sync_every: int) -> int:
    """How many rows, the likeliest ones, cost less when their synchronisation is deferred than when fetched.

    A row is worth it when ``U(m D b) / m < U(b)`` for it. With a synchronisation every step none is: more
    draws never make a row less likely to occur, so replication moves at least what deduplication does.
    """
    gain = _gain(rates.rates, step, sync_every)
    return int(rates.num_rows[gain > 0].sum())


def _gain(rates: NDArray[np.float64], step: Step, sync_every: int) -> NDArray[np.float64]:
    synchronised = presence(rates, sync_every * step.num_devices * step.samples) / sync_every
    return presence(rates, step.samples) - synchronised
