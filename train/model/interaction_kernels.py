"""The interaction of DLRM on a tile of samples: dot products of all pairs of vectors, and their gradients.

A pass reads the vectors of a sample and writes its pairs, or the other way round; nothing of the size of the
tile lies between. (Products of matrices, one for each sample, leave all dot products of the tile in memory,
twice each, and need a pass that copies the triangle: three times as long.) T samples of a tile, F tables, V
vectors that interact, the output of the bottom MLP first where there is one, D embedding_dim, W the same
rounded up to `simd.WIDTH`, P inputs of the top MLP.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import inlined_kernel, kernel
from ...stats.simd import WIDTH, add_neighbors, load, multiply_add, store, zeros

_ROWS = 4
"""Vectors whose gradients are summed at a time."""


def padded_dim(embedding_dim: int) -> int:
    """Return the width of vectors in the kernels' workspace, whose last numbers are zero."""
    return -(-embedding_dim // WIDTH) * WIDTH


def pair_starts(num_vectors: int, width: int) -> NDArray[np.uint64]:
    """Return where the two vectors of each pair begin in an array of vectors.

    Returns:
        (2, the number of pairs rounded up to `WIDTH`), the lower triangle row by row; pairs beyond are 0, 0.
    """
    rows, columns = np.tril_indices(num_vectors, -1)
    starts = np.zeros((2, -(-rows.size // WIDTH) * WIDTH), np.uint64)
    starts[0, : rows.size] = rows * width
    starts[1, : rows.size] = columns * width
    return starts


@inlined_kernel
def _products(vectors_N, starts_2K, pair, width):  # type: ignore[no-untyped-def]
    """Return the products of a pair's numbers, summed over every `WIDTH`-th of them."""
    left = starts_2K[0, pair]
    right = starts_2K[1, pair]
    total = multiply_add(load(vectors_N, left), load(vectors_N, right), zeros())
    for part in range(np.uint64(WIDTH), width, np.uint64(WIDTH)):
        total = multiply_add(load(vectors_N, left + part), load(vectors_N, right + part), total)
    return total


@inlined_kernel
def _four_pairs(vectors_N, starts_2K, pair, width):  # type: ignore[no-untyped-def]
    """Return the products of four pairs, each added down to four numbers."""
    return add_neighbors(
        add_neighbors(
            _products(vectors_N, starts_2K, pair, width),
            _products(vectors_N, starts_2K, pair + np.uint64(1), width),
        ),
        add_neighbors(
            _products(vectors_N, starts_2K, pair + np.uint64(2), width),
            _products(vectors_N, starts_2K, pair + np.uint64(3), width),
        ),
    )


@inlined_kernel
def _gather_vectors(bottom_TD, emb_TFD, sample, vectors_VW):  # type: ignore[no-untyped-def]
    """Copy the vectors of a sample to the workspace."""
    first = 0
    # The output of the bottom MLP is the first vector, where there is one.
    if bottom_TD.shape[0]:
        first = 1
        vector_D = bottom_TD[sample]
        target_D = vectors_VW[0, : emb_TFD.shape[2]]
        for column in range(target_D.size):
            target_D[column] = vector_D[column]
    for table in range(emb_TFD.shape[1]):
        vector_D = emb_TFD[sample, table]
        target_D = vectors_VW[first + table, : emb_TFD.shape[2]]
        for column in range(target_D.size):
            target_D[column] = vector_D[column]


@kernel
def interact(
    bottom_TD: NDArray[np.float32],
    emb_TFD: NDArray[np.float32],
    starts_2K: NDArray[np.uint64],
    vectors_VW: NDArray[np.float32],
    dots_K: NDArray[np.float32],
    inputs_TP: NDArray[np.float32],
) -> None:
    """Write the output of the bottom MLP and the dot products of all pairs to the inputs of the top MLP.

    Args:
        bottom_TD: (num_samples, embedding_dim); none: (0, embedding_dim).
        emb_TFD: (num_samples, num_tables, embedding_dim).
        starts_2K: `pair_starts` of the workspace's vectors.
        vectors_VW: (num_vectors, `padded_dim`), workspace; zero beyond the dim.
        dots_K: (as many as ``starts`` has pairs,), workspace.
        inputs_TP: (num_samples, num_inputs), written up to the last pair.

    Error:
        Products are not rounded. A sum of D is added in ``D / 16`` steps and four more, each rounded once:
        at most ``(D / 16 + 4) * 2**-24`` of the sum of magnitudes. The order is the same on every CPU.
    """
    num_vectors = vectors_VW.shape[0]
    num_pairs = num_vectors * (num_vectors - 1) // 2
    num_passed = emb_TFD.shape[2] if bottom_TD.shape[0] else 0
    vectors_N = vectors_VW.reshape(-1)
    # Unsigned, because with signed numbers each load would first be tested for an index below 0.
    width = np.uint64(vectors_VW.shape[1])
    four = np.uint64(_ROWS)
    for sample in range(emb_TFD.shape[0]):
        _gather_vectors(bottom_TD, emb_TFD, sample, vectors_VW)
        # Sixteen pairs at a time: four sums of four pairs each, added down to one number a pair.
        for pair in range(np.uint64(0), np.uint64(starts_2K.shape[1]), np.uint64(WIDTH)):
            first = add_neighbors(
                _four_pairs(vectors_N, starts_2K, pair, width),
                _four_pairs(vectors_N, starts_2K, pair + four, width),
            )
            second = add_neighbors(
                _four_pairs(vectors_N, starts_2K, pair + four + four, width),
                _four_pairs(vectors_N, starts_2K, pair + four + four + four, width),
            )
            store(dots_K, pair, add_neighbors(first, second))
        # The inputs of the top MLP are the output of the bottom one as it is, then the dots.
        passed_D = inputs_TP[sample, :num_passed]
        for column in range(num_passed):
            passed_D[column] = vectors_N[column]
        pairs_K = inputs_TP[sample, num_passed : num_passed + num_pairs]
        for pair in range(num_pairs):
            pairs_K[pair] = dots_K[pair]


@kernel
def _gradients_of_vectors(
    grad_K: NDArray[np.float32], vectors_VW: NDArray[np.float32], sums_VW: NDArray[np.float32]
) -> None:
    """Add the gradients of a sample's vectors, by those of its pairs: d(u.v) is v for u and u for v.

    Args:
        grad_K: (num_pairs,), the lower triangle row by row.
        vectors_VW: (num_vectors, `padded_dim`).
        sums_VW: (num_vectors, `padded_dim`); the first is added to, the others are written.
    """
    num_vectors = np.uint64(vectors_VW.shape[0])
    width = np.uint64(vectors_VW.shape[1])
    vectors_N = vectors_VW.reshape(-1)
    sums_N = sums_VW.reshape(-1)
    one = np.uint64(1)
    rows = np.uint64(_ROWS)
    # Columns are taken a vector register at a time, so all sums of a block stay in registers.
    for part in range(np.uint64(0), width, np.uint64(WIDTH)):
        vector = one
        pair = np.uint64(0)
        # Four vectors with all before them: those are loaded once, and the sums of the four are registers.
        while vector + rows <= num_vectors:
            at_0 = vector * width + part
            at_1 = at_0 + width
            at_2 = at_1 + width
            at_3 = at_2 + width
            # The four own vectors and their sums stay in registers while the others pass by.
            own_0 = load(vectors_N, at_0)
            own_1 = load(vectors_N, at_1)
            own_2 = load(vectors_N, at_2)
            own_3 = load(vectors_N, at_3)
            # Pairs are numbered by their later vector, so each of the four has a run of its own.
            pair_1 = pair + vector
            pair_2 = pair_1 + vector + one
            pair_3 = pair_2 + vector + rows - np.uint64(2)
            sum_0 = zeros()
            sum_1 = zeros()
            sum_2 = zeros()
            sum_3 = zeros()
            # Both ends of each pair: the four get what passes by, and what passes by gets the four.
            for other in range(vector):
                at = other * width + part
                vector_of_other = load(vectors_N, at)
                sum_of_other = load(sums_N, at)
                grad_0 = grad_K[pair + other]
                grad_1 = grad_K[pair_1 + other]
                grad_2 = grad_K[pair_2 + other]
                grad_3 = grad_K[pair_3 + other]
                sum_0 = multiply_add(grad_0, vector_of_other, sum_0)
                sum_1 = multiply_add(grad_1, vector_of_other, sum_1)
                sum_2 = multiply_add(grad_2, vector_of_other, sum_2)
                sum_3 = multiply_add(grad_3, vector_of_other, sum_3)
                sum_of_other = multiply_add(grad_0, own_0, sum_of_other)
                sum_of_other = multiply_add(grad_1, own_1, sum_of_other)
                sum_of_other = multiply_add(grad_2, own_2, sum_of_other)
                store(sums_N, at, multiply_add(grad_3, own_3, sum_of_other))
            # The six pairs among the four themselves.
            grad = grad_K[pair_1 + vector]
            sum_0 = multiply_add(grad, own_1, sum_0)
            sum_1 = multiply_add(grad, own_0, sum_1)
            grad = grad_K[pair_2 + vector]
            sum_0 = multiply_add(grad, own_2, sum_0)
            sum_2 = multiply_add(grad, own_0, sum_2)
            grad = grad_K[pair_2 + vector + one]
            sum_1 = multiply_add(grad, own_2, sum_1)
            sum_2 = multiply_add(grad, own_1, sum_2)
            grad = grad_K[pair_3 + vector]
            sum_0 = multiply_add(grad, own_3, sum_0)
            sum_3 = multiply_add(grad, own_0, sum_3)
            grad = grad_K[pair_3 + vector + one]
            sum_1 = multiply_add(grad, own_3, sum_1)
            sum_3 = multiply_add(grad, own_1, sum_3)
            grad = grad_K[pair_3 + vector + one + one]
            # Each of the four is stored once, with the last of the pairs among them.
            store(sums_N, at_0, sum_0)
            store(sums_N, at_1, sum_1)
            store(sums_N, at_2, multiply_add(grad, own_3, sum_2))
            store(sums_N, at_3, multiply_add(grad, own_2, sum_3))
            pair = pair_3 + vector + rows - one
            vector += rows
        # The last ones, one at a time.
        while vector < num_vectors:
            own = load(vectors_N, vector * width + part)
            total = zeros()
            for other in range(vector):
                at = other * width + part
                grad = grad_K[pair + other]
                total = multiply_add(grad, load(vectors_N, at), total)
                store(sums_N, at, multiply_add(grad, own, load(sums_N, at)))
            store(sums_N, vector * width + part, total)
            pair += vector
            vector += one


@kernel
def interact_backward(
    grad_TP: NDArray[np.float32],
    bottom_TD: NDArray[np.float32],
    emb_TFD: NDArray[np.float32],
    vectors_VW: NDArray[np.float32],
    sums_VW: NDArray[np.float32],
    bottom_grad_TD: NDArray[np.float32],
    emb_grad_TFD: NDArray[np.float32],
) -> None:
    """Write the gradients of the vectors, by those of the inputs of the top MLP.

    Args:
        grad_TP: (num_samples, num_inputs); gradient by what `interact` wrote.
        bottom_TD: (num_samples, embedding_dim); none: (0, embedding_dim).
        emb_TFD: (num_samples, num_tables, embedding_dim).
        vectors_VW: (num_vectors, `padded_dim`), workspace; zero beyond the dim.
        sums_VW: (num_vectors, `padded_dim`), workspace.
        bottom_grad_TD: as ``bottom``, written.
        emb_grad_TFD: as ``emb``, written; may be the same memory.

    Error:
        Serial sums over at most V products that are not rounded, in the same order on every CPU:
        ``V * 2**-24`` of the sum of magnitudes.
    """
    # Sizes once, as the forward kernel has them.
    dim = emb_TFD.shape[2]
    num_vectors = vectors_VW.shape[0]
    num_pairs = num_vectors * (num_vectors - 1) // 2
    num_first = min(bottom_TD.shape[0], 1)
    num_passed = dim * num_first
    sums_VW[:] = 0
    for sample in range(emb_TFD.shape[0]):
        _gather_vectors(bottom_TD, emb_TFD, sample, vectors_VW)
        row_P = grad_TP[sample]
        # The output of the bottom MLP is an input of the top MLP, too.
        sums_VW[0, :dim] = 0
        for column in range(num_passed):
            sums_VW[0, column] = row_P[column]
        _gradients_of_vectors(row_P[num_passed : num_passed + num_pairs], vectors_VW, sums_VW)
        # Gradients leave the padded workspace for arrays of the real width.
        if num_first:
            target_D = bottom_grad_TD[sample]
            source_D = sums_VW[0, :dim]
            for column in range(dim):
                target_D[column] = source_D[column]
        for table in range(emb_TFD.shape[1]):
            target_D = emb_grad_TFD[sample, table]
            source_D = sums_VW[num_first + table, :dim]
            for column in range(dim):
                target_D[column] = source_D[column]
