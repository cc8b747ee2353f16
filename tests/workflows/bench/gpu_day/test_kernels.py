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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from hotset.train.config import DenseOptimizer, EmbeddingOptimizer
from hotset.train.data.shards import Shards
from hotset.train.gpu import twins
from hotset.train.gpu.twins import TWINS
from hotset.workflows.bench.gpu_day import kernels
from hotset.workflows.bench.gpu_day.kernels import Trial
from hotset.workflows.bench.gpu_day.part_settings import PartSettings
from hotset.workflows.bench.gpu_day.records import Records


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_kernel_that_fails_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = {"decode_batch": Trial("an illegal address", is_broken=True)}
    right = Trial("", is_broken=False)
    monkeypatch.setattr(kernels, "_shards", lambda *_: None)
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

    monkeypatch.setattr(kernels, "_shards", lambda *_: None)
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
        # The twins of a later shape are at fault, and not the kernel.
        (-1.0, "echo wrong; exit 1", False),
    ],
)
def test_a_kernel_that_was_not_come_to_or_had_no_time_is_not_at_fault(
    own_seconds: float | None,
    command: str,
    is_broken: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(name: str, settings: PartSettings, path: Path, kernels: str, seconds: float) -> Any:
        records = Records(path, seconds)
        records.fact(tried_kernel=None)
        if own_seconds is not None:
            records.fact(tried_kernel="decode_batch", shape="dim 16")
            records.row(kernel="decode_batch", difference=0.0)
            if own_seconds < 0:
                records.fact(tried_kernel=None)
            os.utime(path, (time.time() - own_seconds,) * 2)
        return subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(kernels, "start_part", start)
    ends = command.startswith("echo")
    trial = kernels._try_apart("decode_batch", PartSettings("late", tmp_path, True), 30.0 if ends else 0.1)
    at = "at dim 16: " if own_seconds is not None and own_seconds > 0 else ""
    assert trial.fault.startswith(at + ("wrong" if ends else "not done after"))
    assert trial.is_broken == is_broken and len(trial.rows) == (own_seconds is not None)


def test_kernels_that_take_optimizer_steps_are_tried_with_every_optimizer() -> None:
    rows = {shape.embedding_optimizer for shape in kernels.shapes_of("sum_and_step")}
    layers = {shape.dense_optimizer for shape in kernels.shapes_of("step_dense")}
    assert rows == set(get_args(EmbeddingOptimizer)) and layers == set(get_args(DenseOptimizer)) - {"same"}
    for name in TWINS:
        first, wide, *_ = kernels.shapes_of(name)
        assert str(first) == "dim 16, fp32, rows by sgd, layers by sgd"
        assert str(wide) == "dim 128, bf16, rows by sgd, layers by sgd"


@pytest.fixture
def settings(tmp_path: Path) -> PartSettings:
    """Settings of a trial of `gather_dots`, with the shards that it trains on."""
    found = PartSettings("late", tmp_path, True, "gather_dots")
    for dim in kernels._DIMS:
        kernels._shards(found, dim)
    return found


def try_as_gather_dots(
    kernel: Callable[..., None], settings: PartSettings, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """Try something as the kernel; return the differences that were found."""
    trained = kernels._trained

    def train(shards: Shards, settings: PartSettings, names: str, *arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            if "gather_dots" in names:
                patch.setattr(twins, "gather_dots", kernel)
            return trained(shards, settings, names, *arguments)

    path = settings.scratch / "found.jsonl"
    path.unlink(missing_ok=True)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_trained", train)
        kernels.try_kernel(settings, Records(path, 60))
    return [record["row"]["difference"] for record in records_of(path) if "row" in record]


_GATHER_DOTS = twins.gather_dots


def add_from_the_last(weights: Any, slots: Any, count: Any, bottom: Any, inputs: torch.Tensor) -> None:
    _GATHER_DOTS(weights.flip(1), slots, count, bottom.flip(1), inputs)
    dim = bottom.shape[1]
    inputs[:, :dim] = inputs[:, :dim].flip(1)


def write_a_wrong_dot(*arguments: Any, dot: float, dims: tuple[int, ...]) -> None:
    _GATHER_DOTS(*arguments)
    if arguments[0].shape[1] in dims:
        arguments[-1][: len(arguments[-1]) // 8, -8] = dot


@pytest.mark.slow
def test_a_kernel_is_held_against_its_twin(settings: PartSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert try_as_gather_dots(_GATHER_DOTS, settings, monkeypatch) == [0, 0]
    # In each shape the twins come first, whose faults are not the kernel's.
    facts = [each["fact"] for each in records_of(settings.scratch / "found.jsonl") if "fact" in each]
    assert [fact["tried_kernel"] for fact in facts] == [None, "gather_dots"] * 2
    # Another order of the sums is none that matters.
    narrow, wide = try_as_gather_dots(add_from_the_last, settings, monkeypatch)
    assert 0 < narrow < kernels._TOLERANCE_OF_ORDER / 1000 and 0 < wide < kernels._TOLERANCE_OF_ORDER / 2


@pytest.mark.slow
@pytest.mark.parametrize("dot", [1.0, math.nan])
@pytest.mark.parametrize(("dims", "num_right"), [((16, 128), 0), ((128,), 1)])
def test_a_dot_that_is_wrong_in_some_samples_is_found_in_its_shape(
    dims: tuple[int, ...], num_right: int, dot: float, settings: PartSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = partial(write_a_wrong_dot, dot=dot, dims=dims)
    with pytest.raises(ValueError, match="weights differ"):
        try_as_gather_dots(kernel, settings, monkeypatch)
    found = records_of(settings.scratch / "found.jsonl")
    assert sum("row" in record for record in found) == num_right
    facts = [record["fact"] for record in found if "fact" in record]
    assert facts[-1]["shape"].startswith(f"dim {dims[0]}, ") and facts[-1]["tried_kernel"] == "gather_dots"


@pytest.mark.slow
def test_every_kernel_is_launched_where_it_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for dim in kernels._DIMS:
        kernels._shards(PartSettings("late", tmp_path, True), dim)
    unused = []
    for name in TWINS:
        module = importlib.import_module(f"hotset.train.gpu.{TWINS[name]}")
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
        rows = [record["row"] for record in records_of(tmp_path / f"{name}.jsonl") if "row" in record]
        assert [row["shape"] for row in rows] == list(map(str, kernels.shapes_of(name)))
        assert all(row["difference"] == 0 for row in rows)
    assert unused == []
