"""A broken kernel is named by the part that tries kernels, and replaced for the rest of the day.

Tests `part_process`, too.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hotset.train.data.shards import Shards
from hotset.train.gpu_kernels import dense_twins
from hotset.train.gpu_kernels.kernel_table import TWINS
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


def test_a_kernel_that_begins_late_gets_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def try_apart(name: str, settings: PartSettings, seconds: float) -> Trial:
        given.append(seconds)
        time.sleep(0.05)
        return Trial("", is_broken=False)

    monkeypatch.setattr(kernels, "small_shards", lambda *_: None)
    monkeypatch.setattr(kernels, "_try_apart", try_apart)
    monkeypatch.setattr(kernels, "_PROCESSES", 1)
    kernels.try_kernels(PartSettings("late", tmp_path, True), Records(tmp_path / "found.jsonl", 30))
    first, second = given
    assert second + 0.05 <= first < 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own_seconds", "command", "is_broken"),
    [
        (None, "exec sleep 60", False),
        (1.0, "exec sleep 60", False),
        (30.0, "exec sleep 60", True),
        (None, "echo wrong; exit 1", False),
        (1.0, "echo wrong; exit 1", True),
    ],
)
def test_a_kernel_that_was_not_come_to_or_had_no_time_is_not_at_fault(
    own_seconds: float | None,
    command: str,
    is_broken: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(name: str, settings: PartSettings, records: Path, kernels: str) -> Any:
        if own_seconds is not None:
            records.write_text("{}")
            os.utime(records, (time.time() - own_seconds,) * 2)
        return subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(kernels, "start_part", start)
    ends = command.startswith("echo")
    trial = kernels._try_apart("decode_batch", PartSettings("late", tmp_path, True), 30.0 if ends else 0.1)
    assert trial.fault.startswith("wrong" if ends else "not done after") and trial.is_broken == is_broken


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

        def train(shards: Shards, settings: PartSettings, names: str, other: Mapping[str, Any]) -> Any:
            with monkeypatch.context() as patch:
                if "gather_dots" in names:
                    patch.setattr(dense_twins, "gather_dots", kernel)
                return trained(shards, settings, names, other)

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


@pytest.mark.slow
def test_every_kernel_is_launched_where_it_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_shards(PartSettings("late", tmp_path, True), "kernels", "adagrad")
    unused = []
    for name in TWINS:
        module = importlib.import_module(f"hotset.train.gpu_kernels.{TWINS[name]}")
        twin = getattr(module, name)
        launched: list[str] = []

        def noting(*arguments: Any, **named: Any) -> None:
            launched.append(name)  # noqa: B023
            twin(*arguments, **named)  # noqa: B023

        with monkeypatch.context() as patch:
            patch.setattr(module, name, noting)
            kernels.try_kernel(
                PartSettings("late", tmp_path, True, name), Records(tmp_path / f"{name}.jsonl", 60)
            )
        unused += [] if launched else [name]
        assert records_of(tmp_path / f"{name}.jsonl")[-1]["row"] == {"kernel": name, "difference": 0}
    assert unused == []
