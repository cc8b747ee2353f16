"""DLRM's interaction on a tile: dot products of vectors, and their gradients.

A pass reads the vectors of a sample and writes its pairs, or the other way round, without an intermediate of
the size of the tile. (Products of matrices, one for each sample, leave all dot products of the tile in
memory, twice each, and need a pass that copies the triangle: three times as long.) Both passes take four
vectors at a time, whose sums fit the registers of a CPU with AVX2.

T samples of a tile, F tables, V vectors that interact, the output of the bottom MLP first where there is one,
D embedding_dim, K pairs and padding, P inputs of the top MLP; the workspace has R rows, V rounded up to four,
and W columns, D rounded up to `simd.WIDTH`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import inlined_kernel, kernel
from ...stats.simd import (
    WIDTH,
    add_halves,
    add_in_turns,
    add_pairs,
    add_quarters,
    aligned_zeros,
    load,
    multiply_add,
    split_neighbors,
    store,
    store_quarters,
    zeros,
)

_ROWS = 4
"""Vectors whose pairs, or whose gradients, are computed at a time."""


def vector_workspace(num_vectors: int, embedding_dim: int) -> NDArray[np.float32]:
    """Return zeros for the vectors of a sample, (R, W)."""
    return aligned_zeros(-(-num_vectors // _ROWS) * _ROWS, -(-embedding_dim // WIDTH) * WIDTH)


def dot_workspace(num_vectors: int) -> NDArray[np.float32]:
    """Return zeros for a sample's dots, and R more for no pair."""
    return aligned_zeros(num_vectors * (num_vectors - 1) // 2 + -(-num_vectors // _ROWS) * _ROWS)


@inlined_kernel
def _copy_vector(vector_D, target_W):  # type: ignore[no-untyped-def]
    """Copy a vector to the front of a row, and fill the rest with zeros."""
    for column in range(vector_D.size):
        target_W[column] = vector_D[column]
    for column in range(vector_D.size, target_W.size):
        target_W[column] = 0


@inlined_kernel
def _gather_vectors(bottom_TD, emb_TFD, sample, vectors_RW):  # type: ignore[no-untyped-def]
    """Copy the vectors of a sample to the workspace."""
    num_tables = emb_TFD.shape[1]
    dim = emb_TFD.shape[2]
    first = 0
    # The output of the bottom MLP is the first vector, where there is one.
    if bottom_TD.shape[0]:
        first = 1
        _copy_vector(bottom_TD[sample], vectors_RW[0])
    if dim == vectors_RW.shape[1]:
        # Rows without columns beyond the dim are contiguous, there as here.
        emb_N = emb_TFD.reshape(-1)
        vectors_N = vectors_RW.reshape(-1)
        source = np.uint64(sample * num_tables * dim)
        target = np.uint64(first * dim)
        for part in range(np.uint64(0), np.uint64(num_tables * dim), np.uint64(WIDTH)):
            store(vectors_N, target + part, load(emb_N, source + part))
    else:
        for table in range(num_tables):
            _copy_vector(emb_TFD[sample, table], vectors_RW[first + table])


@inlined_kernel
def _spread_gradients(sums_RW, sample, bottom_grad_TD, emb_grad_TFD):  # type: ignore[no-untyped-def]
    """Copy the gradients of a sample's vectors from the workspace to where they belong."""
    num_tables = emb_grad_TFD.shape[1]
    dim = emb_grad_TFD.shape[2]
    first = 0
    if bottom_grad_TD.shape[0]:
        first = 1
        _copy_vector(sums_RW[0, :dim], bottom_grad_TD[sample])
    if dim == sums_RW.shape[1]:
        sums_N = sums_RW.reshape(-1)
        grad_N = emb_grad_TFD.reshape(-1)
        source = np.uint64(first * dim)
        target = np.uint64(sample * num_tables * dim)
        for part in range(np.uint64(0), np.uint64(num_tables * dim), np.uint64(WIDTH)):
            store(grad_N, target + part, load(sums_N, source + part))
    else:
        for table in range(num_tables):
            _copy_vector(sums_RW[first + table, :dim], emb_grad_TFD[sample, table])


@inlined_kernel
def _two_products(vectors_N, row, column, width):  # type: ignore[no-untyped-def]
    """Multiply two neighbouring rows with a third; return eight partial sums each.

    Args:
        vectors_N: the workspace.
        row: where the first of the two begins.
        column: where the third begins.
        width: numbers of a row.
    """
    other = load(vectors_N, column)
    first = multiply_add(load(vectors_N, row), other, zeros())
    second = multiply_add(load(vectors_N, row + width), other, zeros())
    for part in range(np.uint64(WIDTH), width, np.uint64(WIDTH)):
        other = load(vectors_N, column + part)
        first = multiply_add(load(vectors_N, row + part), other, first)
        second = multiply_add(load(vectors_N, row + width + part), other, second)
    return add_halves(first, second)


@inlined_kernel
def _eight_products(vectors_N, row, column, width):  # type: ignore[no-untyped-def]
    """Return the products of four rows with two, two sums each, by row."""
    half = row + width + width
    return add_quarters(
        add_in_turns(
            _two_products(vectors_N, row, column, width),
            _two_products(vectors_N, row, column + width, width),
        ),
        add_in_turns(
            _two_products(vectors_N, half, column, width),
            _two_products(vectors_N, half, column + width, width),
        ),
    )


@kernel
def _dots_of_sample(vectors_RW: NDArray[np.float32], num_vectors: int, dots_K: NDArray[np.float32]) -> None:
    """Write the dot products of all pairs, the lower triangle by row.

    What follows the last one is undefined.

    Args:
        vectors_RW: vectors, each sixteen numbers in the order of `split_neighbors`.
        num_vectors: V.
        dots_K: `dot_workspace`.
    """
    vectors_N = vectors_RW.reshape(-1)
    # Unsigned, because with signed numbers each load would first be tested for an index below 0.
    width = np.uint64(vectors_RW.shape[1])
    count = np.uint64(num_vectors)
    unused = np.uint64(num_vectors * (num_vectors - 1) // 2)
    one, two, three, rows = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(_ROWS)
    start = np.uint64(0)
    for row in range(np.uint64(0), count, rows):
        # Where these rows of the triangle begin; padding rows go after the last pair.
        start_1 = start + row if row + one < count else unused
        start_2 = start + two * row + one if row + two < count else unused
        start_3 = start + three * row + three if row + three < count else unused
        # Four by four. The square on the diagonal overwrites the first pairs of rows that follow: it is
        # written first, and its rows in their order, so that they are right in the end.
        for done in range(np.uint64(0), row + one, rows):
            column = row - done
            at = column * width
            dots = add_pairs(
                _eight_products(vectors_N, row * width, at, width),
                _eight_products(vectors_N, row * width, at + two * width, width),
            )
            store_quarters(dots_K, start + column, start_1 + column, start_2 + column, start_3 + column, dots)
        start += rows * row + two * three


@kernel
def interact(
    bottom_TD: NDArray[np.float32],
    emb_TFD: NDArray[np.float32],
    vectors_RW: NDArray[np.float32],
    dots_K: NDArray[np.float32],
    inputs_TP: NDArray[np.float32],
) -> None:
    """Write the inputs of the top MLP: bottom output and dot products.

    Args:
        bottom_TD: (num_samples, embedding_dim); none: (0, embedding_dim).
        emb_TFD: (num_samples, num_tables, embedding_dim).
        vectors_RW: `vector_workspace`.
        dots_K: `dot_workspace`.
        inputs_TP: (num_samples, num_inputs), written up to the last pair.

    Error:
        Products are not rounded. A sum of D is added in ``D / 16`` steps and four more, each rounded once:
        at most ``(D / 16 + 4) * 2**-24`` of the sum of magnitudes. The order is the same on every CPU.
    """
    num_first = min(bottom_TD.shape[0], 1)
    num_passed = emb_TFD.shape[2] * num_first
    num_vectors = emb_TFD.shape[1] + num_first
    num_pairs = num_vectors * (num_vectors - 1) // 2
    vectors_N = vectors_RW.reshape(-1)
    for sample in range(emb_TFD.shape[0]):
        row_P = inputs_TP[sample]
        _gather_vectors(bottom_TD, emb_TFD, sample, vectors_RW)
        # The inputs of the top MLP are the output of the bottom one as it is, then the dots.
        for column in range(num_passed):
            row_P[column] = vectors_RW[0, column]
        for part in range(np.uint64(0), np.uint64(vectors_N.size), np.uint64(WIDTH)):
            store(vectors_N, part, split_neighbors(load(vectors_N, part)))
        _dots_of_sample(vectors_RW, num_vectors, dots_K)
        pairs_K = row_P[num_passed : num_passed + num_pairs]
        for pair in range(num_pairs):
            pairs_K[pair] = dots_K[pair]


@inlined_kernel
def _write_gradient(grad_K, vectors_N, sums_N, row, count, width, part):  # type: ignore[no-untyped-def]
    """Write the gradient of one vector, sixteen columns of it; see `_gradients_of_vectors`."""
    total = zeros()
    if row == 0:
        total = load(sums_N, part)
    for other in range(np.uint64(0), count):
        if other != row:
            later = max(row, other)
            grad = grad_K[later * (later + np.uint64(1)) // np.uint64(2) - later + min(row, other)]
            total = multiply_add(grad, load(vectors_N, other * width + part), total)
    store(sums_N, row * width + part, total)


@inlined_kernel
def _write_four_gradients(grad_K, vectors_N, sums_N, row, count, width, part):  # type: ignore[no-untyped-def]
    """Write the gradients of four vectors, sixteen columns of each; see `_gradients_of_vectors`."""
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    at_0 = row * width + part
    at_1, at_2, at_3 = at_0 + width, at_0 + two * width, at_0 + three * width
    # Pairs are numbered by their later vector, so those of a vector with all before it lie together.
    pair_0 = row * (row + one) // two - row
    pair_1 = pair_0 + row
    pair_2 = pair_1 + row + one
    pair_3 = pair_2 + row + two
    sum_0 = zeros()
    sum_1 = zeros()
    sum_2 = zeros()
    sum_3 = zeros()
    if row == 0:
        sum_0 = load(sums_N, at_0)
    for other in range(row):
        vector = load(vectors_N, other * width + part)
        sum_0 = multiply_add(grad_K[pair_0 + other], vector, sum_0)
        sum_1 = multiply_add(grad_K[pair_1 + other], vector, sum_1)
        sum_2 = multiply_add(grad_K[pair_2 + other], vector, sum_2)
        sum_3 = multiply_add(grad_K[pair_3 + other], vector, sum_3)
    # The six pairs among the four themselves.
    vector = load(vectors_N, at_0)
    sum_1 = multiply_add(grad_K[pair_1 + row], vector, sum_1)
    sum_2 = multiply_add(grad_K[pair_2 + row], vector, sum_2)
    sum_3 = multiply_add(grad_K[pair_3 + row], vector, sum_3)
    vector = load(vectors_N, at_1)
    sum_0 = multiply_add(grad_K[pair_1 + row], vector, sum_0)
    sum_2 = multiply_add(grad_K[pair_2 + row + one], vector, sum_2)
    sum_3 = multiply_add(grad_K[pair_3 + row + one], vector, sum_3)
    vector = load(vectors_N, at_2)
    sum_0 = multiply_add(grad_K[pair_2 + row], vector, sum_0)
    sum_1 = multiply_add(grad_K[pair_2 + row + one], vector, sum_1)
    sum_3 = multiply_add(grad_K[pair_3 + row + two], vector, sum_3)
    vector = load(vectors_N, at_3)
    sum_0 = multiply_add(grad_K[pair_3 + row], vector, sum_0)
    sum_1 = multiply_add(grad_K[pair_3 + row + one], vector, sum_1)
    sum_2 = multiply_add(grad_K[pair_3 + row + two], vector, sum_2)
    # Of a later vector, its pairs with the four lie together.
    pair = pair_3 + row + three
    for other in range(row + np.uint64(_ROWS), count):
        vector = load(vectors_N, other * width + part)
        sum_0 = multiply_add(grad_K[pair + row], vector, sum_0)
        sum_1 = multiply_add(grad_K[pair + row + one], vector, sum_1)
        sum_2 = multiply_add(grad_K[pair + row + two], vector, sum_2)
        sum_3 = multiply_add(grad_K[pair + row + three], vector, sum_3)
        pair += other
    store(sums_N, at_0, sum_0)
    store(sums_N, at_1, sum_1)
    store(sums_N, at_2, sum_2)
    store(sums_N, at_3, sum_3)


@kernel
def _gradients_of_vectors(
    grad_K: NDArray[np.float32],
    vectors_RW: NDArray[np.float32],
    num_vectors: int,
    sums_RW: NDArray[np.float32],
) -> None:
    """Write the gradients of a sample's vectors from those of its pairs.

    d(u.v) is v for u and u for v. A vector's products with the others are added in the order of these.

    Args:
        grad_K: (num_pairs,), the lower triangle row by row.
        vectors_RW: the vectors.
        num_vectors: V.
        sums_RW: the first row is added to, the other rows of vectors are written.
    """
    vectors_N = vectors_RW.reshape(-1)
    sums_N = sums_RW.reshape(-1)
    width = np.uint64(vectors_RW.shape[1])
    count = np.uint64(num_vectors)
    rows = np.uint64(_ROWS)
    for part in range(np.uint64(0), width, np.uint64(WIDTH)):
        if count < rows:
            for row in range(np.uint64(0), count):
                _write_gradient(grad_K, vectors_N, sums_N, row, count, width, part)
        else:
            for row in range(np.uint64(0), count, rows):
                # Some of the last four may have been written before: these are the same bits.
                first = min(row, count - rows)
                _write_four_gradients(grad_K, vectors_N, sums_N, first, count, width, part)


@kernel
def interact_backward(
    grad_TP: NDArray[np.float32],
    bottom_TD: NDArray[np.float32],
    emb_TFD: NDArray[np.float32],
    vectors_RW: NDArray[np.float32],
    sums_RW: NDArray[np.float32],
    bottom_grad_TD: NDArray[np.float32],
    emb_grad_TFD: NDArray[np.float32],
) -> None:
    """Write the gradients of the vectors from those of the top MLP's inputs.

    Args:
        grad_TP: (num_samples, num_inputs); gradient by what `interact` wrote.
        bottom_TD: (num_samples, embedding_dim); none: (0, embedding_dim).
        emb_TFD: (num_samples, num_tables, embedding_dim).
        vectors_RW: `vector_workspace`.
        sums_RW: another.
        bottom_grad_TD: as ``bottom``, written.
        emb_grad_TFD: as ``emb``, written; may be the same memory.

    Error:
        Serial sums over at most V products that are not rounded, in the same order on every CPU:
        ``V * 2**-24`` of the sum of magnitudes.
    """
    # Sizes once, as the forward kernel has them.
    num_tables = emb_TFD.shape[1]
    dim = emb_TFD.shape[2]
    num_first = min(bottom_TD.shape[0], 1)
    num_passed = dim * num_first
    num_vectors = num_tables + num_first
    num_pairs = num_vectors * (num_vectors - 1) // 2
    for sample in range(emb_TFD.shape[0]):
        row_P = grad_TP[sample]
        _gather_vectors(bottom_TD, emb_TFD, sample, vectors_RW)
        # The output of the bottom MLP is an input of the top MLP, too.
        _copy_vector(row_P[:num_passed], sums_RW[0])
        _gradients_of_vectors(row_P[num_passed : num_passed + num_pairs], vectors_RW, num_vectors, sums_RW)
        _spread_gradients(sums_RW, sample, bottom_grad_TD, emb_grad_TFD)
