"""Some drawn logs, the same ones in every run of the tests, and how a log that is read wrongly is found."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotset.tests.fuzz import fuzz_logs as module
from hotset.tests.fuzz.drawn_logs import Log, draw_log
from hotset.tests.fuzz.fuzz_logs import differences, fuzz_logs, read_with_polars
from hotset.workflows.bench.harness import run_script


@pytest.mark.parametrize("num_files", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_a_proposed_schema_reads_what_was_written(num_files: int, tmp_path: Path) -> None:
    found = fuzz_logs(num_files, 0, tmp_path)
    assert found["differences"] == [] and found["outcomes"]["hotset csv equal"] > num_files // 2
    assert found["outcomes"]["polars csv equal"] > num_files // 20


def _with_another_value(log: Log) -> Log:
    name, column = next(each for each in log.columns.items() if each[0] != "label")
    return replace(log, columns=log.columns | {name: replace(column, values=[*column.values[:-1], None])})


def test_what_is_read_otherwise_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        log = _with_another_value(draw_log(seed))
        ((who, outcome),) = differences(log, tmp_path / str(seed), {})
        assert who == "hotset" and outcome.startswith("differs: values of ")

    def wrong(log: Log, path: Path) -> dict[str, list[Any]]:
        columns = read_with_polars(log, path)
        next(iter(columns.values()))[3] = "wrong"
        return columns

    monkeypatch.setattr(module, "read_with_polars", wrong)
    found = fuzz_logs(3, 0, tmp_path)
    assert {each["reader"] for each in found["differences"]} == {"polars"}
    assert "row 3: 'wrong', want " in found["differences"][0]["outcome"]


def test_the_script_writes_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda workers, _: ThreadPoolExecutor(workers))
    words = ["--files", "5", "--out", str(tmp_path / "result.json"), "--scratch", str(tmp_path)]
    assert run_script(module.PARSER, module.measure, words) == 0
    found = json.loads((tmp_path / "result.json").read_text())
    assert (found["files"], found["differences"], found["first_differences"]) == (5, 0, [])
    assert (
        sum(count for what, count in found["outcomes"].items() if re.fullmatch("hotset .* equal", what)) == 5
    )
