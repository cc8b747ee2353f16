"""Checks of a GPU day name what is broken: a device call, a kernel, a test that needs a GPU."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from hotset.tests.support.late_runs import keep_slow
from hotset.train.config import DenseOptimizer, EmbeddingOptimizer
from hotset.train.data.shards import Shards
from hotset.train.device import StreamName
from hotset.train.gpu import twins
from hotset.train.gpu.simulated_device import LateDevice
from hotset.train.gpu.twins import TWINS
from hotset.workflows.bench import gpu_checks
from hotset.workflows.bench.gpu_checks import Trial
from hotset.workflows.bench.gpu_day import PartSettings, Records, Status


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_kernel_that_fails_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = {"decode_batch": Trial("an illegal address", is_broken=True)}
    right = Trial("", is_broken=False)
    monkeypatch.setattr(gpu_checks, "small_shards", lambda *_: None)
    monkeypatch.setattr(gpu_checks, "_try_apart", lambda name, *_: trials.get(name, right))
    gpu_checks.try_kernels(PartSettings("late", tmp_path, True), Records(tmp_path / "found.jsonl", 60))
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

    monkeypatch.setattr(gpu_checks, "small_shards", lambda *_: None)
    monkeypatch.setattr(gpu_checks, "_try_apart", try_apart)
    monkeypatch.setattr(gpu_checks, "_PROCESSES", 1)
    gpu_checks.try_kernels(PartSettings("late", tmp_path, True), Records(tmp_path / "found.jsonl", 30))
    first, second = given
    assert second + 0.05 <= first < 30


@pytest.mark.parametrize(
    ("own_seconds", "status", "is_broken"),
    [
        (None, "timeout", False),
        (1.0, "timeout", False),
        (30.0, "timeout", True),
        (None, "failed", False),
        (1.0, "failed", True),
        # The twins of a later shape are at fault, and not the kernel.
        (-1.0, "failed", False),
    ],
)
def test_a_kernel_that_was_not_come_to_or_had_no_time_is_not_at_fault(
    own_seconds: float | None,
    status: Status,
    is_broken: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(name: str, settings: PartSettings, path: Path, seconds: float) -> tuple[Status, str]:
        records = Records(path, seconds)
        records.fact(tried_kernel=None)
        if own_seconds is not None:
            records.fact(tried_kernel="decode_batch", shape="dim 16")
            records.row(kernel="decode_batch", difference=0.0)
            if own_seconds < 0:
                records.fact(tried_kernel=None)
            os.utime(path, (time.time() - own_seconds,) * 2)
        return status, "wrong"

    monkeypatch.setattr(gpu_checks, "run_process", run)
    trial = gpu_checks._try_apart("decode_batch", PartSettings("late", tmp_path, True), 30.0)
    at = "at dim 16: " if own_seconds is not None and own_seconds > 0 else ""
    assert trial.fault.startswith(at + ("wrong" if status == "failed" else "not done after 30 s\nwrong"))
    assert trial.is_broken == is_broken and len(trial.rows) == (own_seconds is not None)


def test_kernels_that_take_optimizer_steps_are_tried_with_every_optimizer() -> None:
    rows = {shape.embedding_optimizer for shape in gpu_checks.shapes_of("sum_and_step")}
    layers = {shape.dense_optimizer for shape in gpu_checks.shapes_of("step_dense")}
    assert rows == set(get_args(EmbeddingOptimizer)) and layers == set(get_args(DenseOptimizer)) - {"same"}
    for name in TWINS:
        first, wide, *_ = gpu_checks.shapes_of(name)
        assert str(first) == "dim 16, fp32, rows by sgd, layers by sgd"
        assert str(wide) == "dim 128, bf16, rows by sgd, layers by sgd"


def draw_shards(settings: PartSettings) -> None:
    for dim in (16, 128):
        gpu_checks.small_shards(settings, f"kernels-{dim}", "adagrad", dim)


@pytest.fixture
def settings(tmp_path: Path) -> PartSettings:
    """Settings of a trial of `gather_dots`, with the shards that it trains on."""
    found = PartSettings("late", tmp_path, True, "gather_dots")
    draw_shards(found)
    return found


def try_as_gather_dots(
    kernel: Callable[..., None], settings: PartSettings, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """Try something as the kernel; return the differences that were found."""
    trained = gpu_checks._trained

    def train(shards: Shards, settings: PartSettings, names: str, *arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            if "gather_dots" in names:
                patch.setattr(twins, "gather_dots", kernel)
            return trained(shards, settings, names, *arguments)

    path = settings.scratch / "found.jsonl"
    path.unlink(missing_ok=True)
    with monkeypatch.context() as patch:
        patch.setattr(gpu_checks, "_trained", train)
        gpu_checks.try_kernel(settings, Records(path, 60))
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
    assert (
        0 < narrow < gpu_checks._TOLERANCE_OF_ORDER / 1000 and 0 < wide < gpu_checks._TOLERANCE_OF_ORDER / 2
    )


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
    draw_shards(PartSettings("late", tmp_path, True))
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
            gpu_checks.try_kernel(
                PartSettings("late", tmp_path, True, name), Records(tmp_path / f"{name}.jsonl", 60)
            )
        unused += [] if launched else [name]
        rows = [record["row"] for record in records_of(tmp_path / f"{name}.jsonl") if "row" in record]
        assert [row["shape"] for row in rows] == list(map(str, gpu_checks.shapes_of(name)))
        assert all(row["difference"] == 0 for row in rows)
    assert unused == []


def checks_of_verbs(folder: Path) -> dict[str, bool]:
    found = folder / "verbs.jsonl"
    found.unlink(missing_ok=True)
    gpu_checks.try_verbs(PartSettings("late:3", folder, True), Records(found, 60))
    return {record["check"]["name"]: record["check"]["is_right"] for record in records_of(found)}


@pytest.mark.parametrize(
    ("verb", "slow", "name"),
    [
        ("wait", "copies", "pinned memory is copied up and down"),
        ("wait", "compute", "a stream waits for the event of another"),
        ("capture", "moves", "work of moves is recorded and replayed"),
        ("capture", "compute", "work of compute is recorded and replayed"),
        ("pin", "moves", "kernels read and write pinned rows of the host"),
        ("close", "moves", "the device is closed"),
    ],
)
def test_a_verb_that_does_not_do_its_work_is_named(
    verb: str, slow: StreamName, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_slow(monkeypatch, slow)
    right = checks_of_verbs(tmp_path)
    assert len(right) == 7 and all(right.values())

    def refuse(*_: object) -> None:
        raise RuntimeError("an illegal address")

    monkeypatch.setattr(LateDevice, verb, refuse if verb == "close" else lambda *_: None)
    found = checks_of_verbs(tmp_path)
    assert found.keys() == right.keys() and not found[name]


_TESTS = """
import time
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2, "as it should"
@pytest.mark.skipif(True, reason="no GPU")
def test_is_skipped(): pass
@pytest.fixture
def broken():
    yield
    raise ZeroDivisionError("a kernel")
def test_ends_badly(broken): pass
def test_is_slow(): time.sleep(SECONDS)
def test_is_left_out(): pass
"""
_RUN = """
import sys, pytest
from pathlib import Path
from hotset.workflows.bench.gpu_checks import CheckWriter
from hotset.workflows.bench.gpu_day import Records
folder = Path(sys.argv[1])
records = Records(folder / "records", float(sys.argv[2]), sys.argv[3:])
options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--rootdir", str(folder)]
pytest.main([*options, str(folder)], plugins=[CheckWriter(records)])
"""


def run(folder: Path, seconds: float, *done: str) -> list[dict[str, Any]]:
    (folder / "records").unlink(missing_ok=True)
    command = [sys.executable, "-c", _RUN, str(folder), str(seconds), *done]
    subprocess.run(command, check=True, cwd=folder, capture_output=True)
    return records_of(folder / "records")


@pytest.mark.slow
def test_a_run_without_time_has_the_checks_of_the_tests_before(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(_TESTS.replace("SECONDS", "6"))
    (tmp_path / "test_that_cannot_be_imported.py").write_text("import a_package_that_is_missing")
    found = run(tmp_path, 10.0)
    checks = {each["check"]["name"].partition("::")[2]: each["check"] for each in found if "check" in each}
    assert {name: check["is_right"] for name, check in checks.items()} == {
        "": False,
        "test_passes": True,
        "test_fails": False,
        "test_is_skipped": False,
        "test_ends_badly": False,
        "test_is_slow": True,
    }
    assert "as it should" in checks["test_fails"]["detail"]
    assert "ZeroDivisionError" in checks["test_ends_badly"]["detail"]
    assert "a_package_that_is_missing" in checks[""]["detail"]
    names = [name for each in found for name in each.get("pieces", {}).get("names", [])]
    done = [each["done"]["name"] for each in found if "done" in each]
    assert set(names) - set(done) == {"test_some.py::test_is_left_out"}
    # A second call runs what is left.
    (tmp_path / "test_that_cannot_be_imported.py").unlink()
    found = run(tmp_path, 10.0, *done)
    assert [each["done"]["name"] for each in found if "done" in each] == ["test_some.py::test_is_left_out"]
