"""``hotset bench`` lists its benchmarks, and runs one by its name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotset.pipeline.errors import HotsetError
from hotset.workflows.commands import bench_command
from hotset.workflows.commands.bench_command import BENCHES, run


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a made-up benchmark."""

    samples: int = 5
    """Number of samples."""


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every benchmark replaced by one that doubles its samples; returns what was imported and measured."""
    imported: list[str] = []

    def measure(config: Config) -> dict[str, int]:
        imported.append("measured")
        return {"samples": 2 * config.samples}

    def import_module(name: str, package: str) -> Any:
        imported.append(name)
        return SimpleNamespace(
            CONFIG=Config,
            measure=measure,
            show=lambda result, console: print(f"shown {result['samples']}"),
        )

    replacement = SimpleNamespace(import_module=import_module)
    monkeypatch.setattr("hotset.workflows.commands.bench_command.importlib", replacement)
    return imported


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["--help"], 0), (["-h"], 0)])
def test_without_a_name_benchmarks_are_listed_and_none_is_imported(
    arguments: list[str], status: int, made_up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == status
    shown = capsys.readouterr().out
    assert shown.startswith("usage: hotset bench NAME") and all(name in shown for name in BENCHES)
    assert made_up == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [("kill", "hotset bench kills"), ("none", "hotset bench --help lists the benchmarks")],
)
def test_a_mistyped_name_offers_the_nearest(
    name: str, hint: str, made_up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name]) == 2
    assert capsys.readouterr().err == f"error: there is no benchmark {name!r}\nhint: {hint}\n"
    assert made_up == []


def test_a_result_is_shown_or_printed_and_written(
    made_up: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kills", "--samples", "4"]) == 0
    assert capsys.readouterr().out == "shown 8\n" and made_up == ["..bench.bench_kills", "measured"]
    out = tmp_path / "result.json"
    assert run(["kills", "--json", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads(out.read_text()) == {"samples": 10}
    assert f"wrote {out}" in said.err.replace("\n", "")


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    made_up: list[str], tmp_path: Path
) -> None:
    for out in (tmp_path / "none" / "result.json", tmp_path):
        with pytest.raises(HotsetError):
            run(["kills", "--out", str(out)])
    assert "measured" not in made_up


def test_a_disk_without_room_loses_no_result(
    made_up: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise HotsetError("no room")

    monkeypatch.setattr(bench_command, "whole_file", full)
    with pytest.raises(HotsetError, match="no room"):
        run(["kills", "--out", str(tmp_path / "result.json")])
    assert json.loads(capsys.readouterr().out) == {"samples": 10}
