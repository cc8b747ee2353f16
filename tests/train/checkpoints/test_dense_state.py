"""Dense layers and their optimizers are taken and given back, whatever they are divided into."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hotset.pipeline.errors import HotsetError
from hotset.train.checkpoints.dense_state import dense_state, restore_dense


def model_of(seed: int, width: int = 3) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1)
    )


def optimizers_of(model: torch.nn.Module, kind: Any, parts: int) -> tuple[torch.optim.Optimizer, ...]:
    parameters = list(model.parameters())
    return tuple(kind(parameters[part::parts], lr=0.01) for part in range(parts))


def step(model: torch.nn.Module, optimizers: tuple[torch.optim.Optimizer, ...], seed: int) -> None:
    torch.manual_seed(seed)
    model.zero_grad()
    model(torch.randn(8, 4)).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam])
def test_a_restored_model_goes_on_with_the_same_bits(kind: Any) -> None:
    model = model_of(0)
    optimizers = optimizers_of(model, kind, 1)
    for seed in range(3):
        step(model, optimizers, seed)
    saved = dense_state(model, optimizers)
    assert all(tensor.device.type == "cpu" for tensor in saved.values())

    other = model_of(1)
    others = optimizers_of(other, kind, 3)
    restore_dense(other, others, saved, "the checkpoint")
    for seed in range(3, 6):
        step(model, optimizers, seed)
        step(other, others, seed)
    first, second = dense_state(model, optimizers), dense_state(other, others)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_the_state_is_a_copy() -> None:
    model = model_of(0)
    optimizers = optimizers_of(model, torch.optim.Adam, 1)
    step(model, optimizers, 0)
    saved = dense_state(model, optimizers)
    before = {name: tensor.clone() for name, tensor in saved.items()}
    step(model, optimizers, 1)
    assert all(torch.equal(saved[name], before[name]) for name in saved)


def test_another_model_or_damage_is_refused() -> None:
    model = model_of(0)
    optimizers = optimizers_of(model, torch.optim.Adam, 1)
    step(model, optimizers, 0)
    saved = dense_state(model, optimizers)

    def refused(tensors: dict[str, torch.Tensor], message: str, width: int = 3) -> None:
        other = model_of(1, width)
        with pytest.raises(HotsetError, match=message):
            restore_dense(other, optimizers_of(other, torch.optim.Adam, 1), tensors, "it")

    refused(
        saved, r"the model of it is another: dense layer 0.bias is \(3,\) of float32, want \(5,\)", width=5
    )
    refused({name: saved[name] for name in saved if name != "model.0.bias"}, "0.bias is missing")
    refused(saved | {"model.9.bias": torch.zeros(1)}, "dense layer 9.bias is .* want missing")
    refused(saved | {"model.0.bias": torch.full((3,), torch.inf)}, "not finite")
    refused(saved | {"optimizer.0.bias exp_avg": torch.zeros(7)}, r"optimizer.0.bias exp_avg of shape \(7,\)")
    refused(saved | {"optimizer.9.bias exp_avg": torch.zeros(3)}, "is not of its model")
