"""Several features that look up in one table, from the log to shards and statistics.

The twin of a log has one list for each table, with the lookups of all its features.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ByteSize, ConfigError, HotsetError, ManifestError
from hotset.pipeline.export import export_shards
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import PlanTotals, by_feature
from hotset.pipeline.formats.arrow_files import read_batch
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.limits import Node
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.statistics.frequencies import frequency_statistics
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import tree_of
from hotset.tests.support.logs.other_logs import (
    Log,
    draw_log,
    naive_columns,
    schema_text,
    write_csv,
    write_parquet,
)
from hotset.tests.support.naive.naive_stages import naive_table, rows_of, tags_of
from hotset.tests.support.preprocess_runs import stopped_after
from hotset.tests.support.processes.made_up_cluster import made_up_cluster
from hotset.tests.support.resealed import set_in_manifest
from hotset.train.data.shards import ShardSet
from hotset.workflows.cli import main

KINDS = {
    "y": "label",
    "item": "integer",
    "user": "text",
    "city": "text",
    "seen": "list integer",
    "site": "hex8",
    "trips": "list text",
    "age": "dense",
    "codes": "list hex8",
    "bought": "list integer",
    "home": "text",
}
TABLES = {"seen": "item", "bought": "item", "trips": "places", "city": "places", "home": "places"}
TABLES |= {"codes": "site"}
MEMBERS = {
    "item": ("item", "seen", "bought"),
    "user": ("user",),
    "places": ("city", "trips", "home"),
    "site": ("site", "codes"),
}
"""The features of each table, in the order of tables and features everywhere."""
ORDERS: dict[str, dict[str, Any]] = {
    "frequency": {},
    "peel": {"rank": RankConfig(rank_by="peel", feature_min_counts=FeatureSettings({"places": 3}))},
    "sampled": {"rank": RankConfig(rank_by="sampled", sampling_rate=0.5, min_count=2)},
    "window": {"count": CountConfig(eval_files=1, count_last=2)},
}


def config_of(schema: str, **stages: Any) -> PreprocessConfig:
    config = PreprocessConfig(
        ingest=IngestConfig(schema=schema, block_bytes=ByteSize(3000)),
        count=CountConfig(eval_files=1),
        rank=RankConfig(min_count=2),
        split=SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(64 * 12)),
        pack=PackConfig(batch_size=8, seed=3),
    )
    return replace(config, **stages)


def merged(log: Log) -> Log:
    """The log whose tables have one list each: the lookups of all their features, one after another."""
    at = {name: place for place, name in enumerate(log.kinds)}

    def lookups(row: tuple[Any, ...], name: str) -> list[Any]:
        if not log.kinds[name].startswith("list "):
            return [row[at[name]]]
        return [None] if row[at[name]] is None else row[at[name]]

    kinds = {"y": "label", "age": "dense"}
    kinds |= {
        table: log.kinds[names[0]] if len(names) == 1 else f"list {log.kinds[names[0]]}"
        for table, names in MEMBERS.items()
    }
    rows = [
        (
            row[at["y"]],
            row[at["age"]],
            *(
                row[at[names[0]]] if len(names) == 1 else [x for name in names for x in lookups(row, name)]
                for names in MEMBERS.values()
            ),
        )
        for row in log.rows
    ]
    return Log(kinds, rows)


@pytest.fixture(scope="module")
def logs() -> list[Log]:
    rng = np.random.default_rng(20201126)
    drawn = [draw_log(size, KINDS, rng, empty_lists=True) for size in (70, 50, 60)]
    # In the evaluation part each feature has categories that no other part has.
    new = {"integer": 4711, "text": "new", "hex8": "00004711"}

    def renewed(row: tuple[Any, ...], number: int) -> tuple[Any, ...]:
        kinds = list(KINDS.values())
        place = number % len(kinds)
        kind = kinds[place].removeprefix("list ")
        value = row[place] if kind not in new else [new[kind]] if kinds[place] != kind else new[kind]
        return (*row[:place], value, *row[place + 1 :])

    rows = [renewed(row, number) for number, row in enumerate(drawn[2].rows)]
    return [*drawn[:2], Log(KINDS, rows)]


def written(folder: Path, logs: Sequence[Log]) -> list[Path]:
    folder.mkdir()
    return [write_parquet(folder / f"day{number}.parquet", log) for number, log in enumerate(logs)]


def ids_by_table(samples: Manifest) -> dict[str, list[list[int]]]:
    """The ids of each sample in each table, those of its features one after another."""
    tables = PlanTotals.of(Manifest.read(samples.folder.parent / "plan")).tables
    found: dict[str, list[list[int]]] = {table.name: [] for table in tables}
    for entry in samples.files:
        columns = read_batch(samples, entry).to_pydict()
        for sample, one_hot in enumerate(columns["ids"]):
            of_sample = iter(one_hot)
            for table in tables:
                found[table.name].append(
                    [
                        row
                        for each in by_feature([table])
                        for row in (columns[each.name][sample] if each.is_multi_hot else [next(of_sample)])
                    ]
                )
    return found


@pytest.mark.parametrize(
    "order", [name if name == "peel" else pytest.param(name, marks=pytest.mark.slow) for name in ORDERS]
)
def test_a_table_is_that_of_one_list_with_all_lookups(
    logs: list[Log], tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.pipeline.stages.rank.PEEL_FLOOR", 2)
    schema = schema_text(logs[0], format="parquet", tables=TABLES)
    other = schema_text(merged(logs[0]), format="parquet")
    raw, raw_merged = written(tmp_path / "raw", logs), written(tmp_path / "merged", [merged(x) for x in logs])
    shards = preprocess(raw, config_of(schema, **ORDERS[order]), tmp_path / "out", Resources(workers=2))
    preprocess(raw_merged, config_of(other, **ORDERS[order]), tmp_path / "twin", Resources(workers=1))
    assert verify(tmp_path / "out", raw=raw) == []
    # Counts, ranks and texts of tables are those of the lists, byte for byte.
    for folder in ("counts", "vocabulary"):
        found, twin = (tree_of(tmp_path / name / folder) for name in ("out", "twin"))
        assert found.keys() == twin.keys()
        assert all(found[name] == twin[name] for name in found if name != "manifest.json")
    found_ids, twin_ids = (
        ids_by_table(Manifest.read(tmp_path / name / "samples")) for name in ("out", "twin")
    )
    assert found_ids == twin_ids
    assert tags_of(Manifest.read(tmp_path / "out/plan")) == tags_of(Manifest.read(tmp_path / "twin/plan"))
    assert [(table["name"], table.get("features")) for table in shards.totals["tables"][:2]] == [
        (
            "item",
            [
                {"name": "item"},
                {"name": "seen", "is_multi_hot": True},
                {"name": "bought", "is_multi_hot": True},
            ],
        ),
        ("user", None),
    ]


@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_tables_of_any_features_are_counted_and_ranked_as_the_naive_twin_does(data: st.DataObject) -> None:
    own = data.draw(st.sampled_from(["integer", "text", "hex8"]))
    kinds = data.draw(st.lists(st.sampled_from([own, f"list {own}"]), min_size=2, max_size=5))
    names = [f"f{number}" for number in range(len(kinds))]
    table_of = {name: f"t{data.draw(st.integers(0, 2))}" for name in names}
    seed, min_count = data.draw(st.integers(0, 99)), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(seed)
    log = draw_log(40, {"y": "label", **dict(zip(names, kinds, strict=True))}, rng, empty_lists=True)
    with tempfile.TemporaryDirectory() as path:
        raw = write_parquet(Path(path) / "log", log)
        schema = schema_text(log, format="parquet", tables=table_of)
        stages = {"rank": RankConfig(min_count=min_count), "count": CountConfig(eval_fraction=0.25)}
        preprocess([raw], config_of(schema, **stages), Path(path) / "out", until="rank")
        found = Manifest.read(Path(path) / "out/vocabulary")
        columns = naive_columns(log)
        lookups: dict[str, list[Any]] = {table_of[name]: [] for name in names}
        for name, kind in zip(names, kinds, strict=True):
            values = columns[name][:30]
            lookups[table_of[name]] += [x for bag in values for x in bag] if kind != own else values
        assert [table["name"] for table in found.totals["tables"]] == [*lookups]
        assert rows_of(found) == [naive_table(of_table, min_count) for of_table in lookups.values()]


def test_statistics_are_those_of_one_list_with_all_lookups(
    logs: list[Log], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.pipeline.statistics.coverage.PEEL_FLOOR", 2)
    found = []
    for name, own, tables in (("out", logs, TABLES), ("twin", [merged(log) for log in logs], {})):
        ingest = IngestConfig(schema=schema_text(own[0], format="parquet", tables=tables))
        config = replace(config_of(ingest.schema), ingest=ingest)
        preprocess(written(tmp_path / f"{name}-raw", own), config, tmp_path / name)
        series = ("features", "budgets", "coverage", "hot_samples", "drift", "hot_tables", "categories")
        found.append(
            frequency_statistics(
                tmp_path / name, series=(*series, "miss_ratios", "unique_rows", "default_runs")
            )
        )
    shared, twin = found
    assert all(row["evaluation_oov_share"] > 0 for row in shared["hot_tables"])
    # A vector for each feature crosses under hybrid, and no list of the log is one of the twin.
    assert (shared["num_features"], shared["num_tables"], twin["num_features"]) == (9, 4, 4)
    vectors = [
        next(row for row in each["default_runs"]["placements"] if row["placement"] == "hybrid")
        for each in found
    ]
    assert (
        vectors[0]["bytes_to_fast_per_sample"] == 9 * 4 * 16 and vectors[1]["bytes_to_fast_per_sample"] == 256
    )
    left_out = "distinct rows per batch of list-valued features: "
    assert left_out + "item, seen, bought, city, trips, home, site, codes" in shared["left_out"]
    for each in found:
        each["default_runs"]["placements"] = [
            row for row in each["default_runs"]["placements"] if row["placement"] not in ("hybrid", "fae")
        ]
        for key in ("provenance", "num_features", "left_out"):
            del each[key]
    assert shared == twin


@pytest.mark.parametrize("format", ["csv", pytest.param("parquet", marks=pytest.mark.slow)])
def test_workers_memory_and_interruptions_change_no_byte(
    tmp_path: Path, format: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = draw_log(120, KINDS, rng, empty_lists=format == "parquet")
    raw = [(write_csv if format == "csv" else write_parquet)(tmp_path / "log", log)]
    config = config_of(schema_text(log, format=format, tables=TABLES), count=CountConfig(eval_fraction=0.3))
    monkeypatch.setattr("hotset.pipeline.stages.pack._FILE_BYTES", 4000)
    preprocess(raw, config, tmp_path / "whole", Resources(workers=1))
    with made_up_cluster(Node(2, 1 << 36)):
        preprocess(raw, config, tmp_path / "cluster")
    assert tree_of(tmp_path / "cluster") == tree_of(tmp_path / "whole")
    monkeypatch.setattr("hotset.pipeline.stages.encode.LEAST_TABLE_BYTES", 300)
    monkeypatch.setattr("hotset.pipeline.stages.pack.room_for", lambda stage, cap, needed, **others: needed)
    monkeypatch.setattr("hotset.pipeline.stages.encode.room_for", lambda stage, cap, needed, **others: needed)
    for number in (15, 10**9) if format == "csv" else (6, 15, 10**9):
        with stopped_after(number), suppress(KeyboardInterrupt):
            preprocess(raw, config, tmp_path / f"out{number}", Resources(workers=2))
        preprocess(raw, config, tmp_path / f"out{number}", Resources(workers=3))
        assert tree_of(tmp_path / f"out{number}") == tree_of(tmp_path / "whole")


def without_maps(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree_of(folder).items() if not name.startswith("id_map/")}


def test_a_grown_log_ends_in_the_bytes_of_a_run_from_scratch(logs: list[Log], tmp_path: Path) -> None:
    config = config_of(schema_text(logs[0], format="parquet", tables=TABLES))
    raw = written(tmp_path / "raw", logs)
    preprocess(raw[:2], config, tmp_path / "dir")
    preprocess(raw, config, tmp_path / "dir", extend=True)
    preprocess(raw, config, tmp_path / "whole")
    assert without_maps(tmp_path / "dir") == without_maps(tmp_path / "whole")


def test_counts_of_other_tables_are_not_continued(tmp_path: Path, rng: np.random.Generator) -> None:
    """The columns are the same, byte for byte, and what is counted in one table is not."""
    log = draw_log(40, {"y": "label", "item": "integer", "seen": "list integer"}, rng)
    raw = [write_csv(tmp_path / "log", log)]
    config = config_of(schema_text(log), count=CountConfig(eval_fraction=0.3))
    preprocess(raw, config, tmp_path / "out", until="count")
    shutil.rmtree(tmp_path / "out/columns")
    shared = IngestConfig(schema=schema_text(log, tables={"seen": "item"}), block_bytes=ByteSize(3000))
    preprocess(raw, replace(config, ingest=shared), tmp_path / "columns", until="ingest")
    (tmp_path / "columns/columns").rename(tmp_path / "out/columns")
    with pytest.raises(ManifestError, match="counts was written from other inputs"):
        preprocess(raw, replace(config, ingest=shared), tmp_path / "out", until="count")


def test_a_feature_is_asked_for_by_its_name_and_shown_with_its_table(
    logs: list[Log], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(schema_text(logs[0], format="parquet", tables=TABLES))
    preprocess(written(tmp_path / "raw", logs), config, tmp_path / "out")
    for feature in ("seen", "item"):
        assert main(["stats", str(tmp_path / "out"), "--feature", feature, "--top", "1"]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"{feature} (integer), table item of item, seen, bought: 7 rows, ")
    assert main(["stats", str(tmp_path / "out"), "--feature", "places", "--category", "a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["table"], found["features"], found["rows"][0]["is_known"]) == (
        "places",
        ["city", "trips", "home"],
        True,
    )


def test_settings_name_tables(logs: list[Log], tmp_path: Path) -> None:
    schema = schema_text(logs[0], format="parquet", tables=TABLES)
    raw = written(tmp_path / "raw", logs[:1])
    config = config_of(schema, count=CountConfig(eval_fraction=0.3))
    wide = replace(config, split=replace(config.split, feature_dims=FeatureSettings({"places": 8})))
    shards = preprocess(raw, wide, tmp_path / "out")
    assert {table["name"]: table.get("embedding_dim") for table in shards.totals["tables"]}["places"] == 8
    wrong = replace(config, rank=RankConfig(feature_min_counts=FeatureSettings({"city": 3})))
    message = "feature_min_counts names 'city', whose table is 'places'"
    with pytest.raises(ConfigError, match=message) as caught:
        preprocess(raw, wrong, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists() and "write places=3, " in str(caught.value.hint)


def test_other_programs_get_the_features_and_the_table_of_each(logs: list[Log], tmp_path: Path) -> None:
    kinds = {"y": "label", "city": "text", "home": "text", "item": "integer"}
    plain = [draw_log(60, kinds, np.random.default_rng(2))]
    for name, own, tables in (("lists", logs, TABLES), ("plain", plain, {"home": "city"})):
        schema = schema_text(own[0], format="parquet", tables=tables)
        config = config_of(schema, count=CountConfig(eval_fraction=0.3))
        preprocess(written(tmp_path / f"{name}-raw", own), config, tmp_path / name)
    shards, one_hot = (Manifest.read(tmp_path / name / "shards") for name in ("lists", "plain"))
    export_shards(shards, "torchrec", tmp_path / "torchrec")
    described = json.loads((tmp_path / "torchrec/columns.json").read_text())["tables"]
    assert [(each["column"], each.get("table")) for each in described] == [
        (name, table if MEMBERS[table] != (table,) else None) for table in MEMBERS for name in MEMBERS[table]
    ]
    columns = pl.read_parquet(tmp_path / "torchrec/train.parquet")
    for each in described:
        ids = columns[each["column"]]
        largest = ids.explode().max() if each["is_list"] else ids.max()
        assert isinstance(largest, int) and largest < each["num_rows"]
    # A pooling factor for each feature of a table: its lookups a sample.
    planned = json.loads((tmp_path / "torchrec/planner.json").read_text())["tables"]
    assert planned.keys() == MEMBERS.keys()
    for table, names in MEMBERS.items():
        found = planned[table]["pooling_factors"]
        values = [columns[name].to_list() for name in names]
        lookups = [sum(len(x) if isinstance(x, list) else 1 for x in column) for column in values]
        assert found == pytest.approx([number / len(columns) for number in lookups])
        assert sum(found) == pytest.approx(planned[table]["pooling_factor"])
    export_shards(one_hot, "fuxictr", tmp_path / "fuxictr")
    features = json.loads((tmp_path / "fuxictr/feature_map.json").read_text())["features"]
    shared = {name: own.get("share_embedding") for each in features for name, own in each.items()}
    assert shared == {"city": None, "home": "city", "item": None}


OTHER_COLUMNS = "checksums.bin is damaged: it is of other columns than the manifest's"
FAULTS: dict[str, tuple[str, Any, str]] = {
    "twice": ("totals.tables.0.features.1.name", "item", "tables names a feature twice"),
    "reserved": ("totals.tables.0.features.1.name", "ids", "a feature cannot be called 'ids'"),
    "another": ("totals.tables.0.features.1.name", "sold", OTHER_COLUMNS),
    "no list": ("totals.tables.0.features.1.is_multi_hot", False, OTHER_COLUMNS),
    "no features": ("totals.tables.0.features", [], OTHER_COLUMNS),
}


def test_features_that_the_shards_have_not_are_refused(logs: list[Log], tmp_path: Path) -> None:
    config = config_of(schema_text(logs[0], format="parquet", tables=TABLES))
    made = preprocess(written(tmp_path / "raw", logs[:2]), config, tmp_path / "out").folder
    for number, (key, value, message) in enumerate(FAULTS.values()):
        shards = Path(shutil.copytree(made, tmp_path / str(number)))
        set_in_manifest(shards, key, value)
        with pytest.raises(HotsetError) as caught:
            ShardSet.open(shards).training_batch(0)
        assert message in str(caught.value)
