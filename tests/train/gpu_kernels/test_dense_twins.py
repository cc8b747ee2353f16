"""Kernels around the dense layers compute what the host does, with torch and in Triton.

Tests `dense_twins`, `dense_rule`, `triton_dots` and `triton_dense`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.tests.support.gpu.device_batches import poisoned
from hotset.train.gpu_kernels.dense_rule import DenseOptimizerName, DenseRule
from hotset.train.gpu_kernels.dense_twins import BIAS_BLOCK, LOSS_BLOCK
from hotset.train.gpu_kernels.kernel_table import kernel_of
from hotset.train.model import dense_kernels

F32 = np.float32
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Tolerance of the norm."""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where the tensors of the kernels are."""
    return torch.device(request.param)


def draw(
    shape: tuple[int, ...], rng: np.random.Generator, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.from_numpy(rng.normal(size=shape).astype(F32)).to(device).to(dtype)


def assert_near(found: torch.Tensor, wanted: NDArray[np.float64], tolerance: float) -> None:
    difference = np.linalg.norm(found.cpu().double().numpy() - wanted)
    assert difference <= tolerance * np.linalg.norm(wanted)


def naive_vectors(
    weights: torch.Tensor, slots_BF: torch.Tensor, bottom: torch.Tensor | None, dtype: torch.dtype
) -> NDArray[np.float64]:
    """(B, V, D) vectors, rounded to a type."""
    rows = weights.cpu()[slots_BF.cpu().long().clamp(min=0)].clone()
    rows[slots_BF.cpu() < 0] = 0
    vectors = rows.to(dtype).double()
    if bottom is not None:
        vectors = torch.cat([bottom.cpu().double().unsqueeze(1), vectors], 1)
    return vectors.numpy()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("num_samples", "num_padding", "num_tables", "dim", "has_bottom"),
    [(5, 2, 26, 16, True), (3, 0, 4, 10, True), (2, 1, 17, 64, False), (1, 0, 26, 128, True)],
)
def test_dots_of_all_pairs_and_their_gradients(
    num_samples: int,
    num_padding: int,
    num_tables: int,
    dim: int,
    has_bottom: bool,
    dtype: torch.dtype,
    engine: str,
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    if dtype == torch.bfloat16 and engine == "triton" and device.type == "cpu":
        pytest.skip("Triton's interpreter multiplies bfloat16 wrongly")
    room = num_samples + num_padding
    weights = draw((50, dim), rng, torch.float32, device)
    slots_BF = torch.from_numpy(rng.integers(-1, 50, (room, num_tables)).astype(np.int32)).to(device)
    bottom = draw((room, dim), rng, dtype, device) if has_bottom else None
    if bottom is not None:
        bottom[num_samples:] = float("nan")
    num_samples_1 = torch.tensor([num_samples], dtype=torch.int32, device=device)
    num_passed = dim if has_bottom else 0
    num_vectors = num_tables + has_bottom
    num_inputs = num_passed + num_vectors * (num_vectors - 1) // 2
    padded = -(-num_inputs // 16) * 16
    inputs = poisoned(torch.empty(room, padded, dtype=dtype, device=device))
    kernel_of("gather_dots", engine)(weights, slots_BF, num_samples_1, bottom, inputs)

    vectors = naive_vectors(weights, slots_BF, bottom, dtype)[:num_samples]
    rows, columns = np.tril_indices(num_vectors, -1)
    dots = np.einsum("bvd,bwd->bvw", vectors, vectors)[:, rows, columns]
    assert_near(inputs[:num_samples, num_passed:num_inputs], dots, TOLERANCE[dtype])
    if bottom is not None:
        assert torch.equal(inputs[:num_samples, :dim], bottom[:num_samples])
    assert not inputs[num_samples:].any() and not inputs[:, num_inputs:].any()

    grad_BP = draw((room, padded), rng, dtype, device)
    grad_BP[num_samples:] = float("nan")
    grad_BFD = poisoned(torch.empty(room, num_tables, dim, device=device))
    bottom_grad = None if bottom is None else poisoned(torch.empty_like(bottom))
    kernel_of("gather_dots_backward", engine)(
        weights, slots_BF, num_samples_1, bottom, grad_BP, grad_BFD, bottom_grad
    )
    grads = grad_BP[:num_samples].cpu().double().numpy()
    symmetric = np.zeros((num_samples, num_vectors, num_vectors))
    symmetric[:, rows, columns] = grads[:, num_passed:num_inputs]
    wanted = (symmetric + symmetric.transpose(0, 2, 1)) @ vectors
    assert_near(grad_BFD[:num_samples], wanted[:, num_vectors - num_tables :], TOLERANCE[dtype])
    if bottom_grad is not None:
        assert_near(bottom_grad[:num_samples], wanted[:, 0] + grads[:, :dim], TOLERANCE[dtype])
        assert not bottom_grad[num_samples:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("num_samples", "num_padding", "num_inputs"), [(1, 0, 1), (300, 3, 40), (LOSS_BLOCK, 0, 256)]
)
def test_the_last_layer_passes_the_loss_and_its_gradients(
    num_samples: int,
    num_padding: int,
    num_inputs: int,
    dtype: torch.dtype,
    engine: str,
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    room = num_samples + num_padding
    hidden = draw((room, num_inputs), rng, dtype, device)
    weights = draw((num_inputs + 1,), rng, torch.float32, device) * 3
    labels = torch.from_numpy((rng.random(room) < 0.3).astype(np.uint8)).to(device)
    hidden[num_samples:], labels[num_samples:] = float("nan"), 255
    hidden_grad = poisoned(torch.empty_like(hidden))
    num_blocks = -(-room // LOSS_BLOCK)
    partials = poisoned(torch.empty(num_blocks, num_inputs + 1, device=device))
    losses = poisoned(torch.empty(num_blocks, dtype=torch.float64, device=device))
    grad = poisoned(torch.empty_like(weights))
    loss_1 = poisoned(torch.empty(1, dtype=torch.float64, device=device))
    count_1 = torch.tensor([num_samples], dtype=torch.int32, device=device)
    arrays = (hidden, weights, labels, count_1, 1 / 2048, hidden_grad, partials, losses, grad, loss_1)
    kernel_of("last_layer", engine)(*arrays)

    inputs = hidden[:num_samples].cpu().double().numpy()
    weight = weights.cpu().double().numpy()
    logits = inputs @ weight[:-1] + weight[-1]
    # The loss and the gradient by the logits are those of the host.
    wanted = np.empty(num_samples, F32)
    wanted_loss = dense_kernels.logistic_loss(
        logits.astype(F32), labels[:num_samples].cpu().float().numpy(), F32(1 / 2048), wanted
    )
    np.testing.assert_allclose(loss_1.cpu().numpy(), [wanted_loss], rtol=1e-6)
    assert_near(hidden_grad[:num_samples], wanted[:, None] * weight[None, :-1], TOLERANCE[dtype] * 2)
    assert not hidden_grad[num_samples:].any()
    assert_near(grad, np.append(wanted @ inputs, wanted.sum(dtype=np.float64)), 5e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("num_samples", "num_outputs"), [(1, 1), (300, 70), (513, 64)])
def test_gradients_pass_where_relu_did(
    num_samples: int,
    num_outputs: int,
    dtype: torch.dtype,
    engine: str,
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    outputs = draw((num_samples, num_outputs), rng, dtype, device).clamp(min=0)
    grad = draw((num_samples, num_outputs), rng, dtype, device)
    wanted = torch.where(outputs > 0, grad, 0.0)
    bias_grad = poisoned(torch.empty(num_outputs, device=device))
    partials = poisoned(torch.empty(-(-num_samples // BIAS_BLOCK), num_outputs, device=device))
    kernel_of("relu_backward", engine)(grad, outputs, partials, bias_grad)
    assert torch.equal(grad, wanted)
    assert_near(bias_grad, wanted.cpu().double().numpy().sum(0), 1e-6)


def naive_step(
    rule: DenseRule, rates: NDArray[F32], weights: NDArray[F32], grad: NDArray[F32], states: NDArray[F32]
) -> NDArray[F32]:
    """The new weights; states are updated."""
    new: NDArray[F32]
    if rule.decay:
        grad = grad + weights * F32(rule.decay)
    if rule.name == "sgd":
        new = weights - grad * rates[0]
        return new
    if rule.name == "adagrad":
        states[0] += grad * grad
        new = weights - grad * rates[0] / (np.sqrt(states[0]) + F32(rule.eps))
        return new
    for state, keep, take, value in zip(states, rule.keep, rule.take, (grad, grad * grad), strict=True):
        state[:] = state * F32(keep) + value * F32(take)
    new = weights - states[0] * rates[0] / (np.sqrt(states[1]) / rates[1] + F32(rule.eps))
    return new


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_a_step_of_all_dense_parameters_rounds_every_operation(
    name: DenseOptimizerName, decay: float, engine: str, device: torch.device, rng: np.random.Generator
) -> None:
    rule = DenseRule(name, decay)
    weights = draw((2500,), rng, torch.float32, device)
    states = torch.zeros(rule.num_states, 2500, device=device)
    rounded = poisoned(torch.empty(2500, dtype=torch.bfloat16, device=device))
    wanted, wanted_states = weights.cpu().numpy().copy(), states.cpu().numpy().copy()
    module = torch.nn.Parameter(weights.cpu().clone())
    kinds = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
    peer = kinds[name]([module], lr=0.02, weight_decay=decay)
    for step in (1, 2, 3):
        grad = draw((2500,), rng, torch.float32, device)
        rates = rule.rates(0.02, step)
        numbers = torch.from_numpy(rates).to(device)
        kernel_of("step_dense", engine)(rule, numbers, weights, grad, states, rounded)
        wanted = naive_step(rule, rates, wanted, grad.cpu().numpy(), wanted_states)
        module.grad = grad.cpu()
        peer.step()
    np.testing.assert_array_equal(weights.cpu().numpy(), wanted)
    np.testing.assert_array_equal(states.cpu().numpy(), wanted_states)
    # Triton's interpreter cuts off what it should round.
    most_off = 1 if engine == "triton" and device.type == "cpu" else 0
    bits = (rounded.view(torch.int16).int() - weights.bfloat16().view(torch.int16).int()).abs()
    assert int(bits.max()) <= most_off
    # Torch's own optimizer is the same formula in another order of operations.
    np.testing.assert_allclose(wanted, module.detach().numpy(), rtol=1e-4, atol=1e-6)
