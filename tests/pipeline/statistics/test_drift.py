"""Parts of a log and what their hot sets serve, against sets of categories."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hotset.pipeline.errors import ByteSize, ConfigError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import ColumnsTotals
from hotset.pipeline.preprocess import PreprocessConfig
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.statistics.drift import drift, parts_of_log
from hotset.pipeline.statistics.folder import Inspected
from hotset.pipeline.statistics.frequencies import frequency_statistics
from hotset.stats.drift import MAX_PARTS
from hotset.tests.support.logs.criteo_text import Sample, draw_samples, text_of
from hotset.tests.support.naive.naive_stages import run_to
from hotset.workflows.cli import main

CONFIG = PreprocessConfig(
    count=CountConfig(eval_fraction=0.25),
    split=SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(64 * 60)),
)


@pytest.fixture(scope="module")
def log() -> list[Sample]:
    return draw_samples(200, np.random.default_rng(3))


def lookups_of(samples: list[Sample]) -> list[list[tuple[int, int | None]]]:
    return [list(enumerate(sample.categories)) for sample in samples]


def pair(found: Any, chosen_on: str, serves: str) -> dict[str, Any]:
    pairs: list[dict[str, Any]] = found["pairs"]
    (row,) = (row for row in pairs if (row["chosen_on"], row["serves"]) == (chosen_on, serves))
    return row


def drift_of(
    folder: Path, budget_bytes: int, num_parts: int | None = None, resources: Resources | None = None
) -> Any:
    inspected = Inspected.open(folder, resources or Resources(workers=1), num_parts=num_parts)
    return drift(inspected, budget_bytes)


@pytest.mark.parametrize("workers", [1, 2])
def test_with_room_for_all_rows_a_part_serves_what_it_saw(
    tmp_path: Path, log: list[Sample], workers: int
) -> None:
    run_to("split", tmp_path, log, CONFIG)
    told: list[tuple[str, int, int]] = []
    resources = Resources(workers=workers, progress=lambda *call: told.append(call))
    found = drift_of(tmp_path, 2**30, 3, resources=resources)
    # In samples: those of training are read twice.
    assert told[0] == ("drift", 50, 350) and told[-1] == ("drift", 350, 350) and told == sorted(told)
    parts = {f"part {p + 1}": lookups_of(log[50 * p : 50 * p + 50]) for p in range(3)}
    parts["evaluation"] = lookups_of(log[150:])
    seen = {name: {row for sample in part for row in sample} for name, part in parts.items()}
    known = seen["part 1"] | seen["part 2"] | seen["part 3"]
    assert [part["name"] for part in found["parts"]] == list(parts)
    assert [part["is_training"] for part in found["parts"]] == [True, True, True, False]
    assert found["parts"][3]["num_hot_rows"] is None
    without = sum(row not in known for sample in parts["evaluation"] for row in sample)
    assert found["parts"][3]["no_id_share"] == pytest.approx(without / (50 * 26))
    ages: dict[int, list[float]] = {}
    for chosen_on in ("part 1", "part 2", "part 3"):
        for serves, samples in parts.items():
            row = pair(found, chosen_on, serves)
            rows = [row in seen[chosen_on] for sample in samples for row in sample]
            hot = sum(all(row in seen[chosen_on] for row in sample) for sample in samples)
            assert row["hot_lookup_share"] == pytest.approx(np.mean(rows))
            assert row["unseen_lookup_share"] == pytest.approx(1 - np.mean(rows))
            assert row["hot_sample_share"] == pytest.approx(hot / 50)
            ages.setdefault(row["age"], []).append(float(np.mean(rows)))
            if serves != "evaluation":
                common = len(seen[chosen_on] & seen[serves]) / len(seen[serves])
                assert row["common_rows_share"] == pytest.approx(common)
    by_age = {row["age"]: row["hot_lookup_share"] for row in found["by_age"]}
    assert by_age == {age: pytest.approx(np.mean(ages[age])) for age in range(4)}


def test_a_budget_takes_the_rows_with_the_most_lookups(tmp_path: Path, log: list[Sample]) -> None:
    run_to("split", tmp_path, log, CONFIG)
    found = drift_of(tmp_path, 64 * 30, 2)
    counts = Counter(row for sample in lookups_of(log[:75]) for row in sample)
    served = sum(count for _, count in counts.most_common(30))
    assert pair(found, "part 1", "part 1")["hot_lookup_share"] == pytest.approx(served / (75 * 26))
    assert found["parts"][0]["num_hot_rows"] == 30


def test_the_plans_own_hot_rows_are_shown_for_each_part(tmp_path: Path, log: list[Sample]) -> None:
    plan = run_to("split", tmp_path, log, CONFIG)
    found = drift_of(tmp_path, 64 * 30, 1)
    shares = [part["plan_hot_sample_share"] for part in found["parts"]]
    samples = plan.totals["samples"]
    assert shares == [samples["hot"] / 150, samples["evaluation_hot"] / 50]


def test_the_oov_row_is_nobodys_own(tmp_path: Path, log: list[Sample]) -> None:
    config = PreprocessConfig(count=CountConfig(eval_fraction=0), rank=RankConfig(min_count=3))
    run_to("split", tmp_path, log, config)
    found = drift_of(tmp_path, 2**30, 1)
    counts = Counter(row for sample in lookups_of(log) for row in sample)
    rare = sum(count for count in counts.values() if count < 3)
    (row,) = found["pairs"]
    assert row["hot_lookup_share"] == 1
    assert row["unseen_lookup_share"] == pytest.approx(rare / (200 * 26))
    assert found["parts"][0]["no_id_share"] == pytest.approx(rare / (200 * 26))


def test_raw_files_are_parts_and_one_may_be_of_both_kinds(tmp_path: Path, log: list[Sample]) -> None:
    for day in range(3):
        (tmp_path / f"day{day}").write_bytes(text_of(log[60 * day : 60 * day + 60]))
    days = [str(tmp_path / f"day{day}") for day in range(3)]
    assert main(["preprocess", *days, "--eval-fraction", "0.5", "--out", str(tmp_path / "out")]) == 0
    found = drift_of(tmp_path / "out", 2**20)
    sizes = {part["name"]: (part["num_samples"], part["is_training"]) for part in found["parts"]}
    assert sizes == {
        "day0": (60, True),
        "day1": (30, True),
        "day1 (evaluation)": (30, False),
        "day2": (60, False),
    }
    assert drift_of(tmp_path / "out", 2**20, 9)["by_age"][-1]["age"] == 9
    for wrong in (0, 91):
        with pytest.raises(ConfigError, match=f"{wrong} parts of 90 training samples"):
            drift_of(tmp_path / "out", 2**20, wrong)
    with pytest.raises(ConfigError, match="40 parts for training"):
        drift_of(tmp_path / "out", 2**20, 40)


@pytest.mark.parametrize("num_files", [31, 258])
def test_many_files_are_compared_in_runs(num_files: int) -> None:
    columns = SimpleNamespace(num_samples=2 * num_files)
    with pytest.MonkeyPatch.context() as patch:
        logs = [SimpleNamespace(name=f"day_{day}", num_samples=2) for day in range(num_files)]
        patch.setattr(ColumnsTotals, "of", lambda _: SimpleNamespace(raw=logs))
        parts = parts_of_log(cast(Manifest, columns), 2 * num_files - 15, None)
    assert parts[0].name == ("day_0 to day_8" if num_files == 258 else "day_0 to day_1")
    assert [part.first for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert parts[-1].stop == 2 * num_files and sum(part.is_training for part in parts) < MAX_PARTS


def test_files_of_one_name_are_told_apart(tmp_path: Path, log: list[Sample]) -> None:
    for day in ("mon", "tue"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "log").write_bytes(text_of(log[:40]))
    days = [str(tmp_path / day / "log") for day in ("mon", "tue")]
    assert main(["preprocess", *days, "--eval-fraction", "0", "--out", str(tmp_path / "out")]) == 0
    found = drift_of(tmp_path / "out", 2**20)
    assert [part["name"] for part in found["parts"]] == ["log (1)", "log (2)"]
    assert {pair["hot_lookup_share"] for pair in found["pairs"]} == {1.0}


def test_a_log_with_adopted_ids_chooses_nothing(
    tmp_path: Path, log: list[Sample], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    run_to("pack", tmp_path / "model", log, CONFIG)
    (tmp_path / "next").write_bytes(text_of(log[150:]))
    words = ["preprocess", str(tmp_path / "next"), "--like", str(tmp_path / "model")]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    found = drift_of(tmp_path / "out", 2**20)
    assert found["pairs"] == found["by_age"] == []
    (part,) = found["parts"]
    assert part["num_samples"] == 50 and part["no_id_share"] > 0
    every = frequency_statistics(tmp_path / "out", Resources(workers=1))
    assert every["unique_rows"] == [] and every["miss_ratios"]["curve"] == []
    assert "distinct rows per batch: the log has no training samples" in every["left_out"]
    assert main(["stats", str(tmp_path / "out"), "--html", str(tmp_path / "x.html")]) == 1
    assert "has no training samples to report on" in capsys.readouterr().err
