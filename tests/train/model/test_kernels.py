"""Kernels of the dense step against NumPy and torch, one operation at a time.

Losses with weights, several labels and gaps have the gradients of torch's own. Products of oneDNN are those
of torch, and are chosen by the kind of the CPU alone.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from hotset.tests.support.trained_models import LABEL_COLUMNS, labeled_batch
from hotset.train.model import kernels
from hotset.train.model.kernels import (
    Objective,
    Targets,
    add_bias_relu,
    add_bias_relu_bf16,
    choose_library,
    cross,
    cross_backward,
    is_large,
    last_layer_gradients,
    logistic_loss,
    mask_by_relu,
    mask_by_relu_bf16,
    multiply,
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
    assert np.isnan(logistic_loss(np.array([np.nan], np.float32), one, one, np.float32(1), grad))
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
        found = logistic_loss(logit, label, np.ones(7, np.float32), np.float32(1 / 64), grad)
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


AMD = frozenset({"AuthenticAMD", "avx2", "avx512f", "avx512_bf16"})
PRODUCTS = [(1, 128, 128), (7, 129, 200), (32, 368, 512), (512, 512, 256), (200, 64, 33)]


def drawn_matrix(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_onednn_is_chosen_on_amd_with_avx512_in_float32_alone() -> None:
    assert choose_library(AMD, "fp32") == "oneDNN"
    assert choose_library(AMD, "bf16") == "torch"
    assert choose_library(AMD - {"avx512f"}, "fp32") == "torch"
    assert choose_library(AMD - {"AuthenticAMD"} | {"GenuineIntel"}, "fp32") == "torch"
    assert choose_library(frozenset(), "fp32") == "torch"
    assert [is_large(*sizes) for sizes in ((256, 64), (64, 256), (64, 16))] == [True, True, False]


def test_torch_multiplies_where_the_operator_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_LINEAR", None)
    assert choose_library(AMD, "fp32") == "torch"


@pytest.mark.parametrize("sizes", PRODUCTS)
@pytest.mark.parametrize("is_transposed", [(False, False), (True, False), (False, True)])
def test_a_product_of_onednn_is_that_of_torch(
    sizes: tuple[int, int, int], is_transposed: tuple[bool, bool]
) -> None:
    """Outputs, gradients of the weights (the left side transposed), and of the inputs (the right side)."""
    rows, terms, columns = sizes
    left = drawn_matrix(terms, rows).t() if is_transposed[0] else drawn_matrix(rows, terms)
    right = drawn_matrix(columns, terms).t() if is_transposed[1] else drawn_matrix(terms, columns)
    exact = left.double() @ right.double()
    bound = 2.0**-22 * terms * (left.abs() @ right.abs())
    for by_onednn in (False, True):
        out = torch.full((rows, columns), torch.nan)
        found = multiply(left, right, out, by_onednn=by_onednn)
        assert ((found - exact).abs() <= bound).all()
        assert (found is out) == (not by_onednn)
        out.copy_(found)
        assert multiply(left, right, out, by_onednn=by_onednn, is_added=True) is out
        assert ((out - 2 * exact).abs() <= 2 * bound).all()


def test_bits_of_onednn_depend_on_no_address() -> None:
    left, right = drawn_matrix(300, 368), drawn_matrix(368, 512)
    wanted = multiply(left, right, torch.empty(0), by_onednn=True)
    for floats in (0, 1, 4, 6, 8, 12):
        memory = torch.empty(left.numel() + 16)
        moved = memory[floats : floats + left.numel()].view(left.shape).copy_(left)
        assert torch.equal(multiply(moved, right, torch.empty(0), by_onednn=True), wanted)


def test_a_product_keeps_a_nan() -> None:
    left, right = drawn_matrix(9, 128), drawn_matrix(128, 130)
    left[3, 5] = torch.nan
    found = multiply(left, right, torch.empty(0), by_onednn=True)
    assert found[3].isnan().all() and found.isnan().sum() == 130


@pytest.mark.skipif(kernels._LINEAR is None, reason="this torch has no such operator")
def test_torch_multiplies_what_has_gaps_between_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = torch.randn(4, 6), torch.randn(6, 8)
    monkeypatch.setattr(kernels, "_LINEAR", lambda *_: pytest.fail("multiplied by oneDNN"))
    out = torch.empty(4, 5)
    for first, second in ((left, right[:, :5]), (left[:, :3], right[:3, :5].contiguous())):
        assert multiply(first, second, out, by_onednn=True) is out
        torch.testing.assert_close(out, first @ second)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep memory by other rules")
def test_products_reuse_memory() -> None:
    program = """
        import resource, torch
        from hotset.train.model.kernels import keep_freed_memory
        keep_freed_memory()
        def run(num_rounds):
            for _ in range(num_rounds):
                [torch.ones(size << 18) for size in (1, 2, 1, 3)]  # MiB, all freed after the round
        run(5)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        run(20)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    # In a process of its own: what other tests freed would hide a missing call.
    command = [sys.executable, "-c", textwrap.dedent(program)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(found.stdout) < 500  # 7 MiB a round are 1,792 pages


@given(data=st.data(), num_labels=st.integers(1, 3), num_samples=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_loss_and_gradients_are_those_of_torch(
    data: st.DataObject, num_labels: int, num_samples: int
) -> None:
    """In float64, over the labels that are there alone."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    labels = rng.choice([0, 1, np.nan], (num_samples, num_labels)).astype(np.float32)
    weights = (
        rng.choice([0, 0.25, 1, 7], num_samples).astype(np.float32) if data.draw(st.booleans()) else None
    )
    loss_weights = tuple(rng.choice([0.5, 1, 3], num_labels).tolist())
    logits = torch.from_numpy(rng.normal(0, 4, (num_samples, num_labels)))

    wanted, wanted_grad = torch.zeros((), dtype=torch.float64), torch.zeros_like(logits)
    for sample in range(num_samples):
        for label in range(num_labels):
            if not np.isnan(labels[sample, label]):
                logit = logits[sample, label].clone().requires_grad_()
                target = torch.tensor(float(labels[sample, label]), dtype=torch.float64)
                weight = loss_weights[label] * (1.0 if weights is None else float(weights[sample]))
                loss = binary_cross_entropy_with_logits(logit, target) * weight
                (wanted_grad[sample, label],) = torch.autograd.grad(loss, [logit])
                wanted = wanted + loss.detach()

    targets = Objective(LABEL_COLUMNS[:num_labels], loss_weights).targets(labeled_batch(labels, weights))
    found = logits.float() if num_labels > 1 else logits.float().squeeze(1)
    grads = torch.full_like(found, 9.0)
    loss_sum = targets.write_gradients(found, 1 / 64, grads)
    assert loss_sum == pytest.approx(wanted.item(), rel=1e-5, abs=1e-6)
    torch.testing.assert_close(grads.view(num_samples, -1).double() * 64, wanted_grad, rtol=1e-5, atol=1e-6)
    # The graph of a user's module has the same.
    leaf = found.clone().requires_grad_()
    by_graph = targets.loss_sum(leaf)
    torch.testing.assert_close(by_graph.item(), loss_sum, rtol=1e-5, atol=1e-5)
    (grad,) = torch.autograd.grad(by_graph / 64, [leaf])
    torch.testing.assert_close(grad, grads, rtol=1e-5, atol=1e-7)


def test_a_loss_of_a_user_has_the_same_gradients(rng: np.random.Generator) -> None:
    def own(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return binary_cross_entropy_with_logits(logits, labels, weights, reduction="none")

    logits = torch.from_numpy(rng.normal(0, 3, (40, 2)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 2, (40, 2)).astype(np.float32))
    weights = torch.from_numpy(rng.random((40, 2), np.float32))
    found = [torch.empty(40, 2) for _ in range(2)]
    losses = [
        Targets(labels, weights, loss).write_gradients(logits, 1 / 64, grads)
        for loss, grads in zip((None, own), found, strict=True)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-8)
