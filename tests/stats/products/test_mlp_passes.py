"""Both passes of an MLP against NumPy in float64."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hotset.stats.products.mlp_passes import mlp_gradients, mlp_outputs
from hotset.stats.products.panels import PART_FLOATS, num_panel_floats, num_stored_rows

WIDTHS = [(1, 1), (13, 29, 45), (13, 128, 64, 16), (100, 70, 3)]


@pytest.mark.parametrize("num_samples", [1, 9, 70])
@pytest.mark.parametrize("widths", WIDTHS)
def test_passes_are_those_of_numpy(
    widths: tuple[int, ...], num_samples: int, rng: np.random.Generator
) -> None:
    layers = []
    size = 3
    for num_inputs, num_outputs in pairwise(widths):
        bias = size + num_inputs * num_outputs
        layers.append((num_inputs, num_outputs, size, bias))
        size = bias + num_outputs + 5
    parameters = (0.3 * rng.standard_normal(size)).astype(np.float32)
    # Whatever the memory held before, nothing of it is found in the results.
    gradients = np.full(size, np.nan, np.float32)
    floats = [num_panel_floats(num_stored_rows(num_samples), width) for width in widths]
    activations = np.full(sum(floats), np.nan, np.float32)
    workspace = np.full(2 * max(floats), np.nan, np.float32)
    parts = np.full(2 * PART_FLOATS, np.nan, np.float32)
    inputs = rng.standard_normal((num_samples, widths[0])).astype(np.float32)
    outputs = np.full((num_samples, widths[-1]), np.nan, np.float32)
    grads = rng.standard_normal(outputs.shape).astype(np.float32)
    input_grads = np.full(inputs.shape, np.nan, np.float32)
    table = np.array(layers, np.int64)
    mlp_outputs(inputs, table, parameters, activations, parts, outputs)
    mlp_gradients(grads, table, parameters, activations, workspace, parts, gradients, input_grads)

    hidden = [inputs.astype(np.float64)]
    for num_inputs, num_outputs, weight, bias in layers:
        matrix = parameters[weight:bias].reshape(num_inputs, num_outputs)
        hidden.append(np.maximum(hidden[-1] @ matrix + parameters[bias : bias + num_outputs], 0))
    assert_near(outputs, hidden[-1])
    wanted = grads.astype(np.float64)
    for number, (num_inputs, num_outputs, weight, bias) in reversed(list(enumerate(layers))):
        wanted = wanted * (hidden[number + 1] > 0)
        assert_near(gradients[bias : bias + num_outputs], wanted.sum(0))
        assert_near(gradients[weight:bias], (hidden[number].T @ wanted).reshape(-1))
        wanted = wanted @ parameters[weight:bias].reshape(num_inputs, num_outputs).T
    assert_near(input_grads, wanted)
    # Between the parameters nothing is written, and gradients by data are not wanted.
    assert np.isnan(gradients[:3]).all() and np.isnan(gradients[-5:]).all()
    before = gradients.copy()
    mlp_gradients(grads, table, parameters, activations, workspace, parts, gradients, input_grads[:0])
    np.testing.assert_array_equal(gradients, before)


def assert_near(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * max(np.abs(wanted).max(), 1))
