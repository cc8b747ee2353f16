"""Kernels of the dense step against NumPy and torch, one operation at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.train.dense.kernels import (
    add_bias_relu,
    add_bias_relu_bf16,
    cross,
    cross_backward,
    last_layer_gradients,
    logistic_loss,
    mask_by_relu,
    mask_by_relu_bf16,
)

SIZES = [(0, 3), (1, 1), (5, 7), (33, 64)]


def drawn(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)


def bits_of(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16 numbers, by torch."""
    bits: NDArray[np.uint16] = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy().copy()
    return bits


def values_of(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_bias_and_relu_are_those_of_numpy(size: tuple[int, int], rng: np.random.Generator) -> None:
    product, bias = drawn(rng, *size), drawn(rng, size[1])
    wanted = np.maximum(product + bias, 0)
    outputs = np.empty_like(product)
    add_bias_relu(product, bias, outputs)
    np.testing.assert_array_equal(outputs, wanted)
    add_bias_relu(product, bias, product)
    np.testing.assert_array_equal(product, wanted)


def test_a_nan_stays_a_nan() -> None:
    outputs = np.array([[np.nan, -1.0, 2.0]], np.float32)
    gradient = np.array([[3.0, 4.0, np.nan]], np.float32)
    add_bias_relu(outputs, np.zeros(3, np.float32), outputs)
    np.testing.assert_array_equal(outputs, [[np.nan, 0, 2]])
    sums = np.empty(3, np.float32)
    mask_by_relu(gradient, outputs, sums)
    np.testing.assert_array_equal(gradient, [[3, 0, np.nan]])
    rounded, row = bits_of(np.array([[np.nan, -1.0, 2.0]], np.float32)), np.empty(3, np.uint32)
    add_bias_relu_bf16(rounded, np.zeros(3, np.float32), row)
    np.testing.assert_array_equal(values_of(rounded), [[np.nan, 0, 2]])
    grad = np.empty(1, np.float32)
    one = np.ones(1, np.float32)
    assert np.isnan(logistic_loss(np.array([np.nan], np.float32), one, np.float32(1), grad))
    assert np.isnan(grad[0])


@pytest.mark.parametrize("size", SIZES)
def test_gradients_are_masked_and_summed_in_sample_order(
    size: tuple[int, int], rng: np.random.Generator
) -> None:
    gradient, outputs = drawn(rng, *size), np.maximum(drawn(rng, *size), 0)
    wanted = np.where(outputs > 0, gradient, np.float32(0))
    wanted_sums = np.zeros(size[1], np.float32)
    for row in wanted:
        wanted_sums += row
    sums = np.empty(size[1], np.float32)
    mask_by_relu(gradient, outputs, sums)
    np.testing.assert_array_equal(gradient, wanted)
    np.testing.assert_array_equal(sums, wanted_sums)


@pytest.mark.parametrize("size", SIZES)
def test_bfloat16_is_widened_and_rounded_as_torch_does(
    size: tuple[int, int], rng: np.random.Generator
) -> None:
    products, bias, row = bits_of(drawn(rng, *size)), drawn(rng, size[1]), np.empty(size[1], np.uint32)
    wanted = bits_of(np.maximum(values_of(products) + bias, 0))
    add_bias_relu_bf16(products, bias, row)
    np.testing.assert_array_equal(products, wanted)

    gradient = bits_of(drawn(rng, *size))
    masked = np.where(products == 0, np.uint16(0), gradient)
    wanted_sums = np.zeros(size[1], np.float32)
    for values in values_of(masked):
        wanted_sums += values
    sums = np.empty(size[1], np.float32)
    mask_by_relu_bf16(gradient, products, sums, row)
    np.testing.assert_array_equal(gradient, masked)
    np.testing.assert_array_equal(sums, wanted_sums)


@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_the_last_layer_are_products_of_vectors(
    size: tuple[int, int], rng: np.random.Generator
) -> None:
    grad, hidden, weight = drawn(rng, size[0]), drawn(rng, *size), drawn(rng, size[1])
    weight_grad, bias_grad, hidden_grad = drawn(rng, size[1]), drawn(rng, 1), drawn(rng, *size)
    last_layer_gradients(grad, hidden, weight, weight_grad, bias_grad, hidden_grad)
    np.testing.assert_array_equal(hidden_grad, np.outer(grad, weight))
    np.testing.assert_allclose(weight_grad, hidden.T.astype(np.float64) @ grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(bias_grad, [grad.sum(dtype=np.float64)], rtol=1e-4, atol=1e-6)


def test_the_loss_is_torchs_also_where_exponents_overflow() -> None:
    logit = np.array([0, -0.5, 3, 100, -100, 1e4, -1e4], np.float32)
    for label in (np.zeros(7, np.float32), np.ones(7, np.float32)):
        leaf = torch.from_numpy(logit).double().requires_grad_()
        wanted = torch.nn.functional.binary_cross_entropy_with_logits(
            leaf, torch.from_numpy(label).double(), reduction="sum"
        )
        (wanted_grad,) = torch.autograd.grad(wanted / 64, leaf)
        grad = np.empty(7, np.float32)
        found = logistic_loss(logit, label, np.float32(1 / 64), grad)
        assert found == pytest.approx(wanted.item(), rel=1e-6)
        np.testing.assert_allclose(grad, wanted_grad.numpy(), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("filling", [0, 3])
@pytest.mark.parametrize("size", SIZES)
def test_cross_layers_are_those_of_numpy(
    size: tuple[int, int], filling: int, rng: np.random.Generator
) -> None:
    """Rows may be wider than the layer: what is behind is left as it is."""
    num_samples, width = size
    first, inputs, outputs, products = (drawn(rng, num_samples, width + filling) for _ in range(4))
    bias = drawn(rng, width)
    wanted = outputs.copy()
    wanted[:, :width] = first[:, :width] * (products[:, :width] + bias) + inputs[:, :width]
    wanted_products = products.copy()
    wanted_products[:, :width] += bias
    cross(products, bias, first, inputs, outputs)
    np.testing.assert_array_equal(outputs, wanted)
    np.testing.assert_array_equal(products, wanted_products)

    gradient, product_gradient, first_gradient = (drawn(rng, *first.shape) for _ in range(3))
    wanted_product, wanted_first = product_gradient.copy(), first_gradient.copy()
    wanted_product[:, :width] = gradient[:, :width] * first[:, :width]
    wanted_first[:, :width] += gradient[:, :width] * products[:, :width]
    wanted_bias = np.zeros(width, np.float32)
    for row in wanted_product:
        wanted_bias += row[:width]
    bias_gradient = drawn(rng, width)
    cross_backward(gradient, first, products, product_gradient, first_gradient, bias_gradient)
    np.testing.assert_array_equal(product_gradient, wanted_product)
    np.testing.assert_array_equal(first_gradient, wanted_first)
    np.testing.assert_array_equal(bias_gradient, wanted_bias)
