"""The batch size and the cached or replicated rows that train fastest under limits of memory and links.

A step of B samples with k rows on the fast tier takes ``compute(B)`` and moves ``C(k, B)`` rows. Larger
batches share the fixed cost and deduplicate better, but their activations take memory from rows. Inside, for
a given B, the choice of rows is exact: the saving of a row is its probability of being needed, the same
for each byte, so the best set is the likeliest rows that fit (a threshold on the rate). Outside, B is
one number: powers of two, then ever finer grids between the neighbors of the best.

Source:
    Erdogan et al., SCARS, arXiv 2411.01611, for the aim (throughput under memory, computation and
    communication constraints); the solution is ours.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from .access_rates import AccessRates, buffer_rows, expected_unique_rows
from .communication import ParallelStep, host_cache, hybrid, rows_worth_replicating

_GRID = 32
_OVERFLOW_PROBABILITY = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The memory a step may use, and the speed of its parts."""

    memory_bytes: int
    """Fast memory for rows, activations and staging; dense parameters are taken off before."""
    link_bytes_per_second: float
    """Speed of the link rows are transferred on, one way at a time."""
    step_seconds: float
    """Time of a step whatever its batch: launches, optimizer of the dense layers."""
    sample_seconds: float
    """Time of the dense layers per sample."""
    sample_bytes: int = 0
    """Bytes of the activations of a sample."""
    is_overlapped: bool = False
    """Whether rows are transferred while the step before computes."""

    def __post_init__(self) -> None:
        if self.link_bytes_per_second <= 0 or self.step_seconds + self.sample_seconds <= 0:
            raise ValueError(f"a link and a step must take time: {self}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The rows that lookups fall on."""

    rates: AccessRates
    vector_bytes: int
    """Bytes of one row on the link."""
    resident_bytes: int
    """Bytes of one row in memory, with the state of its optimizer."""
    num_devices: int = 1
    """1: the other rows are on the host. More: they are sharded over the devices."""
    sync_every: int = 1
    """Steps between synchronisations of replicated rows."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A batch size and number of fast rows, with the predicted speed."""

    batch_size: int
    """Samples of one device."""
    num_fast_rows: int
    """Cached or replicated rows."""
    step_seconds: float
    compute_seconds: float
    link_bytes: float
    """Bytes that one device receives in a step."""

    @property
    def samples_per_second(self) -> float:
        """Samples per second of one device."""
        return self.batch_size / self.step_seconds


def operate(batch_size: int, rows: Rows, limits: Limits) -> Operation | None:
    """Choose the best rows for one batch size; None where not even the batch fits.

    A buffer for the batch's other rows is set aside; it overflows once in 10**9 steps.
    """
    step = ParallelStep(samples=batch_size, num_devices=rows.num_devices)
    num_fast = _rows_that_fit(step, rows, limits)
    if num_fast is None:
        return None
    # One device has the host behind it, several exchange rows among themselves.
    if rows.num_devices == 1:
        traffic = host_cache(rows.rates, num_fast, step)
    else:
        num_fast = min(num_fast, rows_worth_replicating(rows.rates, step, rows.sync_every))
        traffic = hybrid(rows.rates, num_fast, step, rows.sync_every)
    compute = limits.step_seconds + batch_size * limits.sample_seconds
    num_bytes = traffic.num_bytes(rows.vector_bytes)
    # Transfers hide behind the computation where the limits say that they overlap.
    link = num_bytes / limits.link_bytes_per_second
    seconds = max(compute, link) if limits.is_overlapped else compute + link
    return Operation(batch_size, num_fast, seconds, compute, num_bytes)


def fastest(rows: Rows, limits: Limits, max_batch_size: int) -> Operation:
    """Find the batch size from 1 to ``max_batch_size``, and its rows, with the most samples per second.

    Raises:
        ValueError: not even one sample fits in the memory.
    """
    # Powers of two first, then finer between the neighbors of the best one.
    sizes = [1 << power for power in range(max_batch_size.bit_length())]
    if sizes[-1] != max_batch_size:
        sizes.append(max_batch_size)
    speeds = [_speed(operate(size, rows, limits)) for size in sizes]
    if max(speeds) == 0:
        raise ValueError(f"a batch of one sample does not fit in {limits.memory_bytes} bytes")
    best = speeds.index(max(speeds))
    around = (sizes[max(best - 1, 0)], sizes[min(best + 1, len(sizes) - 1)])
    refined = _zoom(*around, rows, limits)
    found = [operate(size, rows, limits) for size in (refined, sizes[best])]
    return max((one for one in found if one), key=lambda one: one.samples_per_second)


def _zoom(low: int, high: int, rows: Rows, limits: Limits) -> int:
    """Return the best size from ``low`` to ``high``: a grid, again around its best point, at last every size.

    A grid, not a golden section: the speed has small jumps where one more sample costs a row its place.
    """
    while True:
        grid = sorted({low + (high - low) * i // _GRID for i in range(_GRID + 1)})
        speeds = [_speed(operate(size, rows, limits)) for size in grid]
        best = speeds.index(max(speeds))
        if high - low <= _GRID:
            return grid[best]
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]


def _speed(operation: Operation | None) -> float:
    return operation.samples_per_second if operation else 0.0


def _rows_that_fit(step: ParallelStep, rows: Rows, limits: Limits) -> int | None:
    """Return how many rows fit beside a batch's activations and its buffer; None where the batch does not."""
    left = limits.memory_bytes - step.samples * limits.sample_bytes
    num_rows = int(rows.rates.num_rows.sum())
    if rows.num_devices > 1:
        left -= -(-num_rows // rows.num_devices) * rows.resident_bytes
    most = min(num_rows, max(left, 0) // rows.resident_bytes)
    if _resident_bytes(most, step, rows) <= left:
        return most
    # More fast rows leave fewer for the buffer, but by less than their own bytes: bytes rise with them.
    fitting = bisect_right(range(most), left, key=lambda num_fast: _resident_bytes(num_fast, step, rows))
    return fitting - 1 if fitting else None


def _resident_bytes(num_fast: int, step: ParallelStep, rows: Rows) -> int:
    others = rows.rates.split(num_fast)[1]
    expected = expected_unique_rows(others.rates, step.samples, others.num_rows)
    most = int(others.num_rows.sum())
    staged = min(most, buffer_rows(expected, _OVERFLOW_PROBABILITY))
    return (num_fast + staged) * rows.resident_bytes
