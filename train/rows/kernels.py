"""Kernels over embedding rows on the host: initial values, lookups, gradient sums, optimizer steps.

All arithmetic is float32 with every operation rounded separately, in an order that depends on sample
positions alone: never on slots, threads or placement. So a row's bits are a function of the batches, on any
machine and any back end. An optimizer step of a row is a function of its weights, its state and its gradient
alone: rows a batch does not look up are left as they are (lazy), whatever the optimizer. So momentum and
Adam's averages decay by the steps of their row, not by those of the run.

Shapes: S slots of a tier, D embedding_dim, N lookups listed, P = B * F bags of a batch in sample order
(position = sample * F + feature), U distinct rows, R rows of a part of them.

Optimizer steps update ``weights_SD`` and the state of the rows in ``slots_U``, no slot twice, by the gradient
of each row in ``sums_UD``, at the learning rate ``lr``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...stats.batch_rows import LookupsByRow
from ...stats.id_tables import mix64_pair
from ...stats.kernel import inlined_kernel, kernel
from ...stats.simd import LINE_BYTES, WIDTH, add, load, prefetch, store, subtract_product, zeros

BLOCK_SAMPLES = 128
"""Samples whose gradients of one row are summed before the sums of the blocks are."""

_ROWS_AHEAD = np.uint64(16)
"""Rows between asking for a row and reading it, as in `kernels`."""
_LINE_FLOATS = np.uint64(LINE_BYTES // 4)


@kernel
def look_up(
    weights_SD: NDArray[np.float32],
    lookups: LookupsByRow,
    slots_U: NDArray[np.int64],
    first: int,
    last: int,
    vectors_PD: NDArray[np.float32],
) -> None:
    """Copy rows ``first`` to ``last - 1`` to their lookups' positions, exactly.

    A row is read once, however often it is looked up: a third to a half less time than lookup by lookup.

    Args:
        weights_SD: (num_slots, embedding_dim).
        lookups: those of a batch by row; ``order`` holds positions in ``vectors``.
        slots_U: (num_distinct,), each below num_slots; rows with -1 are left out.
        first: number of the first row.
        last: one past the last.
        vectors_PD: (num_positions, embedding_dim), written at the positions.
    """
    # Whole registers are copied first, the columns that fill none one by one.
    width = np.uint64(weights_SD.shape[1])
    whole = width // np.uint64(WIDTH) * np.uint64(WIDTH)
    weights_N = weights_SD.reshape(-1)
    vectors_N = vectors_PD.reshape(-1)
    for row in range(np.uint64(first), np.uint64(last)):
        # Prefetch a row: the table may be larger than the caches.
        if row + _ROWS_AHEAD < np.uint64(last) and slots_U[row + _ROWS_AHEAD] >= 0:
            ahead = np.uint64(slots_U[row + _ROWS_AHEAD]) * width
            for column in range(np.uint64(0), width, _LINE_FLOATS):
                prefetch(weights_N, ahead + column)
        # A row of the slow tier has no slot here: its vectors are sent separately.
        if slots_U[row] < 0:
            continue
        source = np.uint64(slots_U[row]) * width
        for i in range(np.uint64(lookups.starts_U1[row]), np.uint64(lookups.starts_U1[row + np.uint64(1)])):
            target = np.uint64(lookups.order_N[i]) * width
            for part in range(np.uint64(0), whole, np.uint64(WIDTH)):
                store(vectors_N, target + part, load(weights_N, source + part))
            for column in range(whole, width):
                vectors_N[target + column] = weights_N[source + column]


@kernel
def sum_gradients(
    grad_PD: NDArray[np.float32],
    lookups: LookupsByRow,
    slots_U: NDArray[np.int64],
    block_positions: int,
    ends_G: NDArray[np.int64],
    first: int,
    last: int,
    sums_RD: NDArray[np.float32],
    slots_R: NDArray[np.int64],
    shares_L: NDArray[np.int64],
) -> int:
    """Sum the gradients of each row, independently of threads and ranks.

    Sums go within blocks of samples, over the blocks of a micro-batch in order, then over the micro-batches
    by the binary tree over their numbers; a micro-batch that does not look a row up is skipped.

    Args:
        grad_PD: (num_positions, embedding_dim); gradient of the loss by each bag.
        lookups: those of a batch by row; ``order`` holds positions in ``grad``, ascending in a row.
        slots_U: (num_distinct,); rows with -1 are left out.
        block_positions: positions a block of samples spans, ``BLOCK_SAMPLES * num_features``; each
            micro-batch begins a new block.
        ends_G: (num_shares,); where each micro-batch ends, ascending, the last one past all positions.
        first: number of the first row.
        last: one past the last.
        sums_RD: (at least as many + `num_levels`, embedding_dim), written; rows after the last sum are
            workspace.
        slots_R: (at least as many,), written; the slot of each sum's row.
        shares_L: (`num_levels`,), workspace.

    Returns:
        How many rows are summed.

    Error:
        Two-level summation in float32: for N lookups of one row in a micro-batch at most ``(128 + N / 128) *
        2**-24`` of the sum of magnitudes, where a serial sum has ``N * 2**-24``; over the micro-batches
        ``ceil(log2(num_shares)) * 2**-24`` more.

    Source:
        Higham, Accuracy and Stability of Numerical Algorithms (2002), section 4.2.
    """
    # One long function: with the sums of a share in another one, inlined or called, rows of 16 numbers take
    # twice the time, as Numba then counts references to the arrays for each row.
    width = np.uint64(grad_PD.shape[1])
    whole = width // np.uint64(WIDTH) * np.uint64(WIDTH)
    grad_N = grad_PD.reshape(-1)
    sums_N = sums_RD.reshape(-1)
    num_shares = ends_G.size
    num_summed = np.uint64(0)
    for row in range(np.uint64(first), np.uint64(last)):
        if slots_U[row] < 0:
            continue
        slots_R[num_summed] = slots_U[row]
        start = np.uint64(lookups.starts_U1[row])
        last_stop = np.uint64(lookups.starts_U1[row + np.uint64(1)])
        # Sums of subtrees that wait for their sibling are stored one after the other, from where the row's
        # sum will be.
        depth = 0
        share = 0
        origin = np.int64(0)
        stop = last_stop
        is_cut = num_shares > 1 and last_stop - start > np.uint64(1)
        while start < last_stop:
            # The lookups of one share; those of a batch with a single share are all in it, and so is one.
            if is_cut:
                while lookups.order_N[start] >= ends_G[share]:
                    origin = ends_G[share]
                    share += 1
                stop = last_stop
                if lookups.order_N[last_stop - np.uint64(1)] >= ends_G[share]:
                    stop = start + np.uint64(1)
                    while lookups.order_N[stop] < ends_G[share]:
                        stop += np.uint64(1)
                # Of two subtrees that are nearer to each other than to this share, none grows any more.
                while depth > 1 and shares_L[depth - 2] ^ shares_L[depth - 1] < shares_L[depth - 1] ^ share:
                    depth -= 1
                    _add_to_left(sums_RD, num_summed + np.uint64(depth))
                shares_L[depth] = share
            target = (num_summed + np.uint64(depth)) * width
            depth += 1
            # Sixteen columns at a time, whose sums are registers. Every sum begins with 0: a gradient of -0
            # is 0.
            for part in range(np.uint64(0), whole, np.uint64(WIDTH)):
                total = zeros()
                i = start
                while i < stop:
                    # Take the lookups of one block, up to the first past its end. Most rows have one lookup.
                    position = np.int64(lookups.order_N[i])
                    partial = load(grad_N, np.uint64(position) * width + part)
                    i += np.uint64(1)
                    if i < stop:
                        end = origin + ((position - origin) // block_positions + 1) * block_positions
                        while i < stop and lookups.order_N[i] < end:
                            partial = add(partial, load(grad_N, np.uint64(lookups.order_N[i]) * width + part))
                            i += np.uint64(1)
                    total = add(total, partial)
                store(sums_N, target + part, total)
            # The columns that are left, one by one.
            for column in range(whole, width):
                total_1 = np.float32(0)
                i = start
                while i < stop:
                    position = np.int64(lookups.order_N[i])
                    end = origin + ((position - origin) // block_positions + 1) * block_positions
                    partial_1 = grad_N[np.uint64(position) * width + column]
                    i += np.uint64(1)
                    while i < stop and lookups.order_N[i] < end:
                        partial_1 += grad_N[np.uint64(lookups.order_N[i]) * width + column]
                        i += np.uint64(1)
                    total_1 += partial_1
                sums_N[target + column] = total_1
            start = stop
        while depth > 1:
            depth -= 1
            _add_to_left(sums_RD, num_summed + np.uint64(depth))
        num_summed += np.uint64(1)
    return int(num_summed)


@kernel
def _add_to_left(sums_RD: NDArray[np.float32], row: np.uint64) -> None:
    """Add a row to the one before it.

    Args:
        sums_RD: (num_rows, width), updated.
        row: number of the row, above 0.
    """
    for column in range(sums_RD.shape[1]):
        sums_RD[row - np.uint64(1), column] += sums_RD[row, column]


def num_levels(num_shares: int) -> int:
    """Return the most sums of subtrees that so many shares keep."""
    return max(num_shares - 1, 0).bit_length() + 1


@kernel
def pool_bags(
    vectors_ND: NDArray[np.float32], bags_N: NDArray[np.int64], pooled_PD: NDArray[np.float32]
) -> None:
    """Sum the vectors of each bag in order; an empty bag is zero.

    Args:
        vectors_ND: (num_lookups, embedding_dim).
        bags_N: (num_lookups,), ascending; bag of each lookup.
        pooled_PD: (num_bags, embedding_dim), written.

    Error:
        Serial summation in float32: ``(n - 1) * 2**-24`` of the sum of magnitudes for a bag of n.
    """
    pooled_PD[:] = 0
    for i in range(bags_N.size):
        bag = bags_N[i]
        for column in range(vectors_ND.shape[1]):
            pooled_PD[bag, column] += vectors_ND[i, column]


@kernel
def copy_rows(
    source_SD: NDArray[np.float32],
    source_N: NDArray[np.int64],
    target_SD: NDArray[np.float32],
    target_N: NDArray[np.int64],
) -> None:
    """Copy row ``source[i]`` of one array to row ``target[i]`` of another, exactly.

    Args:
        source_SD: (num_slots, width).
        source_N: (num_rows,), each below num_slots; rows with -1 are left out.
        target_SD: (num_slots of the target, width), written at ``target``.
        target_N: (num_rows,), none twice.
    """
    for i in range(source_N.size):
        source = source_N[i]
        target = target_N[i]
        if source >= 0:
            for column in range(source_SD.shape[1]):
                target_SD[target, column] = source_SD[source, column]


@kernel
def fill_initial_rows(
    streams_N: NDArray[np.uint64],
    ids_N: NDArray[np.int64],
    bounds_N: NDArray[np.float32],
    weights_SD: NDArray[np.float32],
    slots_N: NDArray[np.int64],
) -> None:
    """Write the initial values of rows.

    Each is an odd multiple of ``bound * 2**-24`` chosen by 24 bits of a hash: uniform, symmetric, and
    rounded once, so that any machine computes the same bits.

    Args:
        streams_N: (num_rows,); hash of (seed, table) of each row.
        ids_N: (num_rows,).
        bounds_N: (num_rows,); values of the row's table are in (-bound, bound).
        weights_SD: (num_slots, embedding_dim), written at ``slots``.
        slots_N: (num_rows,), none twice.
    """
    for i in range(ids_N.size):
        row_stream = mix64_pair(streams_N[i], np.uint64(ids_N[i]))
        slot = slots_N[i]
        bound = bounds_N[i]
        for column in range(weights_SD.shape[1]):
            # 24 bits fit a float32 exactly, so only the product with the bound is rounded.
            bits = mix64_pair(row_stream, np.uint64(column)) >> np.uint64(40)
            odd = 2 * np.int64(bits) + 1 - (1 << 24)
            weights_SD[slot, column] = (np.float32(odd) * np.float32(2.0**-24)) * bound


@inlined_kernel
def _ask_for_row(slots_U, row, rows_SW):  # type: ignore[no-untyped-def]
    """Prefetch weights or state of the row updated `_ROWS_AHEAD` rows later."""
    ahead = np.uint64(row) + _ROWS_AHEAD
    if ahead < np.uint64(slots_U.size):
        width = np.uint64(rows_SW.shape[1])
        first = np.uint64(slots_U[ahead]) * width
        for column in range(np.uint64(0), width, _LINE_FLOATS):
            prefetch(rows_SW, first + column)


@kernel
def apply_sgd(
    weights_SD: NDArray[np.float32], slots_U: NDArray[np.int64], sums_UD: NDArray[np.float32], lr: np.float32
) -> None:
    """``w -= lr * g`` for the rows in ``slots``."""
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
    """Take an Adagrad step on the rows in ``slots``.

    ``h += g * g; w -= lr * g / (sqrt(h) + eps)``

    Args:
        state_SD: (num_slots, embedding_dim); sum of squared gradients, updated.
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
    """Take a row-wise Adagrad step, with one number per row.

    ``h += mean(g * g); w -= lr * g / (sqrt(h) + eps)`` The mean folds the columns in halves (column c and c +
    half, and so on), which vectorises the same way everywhere.

    Args:
        state_S1: (num_slots, 1); sum of mean squared gradients, updated.
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
    """Add ``decay * w``, the gradient of ``decay / 2 * |w|**2``, to the gradients.

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
    """Take a momentum step: ``b = momentum * b + g; w -= lr * b``.

    Rows outside ``slots`` do not coast on.

    Args:
        state_SD: (num_slots, embedding_dim); b, updated.
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
    """Take an Adam step, bias-corrected by each row's number of steps.

    ``m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; w -= step_size[t] m / (sqrt(v) / root_scale[t] + eps)``

    Args:
        state_SW: (num_slots, 2 * embedding_dim + 1); m, v and the steps t so far, updated.
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
