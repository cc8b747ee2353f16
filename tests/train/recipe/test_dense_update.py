"""Clipping of dense gradients and the rate of a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotset.train.recipe.dense_update import DenseUpdate, clip_gradients


@pytest.mark.parametrize("most", [0.5, 3.0, 1e9])
def test_clipping_agrees_with_that_of_torch(most: float, rng: np.random.Generator) -> None:
    shapes = ((7, 5), (5,), (1, 30))
    gradients = [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in shapes]
    gradients[0] = gradients[0].t()  # as the flat parameters of a training step are stored
    parameters = [torch.nn.Parameter(torch.zeros_like(each)) for each in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(parameters, most)
    clip_gradients(gradients, most)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=1e-7)


def test_a_short_gradient_keeps_its_bits() -> None:
    gradient = torch.tensor([0.3, 0.4])
    before = gradient.clone()
    clip_gradients([gradient], 0.51)
    assert torch.equal(gradient, before)
    clip_gradients([gradient], 0.25)
    assert gradient.norm().item() == pytest.approx(0.25)


def test_gradients_that_are_not_finite_and_none_at_all_are_left(rng: np.random.Generator) -> None:
    clip_gradients([], 1)
    gradient = torch.tensor([1.0, float("inf")])
    clip_gradients([gradient], 1)
    assert gradient.tolist() == [1.0, float("inf")]


def test_the_sum_of_squares_does_not_depend_on_threads(rng: np.random.Generator) -> None:
    gradient = torch.from_numpy(rng.normal(size=400_000).astype(np.float32))
    found = []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        copy = gradient.clone()
        clip_gradients([copy], 1.0)
        found.append(copy)
    torch.set_num_threads(before)
    assert torch.equal(*found)


def test_the_rate_of_a_step_is_given_to_every_optimizer() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizers = [torch.optim.SGD([each], lr=9.0) for each in parameters]
    update = DenseUpdate(parameters, optimizers, clip_gradient=1.0)
    for each in parameters:
        each.grad = torch.tensor([0.0, 5.0])
    update.prepare(0.5)
    for optimizer in optimizers:
        optimizer.step()
    # The norm is that of both parameters together.
    for each in parameters:
        assert each.detach().tolist() == pytest.approx([1, 1 - 0.5 / 2**0.5])
