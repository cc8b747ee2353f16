"""Labels, values and categories of a log, against walks over its rows.

Tests the hot tables of `coverage` and `frequencies`, too.

Parts of a log and what their hot sets serve, against sets of categories.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hotset.pipeline.errors import ByteSize, ConfigError, ManifestError
from hotset.pipeline.folders.disk import discard_files
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import ColumnsTotals
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.statistics.folder import Inspected
from hotset.pipeline.statistics.frequencies import NUM_CATEGORIES, frequency_statistics
from hotset.pipeline.statistics.log import QUANTILES, drift, parts_of_log
from hotset.stats.curves import most_frequent
from hotset.stats.drift import MAX_PARTS
from hotset.tests.support.logs.criteo_text import Sample, draw_samples, text_of
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import Log, draw_log, write_parquet
from hotset.tests.support.naive.naive_stages import ids_of, run_to, tags_of
from hotset.tests.support.resealed import write_manifest
from hotset.workflows.cli import main

NUM_ROWS, NUM_TRAIN = 150, 100
SERIES = ["hot_tables", "log", "categories"]


@pytest.fixture(scope="module", params=["label", "maybe label"])
def log(request: pytest.FixtureRequest) -> Log:
    """A log whose samples all have the label, or one in which a quarter lacks it."""
    return draw_log(NUM_ROWS, KINDS | {"y": request.param}, np.random.default_rng(5), empty_lists=True)


@pytest.fixture(scope="module")
def folder(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    path = write_parquet(folder / "log.parquet", log)
    config = recipe(log, "parquet")
    # All but three of the rows that are looked up: some samples are hot, some are not.
    config = replace(config, split=replace(config.split, hot_bytes=ByteSize(64 * 33)))
    preprocess([path], config, folder / "data", Resources(workers=1))
    return folder / "data"


@pytest.fixture(scope="module")
def found(folder: Path) -> Any:
    found = frequency_statistics(folder, Resources(workers=1), series=SERIES)
    assert found == frequency_statistics(folder, Resources(workers=2), series=SERIES)
    return found


def column(log: Log, name: str) -> list[Any]:
    return [row[list(log.kinds).index(name)] for row in log.rows]


def is_missing(value: Any) -> bool:
    elements = value if isinstance(value, list) else [value]
    return all(element is None or element == "" for element in elements)


def rate(labels: list[int | None]) -> float | None:
    """The share of clicks among the samples that have the label."""
    own = [label for label in labels if label is not None]
    return sum(own) / len(own) if own else None


def test_there_are_several_parts_and_one_has_both_kinds(folder: Path) -> None:
    sizes = [entry.num_samples for _, entry in Manifest.read(folder / "columns").parts()]
    assert len(sizes) > 3 and NUM_TRAIN not in np.cumsum(sizes)


def test_label_rates_are_those_of_the_rows(log: Log, folder: Path, found: dict[str, Any]) -> None:
    labels = column(log, "y")
    kinds = ["hot" if hot else "mixed" for hot in tags_of(Manifest.read(folder / "plan"))[:NUM_TRAIN]]
    kinds += ["evaluation"] * (NUM_ROWS - NUM_TRAIN)
    for row in found["log"]["labels"]:
        of_kind = [label for label, kind in zip(labels, kinds, strict=True) if kind == row["kind"]]
        assert (row["num_samples"], row["num_clicks"]) == (len(of_kind), of_kind.count(1)) and of_kind
        assert row["label_rate"] == rate(of_kind)
    first = 0
    for row in found["log"]["parts"]:
        of_part = labels[first : first + row["num_samples"]]
        assert row["label_rate"] == rate(of_part) and row["is_training"] == (first < NUM_TRAIN)
        first += row["num_samples"]
    assert first == NUM_ROWS and len(found["log"]["parts"]) == 7


def test_missing_values_are_those_of_the_rows(log: Log, found: dict[str, Any]) -> None:
    labels = column(log, "y")
    assert [row["feature"] for row in found["log"]["missing"]] == [
        "age", "price", "depth", "year", "tags", "site", "seen", "user", "codes",
    ]  # fmt: skip
    assert {row["type"] for row in found["log"]["missing"]} == {"dense", "sparse", "list"}
    for row in found["log"]["missing"]:
        missing = [is_missing(value) for value in column(log, row["feature"])]
        assert row["missing_share"] == sum(missing[:NUM_TRAIN]) / NUM_TRAIN
        assert row["evaluation_missing_share"] == sum(missing[NUM_TRAIN:]) / (NUM_ROWS - NUM_TRAIN)
        for key, wanted in (("label_rate_missing", True), ("label_rate_present", False)):
            chosen = [
                label for label, lacks in zip(labels[:NUM_TRAIN], missing, strict=False) if lacks == wanted
            ]
            assert row[key] == rate(chosen) and chosen


def test_dense_features_are_those_of_the_rows(log: Log, found: dict[str, Any]) -> None:
    for row in found["log"]["dense"]:
        values = [float(value) for value in column(log, row["feature"])[:NUM_TRAIN] if value is not None]
        num_values = len(values)
        is_raw = row["feature"] in ("depth", "year")
        assert row["transform"] == ("none" if is_raw else "log1p") and row["num_values"] == num_values
        assert (row["min"], row["max"]) == (min(values), max(values))
        assert row["mean"] == pytest.approx(math.fsum(values) / num_values)
        negative = sum(value < 0 for value in values) / num_values
        assert row["negative_share"] == negative > 0 and row["clamped_share"] == (0 if is_raw else negative)
        assert row["zero_share"] == values.count(0) / num_values
        for share, quantile in zip(QUANTILES, row["quantiles"].values(), strict=True):
            exact = sorted(values)[max(1, math.ceil(share * num_values)) - 1]
            # Beyond float32 a quantile is its largest number.
            assert abs(quantile - exact) <= abs(exact) * 2**-7 + 1.2e-38 or exact > 3.4e38
        bins = [one for one in found["log"]["dense_bins"] if one["feature"] == row["feature"]]
        assert sum(one["num_values"] for one in bins) == num_values


def test_tables_take_the_hot_bytes_that_their_hot_rows_have(folder: Path, found: dict[str, Any]) -> None:
    hot = {table["name"]: table["num_hot"] for table in Manifest.read(folder / "plan").totals["tables"]}
    rows = found["hot_tables"]
    assert {row["table"]: row["num_hot_rows"] for row in rows} == hot
    assert all(row["hot_bytes"] == 64 * row["num_hot_rows"] for row in rows)
    for key in ("hot_bytes_share", "lookup_share", "cold_lookup_share"):
        assert sum(row[key] for row in rows) == pytest.approx(1)
    # One-hot tables: the ids of the encoded samples below the number of hot rows.
    ids = np.array(ids_of(Manifest.read(folder / "samples")))
    one_hot = [row for row in rows if row["table"] in ("site", "user")]
    for number, row in enumerate(one_hot):
        assert row["hot_lookup_share"] == np.mean(ids[:NUM_TRAIN, number] < row["num_hot_rows"])
        assert row["evaluation_oov_share"] is not None


def test_top_categories_have_their_names_and_label_rates(log: Log, found: dict[str, Any]) -> None:
    labels = column(log, "y")[:NUM_TRAIN]
    for name in ("user", "tags"):
        lookups: list[tuple[str, int | None]] = []  # long texts are kept in part
        for value, label in zip(column(log, name)[:NUM_TRAIN], labels, strict=True):
            elements = value if isinstance(value, list) else [value]
            lookups += [((element or "(missing)")[:99], label) for element in elements]
        counts = Counter(category for category, _ in lookups)
        rows = [row for row in found["categories"] if row["table"] == name]
        assert len(rows) == min(NUM_CATEGORIES, len(counts))
        assert [row["num_lookups"] for row in rows] == sorted(counts.values(), reverse=True)[:NUM_CATEGORIES]
        for row in rows:
            assert row["num_lookups"] == counts[row["category"][:99]]
            assert row["lookup_share"] == row["num_lookups"] / len(lookups)
            assert row["label_rate"] == rate(
                [label for found, label in lookups if found == row["category"][:99]]
            )


def test_without_columns_labels_are_left_out_and_said(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "data")
    discard_files(tmp_path / "data" / "columns")
    found = frequency_statistics(tmp_path / "data", Resources(workers=1), series=["log", "categories"])
    assert all(rows == [] for rows in found["log"].values())
    assert "the columns were discarded" in found["left_out"][0]
    assert {row["label_rate"] for row in found["categories"]} == {None} and found["categories"]


def test_a_log_without_labels_has_no_rates(log: Log, tmp_path: Path) -> None:
    config = recipe(log, "parquet")
    path = write_parquet(tmp_path / "log.parquet", log)
    ingest = IngestConfig(schema=config.ingest.schema, label=False)
    preprocess([path], replace(config, ingest=ingest), tmp_path / "data", Resources(workers=1))
    found = frequency_statistics(tmp_path / "data", Resources(workers=1), series=["log", "categories"])
    rows = [*found["log"]["labels"], *found["log"]["parts"], *found["categories"]]
    assert {row["label_rate"] for row in rows} == {None}
    assert {row["label_rate_missing"] for row in found["log"]["missing"]} == {None}
    missing_share = found["log"]["missing"][0]["missing_share"]
    assert missing_share is not None and missing_share > 0


def test_the_most_frequent_rows_are_those_of_a_stable_sort(rng: np.random.Generator) -> None:
    for size in (1, 5, 200):
        counts = rng.integers(0, 6, size)
        for wanted in (0, 1, 3, size, size + 1):
            assert (
                most_frequent(counts, wanted).tolist() == np.argsort(-counts, kind="stable")[:wanted].tolist()
            )


def test_samples_with_more_rows_than_the_vocabulary_are_refused(folder: Path, tmp_path: Path) -> None:
    """Label rates are counted in arrays by row: a crafted manifest must not lead a kernel outside."""
    shutil.copytree(folder, tmp_path / "data")
    parts = json.loads((tmp_path / "data/samples/manifest.json").read_text())
    parts["totals"]["tables"][1]["num_rows"] += 10**6
    parts["totals"]["num_rows"] += 10**6
    write_manifest(tmp_path / "data/samples", parts)
    with pytest.raises(ManifestError, match=r"samples has tables of other rows than .*vocabulary"):
        frequency_statistics(tmp_path / "data", Resources(workers=1), series=["categories"])


CONFIG = PreprocessConfig(
    count=CountConfig(eval_fraction=0.25),
    split=SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(64 * 60)),
)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
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
    tmp_path: Path, samples: list[Sample], workers: int
) -> None:
    run_to("split", tmp_path, samples, CONFIG)
    told: list[tuple[str, int, int]] = []
    resources = Resources(workers=workers, progress=lambda *call: told.append(call))
    found = drift_of(tmp_path, 2**30, 3, resources=resources)
    # In samples: those of training are read twice.
    assert told[0] == ("drift", 50, 350) and told[-1] == ("drift", 350, 350) and told == sorted(told)
    parts = {f"part {p + 1}": lookups_of(samples[50 * p : 50 * p + 50]) for p in range(3)}
    parts["evaluation"] = lookups_of(samples[150:])
    seen = {name: {row for sample in part for row in sample} for name, part in parts.items()}
    known = seen["part 1"] | seen["part 2"] | seen["part 3"]
    assert [part["name"] for part in found["parts"]] == list(parts)
    assert [part["is_training"] for part in found["parts"]] == [True, True, True, False]
    assert found["parts"][3]["num_hot_rows"] is None
    without = sum(row not in known for sample in parts["evaluation"] for row in sample)
    assert found["parts"][3]["no_id_share"] == pytest.approx(without / (50 * 26))
    ages: dict[int, list[float]] = {}
    for chosen_on in ("part 1", "part 2", "part 3"):
        for serves, part in parts.items():
            row = pair(found, chosen_on, serves)
            rows = [row in seen[chosen_on] for sample in part for row in sample]
            hot = sum(all(row in seen[chosen_on] for row in sample) for sample in part)
            assert row["hot_lookup_share"] == pytest.approx(np.mean(rows))
            assert row["unseen_lookup_share"] == pytest.approx(1 - np.mean(rows))
            assert row["hot_sample_share"] == pytest.approx(hot / 50)
            ages.setdefault(row["age"], []).append(float(np.mean(rows)))
            if serves != "evaluation":
                common = len(seen[chosen_on] & seen[serves]) / len(seen[serves])
                assert row["common_rows_share"] == pytest.approx(common)
    by_age = {row["age"]: row["hot_lookup_share"] for row in found["by_age"]}
    assert by_age == {age: pytest.approx(np.mean(ages[age])) for age in range(4)}


def test_a_budget_takes_the_rows_with_the_most_lookups(tmp_path: Path, samples: list[Sample]) -> None:
    run_to("split", tmp_path, samples, CONFIG)
    found = drift_of(tmp_path, 64 * 30, 2)
    counts = Counter(row for sample in lookups_of(samples[:75]) for row in sample)
    served = sum(count for _, count in counts.most_common(30))
    assert pair(found, "part 1", "part 1")["hot_lookup_share"] == pytest.approx(served / (75 * 26))
    assert found["parts"][0]["num_hot_rows"] == 30


def test_the_plans_own_hot_rows_are_shown_for_each_part(tmp_path: Path, samples: list[Sample]) -> None:
    plan = run_to("split", tmp_path, samples, CONFIG)
    found = drift_of(tmp_path, 64 * 30, 1)
    shares = [part["plan_hot_sample_share"] for part in found["parts"]]
    tagged = plan.totals["samples"]
    assert shares == [tagged["hot"] / 150, tagged["evaluation_hot"] / 50]


def test_the_oov_row_is_nobodys_own(tmp_path: Path, samples: list[Sample]) -> None:
    config = PreprocessConfig(count=CountConfig(eval_fraction=0), rank=RankConfig(min_count=3))
    run_to("split", tmp_path, samples, config)
    found = drift_of(tmp_path, 2**30, 1)
    counts = Counter(row for sample in lookups_of(samples) for row in sample)
    rare = sum(count for count in counts.values() if count < 3)
    (row,) = found["pairs"]
    assert row["hot_lookup_share"] == 1
    assert row["unseen_lookup_share"] == pytest.approx(rare / (200 * 26))
    assert found["parts"][0]["no_id_share"] == pytest.approx(rare / (200 * 26))


def test_raw_files_are_parts_and_one_may_be_of_both_kinds(tmp_path: Path, samples: list[Sample]) -> None:
    for day in range(3):
        (tmp_path / f"day{day}").write_bytes(text_of(samples[60 * day : 60 * day + 60]))
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


def test_files_of_one_name_are_told_apart(tmp_path: Path, samples: list[Sample]) -> None:
    for day in ("mon", "tue"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "log").write_bytes(text_of(samples[:40]))
    days = [str(tmp_path / day / "log") for day in ("mon", "tue")]
    assert main(["preprocess", *days, "--eval-fraction", "0", "--out", str(tmp_path / "out")]) == 0
    found = drift_of(tmp_path / "out", 2**20)
    assert [part["name"] for part in found["parts"]] == ["log (1)", "log (2)"]
    assert {pair["hot_lookup_share"] for pair in found["pairs"]} == {1.0}


def test_a_log_with_adopted_ids_chooses_nothing(
    tmp_path: Path, samples: list[Sample], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    run_to("pack", tmp_path / "model", samples, CONFIG)
    (tmp_path / "next").write_bytes(text_of(samples[150:]))
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
