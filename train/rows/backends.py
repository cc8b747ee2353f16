"""Optimizers of embedding rows, and the back ends that look rows up and update them.

All are lazy: a step touches the rows a batch looks up and no others, state included. For Adam this means that
the averages of a row decay, and are corrected for bias, by the steps that row has taken. Torch's SparseAdam
corrects by the steps of the run, which makes the first step of a rare row up to 3.2 times the rate.

Lookups and updates run with Numba on the host and with torch on any device. Both take the lookups of a batch
by row and do the same float32 operations in the same order, so on the CPU they give the same bits (a test
compares them). Torch runs each operation as a separate kernel, so no compiler fuses a product with a sum. On
a GPU the steps of a run are queued (`gpu.queued_steps`); torch's back end is for evaluation and for batches
in passes. It never reads back sizes that depend on ids, but each list that it sends from the host's pageable
memory waits for the device.

The distinct rows of a batch are split over threads into ranges with about as many lookups each. A row is in
one range and its sum does not depend on where ranges end, so bits do not depend on the number of threads.

Rows are copied with their state between a tier on the host and one on any device for flushes, evaluation and
batches in passes; kernels of the device move the rows of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.batch_rows import LookupsByRow
from ...stats.row_bytes import OPTIMIZERS, row_bytes, state_width
from ..data.batch import BatchIds, MicroBatches
from ..threads import WorkThreads
from . import kernels
from .kernels import BLOCK_SAMPLES, num_levels
from .tiers import InitialValues, Moves, Tier

ADAGRAD_EPS = 1e-10
"""Torch's default: about the 11th digit of the first step, so that a zero gradient divides by no zero."""
ADAM_EPS = 1e-8
"""Torch's and the paper's default."""
ADAM_BETAS = (0.9, 0.999)
"""Torch's and the paper's defaults."""
MOMENTUM = 0.9
"""Share of a row's last step that stays."""
_CORRECTED_BELOW = 2.0**-26
"""``1 - x`` rounds to 1 in float32 below this."""


@dataclass(frozen=True)
class RowOptimizer:
    """One embedding optimizer; ``lr`` and ``decay`` are rounded to float32 once, here."""

    name: str
    lr: float
    """Learning rate of steps that are not given another."""
    decay: float = 0.0
    """Share of a row's weights that is added to its gradient at each of its steps (L2)."""

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ValueError(f"no embedding optimizer {self.name!r}")
        object.__setattr__(self, "lr", float(np.float32(self.lr)))
        object.__setattr__(self, "decay", float(np.float32(self.decay)))

    @cached_property
    def eps(self) -> float:
        """The number added to the root of the squares, a float32."""
        return float(np.float32(ADAM_EPS if self.name == "adam" else ADAGRAD_EPS))

    def state_width(self, embedding_dim: int) -> int:
        """Return how many float32 numbers of state each row has."""
        return state_width(embedding_dim, self.name)

    def row_bytes(self, embedding_dim: int) -> int:
        """Bytes of a row with its state."""
        return row_bytes(embedding_dim, self.name)

    def step_rates(self, lr: float) -> NDArray[np.float32]:
        """Return the learning rate of a step, or of Adam ``lr / (1 - b1**t)``.

        These go on until float32 sees no change, whatever the rate; t counts from 0, entry 0 is unused.
        """
        if self.name != "adam":
            return np.array([lr], np.float32)
        return np.concatenate([np.ones(1), lr / (1 - self._adam_powers[0])]).astype(np.float32)

    @cached_property
    def root_scales(self) -> NDArray[np.float32]:
        """Return ``sqrt(1 - b2**t)`` of Adam likewise; nothing for others."""
        if self.name != "adam":
            return np.empty(0, np.float32)
        return np.concatenate([np.ones(1), np.sqrt(1 - self._adam_powers[1])]).astype(np.float32)

    @cached_property
    def _adam_powers(self) -> list[NDArray[np.float64]]:
        """Powers of both betas, by repeated products in float64, as powers differ between machines."""
        num_steps = [2 + math.ceil(math.log(_CORRECTED_BELOW) / math.log(beta)) for beta in ADAM_BETAS]
        return [
            np.multiply.accumulate(np.full(count, beta))
            for count, beta in zip(num_steps, ADAM_BETAS, strict=True)
        ]


ADAM_KEEP = np.array(ADAM_BETAS, np.float32)
"""Shares of Adam's two averages that stay."""
ADAM_TAKE = (1 - np.array(ADAM_BETAS)).astype(np.float32)
"""Shares of the gradient and of its square that are added to them."""


def step_with_numba(
    optimizer: RowOptimizer,
    weights_SD: NDArray[np.float32],
    state_SW: NDArray[np.float32],
    slots_U: NDArray[np.int64],
    sums_UD: NDArray[np.float32],
    rate: float | None = None,
) -> None:
    """Update rows ``slots_U``, none twice, by their gradients ``sums_UD``, which a decay changes.

    Args:
        rate: learning rate of this step, a float32; None: that of the optimizer.
    """
    # The optimizers share everything but their arithmetic, and each has a kernel for that.
    rate = optimizer.lr if rate is None else rate
    lr = np.float32(rate)
    eps = np.float32(optimizer.eps)
    # Decay is a part of the gradient, as torch has it, and so comes before any optimizer sees it.
    if optimizer.decay:
        kernels.add_decay(weights_SD, slots_U, np.float32(optimizer.decay), sums_UD)
    if optimizer.name == "sgd":
        kernels.apply_sgd(weights_SD, slots_U, sums_UD, lr)
    elif optimizer.name == "momentum":
        kernels.apply_momentum(weights_SD, state_SW, slots_U, sums_UD, lr, np.float32(MOMENTUM))
    elif optimizer.name == "adagrad":
        kernels.apply_adagrad(weights_SD, state_SW, slots_U, sums_UD, lr, eps)
    elif optimizer.name == "adam":
        numbers = (ADAM_KEEP, ADAM_TAKE, optimizer.step_rates(rate), optimizer.root_scales, eps)
        kernels.apply_adam(weights_SD, state_SW, slots_U, sums_UD, *numbers)
    else:
        squares = np.empty(fold_width(weights_SD.shape[1]), np.float32)
        kernels.apply_rowwise_adagrad(weights_SD, state_SW, slots_U, sums_UD, lr, eps, squares)


def step_with_torch(
    optimizer: RowOptimizer,
    weights_SD: torch.Tensor,
    state_SW: torch.Tensor,
    slots_U: torch.Tensor,
    grad_UD: torch.Tensor,
    rates_T: torch.Tensor,
    root_scales_T: torch.Tensor,
) -> None:
    """Update rows ``slots_U``, none twice, without waiting for the device.

    Args:
        optimizer: that of the rows.
        weights_SD: updated.
        state_SW: updated.
        slots_U: int64.
        grad_UD: gradient of each row.
        rates_T: `RowOptimizer.step_rates` of the step.
        root_scales_T: `RowOptimizer.root_scales`.
    """
    # Rows are gathered, stepped together and scattered: no value leaves the device.
    weights_UD = weights_SD.index_select(0, slots_U)
    if optimizer.decay:
        grad_UD = grad_UD + weights_UD * optimizer.decay
    if optimizer.name == "sgd":
        weights_SD.index_copy_(0, slots_U, weights_UD - grad_UD * rates_T[0])
        return
    # All others keep a state, which moves with the weights.
    state_UW = state_SW.index_select(0, slots_U)
    if optimizer.name == "adam":
        state_UW, change_UD = _adam(state_UW, grad_UD, rates_T, root_scales_T, optimizer.eps)
    elif optimizer.name == "momentum":
        state_UW = state_UW * MOMENTUM + grad_UD
        change_UD = state_UW * rates_T[0]
    else:
        squares = grad_UD * grad_UD
        state_UW = state_UW + (_folded_mean(squares) if optimizer.name == "rowwise-adagrad" else squares)
        change_UD = grad_UD * rates_T[0] / (exact_sqrt(state_UW) + optimizer.eps)
    state_SW.index_copy_(0, slots_U, state_UW)
    weights_SD.index_copy_(0, slots_U, weights_UD - change_UD)


def _adam(
    state_UW: torch.Tensor,
    grad_UD: torch.Tensor,
    step_sizes_T: torch.Tensor,
    root_scales_T: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state after a step, and what is subtracted from the weights."""
    dim = grad_UD.shape[1]
    steps_U1 = state_UW[:, 2 * dim :] + 1
    steps_U = steps_U1.squeeze(1).long()
    step_sizes_U, root_scales_U = (
        table_T[steps_U.clamp(max=table_T.numel() - 1)] for table_T in (step_sizes_T, root_scales_T)
    )
    # Python floats that hold the float32 values: torch rounds a product with one as with a float32.
    keep = ADAM_KEEP.tolist()
    take = ADAM_TAKE.tolist()
    mean_UD = state_UW[:, :dim] * keep[0] + grad_UD * take[0]
    square_UD = state_UW[:, dim : 2 * dim] * keep[1] + grad_UD * grad_UD * take[1]
    root_UD = exact_sqrt(square_UD) / root_scales_U.unsqueeze(1) + eps
    change_UD = mean_UD * step_sizes_U.unsqueeze(1) / root_UD
    return torch.cat([mean_UD, square_UD, steps_U1], dim=1), change_UD


def _folded_mean(squares_UD: torch.Tensor) -> torch.Tensor:
    """Return the mean over columns, (U, 1), summed as ``apply_rowwise_adagrad`` does."""
    dim = squares_UD.shape[1]
    folded = torch.nn.functional.pad(squares_UD, (0, fold_width(dim) - dim))
    while folded.shape[1] > 1:
        half = folded.shape[1] // 2
        folded = folded[:, :half] + folded[:, half:]
    # On a GPU torch multiplies by the reciprocal of a number, which is off by a bit where it is inexact.
    return folded / torch.full_like(folded, dim)


def exact_sqrt(values: torch.Tensor) -> torch.Tensor:
    """Return float32 square roots, correctly rounded.

    Torch's on the CPU is off by a bit in one of six. Through float64, whose error is too small to cross a
    rounding boundary of float32 here.
    """
    return values.double().sqrt().float()


def fold_width(dim: int) -> int:
    """The power of two from ``dim`` up."""
    return 1 << (dim - 1).bit_length()


LEAST_RANGE_LOOKUPS = 16_384
"""Lookups of a range of rows at least, some 0.4 ms of work; to wake a thread takes a tenth of that."""
RANGES_PER_THREAD = 2
"""Ranges per thread at most: a thread that is late, from the step of the dense layers, takes fewer."""


def row_ranges(lookups: LookupsByRow, num_threads: int) -> list[tuple[int, int]]:
    """Return ranges of rows, with about as many lookups each, for so many threads."""
    num_lookups = lookups.order_N.shape[0]
    most = 1 if num_threads == 1 else num_threads * RANGES_PER_THREAD
    num_ranges = max(1, min(most, num_lookups // LEAST_RANGE_LOOKUPS))
    if num_ranges == 1:
        return [(0, lookups.num_rows)] if lookups.num_rows else []
    # A range ends with the row that reaches its share; a row with several shares leaves ranges empty.
    shares = np.arange(1, num_ranges) * (num_lookups / num_ranges)
    bounds = np.searchsorted(lookups.starts_U1, shares).clip(max=lookups.num_rows).tolist()
    return [(first, last) for first, last in pairwise([0, *bounds, lookups.num_rows]) if first < last]


_HOST = torch.device("cpu")
_CHUNK_FLOATS = 1 << 16
"""Floats of the sums that are made before their rows are updated: 256 KiB, which stay in the cache."""


class NumbaRows:
    """The host's back end: each row is read, summed and updated by one thread.

    ``lookups`` are those of a batch by row, and ``slots_U`` the slot of each distinct row, -1 for rows that
    are left out. A ``rate`` is the learning rate of a step, a float32; None: that of the optimizer.

    Args:
        optimizer: that of the rows.
        threads: share the rows of a batch; how many they are changes no bit.
        micro_batches: parts of a batch, whose gradients are summed separately; None: the batch is one.
    """

    def __init__(
        self, optimizer: RowOptimizer, threads: WorkThreads, micro_batches: MicroBatches | None = None
    ) -> None:
        self._optimizer = optimizer
        self._threads = threads
        self._micro_batches = micro_batches
        self._num_levels = num_levels(1 if micro_batches is None else micro_batches.num_micro_batches)

    def look_up(
        self,
        weights_SD: torch.Tensor,
        lookups: LookupsByRow,
        slots_U: NDArray[np.int64],
        vectors_ND: torch.Tensor,
    ) -> None:
        """Write the row of each lookup to its position in ``vectors_ND``."""
        weights = weights_SD.numpy()
        vectors = vectors_ND.numpy()

        ranges = row_ranges(lookups, self._threads.num_threads)

        def look_up_rows(piece: int, _: int) -> None:
            kernels.look_up(weights, lookups, slots_U, *ranges[piece], vectors)

        self._threads.run(look_up_rows, len(ranges))

    def pool(self, vectors_ND: torch.Tensor, ids: BatchIds, pooled_PD: torch.Tensor) -> None:
        """Sum the vectors of each bag in the order of its lookups."""
        assert ids.bags_N is not None
        kernels.pool_bags(vectors_ND.numpy(), ids.bags_N, pooled_PD.numpy())

    def update(
        self,
        tier: Tier,
        by_bag: LookupsByRow,
        slots_U: NDArray[np.int64],
        grad_PD: torch.Tensor,
        num_features: int,
        rate: float | None = None,
    ) -> None:
        """Sum the gradients of each row's bags; take one optimizer step on it."""
        weights = tier.weights_SD.numpy()
        state = tier.state_SW.numpy()
        grad = grad_PD.numpy()
        block = BLOCK_SAMPLES * num_features
        # Sums have a fixed shape: blocks of samples, added within a share, then shares by a binary tree.
        ends = _micro_batch_ends(self._micro_batches, grad.shape[0], num_features)
        levels = self._num_levels
        num_rows = max(1, _CHUNK_FLOATS // grad.shape[1])

        ranges = row_ranges(by_bag, self._threads.num_threads)

        def update_rows(piece: int, _: int) -> None:
            first, last = ranges[piece]
            size = min(num_rows, last - first)
            sums = np.empty((size + levels, grad.shape[1]), np.float32)
            slots = np.empty(size, np.int64)
            shares = np.empty(levels, np.int64)
            # Sums are used while they are in the cache.
            for start in range(first, last, num_rows):
                stop = min(start + num_rows, last)
                found = kernels.sum_gradients(
                    grad, by_bag, slots_U, block, ends, start, stop, sums, slots, shares
                )
                step_with_numba(self._optimizer, weights, state, slots[:found], sums[:found], rate)

        self._threads.run(update_rows, len(ranges))

    def sums(self, by_bag: LookupsByRow, grad_PD: torch.Tensor, num_features: int) -> torch.Tensor:
        """(num_distinct, D): summed gradient of each distinct row."""
        every = np.arange(by_bag.num_rows)
        grad = grad_PD.numpy()
        ends = _micro_batch_ends(self._micro_batches, grad.shape[0], num_features)
        levels = num_levels(ends.size)
        block = BLOCK_SAMPLES * num_features
        whole = np.empty((every.size, grad.shape[1]), np.float32)
        ranges = row_ranges(by_bag, self._threads.num_threads)

        # The kernel of an update, without the step; it needs a few rows more to add in.
        def sum_rows(piece: int, _: int) -> None:
            first, last = ranges[piece]
            sums = np.empty((last - first + levels, grad.shape[1]), np.float32)
            slots = np.empty(last - first, np.int64)
            shares = np.empty(levels, np.int64)
            kernels.sum_gradients(grad, by_bag, every, block, ends, first, last, sums, slots, shares)
            whole[first:last] = sums[: last - first]

        self._threads.run(sum_rows, len(ranges))
        return torch.from_numpy(whole)

    def apply(
        self, tier: Tier, slots_U: NDArray[np.int64], sums_UD: torch.Tensor, rate: float | None = None
    ) -> None:
        """Take one optimizer step from summed gradients, which may change."""
        weights = tier.weights_SD.numpy()
        state = tier.state_SW.numpy()
        sums = sums_UD.numpy()
        num_rows = max(1, _CHUNK_FLOATS // sums.shape[1])

        # The rows are distinct, so threads share them.
        def step_some(piece: int, _: int) -> None:
            own = slice(piece * num_rows, (piece + 1) * num_rows)
            step_with_numba(self._optimizer, weights, state, slots_U[own], sums[own], rate)

        self._threads.run(step_some, -(-slots_U.size // num_rows))


class TorchRows:
    """Any device's back end, as `NumbaRows`: levels of segment sums over the lookups by row."""

    def __init__(
        self, optimizer: RowOptimizer, device: torch.device = _HOST, micro_batches: MicroBatches | None = None
    ) -> None:
        self._optimizer = optimizer
        self._micro_batches = micro_batches
        # The numbers of a step are copied to the device when the learning rate changes.
        self._rate = math.nan
        self._rates_T = self._root_scales_T = torch.from_numpy(optimizer.root_scales).to(device)

    def look_up(
        self,
        weights_SD: torch.Tensor,
        lookups: LookupsByRow,
        slots_U: NDArray[np.int64],
        vectors_ND: torch.Tensor,
    ) -> None:
        slots, order = _served(lookups, slots_U)
        slots_N, positions_N = self._on(weights_SD.device, slots, order)
        vectors_ND.index_copy_(0, positions_N, weights_SD.index_select(0, slots_N))

    def pool(self, vectors_ND: torch.Tensor, ids: BatchIds, pooled_PD: torch.Tensor) -> None:
        assert ids.bags_N is not None
        (lengths_P,) = self._on(vectors_ND.device, np.bincount(ids.bags_N, minlength=ids.num_bags))
        pooled_PD.copy_(_serial_sums(vectors_ND, lengths_P))

    def update(
        self,
        tier: Tier,
        by_bag: LookupsByRow,
        slots_U: NDArray[np.int64],
        grad_PD: torch.Tensor,
        num_features: int,
        rate: float | None = None,
    ) -> None:
        served = slots_U[slots_U >= 0]
        _, bags = _served(by_bag, slots_U)
        rows = np.repeat(np.arange(served.size), by_bag.counts_U[slots_U >= 0])
        self.apply(tier, served, self._sums(rows, bags, served.size, grad_PD, num_features), rate)

    def apply(
        self, tier: Tier, slots_U: NDArray[np.int64], sums_UD: torch.Tensor, rate: float | None = None
    ) -> None:
        (slots,) = self._on(tier.device, slots_U)
        rate = self._optimizer.lr if rate is None else rate
        if rate != self._rate:
            self._rate = rate
            (self._rates_T,) = self._on(tier.device, self._optimizer.step_rates(rate))
        numbers = (self._rates_T, self._root_scales_T)
        # A tier may have room for the state of a wider optimizer.
        state_SW = tier.state_SW[:, : self._optimizer.state_width(sums_UD.shape[1])]
        step_with_torch(self._optimizer, tier.weights_SD, state_SW, slots, sums_UD, *numbers)

    def sums(self, by_bag: LookupsByRow, grad_PD: torch.Tensor, num_features: int) -> torch.Tensor:
        rows = np.repeat(np.arange(by_bag.num_rows), by_bag.counts_U)
        bags = by_bag.order_N.astype(np.int64)
        return self._sums(rows, bags, by_bag.num_rows, grad_PD, num_features)

    def _sums(
        self,
        rows_N: NDArray[np.int64],
        bags_N: NDArray[np.int64],
        num_rows: int,
        grad_PD: torch.Tensor,
        num_features: int,
    ) -> torch.Tensor:
        ends_G = _micro_batch_ends(self._micro_batches, grad_PD.shape[0], num_features)
        keys = _keys_of_levels(bags_N, ends_G, BLOCK_SAMPLES * num_features)
        rows, bags, *levels = self._on(grad_PD.device, rows_N, bags_N, *keys)
        return segment_sums(rows, bags, levels, grad_PD)[:num_rows]

    @staticmethod
    def _on(device: torch.device, *arrays: NDArray[Any]) -> list[torch.Tensor]:
        return [torch.from_numpy(array).to(device) for array in arrays]


RowBackend = NumbaRows | TorchRows


def backend_of(
    device: torch.device,
    optimizer: RowOptimizer,
    threads: WorkThreads,
    micro_batches: MicroBatches | None = None,
) -> RowBackend:
    """Numba on the host, in these threads; torch elsewhere."""
    if device.type == "cpu":
        return NumbaRows(optimizer, threads, micro_batches)
    return TorchRows(optimizer, device, micro_batches)


@lru_cache(maxsize=64)
def _micro_batch_ends(
    micro_batches: MicroBatches | None, num_positions: int, num_features: int
) -> NDArray[np.int64]:
    """Return where each micro-batch of a batch that is not empty ends, (num_micro_batches,)."""
    num_samples = num_positions // max(num_features, 1)
    bounds = [(0, num_samples)] if micro_batches is None else micro_batches.bounds(num_samples)
    return np.array([stop * num_features for _, stop in bounds], np.int64)


def _keys_of_levels(
    positions_N: NDArray[np.int64], ends_G: NDArray[np.int64], block_positions: int
) -> list[NDArray[np.int64]]:
    """Return the keys by which lookups of a row are summed, by level."""
    shares_N = np.searchsorted(ends_G, positions_N, side="right")
    starts_G = np.concatenate([np.zeros(1, np.int64), ends_G])
    # Blocks are numbered within their share, whose number stands before.
    blocks_N = (positions_N - starts_G[shares_N]) // block_positions
    keys = [(shares_N << 32) | blocks_N]
    # Then shares, pairs of shares, and so on, but for all of them together.
    num_pairings = (ends_G.size - 1).bit_length() if ends_G.size else 0
    return keys + [shares_N >> level for level in range(num_pairings)]


def _served(lookups: LookupsByRow, slots_U: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Slot and position of each lookup whose row is not left out."""
    slots_N = np.repeat(slots_U, lookups.counts_U)
    is_served = slots_N >= 0
    return slots_N[is_served], lookups.order_N[is_served].astype(np.int64)


def segment_sums(
    rows_N: torch.Tensor, positions_N: torch.Tensor, levels: Sequence[torch.Tensor], grad_PD: torch.Tensor
) -> torch.Tensor:
    """Sum gradients by key, level by level, then by row, in sample order.

    Args:
        rows_N: (N,) int64, ascending.
        positions_N: (N,) int64, ascending within a row.
        levels: (N,) int64 each, ascending within a row; a key of one level has one key of the next.
        grad_PD: (P, D) float32.

    Returns:
        (N, D) sums, one per distinct row, then zeros.
    """
    sums_ND = grad_PD.index_select(0, positions_N)
    starts_row = _differs_from_previous(rows_N)
    # Before the first level each lookup is a separate part.
    starts_part = torch.ones_like(starts_row)
    for keys_N in [*levels, None]:
        starts = starts_row if keys_N is None else starts_row | _differs_from_previous(keys_N)
        # Lengths of the segments, found by counting: no size depends on ids, so nothing is read back from a
        # GPU.
        segment_of_lookup = starts.cumsum(0) - 1
        parts_in_segment = torch.zeros_like(rows_N).index_add_(0, segment_of_lookup, starts_part.long())
        sums_ND = _serial_sums(sums_ND, parts_in_segment)
        starts_part = starts
    return sums_ND


def _serial_sums(values_ND: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    # No kernel is launched for no segment: some builds of CUDA launch an empty grid, which fails.
    if lengths.numel() == 0:
        return values_ND.new_zeros(0, values_ND.shape[1])
    # On matrices segment_reduce adds one row after the other, on the CPU and on the GPU: a fixed order.
    return torch.segment_reduce(values_ND, "sum", lengths=lengths, axis=0, unsafe=True, initial=0.0)


def _differs_from_previous(values_N: torch.Tensor) -> torch.Tensor:
    differs = torch.ones_like(values_N, dtype=torch.bool)
    differs[1:] = values_N[1:] != values_N[:-1]
    return differs


MAX_ROWS = 50_000
"""Rows that are copied to or from a GPU together, which bounds the memory for them."""


def write_back(fast: Tier, slow: Tier, moves: Moves) -> None:
    """Copy staged rows to the slow tier; they are there when this returns."""
    if fast.is_host:
        slow.put(moves, fast.weights_SD.numpy(), fast.state_SW.numpy())
        return
    # From a GPU in parts: each is gathered on the device and copied to the host.
    for part in _bounded(moves):
        slots_N = torch.from_numpy(part.slots_N).to(fast.device)
        weights_ND = fast.weights_SD.index_select(0, slots_N).cpu().numpy()
        state_NW = fast.state_SW.index_select(0, slots_N).cpu().numpy()
        slow.put(replace(part, slots_N=np.arange(part.num_rows)), weights_ND, state_NW)


def fetch(fast: Tier, slow: Tier, moves: Moves) -> None:
    """Copy rows of the slow tier to staging slots."""
    if fast.is_host:
        slow.take(moves, fast.weights_SD.numpy(), fast.state_SW.numpy())
        return
    # To a GPU in parts: each is filled on the host and scattered on the device.
    for part in _bounded(moves):
        slots_N = torch.from_numpy(part.slots_N).to(fast.device)
        weights_ND = torch.empty(part.num_rows, fast.weights_SD.shape[1], dtype=torch.float32, device="cpu")
        state_NW = torch.empty(part.num_rows, fast.state_SW.shape[1], dtype=torch.float32, device="cpu")
        of_parts = replace(part, slots_N=np.arange(part.num_rows))
        slow.take(of_parts, weights_ND.numpy(), state_NW.numpy())
        fast.weights_SD.index_copy_(0, slots_N, weights_ND.to(fast.device))
        fast.state_SW.index_copy_(0, slots_N, state_NW.to(fast.device))


def _bounded(moves: Moves) -> Iterator[Moves]:
    for first in range(0, moves.num_rows, MAX_ROWS):
        yield moves.part(slice(first, first + MAX_ROWS))


def initialize_rows(fast: Tier, slow: Tier, initial: InitialValues, moves: Moves) -> None:
    """Initialize rows of the slow tier in fast slots, without state."""
    if moves.num_rows == 0:
        return
    tables_N, ids_N = slow.layout.rows_at(moves.rows_N)
    initial.write(tables_N, ids_N, fast.weights_SD, moves.slots_N)
    fast.state_SW.index_fill_(0, torch.from_numpy(moves.slots_N).to(fast.device), 0)
