"""Evaluation data that reached counts and ids is named, whatever its file is called."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.folders.totals import ColumnsTotals, RawLog
from hotset.pipeline.statistics.folder import find_leaks
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.workflows.cli import main


@pytest.fixture
def days(tmp_path: Path, rng: np.random.Generator) -> list[str]:
    samples = draw_samples(90, rng)
    for day in range(3):
        (tmp_path / f"day{day}").write_bytes(text_of(samples[30 * day : 30 * day + 30]))
    return [str(tmp_path / f"day{day}") for day in range(3)]


def leaks_of(out: Path, *words: str) -> list[str]:
    assert main(["preprocess", *words, "--out", str(out), "--batch-size", "8"]) == 0
    return find_leaks(out)


def test_a_clean_log_has_none(tmp_path: Path, days: list[str]) -> None:
    assert leaks_of(tmp_path / "out", *days) == []
    assert leaks_of(tmp_path / "files", *days, "--eval-files", "1") == []


def test_counts_that_saw_everything(
    tmp_path: Path, days: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (leak,) = leaks_of(tmp_path / "out", *days, "--eval-fraction", "0")
    assert "saw all 90 samples" in leak
    capsys.readouterr()
    assert main(["stats", str(tmp_path / "out")]) == 0
    assert "Warning: counts, ids and the hot set saw all 90 samples" in capsys.readouterr().out


def test_a_log_given_twice(tmp_path: Path, days: list[str]) -> None:
    shutil.copyfile(days[0], tmp_path / "again")
    (leak,) = leaks_of(tmp_path / "out", *days, str(tmp_path / "again"), "--eval-files", "1")
    assert leak == "again is evaluated on and is the same log as day0, which counts and ids saw"


def test_ids_of_a_model_that_trained_on_the_log(tmp_path: Path, days: list[str]) -> None:
    assert leaks_of(tmp_path / "model", *days[:2], "--eval-fraction", "0.25") == []
    like = ("--like", str(tmp_path / "model"))
    assert leaks_of(tmp_path / "new", days[2], *like) == []
    shutil.copyfile(days[1], tmp_path / "renamed")
    (leak,) = leaks_of(tmp_path / "seen", str(tmp_path / "renamed"), days[2], *like)
    assert leak == "the ids are those of a model that trained on 15 of the 30 samples of renamed, as day1"
    (leak,) = leaks_of(tmp_path / "further", days[0], "--like", str(tmp_path / "seen"))
    assert leak.endswith("trained on 30 of the 30 samples of day0")


def test_logs_of_the_training_part() -> None:
    raw = tuple(
        RawLog(name="log", num_bytes=1, num_lines=5, num_samples=number, xxh3_128_of_blocks="")
        for number in (5, 0, 5, 5)
    )
    log = ColumnsTotals(num_samples=15, bad_lines={}, has_label=True, dense=(), sparse=(), raw=raw)
    assert [each.num_train_samples for each in log.training_logs(10)] == [5, 0, 5]
    assert [each.num_train_samples for each in log.training_logs(7)] == [5, 0, 2]
    assert log.training_logs(0) == []
