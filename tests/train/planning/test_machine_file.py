"""The file of a machine: written and read back, and refused where it is none.

Also the tests of `curves`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.tests.support.planning.made_up_machine import CONSTANTS, WORK, made_up_machine
from hotset.train.planning.curves import Curves
from hotset.train.planning.machine_file import MachineFile


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
        MachineFile.read(path).fitted_model(path)


def test_a_file_that_exists_is_not_overwritten(path: Path) -> None:
    with pytest.raises(HotsetError, match="exists"):
        made_up_machine().write(path)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("format",), "other", "no machine file"),
        (("version",), 1, "version 1, want 6"),
        (("threads",), "two", "threads is 'two'"),
        (("threads",), 0, "threads is 0, want 1 or more"),
        (("constants", 0, "median"), 5.0, "between its quartiles"),
        (("constants", 0, "repetitions"), 0, "repetitions is 0"),
        (("model", "curves", "product_flops"), 0.0, "product_flops is 0.0, want more than 0"),
        (("model", "curves", "row_seconds"), [1.0], "working_bytes has 2 values"),
        (("model", "curves", "row_seconds"), [1.0, -1.0], "row_seconds is below 0"),
        (("model", "curves", "working_bytes"), [0.0, 1.0], "working_bytes is not above 0"),
        (("model", "weights", "lookup"), [1.0], "lookup has 1 weights, want 14"),
        (("model", "weights", "lookup"), [*[1.0] * 13, -1.0], "lookup has a weight below 0"),
        (("model", "curves", "working_bytes"), [1e9, 1e5], "working_bytes is not ascending"),
        (("model", "curves", "update_working_bytes"), [1e5, 1e5], "update_working_bytes is not ascending"),
        (("model", "curves", "update_working_bytes"), [], "update_working_bytes has 0 values"),
        (("model", "curves", "product_half_batch"), float("nan"), "want a finite number"),
        (("model", "curves", "gather_bytes_per_second"), 0.0, "gather_bytes_per_second is 0.0"),
        (("model", "curves", "codec_seconds"), {"int8": -1.0}, "codec_seconds is below 0"),
        (("model", "curves", "codec_seconds"), {"int4": 1.0}, "codec_byte_seconds has other codecs"),
        (("model", "contention"), 2.0, "contention is 2.0"),
        (("model", "error", "low_ratio"), 0.0, "low_ratio is 0.0"),
        (("model", "error", "low_ratio"), 2.0, "below high_ratio"),
        (("model", "num_disturbed"), -1, "num_disturbed is -1, want 0 or more"),
        (("model", "weights", "reduce"), "all", "weights.reduce is 'all', want an array"),
        (("is_quiet",), 1, "is_quiet is 1, want true or false"),
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
    assert machine.fitted_model(path).parts.predict(WORK).seconds > 0


@pytest.mark.parametrize("key", ["threads", "constants", "not_measured", "num_cells", "model"])
def test_a_key_that_is_missing_is_named_and_one_of_a_later_version_is_left_alone(
    path: Path, key: str
) -> None:
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"later": 1}))
    assert MachineFile.read(path) == made_up_machine()
    del found[key]
    path.write_text(json.dumps(found))
    with pytest.raises(ConfigError, match=f"is damaged: {key} is missing"):
        MachineFile.read(path)


def test_a_file_that_is_not_there_is_refused_with_what_the_system_says(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json cannot be read: No such file"):
        MachineFile.read(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        MachineFile.read(tmp_path)


def test_both_differences_are_named_with_one_command_that_measures_them(path: Path) -> None:
    with pytest.raises(
        ConfigError, match="the device cpu and 2 threads, and --device cuda --threads 4"
    ) as error:
        made_up_machine().refuse_other(path, "cuda", 4)
    assert error.value.hint == "`hotset characterise --device cuda --threads 4 --out FILE` measures that"


def test_the_model_without_held_out_cells_comes_back_without_an_error(path: Path) -> None:
    machine = made_up_machine()
    assert machine.model is not None
    path.unlink()
    replace(machine, model=replace(machine.model, error=None)).write(path)
    model = MachineFile.read(path).fitted_model(path)
    assert model.error is None and model.parts == machine.model.parts
