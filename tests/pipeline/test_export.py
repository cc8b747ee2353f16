"""Exported files hold the samples of the shards, split by split, each with its names and in order.

The inputs of TorchRec's planner are those of the counts, and its classes take them.

Tests `disk`, too.
"""

from __future__ import annotations

import csv
import json
import runpy
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hotset.pipeline.errors import ConfigError, HotsetError, ManifestError
from hotset.pipeline.export import (
    LOAD_FACTORS,
    ExportFormat,
    NamedBatches,
    Split,
    cache_statistics,
    export_shards,
)
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.preprocess import preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.row_order import read_tables
from hotset.tests.support.logs.criteo_text import draw_samples, text_of, tree_of
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import draw_log, write_csv
from hotset.tests.support.naive.naive_export import naive_rows, stored
from hotset.tests.support.preprocess_runs import CONFIG
from hotset.tests.support.real_torchrec import torchrec_or_skip
from hotset.tests.support.resealed import write_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards

Columns = dict[str, list[Any]]


@pytest.fixture(scope="module")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preprocessed log with batches of both kinds, a validation and a test part."""
    folder = tmp_path_factory.mktemp("criteo")
    log = folder / "log.tsv"
    log.write_bytes(text_of(draw_samples(400, np.random.default_rng(5))))
    config = replace(CONFIG, count=CountConfig(eval_fraction=0.2, valid_fraction=0.1))
    preprocess((log,), config, folder / "dir", Resources(workers=1))
    return folder / "dir"


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preprocessed log with lists, floats and texts."""
    folder = tmp_path_factory.mktemp("lists")
    log = draw_log(90, KINDS, np.random.default_rng(3))
    path = write_csv(folder / "log.csv", log)
    preprocess((path,), recipe(log, "csv"), folder / "dir", Resources(workers=1))
    return folder / "dir"


def columns_of(shards: Manifest, rows: list[tuple[Any, ...]]) -> Columns:
    """The columns that `rows` should become."""
    totals = shards.totals
    one_hot = [table["name"] for table in totals["tables"] if not table.get("is_multi_hot")]
    found: Columns = {"label": [int(row[0]) for row in rows]}
    found |= {name: [row[1][number] for row in rows] for number, name in enumerate(totals["dense"])}
    places = {name: number for number, name in enumerate(one_hot)}
    others = iter(range(3 if one_hot else 2, 99))
    for table in totals["tables"]:
        name = table["name"]
        place = places.get(name)
        number = next(others) if place is None else -1
        found[name] = [row[number] if place is None else row[2][place] for row in rows]
    return found


def exported(folder: Path, to: ExportFormat, out: Path, **fields: Any) -> Path:
    export_shards(Manifest.read(folder / "shards"), to, out, Resources(**({"workers": 1} | fields)))
    return out


@pytest.mark.parametrize("folder", ["criteo", "lists"])
def test_parquet_has_each_sample_in_order(
    folder: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    made = request.getfixturevalue(folder)
    shards = Manifest.read(made / "shards")
    out = exported(made, "parquet", tmp_path / "out")
    wanted = {split: columns_of(shards, rows) for split, rows in naive_rows(shards).items() if rows}
    names = {path.name for path in out.iterdir()}
    assert names == {f"{split}.parquet" for split in wanted} | {"columns.json"}
    for split, columns in wanted.items():
        table = pa.parquet.read_table(out / f"{split}.parquet")
        assert table.to_pydict() == columns
        kinds = {str(field.type) for field in table.schema}
        assert kinds <= {"int8", "float", "int32", "list<element: int32>"}
    assert len(wanted["train"]["label"]) > len(wanted["test"]["label"]) > 0
    assert json.loads((out / "columns.json").read_text())["samples"]["train"] == len(wanted["train"]["label"])


def test_both_kinds_of_batches_alternate(criteo: Path) -> None:
    shards = Manifest.read(criteo / "shards")
    assert min(len(stored(shards, "hot_only")), len(stored(shards, "mixed"))) > 2


@pytest.mark.parametrize("folder", ["criteo", "lists"])
def test_csv_has_what_parquet_has(folder: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    made = request.getfixturevalue(folder)
    shards = Manifest.read(made / "shards")
    out = exported(made, "csv", tmp_path / "out")
    for split, rows in naive_rows(shards).items():
        if not rows:
            continue
        columns = columns_of(shards, rows)
        with (out / f"{split}.csv").open(newline="") as file:
            header, *lines = csv.reader(file)
        assert header == list(columns)
        for name, texts in zip(header, zip(*lines, strict=True), strict=True):
            wanted = columns[name]
            if isinstance(wanted[0], list):
                assert [[int(part) for part in text.split("^")] for text in texts] == wanted
            else:
                assert [np.float32(text) for text in texts] == [np.float32(value) for value in wanted]


def test_fuxictr_has_ids_above_that_of_padding(criteo: Path, tmp_path: Path) -> None:
    shards = Manifest.read(criteo / "shards")
    plain = exported(criteo, "parquet", tmp_path / "plain")
    out = exported(criteo, "fuxictr", tmp_path / "criteo_x")
    found = json.loads((out / "feature_map.json").read_text())
    features = {name: spec for feature in found["features"] for name, spec in feature.items()}
    assert found["dataset_id"] == "criteo_x" and found["labels"] == ["label"] and len(features) == 39
    for split in ("train", "valid", "test"):
        here, there = (pa.parquet.read_table(folder / f"{split}.parquet") for folder in (out, plain))
        for table in shards.totals["tables"]:
            ids = here.column(table["name"]).to_numpy()
            assert (ids - 1 == there.column(table["name"]).to_numpy()).all()
            spec = features[table["name"]]
            assert 1 <= ids.min() <= ids.max() < spec["vocab_size"] == table["num_rows"] + 1
            assert spec["oov_idx"] == table["oov_id"] + 1


def test_threads_change_no_byte(criteo: Path, tmp_path: Path) -> None:
    for to in get_args(ExportFormat):
        alone, together = (exported(criteo, to, tmp_path / f"{to}-{n}" / "out", workers=n) for n in (1, 3))
        assert tree_of(alone) == tree_of(together)


def test_a_folder_is_whole_or_not_there(
    criteo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    calls = 0

    def interrupted(stage: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exported(criteo, "parquet", out, progress=interrupted)
    assert list(tmp_path.iterdir()) == []
    # What a killed process left is no obstacle.
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "train.parquet").write_bytes(b"half of it")
    out.mkdir()
    exported(criteo, "parquet", out)
    before = tree_of(out)
    with pytest.raises(ManifestError, match=r"out exists\n"):
        exported(criteo, "csv", out)
    assert tree_of(out) == before and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_damaged_shards_and_wild_ids_are_refused(criteo: Path, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="holds the stage 'split'"):
        export_shards(Manifest.read(criteo / "plan"), "parquet", tmp_path / "out")
    copy = tmp_path / "shards"
    copy.mkdir()
    for path in (criteo / "shards").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    shards = Manifest.read(copy)
    path = copy / next(entry.path for _, entry in shards.parts() if entry.facts["kind"] == "mixed")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(HotsetError, match=r"\.arrow is damaged: its checksum is"):
        export_shards(shards, "parquet", tmp_path / "out")
    # A table that has fewer rows than its ids say, sealed again.
    path.write_bytes((criteo / "shards" / path.name).read_bytes())
    parts = json.loads((copy / "manifest.json").read_text())
    first = parts["totals"]["tables"][0]
    parts["totals"]["num_rows"] -= first["num_rows"] - 1
    parts["totals"]["num_hot_rows"] -= first["num_hot"]
    first |= {"num_rows": 1, "num_hot": 0, "oov_id": 0, "missing_id": 0}
    write_manifest(copy, parts)
    with pytest.raises(ManifestError, match=rf"is damaged: id \d+ in table {first['name']} of 1 rows\n"):
        export_shards(Manifest.read(copy), "parquet", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_format_cannot_hold_is_refused_before_anything_is_written(lists: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fuxictr holds one category a feature, and .* has lists"):
        exported(lists, "fuxictr", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_logs_without_labels_are_refused(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(has_label=False)))
    with pytest.raises(ConfigError, match=r"^fuxictr is for training, and the log has no labels\n"):
        export_shards(shards, "fuxictr", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("num_validation", [0, 1, 31, 32, 33, 64, 89, 90])
def test_the_validation_part_ends_wherever_a_batch_does(tmp_path: Path, num_validation: int) -> None:
    spec = ShardSpec(num_validation=num_validation)
    shards = NamedBatches(Manifest.read(write_shards(tmp_path / "shards", spec)))
    whole = NamedBatches(Manifest.read(write_shards(tmp_path / "whole", ShardSpec())))
    assert shards.num_samples == {"train": 220, "valid": num_validation, "test": 90 - num_validation}
    splits: tuple[Split, ...] = ("valid", "test")
    rows = {split: [row for batch in shards.batches(split) for row in batch.to_pylist()] for split in splits}
    assert {split: len(found) for split, found in rows.items()} == {
        split: shards.num_samples[split] for split in splits
    }
    log = [row for batch in whole.batches("test") for row in batch.to_pylist()]
    assert rows["valid"] + rows["test"] == log


def test_ids_of_lists_are_raised_too_and_stay_in_their_lists(tmp_path: Path) -> None:
    manifest = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(multi_hot=(0, 2))))
    plain, raised = NamedBatches(manifest), NamedBatches(manifest, first_id=1)
    lengths: Counter[int] = Counter()
    for split in ("train", "test"):
        for one, other in zip(plain.batches(split), raised.batches(split, workers=2), strict=True):
            for row, above in zip(one.to_pylist(), other.to_pylist(), strict=True):
                assert above["C2"] == row["C2"] + 1 and above["label"] == row["label"]
                for name in ("C1", "C3"):
                    assert above[name] == [found + 1 for found in row[name]]
                    lengths[len(row[name])] += 1
    assert set(lengths) == {0, 1, 2, 3, 4}


def test_logs_without_labels_or_dense_features_have_no_such_columns(tmp_path: Path) -> None:
    spec = ShardSpec(has_label=False, num_dense=0)
    shards = NamedBatches(Manifest.read(write_shards(tmp_path / "shards", spec)))
    (first, *_) = shards.batches("train")
    assert first.schema.names == shards.schema.names == ["C1", "C2", "C3"] and first.num_rows > 0


@pytest.fixture
def planned(criteo: Path, tmp_path: Path) -> Path:
    export_shards(Manifest.read(criteo / "shards"), "torchrec", tmp_path / "out", Resources(workers=1))
    return tmp_path / "out"


@pytest.mark.slow
def test_torchrec_gets_constraints_of_every_table(planned: Path, criteo: Path) -> None:
    torchrec_or_skip()
    constraints = runpy.run_path(str(planned / "planner_inputs.py"))["constraints"](planned)
    shards = Manifest.read(criteo / "shards")
    tables = shards.totals["tables"]
    assert [*constraints] == [table["name"] for table in tables]
    for table in tables:
        found = constraints[table["name"]]
        assert found.pooling_factors == [1.0] and found.batch_sizes == [CONFIG.pack.batch_size]
        assert found.cache_params.load_factor == table["num_hot"] / table["num_rows"]
        statistics = found.cache_params.stats
        assert statistics.expected_miss_rate(0) == 1 and statistics.expected_miss_rate(1.0) == 0
        rates = [statistics.expected_miss_rate(factor) for factor in np.linspace(0, 1, 40)]
        assert rates == sorted(rates, reverse=True)
        assert 0 < statistics.cacheability < 1
        assert 1 <= statistics.expected_lookups <= min(table["num_rows"], CONFIG.pack.batch_size)


def test_counts_and_their_fit_stand_in_one_file(planned: Path, criteo: Path) -> None:
    found = json.loads((planned / "planner.json").read_text())
    vocabulary = Manifest.read(criteo / "vocabulary")
    for table, counts in zip(found["tables"].values(), read_tables(vocabulary, "count"), strict=True):
        fit = table["fbgemm"]
        assert fit["num_indices"] == counts.sum() == found["samples"]
        assert fit["heavy_hitters"][0] == counts.max() / counts.sum()
        assert fit["max_index"] == counts.size - 1 and 0 <= fit["fit_error"] < 1
    assert (planned / "train.parquet").exists() and (planned / "columns.json").exists()


def test_cache_statistics_agree_with_a_simulation(rng: np.random.Generator) -> None:
    counts = np.array([50, 20, 10, 5, 5, 4, 3, 1, 1, 1])
    found = cache_statistics(counts, 12.0)
    draws = rng.choice(counts.size, (20_000, 12), p=counts / counts.sum())
    is_there = np.stack([(draws == row).any(axis=1) for row in range(counts.size)], axis=1)
    assert found["expected_lookups"] == pytest.approx(is_there.sum(axis=1).mean(), rel=0.01)
    rates = dict(found["miss_rates"])
    assert list(rates) == list(LOAD_FACTORS)
    for factor in (0.1, 0.2, 0.4, 0.8):
        missed = is_there[:, int(factor * counts.size) :].sum() / is_there.sum()
        assert rates[factor] == pytest.approx(missed, abs=0.01)


def test_tables_without_a_lookup_need_no_cache() -> None:
    found = cache_statistics(np.zeros(4, np.int64), 0.0)
    assert found["expected_lookups"] == 0 and found["cacheability"] == 0


def test_shards_without_their_vocabulary_are_refused(criteo: Path, tmp_path: Path) -> None:
    (tmp_path / "shards").symlink_to(criteo / "shards")
    with pytest.raises(ManifestError, match="vocabulary does not exist"):
        export_shards(Manifest.read(tmp_path / "shards"), "torchrec", tmp_path / "out", Resources(workers=1))
    assert not (tmp_path / "out").exists()


def naive_statistics(counts: list[int], lookups: float) -> tuple[float, list[float]]:
    """Distinct rows of a batch, and the share of them behind the most frequent ones for each load factor."""
    there = [1 - (1 - count / sum(counts)) ** lookups for count in counts]
    rates = [sum(there[int(factor * len(counts)) :]) / sum(there) for factor in LOAD_FACTORS]
    return sum(there), rates


@pytest.mark.parametrize("lookups", [1.0, 7.5, 4000.0])
@pytest.mark.parametrize("counts", [[5], [9, 1], [6, 6, 6, 6], [100, 40, 20, 9, 5, 5, 2, 1, 1, 1, 1]])
def test_cache_statistics_are_the_naive_ones(counts: list[int], lookups: float) -> None:
    found = cache_statistics(np.array(counts), lookups)
    expected, rates = naive_statistics(counts, lookups)
    assert found["expected_lookups"] == pytest.approx(expected, rel=1e-9)
    assert [rate for _, rate in found["miss_rates"]] == pytest.approx(rates, abs=1e-9)
    area = sum(
        (rates[place] + rates[place + 1]) / 2 * (LOAD_FACTORS[place + 1] - LOAD_FACTORS[place])
        for place in range(len(rates) - 1)
    )
    assert found["cacheability"] == pytest.approx(area, abs=1e-9)


def test_skewed_tables_are_better_cached_than_even_ones() -> None:
    even, skewed = np.full(200, 10), np.array([1500, *[5] * 100, *[0] * 99])
    found = [cache_statistics(counts, 64.0) for counts in (even, skewed)]
    assert found[0]["cacheability"] > found[1]["cacheability"] and found[0]["cacheability"] > 0.45
    assert found[0]["expected_lookups"] > found[1]["expected_lookups"]
    # Rows without a lookup are never missed.
    assert dict(found[1]["miss_rates"])[0.6] == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_miss_rates_between_two_load_factors_lie_on_a_line(planned: Path) -> None:
    torchrec_or_skip()
    program = runpy.run_path(str(planned / "planner_inputs.py"))
    tables = json.loads((planned / "planner.json").read_text())["tables"]
    # By default the folder of the program itself.
    for name, constraint in program["constraints"]().items():
        statistics = constraint.cache_params.stats
        factors, rates = zip(*tables[name]["miss_rates"], strict=True)
        assert [statistics.expected_miss_rate(factor) for factor in factors] == pytest.approx(rates)
        between = np.linspace(-0.2, 1.2, 57)
        found = [statistics.expected_miss_rate(factor) for factor in between]
        assert found == pytest.approx(np.interp(between, factors, rates).tolist())
    # Of tables so large that the first load factors differ, too.
    factors, rates = (0.0, 0.001, 0.5, 1.0), (1.0, 0.4, 0.3, 0.0)
    large = program["CountedStatistics"]({"miss_rates": [*zip(factors, rates, strict=True)]})
    found = [large.expected_miss_rate(factor) for factor in (-1, 0, 0.0005, 0.001, 0.25, 0.9, 1, 2)]
    wanted = np.interp([-1, 0, 0.0005, 0.001, 0.25, 0.9, 1, 2], factors, rates)
    assert found == pytest.approx(wanted.tolist())


def test_the_vocabulary_of_another_log_is_not_taken(criteo: Path, tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_bytes(text_of(draw_samples(40, np.random.default_rng(6))))
    preprocess((tmp_path / "log.tsv",), CONFIG, tmp_path / "other", Resources(workers=1))
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed/shards").symlink_to(criteo / "shards")
    (tmp_path / "mixed/vocabulary").symlink_to(tmp_path / "other/vocabulary")
    with pytest.raises(ConfigError, match=r"mixed/vocabulary is not the vocabulary of .*mixed/shards"):
        export_shards(Manifest.read(tmp_path / "mixed/shards"), "torchrec", tmp_path / "out")
    assert not (tmp_path / "out").exists()
