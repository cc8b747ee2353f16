"""A broken kernel is named by the part that tries kernels, and replaced for the rest of the day.

Tests `part_process`, too.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hotset.train.data.shards import Shards
from hotset.train.gpu_kernels import dense_twins
from hotset.workflows.gpu_day import kernels
from hotset.workflows.gpu_day.checks import small_shards
from hotset.workflows.gpu_day.kernels import Trial
from hotset.workflows.gpu_day.part_settings import PartSettings
from hotset.workflows.gpu_day.records import Records


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_kernel_that_fails_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = {"decode_batch": Trial("an illegal address", is_broken=True)}
    right = Trial("", is_broken=False)
    monkeypatch.setattr(kernels, "small_shards", lambda *_: None)
    monkeypatch.setattr(kernels, "_try_apart", lambda name, *_: trials.get(name, right))
    kernels.try_kernels(PartSettings("late", tmp_path, True), Records(tmp_path / "found.jsonl", 60))
    found = records_of(tmp_path / "found.jsonl")
    assert [(each["check"]["name"], each["check"]["is_right"]) for each in found[:2]] == [
        ("kernel decode_batch", False),
        ("kernel sum_and_step", True),
    ]
    assert found[2] == {"fact": {"replaced_kernels": "torch:decode_batch"}}


@pytest.mark.slow
@pytest.mark.parametrize("comes_to_the_kernel", [True, False])
def test_a_kernel_that_was_not_come_to_is_not_at_fault(
    comes_to_the_kernel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(name: str, settings: PartSettings, records: Path, kernels: str) -> Any:
        if comes_to_the_kernel:
            records.write_text("{}")
        return subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(kernels, "start_part", start)
    trial = kernels._try_apart("decode_batch", PartSettings("late", tmp_path, True), 0.1)
    assert trial.fault.startswith("not done after") and trial.is_broken == comes_to_the_kernel


@pytest.mark.slow
def test_a_kernel_is_held_against_its_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = PartSettings("late", tmp_path, True, "gather_dots")
    small_shards(settings, "kernels", "adagrad")
    kernels.try_kernel(settings, Records(tmp_path / "found.jsonl", 60))
    tried, row = records_of(tmp_path / "found.jsonl")
    assert tried == {"fact": {"tried_kernel": "gather_dots"}} and row["row"]["difference"] == 0
    gather_dots = dense_twins.gather_dots
    trained = kernels._trained_rows

    def difference_with(kernel: Callable[..., None]) -> float:
        """Return what is found where this is the kernel, and not its twin."""

        def train(shards: Shards, settings: PartSettings, names: str) -> Any:
            with monkeypatch.context() as patch:
                if "gather_dots" in names:
                    patch.setattr(dense_twins, "gather_dots", kernel)
                return trained(shards, settings, names)

        monkeypatch.setattr(kernels, "_trained_rows", train)
        kernels.try_kernel(settings, Records(tmp_path / "found.jsonl", 60))
        return float(records_of(tmp_path / "found.jsonl")[-1]["row"]["difference"])

    def wider(weights: Any, slots: Any, count: Any, bottom: Any, inputs: torch.Tensor) -> None:
        exact = inputs.double()
        gather_dots(weights.double(), slots, count, bottom.double(), exact)
        inputs.copy_(exact)

    def wrong(*arguments: Any, dot: float) -> None:
        gather_dots(*arguments)
        arguments[-1][:, -8] = dot

    # Another order of the sums is none that matters; a wrong dot of many is.
    assert 0 < difference_with(wider) < kernels._TOLERANCE / 10
    for dot in (1.0, math.nan):
        with pytest.raises(ValueError, match="weights of rows differ"):
            difference_with(partial(wrong, dot=dot))
