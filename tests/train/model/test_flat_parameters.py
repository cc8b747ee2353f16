"""Parameters moved into one vector stay the parameters of their model."""

from __future__ import annotations

import pytest
import torch

from hotset.train.model.dlrm import Dlrm
from hotset.train.model.dlrm_shape import dlrm_shape
from hotset.train.model.flat_parameters import FlatParameters, stored_inputs

SHAPE = dlrm_shape("small", 3, 9, 4, [2, 4, 4, 4, 4, 4, 4, 4, 2])


def test_a_model_computes_the_same_before_and_after() -> None:
    model, moved = Dlrm(SHAPE, 0), Dlrm(SHAPE, 0)
    FlatParameters(moved)
    for name, tensor in model.state_dict().items():
        assert torch.equal(moved.state_dict()[name], tensor), name
    inputs = torch.randn(5, 3), torch.randn(5, 9, 4)
    torch.testing.assert_close(moved(*inputs), model(*inputs))


def test_loaded_weights_arrive_in_the_vector_and_padding_stays_zero() -> None:
    model = Dlrm(SHAPE, 0)
    parameters = FlatParameters(model)
    other = Dlrm(SHAPE, 1).state_dict()
    model.load_state_dict(other)
    views = parameters.views(parameters.vector)
    torch.testing.assert_close(views["top.0.weight"][: SHAPE.top_inputs].t(), other["top.0.weight"])
    assert views["top.0.weight"].shape == (stored_inputs(SHAPE.top_inputs), 64)
    assert not views["top.0.weight"][SHAPE.top_inputs :].any()
    num_weights = sum(tensor.numel() for tensor in other.values())
    assert torch.count_nonzero(parameters.vector) <= num_weights < parameters.size


def test_arrays_are_the_memory_of_the_vector() -> None:
    parameters = FlatParameters(Dlrm(SHAPE, 0))
    views = parameters.views(torch.zeros(parameters.size))
    views.arrays["top.0.bias"][:] = 1.0
    assert (views["top.0.bias"] == 1.0).all() and not views["top.0.weight"].any()
    assert not parameters.views(torch.zeros(parameters.size, dtype=torch.bfloat16)).arrays


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam])
def test_an_optimizer_of_the_model_updates_the_vector(optimizer: type[torch.optim.Optimizer]) -> None:
    model = Dlrm(SHAPE, 0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = FlatParameters(model)
    steps = optimizer(model.parameters(), lr=0.5)  # type: ignore[call-arg]
    gradient = torch.randn(parameters.size)
    views = parameters.views(gradient)
    parameters.set_gradients(views)
    steps.step()
    # The same step on parameters of their own, in the usual layout.
    twin = Dlrm(SHAPE, 0)
    for (_, own), parameter in zip(twin.named_parameters(), model.parameters(), strict=True):
        assert parameter.grad is not None
        own.grad = parameter.grad.clone(memory_format=torch.contiguous_format)
    optimizer(twin.parameters(), lr=0.5).step()  # type: ignore[call-arg]
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, twin.state_dict()[name], rtol=1e-6, atol=1e-7)
        assert not torch.equal(tensor, before[name]), name
    assert not parameters.views(parameters.vector)["top.0.weight"][SHAPE.top_inputs :].any()


def test_few_inputs_are_stored_as_they_are_and_many_rounded_up() -> None:
    assert [stored_inputs(number) for number in (1, 13, 31, 32, 33, 367, 368)] == [
        1,
        13,
        31,
        32,
        40,
        368,
        368,
    ]
