"""The file of speeds: what is written is read, and what is no such file is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.stats.step_times import Machine
from hotset.train.machine_speeds import MachineSpeeds

SPEEDS = MachineSpeeds(
    device_name="A CPU",
    threads=2,
    flops=2e11,
    host_rows_per_second=5e7,
    row_bytes=64,
    link_bytes_per_second=9e9,
    loader_samples_per_second=1.5e7,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    SPEEDS.write(path)
    assert MachineSpeeds.read(path) == SPEEDS
    with pytest.raises(HotsetError, match="exists"):
        SPEEDS.write(path)
    assert len(path.read_text().splitlines()) <= 12


def test_predictions_take_rows_as_bytes_and_the_typical_fixed_time() -> None:
    assert SPEEDS.machine() == Machine(
        link_bytes_per_second=9e9,
        host_bytes_per_second=64 * 5e7,
        flops=2e11,
        step_seconds=Machine().step_seconds,
        loader_samples_per_second=1.5e7,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "hotset machine"}, "its format is not 'hotset speeds 1'"),
        ({"flops": 0.0}, "flops is 0.0, want a number above 0"),
        ({"link_bytes_per_second": -1.0}, "link_bytes_per_second is -1.0"),
        ({"host_rows_per_second": "many"}, "host_rows_per_second"),
        ({"row_bytes": 0}, "row_bytes is 0"),
    ],
)
def test_a_file_of_something_else_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    SPEEDS.write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=f"machine.json cannot be read as speeds: .*{message}"):
        MachineSpeeds.read(path)


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_damaged_file_and_a_missing_one_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(text)
    for name in ("machine.json", "missing.json"):
        with pytest.raises(ConfigError, match=f"{name} cannot be read as speeds"):
            MachineSpeeds.read(tmp_path / name)
