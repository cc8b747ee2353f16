"""The interaction of a tile against sums in float64, and bit by bit against one addition after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.train.model.interaction import dot_workspace, interact, interact_backward, vector_workspace

SHAPES = [(1, 16), (2, 5), (3, 16), (4, 4), (5, 33), (8, 16), (26, 10)]
"""Tables and dims: fewer vectors than are summed at a time, whole groups of them, and some left over."""
WIDTH = 16
Array = NDArray[np.float32]


def passed_both_ways(bottom: Array, emb: Array, grad: Array) -> tuple[Array, Array, Array]:
    """The inputs of the top MLP, two more than there are, and the gradients of the vectors."""
    num_tables, dim = emb.shape[1:]
    num_vectors = num_tables + min(len(bottom), 1)
    # What earlier samples left in the workspace must not matter.
    vectors, sums = vector_workspace(num_vectors, dim), vector_workspace(num_vectors, dim)
    dots = dot_workspace(num_vectors)
    vectors[:num_vectors] = sums[:num_vectors] = np.nan
    dots[:] = np.nan
    inputs = np.full_like(grad, 9)
    interact(bottom, emb, vectors, dots, inputs)
    bottom_grad, emb_grad = np.full_like(bottom, np.nan), np.full_like(emb, np.nan)
    interact_backward(grad, bottom, emb, vectors, sums, bottom_grad, emb_grad)
    return inputs, bottom_grad, emb_grad


def vectors_of(bottom: Array, emb: Array, sample: int) -> Array:
    return np.concatenate([bottom[sample : sample + 1], emb[sample]])


def naive_inputs(bottom: Array, emb: Array, sample: int) -> NDArray[np.float64]:
    """The inputs of the top MLP of one sample."""
    vectors = vectors_of(bottom, emb, sample).astype(np.float64)
    pairs = [vectors[row] @ vectors[column] for row in range(len(vectors)) for column in range(row)]
    return np.concatenate([bottom[sample : sample + 1].ravel().astype(np.float64), pairs])


def naive_gradients(bottom: Array, emb: Array, grad: Array, sample: int) -> NDArray[np.float64]:
    """The gradients of one sample's vectors."""
    vectors = vectors_of(bottom, emb, sample).astype(np.float64)
    found = np.zeros_like(vectors)
    num_passed = emb.shape[2] if len(bottom) else 0
    found.reshape(-1)[:num_passed] = grad[sample, :num_passed]
    of_pairs = iter(grad[sample, num_passed:].tolist())
    for row in range(len(vectors)):
        for column in range(row):
            of_pair = next(of_pairs)
            found[row] += of_pair * vectors[column]
            found[column] += of_pair * vectors[row]
    return found


def multiplied_and_added(left: Array, right: Array, start: Array) -> Array:
    """``left * right + start``: the product of two float32 is exact in float64."""
    return (left.astype(np.float64) * right + start).astype(np.float32)


def serial_dot(left: Array, right: Array) -> np.float32:
    """Every sixteenth product one after the other, then neighbors, then neighbors of these."""
    numbers = -(-left.size // WIDTH) * WIDTH
    left, right = (np.pad(each, (0, numbers - each.size)).reshape(-1, WIDTH) for each in (left, right))
    total = np.zeros(WIDTH, np.float32)
    for row in range(len(left)):
        total = multiplied_and_added(left[row], right[row], total)
    while total.size > 1:
        total = total[::2] + total[1::2]
    found: np.float32 = total[0]
    return found


def serial_gradient(vectors: Array, grad: Array, number: int, start: Array) -> Array:
    """The products with the other vectors, in the order of these."""
    total = start
    for other in range(len(vectors)):
        if other != number:
            later, earlier = max(number, other), min(number, other)
            of_pair = np.full(total.size, grad[later * (later - 1) // 2 + earlier])
            total = multiplied_and_added(of_pair, vectors[other], total)
    return total


def drawn(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("num_samples", [0, 1, 3])
@pytest.mark.parametrize("has_bottom", [False, True])
@pytest.mark.parametrize(("num_tables", "dim"), SHAPES)
def test_both_passes_agree_with_sums_pair_by_pair(
    num_tables: int, dim: int, has_bottom: bool, num_samples: int, rng: np.random.Generator
) -> None:
    num_vectors = num_tables + has_bottom
    num_inputs = dim * has_bottom + num_vectors * (num_vectors - 1) // 2
    bottom, emb = drawn(rng, num_samples * has_bottom, dim), drawn(rng, num_samples, num_tables, dim)
    grad = drawn(rng, num_samples, num_inputs + 2)
    inputs, bottom_grad, emb_grad = passed_both_ways(bottom, emb, grad)
    for sample in range(num_samples):
        wanted = naive_inputs(bottom, emb, sample)
        np.testing.assert_allclose(inputs[sample, :num_inputs], wanted, rtol=1e-5, atol=1e-5)
        wanted = naive_gradients(bottom, emb, grad[:, :num_inputs], sample)
        found = vectors_of(bottom_grad, emb_grad, sample)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert (inputs[:, num_inputs:] == 9).all()


@settings(max_examples=60, deadline=None)
@given(
    num_tables=st.integers(1, 13),
    dim=st.sampled_from([1, 4, 15, 16, 17, 32, 48]),
    has_bottom=st.booleans(),
    seed=st.integers(0, 99),
)
def test_bits_are_those_of_one_addition_after_the_other(
    num_tables: int, dim: int, has_bottom: bool, seed: int
) -> None:
    """However many vectors are computed at a time: the order of additions is part of a run's results."""
    rng = np.random.default_rng(seed)
    num_vectors, num_passed = num_tables + has_bottom, dim * has_bottom
    num_inputs = num_passed + num_vectors * (num_vectors - 1) // 2
    bottom, emb = drawn(rng, 2 * has_bottom, dim), drawn(rng, 2, num_tables, dim)
    grad = drawn(rng, 2, num_inputs)
    inputs, bottom_grad, emb_grad = passed_both_ways(bottom, emb, grad)
    for sample in range(2):
        vectors = vectors_of(bottom, emb, sample)
        np.testing.assert_array_equal(inputs[sample, :num_passed], bottom[sample : sample + 1].ravel())
        pairs = [(row, other) for row in range(num_vectors) for other in range(row)]
        dots = [serial_dot(vectors[row], vectors[other]) for row, other in pairs]
        np.testing.assert_array_equal(inputs[sample, num_passed:], dots)
        found = vectors_of(bottom_grad, emb_grad, sample)
        for number in range(num_vectors):
            is_passed = has_bottom and number == 0
            start = grad[sample, :num_passed] if is_passed else np.zeros(dim, np.float32)
            wanted = serial_gradient(vectors, grad[sample, num_passed:], number, start)
            np.testing.assert_array_equal(found[number], wanted)


@pytest.mark.parametrize("dim", [6, 16])
def test_gradients_may_take_the_place_of_the_embeddings(dim: int, rng: np.random.Generator) -> None:
    bottom, emb, grad = drawn(rng, 4, dim), drawn(rng, 4, 3, dim), drawn(rng, 4, dim + 6)
    vectors, sums = vector_workspace(4, dim), vector_workspace(4, dim)
    wanted_bottom, wanted = np.empty_like(bottom), np.empty_like(emb)
    interact_backward(grad, bottom, emb, vectors, sums, wanted_bottom, wanted)
    found_bottom = np.empty_like(bottom)
    interact_backward(grad, bottom, emb, vectors, sums, found_bottom, emb)
    np.testing.assert_array_equal(emb, wanted)
    np.testing.assert_array_equal(found_bottom, wanted_bottom)
