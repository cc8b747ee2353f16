"""Kernels that take one optimizer step on embedding rows of the host.

All arithmetic is float32 with every operation rounded on its own, column by column, so that any machine
and any back end gives the same bits. A row's step is a function of its weights, its state and its own
gradient alone: rows a batch does not look up are left as they are (lazy), whatever the optimizer. So
momentum and Adam's averages decay by the steps of their row, not by those of the run.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import inlined_kernel, kernel
from ...stats.simd import LINE_BYTES, WIDTH, load, prefetch_of_cpu_prefetch, store, subtract_product

_ROWS_AHEAD = np.uint64(16)
"""Rows between asking for a row and updating it: of a table larger than the caches a row of 16 floats takes
94 ns with Adagrad where it took 204."""
_LINE_FLOATS = np.uint64(LINE_BYTES // 4)


@inlined_kernel
def _ask_for_row(slots_U, row, rows_SW):  # type: ignore[no-untyped-def]
    """Ask for the weights, or the state, of the row that is updated `_ROWS_AHEAD` rows after this one."""
    ahead = np.uint64(row) + _ROWS_AHEAD
    if ahead < np.uint64(slots_U.size):
        width = np.uint64(rows_SW.shape[1])
        first = np.uint64(slots_U[ahead]) * width
        for column in range(np.uint64(0), width, _LINE_FLOATS):
            prefetch_of_cpu_prefetch(rows_SW, first + column)


@kernel
def apply_sgd(
    weights_SD: NDArray[np.float32], slots_U: NDArray[np.int64], sums_UD: NDArray[np.float32], lr: np.float32
) -> None:
    """``w -= lr * g`` for the rows in ``slots``.

    Args:
        weights_SD: (num_slots, embedding_dim), updated.
        slots_U: (num_distinct,), no slot twice.
        sums_UD: (num_distinct, embedding_dim); gradient of each row.
        lr: learning rate.
    """
    # Whole registers first, then the columns that fill none.
    width = np.uint64(weights_SD.shape[1])
    whole = width // np.uint64(WIDTH) * np.uint64(WIDTH)
    weights_N = weights_SD.reshape(-1)
    sums_N = sums_UD.reshape(-1)
    for row in range(np.uint64(slots_U.size)):
        _ask_for_row(slots_U, row, weights_SD)
        target = np.uint64(slots_U[row]) * width
        source = row * width
        for part in range(np.uint64(0), whole, np.uint64(WIDTH)):
            updated = subtract_product(load(weights_N, target + part), lr, load(sums_N, source + part))
            store(weights_N, target + part, updated)
        for column in range(whole, width):
            weights_N[target + column] -= lr * sums_N[source + column]


@kernel
def apply_adagrad(
    weights_SD: NDArray[np.float32],
    state_SD: NDArray[np.float32],
    slots_U: NDArray[np.int64],
    sums_UD: NDArray[np.float32],
    lr: np.float32,
    eps: np.float32,
) -> None:
    """``h += g * g; w -= lr * g / (sqrt(h) + eps)`` for the rows in ``slots``.

    Args:
        weights_SD: (num_slots, embedding_dim), updated.
        state_SD: (num_slots, embedding_dim); sum of squared gradients, updated.
        slots_U: (num_distinct,), no slot twice.
        sums_UD: (num_distinct, embedding_dim); gradient of each row.
        lr: learning rate.
        eps: keeps the first step finite.

    Source:
        Duchi, Hazan and Singer, JMLR 12 (2011), figure 1, diagonal form.
    """
    for row in range(slots_U.size):
        _ask_for_row(slots_U, row, weights_SD)
        _ask_for_row(slots_U, row, state_SD)
        # State and weights are read and written once, column by column.
        slot = slots_U[row]
        for column in range(weights_SD.shape[1]):
            gradient = sums_UD[row, column]
            squares = state_SD[slot, column] + gradient * gradient
            state_SD[slot, column] = squares
            weights_SD[slot, column] -= lr * gradient / (np.sqrt(squares) + eps)


@kernel
def apply_rowwise_adagrad(
    weights_SD: NDArray[np.float32],
    state_S1: NDArray[np.float32],
    slots_U: NDArray[np.int64],
    sums_UD: NDArray[np.float32],
    lr: np.float32,
    eps: np.float32,
    squares_W: NDArray[np.float32],
) -> None:
    """Adagrad with one number per row: ``h += mean(g * g); w -= lr * g / (sqrt(h) + eps)``.

    The mean folds the columns in halves (column c and c + half, and so on), which vectorises the same way
    everywhere.

    Args:
        weights_SD: (num_slots, embedding_dim), updated.
        state_S1: (num_slots, 1); sum of mean squared gradients, updated.
        slots_U: (num_distinct,), no slot twice.
        sums_UD: (num_distinct, embedding_dim); gradient of each row.
        lr: learning rate.
        eps: keeps the first step finite.
        squares_W: (the power of two from embedding_dim up), workspace.

    Source:
        Naumov et al., arXiv 1906.00091, as FBGEMM and TorchRec run it.
    """
    dim = weights_SD.shape[1]
    for row in range(slots_U.size):
        _ask_for_row(slots_U, row, weights_SD)
        _ask_for_row(slots_U, row, state_S1)
        slot = slots_U[row]
        # Zeros fill up to a power of two, so that the halves always match.
        squares_W[dim:] = 0
        for column in range(dim):
            squares_W[column] = sums_UD[row, column] * sums_UD[row, column]
        # Fold: the upper half is added to the lower one until one number is left.
        half = squares_W.size // 2
        while half > 0:
            for column in range(half):
                squares_W[column] += squares_W[column + half]
            half //= 2
        mean = state_S1[slot, 0] + squares_W[0] / np.float32(dim)
        state_S1[slot, 0] = mean
        root = np.sqrt(mean) + eps
        for column in range(dim):
            weights_SD[slot, column] -= lr * sums_UD[row, column] / root


@kernel
def add_decay(
    weights_SD: NDArray[np.float32],
    slots_U: NDArray[np.int64],
    decay: np.float32,
    sums_UD: NDArray[np.float32],
) -> None:
    """``g += decay * w`` for the rows in ``slots``: the gradient of ``decay / 2 * |w|**2``.

    Args:
        weights_SD: (num_slots, embedding_dim).
        slots_U: (num_distinct,).
        decay: share of the weights.
        sums_UD: (num_distinct, embedding_dim); gradient of each row, updated.
    """
    for row in range(slots_U.size):
        for column in range(weights_SD.shape[1]):
            sums_UD[row, column] += decay * weights_SD[slots_U[row], column]


@kernel
def apply_momentum(
    weights_SD: NDArray[np.float32],
    state_SD: NDArray[np.float32],
    slots_U: NDArray[np.int64],
    sums_UD: NDArray[np.float32],
    lr: np.float32,
    momentum: np.float32,
) -> None:
    """``b = momentum * b + g; w -= lr * b`` for the rows in ``slots``, the others coast no further.

    Args:
        weights_SD: (num_slots, embedding_dim), updated.
        state_SD: (num_slots, embedding_dim); b, updated.
        slots_U: (num_distinct,), no slot twice.
        sums_UD: (num_distinct, embedding_dim); gradient of each row.
        lr: learning rate.
        momentum: share of b that stays.

    Source:
        Sutskever et al., ICML 28 (2013), section 2, heavy ball, in torch's form.
    """
    for row in range(slots_U.size):
        _ask_for_row(slots_U, row, weights_SD)
        _ask_for_row(slots_U, row, state_SD)
        slot = slots_U[row]
        for column in range(weights_SD.shape[1]):
            velocity = momentum * state_SD[slot, column] + sums_UD[row, column]
            state_SD[slot, column] = velocity
            weights_SD[slot, column] -= lr * velocity


@kernel
def apply_adam(
    weights_SD: NDArray[np.float32],
    state_SW: NDArray[np.float32],
    slots_U: NDArray[np.int64],
    sums_UD: NDArray[np.float32],
    keep_2: NDArray[np.float32],
    take_2: NDArray[np.float32],
    step_sizes_T: NDArray[np.float32],
    root_scales_T: NDArray[np.float32],
    eps: np.float32,
) -> None:
    """Adam on the rows in ``slots``, each corrected for bias by the number of its own steps.

    ``m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; w -= step_size[t] m / (sqrt(v) / root_scale[t] + eps)``

    Args:
        weights_SD: (num_slots, embedding_dim), updated.
        state_SW: (num_slots, 2 * embedding_dim + 1); m, v and the steps t so far, updated.
        slots_U: (num_distinct,), no slot twice.
        sums_UD: (num_distinct, embedding_dim); gradient of each row.
        keep_2: b1 and b2.
        take_2: 1 - b1 and 1 - b2.
        step_sizes_T: (any,); ``lr / (1 - b1**t)``, whose last entry serves all later steps.
        root_scales_T: (any,); ``sqrt(1 - b2**t)``, likewise.
        eps: keeps the first step finite.

    Source:
        Kingma and Ba, arXiv 1412.6980, algorithm 1, in torch's order of operations.
    """
    dim = weights_SD.shape[1]
    for row in range(slots_U.size):
        _ask_for_row(slots_U, row, weights_SD)
        _ask_for_row(slots_U, row, state_SW)
        slot = slots_U[row]
        steps = state_SW[slot, 2 * dim] + np.float32(1)
        state_SW[slot, 2 * dim] = steps
        # The corrections for bias of this row's own number of steps.
        step_size = step_sizes_T[np.minimum(np.int64(steps), step_sizes_T.size - 1)]
        root_scale = root_scales_T[np.minimum(np.int64(steps), root_scales_T.size - 1)]
        # A fixed order of float32 operations, the same as that of the backend in torch.
        for column in range(dim):
            gradient = sums_UD[row, column]
            mean = keep_2[0] * state_SW[slot, column] + take_2[0] * gradient
            square = keep_2[1] * state_SW[slot, dim + column] + take_2[1] * (gradient * gradient)
            state_SW[slot, column] = mean
            state_SW[slot, dim + column] = square
            weights_SD[slot, column] -= step_size * mean / (np.sqrt(square) / root_scale + eps)
