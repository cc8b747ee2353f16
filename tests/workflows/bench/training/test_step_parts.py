"""Lower bounds of the parts of a step, counted once more from the layers of a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hotset.train.model.dlrm import Dlrm
from hotset.train.model.dlrm_shape import dlrm_shape
from hotset.workflows.bench.training import step_parts
from hotset.workflows.bench.training.step_parts import MachineRates, lower_bounds, measure_rates


def test_the_flops_are_those_of_the_layers_and_the_interaction() -> None:
    shape = dlrm_shape("kaggle", 13, 26, 16)
    layers = [layer for layer in Dlrm(shape, 0).modules() if isinstance(layer, torch.nn.Linear)]
    weights = sum(layer.weight.numel() for layer in layers)
    dots = 27 * 26 // 2 * 16
    found = lower_bounds(shape, 2048, MachineRates(1.0, 1.0, 1.0))
    flops = [bound for bound, rate in found.values() if rate == "flops"]
    assert sum(flops) == 6 * (weights + dots) - 2 * 13 * 512
    assert found["look up rows"] == (2 * 26 * 16 * 4, "bytes")


def test_hidden_layers_alone_are_bound_by_the_rate_of_their_type() -> None:
    shape = dlrm_shape("kaggle", 13, 26, 16)
    rates = MachineRates(fp32_flops=1.0, bf16_flops=4.0, memory_bytes=1.0)
    wide, narrow = (lower_bounds(shape, 2048, rates, dtype) for dtype in ("fp32", "bf16"))
    ratios = {name: wide[name][0] / narrow[name][0] for name in wide}
    assert {name for name, ratio in ratios.items() if ratio == 4} == {name for name in wide if "MLP" in name}
    assert all(ratio in (1, 4) for ratio in ratios.values())


def test_a_single_tile_has_nothing_to_add() -> None:
    shape = dlrm_shape("kaggle", 13, 26, 16)
    rates = MachineRates(1.0, 1.0, 1.0)
    assert lower_bounds(shape, 128, rates)["add gradients of tiles"] == (0, "bytes")
    assert lower_bounds(shape, 2048, rates)["add gradients of tiles"][0] > 0


def test_a_twice_as_fast_machine_halves_every_bound() -> None:
    shape = dlrm_shape("small", 0, 3, 4)
    slow, fast = (lower_bounds(shape, 64, MachineRates(rate, rate, rate)) for rate in (1e9, 2e9))
    for name, (seconds, _) in slow.items():
        assert fast[name][0] == pytest.approx(seconds / 2)


def test_rates_are_measured_with_one_thread_and_threads_restored() -> None:
    before = torch.get_num_threads()
    rates = measure_rates()
    assert min(rates.fp32_flops, rates.bf16_flops, rates.memory_bytes) > 1e6
    assert torch.get_num_threads() == before


def test_products_that_would_take_seconds_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[int]()

    def at_a_rate_of(flops: float) -> None:
        def seconds(work: Any) -> float:
            size = int(work.args[0].shape[0])
            tried.append(size)
            return 2 * size**3 / flops

        monkeypatch.setattr(step_parts, "_least_seconds", seconds)

    at_a_rate_of(1e11)
    assert step_parts._product_rate(torch.float32) == pytest.approx(1e11)
    at_a_rate_of(1e9)
    assert step_parts._product_rate(torch.bfloat16) == pytest.approx(1e9)
    assert tried == [256, 512, 1024, 256]
