"""The interaction of a tile against sums in float64, pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.train.model.interaction_kernels import interact, interact_backward, padded_dim, pair_starts

SHAPES = [(1, 16), (2, 5), (3, 16), (4, 4), (5, 33), (8, 16), (26, 10)]
"""Tables and dims: fewer vectors than are summed at a time, whole groups of them, and some left over."""
Array = NDArray[np.float32]


def naive_inputs(bottom: Array, emb: Array) -> NDArray[np.float64]:
    """The inputs of the top MLP of one sample."""
    vectors = np.concatenate([bottom.reshape(-1, emb.shape[1]), emb]).astype(np.float64)
    pairs = [vectors[row] @ vectors[column] for row in range(len(vectors)) for column in range(row)]
    return np.concatenate([bottom.astype(np.float64), pairs])


def naive_gradients(bottom: Array, emb: Array, grad: Array) -> NDArray[np.float64]:
    """The gradients of one sample's vectors."""
    vectors = np.concatenate([bottom.reshape(-1, emb.shape[1]), emb]).astype(np.float64)
    found = np.zeros_like(vectors)
    found.reshape(-1)[: bottom.size] = grad[: bottom.size]
    of_pairs = iter(grad[bottom.size :].tolist())
    for row in range(len(vectors)):
        for column in range(row):
            of_pair = next(of_pairs)
            found[row] += of_pair * vectors[column]
            found[column] += of_pair * vectors[row]
    return found


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
    # What earlier samples left in the workspace must not matter, but for the zeros behind the dim.
    vectors, sums = np.zeros((2, num_vectors, padded_dim(dim)), np.float32)
    vectors[:, :dim] = sums[:, :dim] = np.nan
    starts = pair_starts(num_vectors, padded_dim(dim))
    dots = np.full(starts.shape[1], np.nan, np.float32)
    inputs = np.full((num_samples, num_inputs + 2), 9, np.float32)
    interact(bottom, emb, starts, vectors, dots, inputs)

    grad = drawn(rng, num_samples, num_inputs + 2)
    bottom_grad, emb_grad = np.full_like(bottom, np.nan), np.full_like(emb, np.nan)
    interact_backward(grad, bottom, emb, vectors, sums, bottom_grad, emb_grad)

    for sample in range(num_samples):
        own = bottom[sample] if has_bottom else np.empty(0, np.float32)
        wanted = naive_inputs(own, emb[sample])
        np.testing.assert_allclose(inputs[sample, :num_inputs], wanted, rtol=1e-5, atol=1e-5)
        found = np.concatenate([bottom_grad[sample : sample + has_bottom], emb_grad[sample]])
        wanted = naive_gradients(own, emb[sample], grad[sample, :num_inputs])
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert (inputs[:, num_inputs:] == 9).all()


def test_gradients_may_take_the_place_of_the_embeddings(rng: np.random.Generator) -> None:
    bottom, emb, grad = drawn(rng, 4, 6), drawn(rng, 4, 3, 6), drawn(rng, 4, 12)
    workspace = np.zeros((2, 4, padded_dim(6)), np.float32)
    wanted_bottom, wanted = np.empty_like(bottom), np.empty_like(emb)
    interact_backward(grad, bottom, emb, *workspace, wanted_bottom, wanted)
    found_bottom = np.empty_like(bottom)
    interact_backward(grad, bottom, emb, *workspace, found_bottom, emb)
    np.testing.assert_array_equal(emb, wanted)
    np.testing.assert_array_equal(found_bottom, wanted_bottom)
