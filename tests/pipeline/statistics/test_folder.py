"""Evaluation data that reached counts and ids is named, whatever its file is called.

Rows of a table by id and by category, against a dictionary of the log.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ByteSize, ConfigError, ManifestError
from hotset.pipeline.folders.totals import ColumnsTotals, RawLog
from hotset.pipeline.preprocess import PreprocessConfig
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.statistics.folder import (
    MISSING,
    OOV,
    TableRows,
    find_leaks,
    format_category,
    open_table,
    parse_category,
)
from hotset.tests.support.logs.criteo_text import Sample, draw_samples, text_of
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_csv
from hotset.tests.support.naive.naive_stages import run_to
from hotset.tests.support.resealed import write_manifest
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


@pytest.fixture
def log(rng: np.random.Generator) -> list[Sample]:
    return draw_samples(150, rng)


def table_of(folder: Path, log: list[Sample], feature: str, *, stage: str = "rank") -> TableRows:
    config = PreprocessConfig(
        count=CountConfig(eval_fraction=0.2),
        rank=RankConfig(min_count=2),
        split=SplitConfig(hot_bytes=ByteSize(1 << 20)),
    )
    run_to(stage, folder, log, config)
    return open_table(folder, feature)


def test_every_row_agrees_with_a_dictionary_of_the_log(tmp_path: Path, log: list[Sample]) -> None:
    table = table_of(tmp_path, log, "C4")
    counts = Counter(sample.categories[3] for sample in log[:120])
    rows = table.head(10**9)
    assert [row["id"] for row in rows] == list(range(table.table.num_rows))
    assert rows[-1]["cumulative_share"] == 1 and sum(row["count"] for row in rows) == 120
    assert rows[2]["cumulative_share"] == sum(row["count"] for row in rows[:3]) / 120
    found = {row["category"]: row["count"] for row in rows}
    own = {category: count for category, count in counts.items() if category is not None and count >= 2}
    assert {name: count for name, count in found.items() if not name.startswith("(")} == {
        f"{category:08x}": count for category, count in own.items()
    }
    assert found[MISSING] == counts[None]
    assert found[OOV] == 120 - sum(own.values()) - counts[None]


def test_a_row_is_found_by_id_and_by_category(tmp_path: Path, log: list[Sample]) -> None:
    table = table_of(tmp_path, log, "C4", stage="split")
    for row in table.head(10**9):
        assert table.by_id(row["id"]) == row
        assert row["is_hot"] is True
        by_category = table.by_category(row["category"])
        assert by_category == row | {"asked": row["category"], "is_known": True}
    unknown = table.by_category("0")
    assert unknown["id"] == table.table.oov_id and not unknown["is_known"]
    with pytest.raises(ConfigError, match="table C4 has no id -1"):
        table.by_id(-1)


def test_a_plan_without_the_table_is_damaged(tmp_path: Path, log: list[Sample]) -> None:
    table_of(tmp_path, log, "C4", stage="split")
    parts = json.loads((tmp_path / "plan" / "manifest.json").read_text())
    parts["totals"]["tables"][3]["name"] = "x"
    write_manifest(tmp_path / "plan", parts)
    with pytest.raises(ManifestError, match=r"plan has tables of other rows than .*vocabulary"):
        open_table(tmp_path, "C4")


def test_without_a_plan_nobody_knows_what_is_hot(tmp_path: Path, log: list[Sample]) -> None:
    assert table_of(tmp_path, log, "C1").by_id(0)["is_hot"] is None


def test_missing_and_oov_may_be_one_row(tmp_path: Path, log: list[Sample]) -> None:
    table = table_of(tmp_path, log, "C1")
    assert table.by_category(MISSING)["category"] == table.by_category(OOV)["category"] == f"{MISSING} {OOV}"


@pytest.mark.parametrize(
    ("kind", "text", "category"),
    [
        ("hex8", "0000beef", 0xBEEF),
        ("integer", "-1", 2**64 - 1),
        ("integer", "-9223372036854775808", 2**63),
        ("integer", "7", 7),
        ("unsigned", "18446744073709551615", 2**64 - 1),
        ("hour", "23", 23),
        ("weekday", "7", 7),
        ("text", "#000000000000beef", 0xBEEF),
    ],
)
def test_categories_are_written_as_the_log_writes_them(kind: str, text: str, category: int) -> None:
    assert parse_category(text, kind, "x") == category
    assert format_category(category, kind) == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("hex8", "g"),
        ("hex8", "123456789"),
        ("integer", str(2**63)),
        ("unsigned", "-1"),
        ("hour", "24"),
        ("weekday", "0"),
    ],
)
def test_a_category_of_another_kind_is_refused(kind: str, text: str) -> None:
    with pytest.raises(ConfigError, match="is no category of x") as caught:
        parse_category(text, kind, "x")
    assert MISSING in (caught.value.hint or "")


def test_texts_are_found_by_what_the_log_says(
    tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    log = draw_log(80, {"label": "label", "n": "integer", "t": "text"}, rng)
    path = write_csv(tmp_path / "log.csv", log)
    (tmp_path / "schema.toml").write_text(schema_text(log))
    out = str(tmp_path / "out")
    assert main(["preprocess", str(path), "--schema", str(tmp_path / "schema.toml"), "--out", out]) == 0
    capsys.readouterr()
    assert main(["stats", out, "--feature", "t", "--category", "naïve ☃", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    num_train = round(80 * 6 / 7)
    assert row["is_known"] and row["count"] == sum(v[2] == "naïve ☃" for v in log.rows[:num_train])


def test_the_command_shows_a_head_and_names_mistakes(
    tmp_path: Path, log: list[Sample], capsys: pytest.CaptureFixture[str]
) -> None:
    table_of(tmp_path, log, "C1")
    words = ["stats", str(tmp_path), "--feature", "C1"]
    capsys.readouterr()
    assert main([*words, "--top", "2"]) == 0
    assert capsys.readouterr().out.count("%") == 4
    assert main([*words, "--category", "ffffff00"]) == 0
    assert "has no id" in capsys.readouterr().out
    assert main(["stats", str(tmp_path), "--feature", "C99"]) == 1
    assert "C26" in capsys.readouterr().err
    for wrong in (["--top", "0"], ["--id", "1", "--top", "1"]):
        with pytest.raises(SystemExit):
            main([*words, *wrong])
    with pytest.raises(SystemExit):
        main(["stats", str(tmp_path), "--id", "1"])
