"""The file of a machine: written and read back, and refused where it is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.tests.support.planning.made_up_machine import CONSTANTS, WORK, made_up_machine
from hotset.train.planning.machine_file import Curves, MachineFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "machine.json"
    made_up_machine().write(path)
    return path


def test_a_machine_comes_back_as_it_was(path: Path) -> None:
    assert MachineFile.read(path) == made_up_machine()
    assert Curves.of(CONSTANTS).constants == CONSTANTS
    assert path.parent.iterdir() and len(list(path.parent.iterdir())) == 1


def test_a_machine_without_a_model_says_so_and_is_not_predicted_from(path: Path) -> None:
    path.unlink()
    replace(made_up_machine(), model=None, num_cells=3).write(path)
    assert json.loads(path.read_text())["model"] is None
    with pytest.raises(ConfigError, match="3 cells, too few"):
        MachineFile.read(path).refuse_no_model(path)


def test_a_file_that_exists_is_not_overwritten(path: Path) -> None:
    with pytest.raises(HotsetError, match="exists"):
        made_up_machine().write(path)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("format",), "other", "no machine file"),
        (("version",), 2, "version 2, want 1"),
        (("threads",), "two", "threads is 'two'"),
        (("constants", 0, "median"), 5.0, "between its quartiles"),
        (("constants", 0, "repetitions"), 0, "repetitions is 0"),
        (("model", "curves", "product_flops"), 0.0, "product_flops is 0.0, want more than 0"),
        (("model", "curves", "row_seconds"), [1.0], "working_bytes has 2 values"),
        (("model", "curves", "row_seconds"), [1.0, -1.0], "row_seconds is below 0"),
        (("model", "curves", "working_bytes"), [0.0, 1.0], "working_bytes is not above 0"),
        (("model", "weights", "lookup"), [1.0], "lookup has 1 weights, want 6"),
        (("model", "weights", "lookup"), [1.0, 1.0, 1.0, 1.0, 1.0, -1.0], "lookup has a weight below 0"),
        (("model", "contention"), 2.0, "contention is 2.0"),
        (("model", "error", "low_ratio"), 0.0, "low_ratio is 0.0"),
    ],
)
def test_a_damaged_file_is_refused_by_its_key(
    path: Path, keys: tuple[str | int, ...], value: object, message: str
) -> None:
    found: Any = json.loads(path.read_text())
    inner = found
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(found))
    with pytest.raises(ConfigError, match=message):
        MachineFile.read(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_any_other_file_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match="no machine file"):
        MachineFile.read(path)


def test_another_device_or_number_of_threads_is_refused_by_name(path: Path) -> None:
    machine = made_up_machine()
    machine.refuse_other(path, "cpu", None)
    machine.refuse_other(path, "cpu", 2)
    with pytest.raises(ConfigError, match="measured with 2 threads, and --threads 4 is asked for"):
        machine.refuse_other(path, "cpu", 4)
    with pytest.raises(ConfigError, match="with the device cpu, and --device cuda is asked for"):
        machine.refuse_other(path, "cuda", None)


def test_the_model_predicts(path: Path) -> None:
    machine = MachineFile.read(path)
    assert machine.refuse_no_model(path).parts.predict(WORK).seconds > 0
