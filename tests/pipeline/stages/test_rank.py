"""Ids and places from counts, against sorted lists of rows.

Tests `row_order`, too.

A new log gets the ids of the log a model was trained on, and no sample of it trains.

Old ids to new ones, against dictionaries; a model's rows find their places again.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hotset.pipeline.errors import ConfigError, ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.totals import VocabularyTable, VocabularyTotals
from hotset.pipeline.formats.arrow_files import fixed_lists, read_batch, values_of, write_batch
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.rank import MapIdsConfig, RankConfig, adopt, map_ids, rank
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import SCHEMA, draw_samples, text_of, tree_of
from hotset.tests.support.naive.naive_stages import OOV, Row, naive_log, naive_table, rows_of, run_to
from hotset.tests.support.preprocess_runs import CONFIG
from hotset.tests.support.processes.kills import Killed, killed
from hotset.tests.support.processes.memory_caps import count_stages_alone
from hotset.workflows.cli import main


def counts_in(folder: Path, num_samples: int, rng: np.random.Generator) -> Manifest:
    samples = draw_samples(num_samples, rng)
    return run_to("count", folder, samples, PreprocessConfig(count=CountConfig(eval_fraction=0.4)))


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("num_samples", [1, 150])
@pytest.mark.parametrize(("min_count", "workers"), [(1, 1), (2, 2), (5, 1), (1000, 2)])
def test_the_vocabulary_agrees_with_sorted_rows(
    tmp_path: Path, min_count: int, num_samples: int, workers: int, rng: np.random.Generator
) -> None:
    samples = draw_samples(num_samples, rng)
    config = PreprocessConfig(count=CountConfig(eval_fraction=0.4), rank=RankConfig(min_count=min_count))
    vocabulary = run_to("rank", tmp_path, samples, config, workers=workers)
    num_train = num_samples - int(0.4 * num_samples)
    naive = naive_log(samples, num_train, min_count=min_count, num_hot_rows=0)
    assert rows_of(vocabulary) == naive.tables
    assert [place.tolist() for place in places_in(vocabulary)] == naive.places
    for table, rows in zip(vocabulary.totals["tables"], naive.tables, strict=True):
        assert table["oov_count"] == dict(rows)[OOV]
        assert table["missing_id"] == [what for what, _ in rows].index(None if None in dict(rows) else OOV)
    assert vocabulary.totals["num_rows"] == sum(map(len, naive.tables))
    assert vocabulary.totals["num_samples"] == num_samples
    assert vocabulary.totals["num_train_samples"] == num_train


def test_a_feature_may_have_a_min_count_of_its_own(tmp_path: Path, rng: np.random.Generator) -> None:
    samples = draw_samples(150, rng)
    settings = FeatureSettings([("C3", 2), ("C26", 1000)])
    config = PreprocessConfig(
        count=CountConfig(eval_fraction=0.4), rank=RankConfig(min_count=5, feature_min_counts=settings)
    )
    tables = rows_of(run_to("rank", tmp_path, samples, config))
    for f, (name, table) in enumerate(zip(SCHEMA.sparse, tables, strict=True)):
        column = [sample.categories[f] for sample in samples[:90]]
        assert table == naive_table(column, dict(settings).get(name, 5)), name
    with pytest.raises(ConfigError, match="feature_min_counts names 'C27', which is not a feature"):
        unknown = RankConfig(feature_min_counts=FeatureSettings([("C27", 2)]))
        rank(unknown, Manifest.read(tmp_path / "counts"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def places_in(vocabulary: Manifest) -> list[np.ndarray]:
    entries = {entry.path: entry for entry in vocabulary.files}
    batches = [read_batch(vocabulary, entries[f"{name}.arrow"]) for name in SCHEMA.sparse]
    return [values_of(batch.column("place"), np.int64) for batch in batches]


def test_a_table_whose_ids_do_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    counts = counts_in(tmp_path, 100, rng)
    monkeypatch.setattr("hotset.pipeline.stages.rank._MAX_ROWS", 9)
    with pytest.raises(ConfigError, match=r"table C\d+ has \d+ rows, an id goes to 9") as caught:
        rank(RankConfig(), counts, tmp_path / "out")
    assert caught.value.hint == "raise --min-count"


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="min_count must be 1 or more, got 0"):
        RankConfig(min_count=0)
    with pytest.raises(ConfigError, match="rank_by must be one of frequency, peel, sampled, got 'luck'"):
        RankConfig(rank_by="luck")  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 2])
def test_tables_that_do_not_fit_are_written_through_the_disk_to_the_same_bytes(
    tmp_path: Path, workers: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = counts_in(tmp_path, 150, rng)
    rank(RankConfig(min_count=2), counts, tmp_path / "whole", Resources(workers=1))
    count_stages_alone(monkeypatch)
    rank(RankConfig(min_count=2), counts, tmp_path / "mapped", Resources(workers=workers, memory_bytes=1))
    assert tree_of(tmp_path / "mapped") == tree_of(tmp_path / "whole")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adopt")
    generate(GenerateConfig(samples=2000, scale=100), folder / "day1.tsv", workers=1)
    generate(GenerateConfig(samples=700, scale=100, start=2000), folder / "day2.tsv", workers=1)
    words = ["preprocess", str(folder / "day1.tsv"), "--out", str(folder / "one"), "--hot-bytes", "64KiB"]
    assert main([*words, "--batch-size", "128", "--eval-fraction", "0"]) == 0
    return folder


def test_ids_are_those_of_a_log_that_holds_both_days(model: Path, tmp_path: Path) -> None:
    days = [str(model / "day1.tsv"), str(model / "day2.tsv")]
    words = ["preprocess", *days, "--eval-files", "1", "--hot-bytes", "64KiB", "--batch-size", "128"]
    assert main([*words, "--out", str(tmp_path / "both")]) == 0
    assert main(["preprocess", days[1], "--like", str(model / "one"), "--out", str(tmp_path / "two")]) == 0
    together, alone = (Manifest.read(tmp_path / name / "samples") for name in ("both", "two"))
    ids = [
        fixed_lists(read_batch(samples, samples.files[-1]).column("ids"), 26, np.int32)
        for samples in (together, alone)
    ]
    np.testing.assert_array_equal(ids[0], ids[1])
    shards = [Manifest.read(tmp_path / name / "shards") for name in ("both", "two")]
    evaluation = [
        [entry.xxh3_128 for _, entry in folder.parts() if entry.facts["kind"] == "evaluation"]
        for folder in shards
    ]
    assert evaluation[0] == evaluation[1]
    assert shards[1].totals["samples"] == {"hot_only": 0, "mixed": 0, "evaluation": 700}
    assert shards[1].config["batch_size"] == 128
    assert verify(tmp_path / "two") == []


def test_ids_by_a_sample_are_taken_with_a_mode_of_fae(tmp_path: Path) -> None:
    log, schema = tmp_path / "log.csv", tmp_path / "log.toml"
    log.write_text("y,a\n" + "".join(f"{row % 2},{row % 7}\n" for row in range(99)))
    schema.write_text('format = "csv"\nheader = true\nlabel = "y"\ndense = []\n[sparse]\na = "integer"\n')
    words = ["preprocess", str(log), "--schema", str(schema), "--out"]
    assert main([*words, str(tmp_path / "one"), "--rank-by", "sampled", "--mode", "fae-paper"]) == 0
    for like, out in (("one", "two"), ("two", "three")):
        assert main([*words, str(tmp_path / out), "--like", str(tmp_path / like)]) == 0
        assert verify(tmp_path / out, other_vocabulary=tmp_path / like) == []


def test_the_same_command_finds_it_finished_and_counting_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preprocess", str(model / "day2.tsv"), "--out", str(tmp_path / "two")]
    assert main([*words, "--like", str(model / "one")]) == 0
    before = sorted((path, path.read_bytes()) for path in tmp_path.rglob("*.*"))
    assert main([*words, "--like", str(model / "one")]) == 0
    assert before == sorted((path, path.read_bytes()) for path in tmp_path.rglob("*.*"))
    assert main(words) == 1
    assert "holds stage 'adopt', want 'rank'" in capsys.readouterr().err


def test_a_model_of_another_day_is_evaluated(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preprocess", str(model / "day2.tsv"), "--like", str(model / "one")]
    assert main([*words, "--out", str(tmp_path / "two")]) == 0
    assert main(["train", str(model / "one"), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / "two")]) == 0
    samples = [
        line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("samples ")
    ]
    assert samples == ["700"]
    assert main(["train", str(tmp_path / "two"), "--out", str(tmp_path / "none")]) == 1
    assert "no training batch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"sparse": ["C1", "site"]}, "the log has C1, C2"), ({"schema": "other"}, "under different schemas")],
)
def test_other_features_are_refused(
    model: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    columns, vocabulary = (Manifest.read(model / "one" / name) for name in ("columns", "vocabulary"))
    other = replace(columns, totals=columns.totals | changes)
    with pytest.raises(ManifestError, match=message):
        adopt(columns, other, vocabulary, tmp_path / "out")


MIN_COUNTS = (1, 3)


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, rng = tmp_path_factory.mktemp("days"), np.random.default_rng(7)
    paths = [folder / f"day_{number}" for number in range(3)]
    for path in paths:
        path.write_bytes(text_of(draw_samples(50, rng)))
    return paths


@pytest.fixture(scope="module")
def vocabularies(days: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Path]:
    """DIRs up to their vocabulary, by number of days and min_count; not to be changed."""
    made = {}
    for number in (1, 3):
        for min_count in MIN_COUNTS:
            out = tmp_path_factory.mktemp("dirs") / f"{number}-{min_count}"
            config = replace(CONFIG, count=CountConfig(eval_fraction=0), rank=RankConfig(min_count=min_count))
            preprocess(days[:number], config, out, Resources(workers=1), until="rank")
            made[number, min_count] = out
    return made


def naive_map(old: list[Row], new: list[Row]) -> list[int]:
    new_ids = {what: i for i, (what, _) in enumerate(new)}
    return [new_ids.get(what, -1) for what, _ in old]


def mapped(id_map: Manifest) -> list[list[int]]:
    entries = {entry.path: entry for entry in id_map.files}
    batches = [read_batch(id_map, entries[f"{name}.arrow"]) for name in SCHEMA.sparse]
    return [values_of(batch.column("new_id"), np.int32).tolist() for batch in batches]


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("old_min_count", MIN_COUNTS)
@pytest.mark.parametrize("new_min_count", MIN_COUNTS)
def test_maps_agree_with_dictionaries(
    vocabularies: dict[tuple[int, int], Path],
    tmp_path: Path,
    old_min_count: int,
    new_min_count: int,
    workers: int,
) -> None:
    folders = (vocabularies[1, old_min_count], vocabularies[3, new_min_count])
    old, new = (Manifest.read(folder / "vocabulary") for folder in folders)
    made = map_ids(old, new, tmp_path / "id_map", Resources(workers=workers))
    wanted = [naive_map(*tables) for tables in zip(rows_of(old), rows_of(new), strict=True)]
    assert mapped(made) == wanted
    for table, ids, rows in zip(made.totals["tables"], wanted, rows_of(new), strict=True):
        kept = [i for i in ids if i >= 0]
        assert (table["num_kept"], table["num_old_rows"]) == (len(kept), len(ids))
        assert table["kept_lookups"] == sum(rows[i][1] for i in kept) and table["num_new_rows"] == len(rows)
    for ids, before, after in zip(wanted, rows_of(old), rows_of(new), strict=True):
        assert after[ids[[what for what, _ in before].index(OOV)]][0] == OOV
    assert made.totals["num_kept"] == sum(i >= 0 for ids in wanted for i in ids)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_tables_in_pieces_give_the_same_bytes(
    tmp_path: Path, dtype: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "b"]
    old, new = (
        vocabulary(tmp_path / word, {name: draw_table(rng, dtype) for name in names})
        for word in ("old", "new")
    )
    map_ids(old, new, tmp_path / "whole", Resources(workers=1))
    count_stages_alone(monkeypatch)
    monkeypatch.setattr("hotset.pipeline.stages.rank._ROOM_TO_MAP", 700)
    monkeypatch.setattr("hotset.pipeline.stages.rank._CHUNK", 7)
    map_ids(old, new, tmp_path / "pieces", Resources(workers=1, memory_bytes=700))
    assert tree_of(tmp_path / "pieces") == tree_of(tmp_path / "whole")


def draw_table(rng: np.random.Generator, dtype: Any) -> Any:
    bound = np.iinfo(dtype).max
    shared = np.unique(np.random.default_rng(1).integers(0, bound, 150, dtype=dtype))
    own = rng.integers(0, bound, 30, dtype=dtype)
    return rng.permutation(np.unique(np.concatenate([rng.permutation(shared)[:100], own])))


def vocabulary(folder: Path, tables: dict[str, Any]) -> Manifest:
    """A vocabulary of the categories given, of which the last two rows are missing and oov."""
    output = Output.begin("rank", 1, MapIdsConfig(), [], folder)
    described = []
    for name, categories in tables.items():
        num_rows = categories.shape[0]
        counts = np.arange(num_rows, 0, -1)
        columns = {"category": pa.array(categories), "count": pa.array(counts), "place": pa.array(counts - 1)}
        with output.writing(f"{name}.arrow", num_rows) as path:
            write_batch(path, columns)
        table = VocabularyTable(
            name=name, num_rows=num_rows, missing_id=num_rows - 2, oov_id=num_rows - 1, oov_count=1
        )
        described.append(table)
    num_rows = sum(table.num_rows for table in described)
    totals = VocabularyTotals(num_samples=0, num_train_samples=0, tables=tuple(described), num_rows=num_rows)
    return output.seal(totals)


def test_other_features_are_refused_in_map_ids(tmp_path: Path, rng: np.random.Generator) -> None:
    short, long = draw_table(rng, np.uint32), draw_table(rng, np.uint64)
    old = vocabulary(tmp_path / "old", {"a": short})
    with pytest.raises(ManifestError, match=r"old has the features a; .*new has b"):
        map_ids(old, vocabulary(tmp_path / "new", {"b": short}), tmp_path / "map")
    with pytest.raises(ManifestError, match=r"categories of a are uint32 in .*, uint64 in"):
        map_ids(old, vocabulary(tmp_path / "long", {"a": long}), tmp_path / "map")
    assert not (tmp_path / "map").exists()


def test_verify_looks_at_a_map_and_another_old_vocabulary_is_refused(
    vocabularies: dict[tuple[int, int], Path], tmp_path: Path
) -> None:
    old, other, new = vocabularies[1, 1], vocabularies[1, 3], tmp_path / "new"
    shutil.copytree(vocabularies[3, 1], new)
    before, after = (Manifest.read(folder / "vocabulary") for folder in (old, new))
    map_ids(before, after, new / "id_map")
    assert verify(new) == [] and verify(new / "id_map") == []
    with pytest.raises(ManifestError, match="another old than the present one"):
        map_ids(Manifest.read(other / "vocabulary"), after, new / "id_map")
    path = new / "id_map" / "C3.arrow"
    path.write_bytes(path.read_bytes()[:-5] + b"xxxxx")
    assert [str(path) in fault for fault in verify(new)] == [True]


def test_an_extension_maps_the_ids_it_changes(
    days: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, out = [str(day) for day in days], tmp_path / "dir"
    words = ["--min-count", "2", "--eval-files", "1", "--workers", "1"]
    assert main(["preprocess", *logs[:2], *words, "--out", str(out)]) == 0
    shutil.copytree(out, tmp_path / "old")
    shutil.copytree(out, tmp_path / "whole")
    with killed(-1, monkeypatch) as calls:
        main(["preprocess", *logs, *words, "--out", str(tmp_path / "whole"), "--extend"])
    for after in (calls[0] // 6, calls[0] // 4, calls[0] // 3):
        with killed(after, monkeypatch), pytest.raises(Killed):
            main(["preprocess", *logs, *words, "--out", str(out), "--extend"])
    assert main(["preprocess", *logs, *words, "--out", str(out), "--extend"]) == 0
    assert "rows are kept; they serve" in capsys.readouterr().err
    assert verify(out) == [] and not (out / "old_vocabulary").exists()
    before, mapped_to = (Manifest.read(folder / "vocabulary") for folder in (tmp_path / "old", out))
    map_ids(before, mapped_to, tmp_path / "map")
    assert tree_of(tmp_path / "map") == tree_of(out / "id_map")
    assert tree_of(tmp_path / "whole") == tree_of(out)
    assert main(["preprocess", *logs, *words, "--out", str(out), "--redo", "rank"]) == 0
    assert not (out / "id_map").exists()


def test_only_vocabularies_are_mapped(vocabularies: dict[tuple[int, int], Path], tmp_path: Path) -> None:
    vocabulary, counts = (Manifest.read(vocabularies[1, 1] / name) for name in ("vocabulary", "counts"))
    for pair in ((vocabulary, counts), (counts, vocabulary)):
        with pytest.raises(ManifestError, match="holds the stage 'count', want a vocabulary"):
            map_ids(*pair, tmp_path / "map")
