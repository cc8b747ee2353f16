"""FAE's modes through every stage: sampled order, thresholds, hot rows, and what they lose.

Hot rows under a byte budget, and the tag of every sample.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import MIB, ByteSize, ConfigError, ManifestError, MemoryCapError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.preprocess import PreprocessConfig, resolved, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.rank import RankConfig, rank
from hotset.pipeline.stages.row_order import read_tables
from hotset.pipeline.stages.split import SplitConfig, calibrate, needed_bytes, split
from hotset.pipeline.verify import verify
from hotset.stats.ranking.fae_sampling import ProfiledTable, draw_samples, estimate_bytes
from hotset.tests.support.logs.criteo_text import SCHEMA, Sample, tree_of
from hotset.tests.support.logs.criteo_text import draw_samples as draw_log
from hotset.tests.support.logs.criteo_text import draw_samples as draw_samples_of_split
from hotset.tests.support.naive.naive_stages import OOV, ids_of, naive_log, rows_of, run_to, tags_of
from hotset.tests.support.resealed import reseal
from hotset.workflows.cli import main

NUM_TRAIN, RATE, SEED = 90, 0.3, 5


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return draw_log(150, np.random.default_rng(8))


def config_of(mode: Any, hot_bytes: int = 64 * 40) -> PreprocessConfig:
    return resolved(
        PreprocessConfig(
            count=CountConfig(eval_fraction=0.4),
            rank=RankConfig(sampling_rate=RATE, sampling_seed=SEED, min_count=2),
            split=SplitConfig(mode=mode, hot_bytes=ByteSize(hot_bytes), embedding_optimizer="sgd"),
        )
    )


@pytest.fixture(scope="module", params=["fae-code", "fae-paper"])
def folder(
    request: pytest.FixtureRequest, samples: list[Sample], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Every stage in each mode; tables are tiny, so the paper's 1 MB is made 500 bytes."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotset.pipeline.stages.split.LARGE_TABLE_BYTES", 500)
        run_to(
            "pack",
            folder,
            samples,
            config_of(request.param, 64 * (40 if request.param == "fae-code" else 200)),
        )
    return folder


def test_ids_are_ranks_by_sampled_counts(folder: Path, samples: list[Sample]) -> None:
    vocabulary = Manifest.read(folder / "vocabulary")
    with_replacement = "code" in folder.name
    assert vocabulary.totals["rank_by"] == "sampled"
    assert vocabulary.config["with_replacement"] == with_replacement
    times = np.zeros(NUM_TRAIN, np.uint8)
    drawn = draw_samples(NUM_TRAIN, RATE, SEED, with_replacement, times)
    assert vocabulary.totals["sampling"] == {"num_drawn_samples": drawn} and drawn > 10
    naive = naive_log(samples, NUM_TRAIN, min_count=2, num_hot_rows=0)
    over_all = []
    for f, (table, found) in enumerate(zip(naive.tables, rows_of(vocabulary), strict=True)):
        seen = Counter[int]()
        for sample in range(NUM_TRAIN):
            seen[naive.ids[sample][f]] += int(times[sample])
        rows = sorted(
            (-seen[row], what == OOV, what is not None, what if isinstance(what, int) else 0, row)
            for row, (what, _) in enumerate(table)
        )
        assert found == [table[row] for *_, row in rows]
        over_all += [(count, f, new) for new, (count, *_) in enumerate(rows)]
        assert read_tables(vocabulary, "sampled")[f].tolist() == [-count for count, *_ in rows]
    place = {(f, new): n for n, (_, f, new) in enumerate(sorted(over_all))}
    places = [each.tolist() for each in read_tables(vocabulary, "place")]
    assert places == [[place[f, new] for new in range(len(table))] for f, table in enumerate(naive.tables)]


def appearances_of(vocabulary: Manifest, samples: Manifest) -> list[list[int]]:
    """Per table: position of each id in the order of its first lookup in the training part."""
    ids = np.array(ids_of(samples))[:NUM_TRAIN]
    found = []
    for feature, table in enumerate(vocabulary.totals["tables"]):
        numbers = {row: number for number, row in enumerate(dict.fromkeys(ids[:, feature].tolist()))}
        # Rows that no training sample looks up, missing or oov, come last: oov behind missing, by frequency.
        unseen = sorted(
            (set(range(table["num_rows"])) - numbers.keys()), key=lambda row: row == table["oov_id"]
        )
        numbers |= {row: len(numbers) + position for position, row in enumerate(unseen)}
        found.append([numbers[row] for row in range(table["num_rows"])])
    return found


def test_the_vocabulary_says_in_which_order_rows_appeared(folder: Path) -> None:
    vocabulary, samples = Manifest.read(folder / "vocabulary"), Manifest.read(folder / "samples")
    assert vocabulary.version == 2
    found = [each.tolist() for each in read_tables(vocabulary, "appearance")]
    assert found == appearances_of(vocabulary, samples)


def test_rows_are_profiled_in_the_order_of_first_appearance(
    samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held against the same estimate from the ids of the log; tables are tiny, and so are chunks here."""
    monkeypatch.setattr("hotset.pipeline.stages.split.LARGE_TABLE_BYTES", 500)
    monkeypatch.setattr("hotset.stats.ranking.fae_sampling.CHUNK_ROWS", 3)
    monkeypatch.setattr("hotset.stats.ranking.fae_sampling.NUM_CHUNKS", 4)
    config = config_of("fae-paper")
    run_to("encode", tmp_path, samples, replace(config, rank=replace(config.rank, min_count=1)))
    vocabulary = Manifest.read(tmp_path / "vocabulary")
    sizes = [64 * table["num_rows"] for table in vocabulary.totals["tables"]]
    small = sum(size for size in sizes if size < 500)
    threshold = calibrate("fae-paper", vocabulary, [64] * 26, small + 64 * 40).threshold
    assert threshold is not None
    naive = []
    sampled = read_tables(vocabulary, "sampled")
    of_log = appearances_of(vocabulary, Manifest.read(tmp_path / "samples"))
    for number, (counts, appearances) in enumerate(zip(sampled, of_log, strict=True)):
        if sizes[number] < 500:
            continue
        counters = np.zeros(len(appearances), np.int64)
        for count, position in zip(counts, appearances, strict=True):
            counters[position] = count
        naive.append(ProfiledTable.of(counters, 64, RATE * NUM_TRAIN, SEED + number))
    wanted = estimate_bytes(naive, threshold.share)
    assert threshold.estimated_bytes == tuple(
        round(small + each) for each in (wanted.low, wanted.middle, wanted.high)
    )
    assert wanted.low < wanted.high
    # The positions are an index, so an edited one is refused even where every checksum was computed anew.
    large = vocabulary.totals["tables"][next(n for n, size in enumerate(sizes) if size >= 500)]["name"]
    for wrong in (-1, 1 << 40, 0):

        def repeat(columns: dict[str, Any], wrong: int = wrong) -> None:
            columns["appearance"] = [wrong] * len(columns["appearance"])

        reseal(tmp_path / "vocabulary", repeat, f"{large}.arrow")
        with pytest.raises(ManifestError, match="positions in the order of first appearance are no order"):
            calibrate("fae-paper", Manifest.read(tmp_path / "vocabulary"), [64] * 26, small + 64 * 40)
        assert any(f"{large}.arrow: appearance in row" in fault for fault in verify(tmp_path))


def test_what_is_hot_and_what_was_lost_stands_in_the_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the folder was written: `verify` runs the stages again.
    monkeypatch.setattr("hotset.pipeline.stages.split.LARGE_TABLE_BYTES", 500)
    assert verify(folder) == []
    vocabulary, plan = Manifest.read(folder / "vocabulary"), Manifest.read(folder / "plan")
    tables, facts = plan.totals["tables"], plan.totals["calibration"]
    num_hot, sampled = [table["num_hot"] for table in tables], read_tables(vocabulary, "sampled")
    assert facts["hot_bytes"] == 64 * sum(num_hot) == 64 * plan.totals["num_hot_rows"]
    assert facts["num_unsampled_hot_rows"] == sum(
        int((counts[:hot] == 0).sum()) for counts, hot in zip(sampled, num_hot, strict=True)
    )
    if "code" in folder.name:
        assert sum(num_hot) == 40 and "threshold" not in facts
    else:
        is_large = [64 * table["num_rows"] >= 500 for table in tables]
        assert facts["num_large_tables"] == sum(is_large) == facts["num_covered_tables"]
        for table, counts, large in zip(tables, sampled, is_large, strict=True):
            accesses = RATE * NUM_TRAIN
            passing = int((counts >= np.ceil(facts["threshold"] * accesses)).sum())
            assert table["num_hot"] == (passing if large else table["num_rows"])
        low, middle, high = facts["estimated_bytes"]
        assert low == middle == high == facts["hot_bytes"] and facts["is_covered"]  # tables of few chunks
    ids = np.array(ids_of(Manifest.read(folder / "samples")))[:NUM_TRAIN]
    best = 0
    of_rows = read_tables(vocabulary, "count")
    rows = sorted((-int(c), f, i) for f, table in enumerate(of_rows) for i, c in enumerate(table))
    chosen = {(f, i) for _, f, i in rows[: facts["exact"]["num_hot_rows"]]}
    best = sum(all((f, int(i)) in chosen for f, i in enumerate(row)) for row in ids)
    assert facts["exact"] == {"num_hot_rows": sum(num_hot), "hot_samples": best}


def test_stats_say_what_was_lost(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(folder)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(folder.name[:8]))
    assert "samples and chose" in line and "with exact counts" in line
    assert ("covers that" in line) == ("paper" in folder.name)


def test_workers_and_interruptions_do_not_change_a_byte(tmp_path: Path, folder: Path) -> None:
    counts, columns = Manifest.read(folder / "counts"), Manifest.read(folder / "columns")
    config = RankConfig(rank_by="sampled")
    for workers in (1, 3):
        rank(config, counts, tmp_path / f"{workers}", Resources(workers=workers), columns=columns)
    assert tree_of(tmp_path / "1") == tree_of(tmp_path / "3")


def test_other_vocabularies_and_small_budgets_are_refused(tmp_path: Path, samples: list[Sample]) -> None:
    config = config_of("fae-paper")
    run_to("encode", tmp_path, samples, replace(config, rank=RankConfig()))
    vocabulary, encoded = Manifest.read(tmp_path / "vocabulary"), Manifest.read(tmp_path / "samples")
    with pytest.raises(ConfigError, match=r"needs ids by sampled counts, .* has them by frequency") as caught:
        split(config.split, vocabulary, encoded, tmp_path / "plan")
    assert "--rank-by sampled" in str(caught.value.hint)
    (tmp_path / "sampled").mkdir()
    run_to("encode", tmp_path / "sampled", samples, config)
    with pytest.raises(ConfigError, match=r"small tables whole: they take .*, hot_bytes is 2\.5 KiB"):
        run_stage("split", config.split, tmp_path / "sampled")
    assert not (tmp_path / "sampled" / "plan").exists() and not (tmp_path / "plan").exists()
    with pytest.raises(ConfigError, match="mode fae-code does not work with rank_by peel"):
        resolved(PreprocessConfig(rank=RankConfig(rank_by="peel"), split=SplitConfig(mode="fae-code")))


@pytest.mark.parametrize("changes", [{"sampling_rate": 0.0}, {"sampling_rate": 1.1}, {"sampling_seed": -1}])
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        RankConfig(**changes)
    with pytest.raises(ConfigError, match="mode must be one of budget, fae-paper, fae-code, got 'luck'"):
        SplitConfig(mode="luck")  # type: ignore[arg-type]


NUM_TRAIN_OF_SPLIT = 90


@pytest.fixture(scope="module")
def samples_of_split() -> list[Sample]:
    return draw_samples_of_split(150, np.random.default_rng(8))


@pytest.fixture(scope="module")
def folder_of_split(samples_of_split: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything before split, made once."""
    folder_of_split = tmp_path_factory.mktemp("split")
    run_to(
        "encode", folder_of_split, samples_of_split, PreprocessConfig(count=CountConfig(eval_fraction=0.4))
    )
    return folder_of_split


def split_in(folder_of_split: Path, out: Path, config: SplitConfig, *, workers: int = 1) -> Manifest:
    vocabulary, encoded = (
        Manifest.read(folder_of_split / "vocabulary"),
        Manifest.read(folder_of_split / "samples"),
    )
    return split(config, vocabulary, encoded, out, Resources(workers=workers))


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("num_hot_rows", [0, 1, 60, 100, 150, 10_000])
@pytest.mark.parametrize(
    ("optimizer", "dim", "row_bytes"),
    [("sgd", 16, 64), ("adagrad", 16, 128), ("rowwise-adagrad", 4, 20)],
)
def test_hot_rows_and_tags_agree_with_the_naive_ones(
    tmp_path: Path,
    folder_of_split: Path,
    samples_of_split: list[Sample],
    optimizer: Any,
    dim: int,
    row_bytes: int,
    num_hot_rows: int,
    workers: int,
) -> None:
    hot_bytes = ByteSize(row_bytes * (num_hot_rows + 1) - 1)
    config = SplitConfig(hot_bytes=hot_bytes, embedding_dim=dim, embedding_optimizer=optimizer)
    plan = split_in(folder_of_split, tmp_path / "plan", config, workers=workers)
    naive = naive_log(samples_of_split, NUM_TRAIN_OF_SPLIT, min_count=1, num_hot_rows=num_hot_rows)
    assert tags_of(plan) == naive.is_hot
    facts, tables = plan.totals, plan.totals["tables"]
    assert [table["num_hot"] for table in tables] == naive.num_hot
    assert [table["name"] for table in tables] == list(SCHEMA.sparse)
    assert [table["num_rows"] for table in tables] == [len(table) for table in naive.tables]
    assert facts["num_rows"] == sum(map(len, naive.tables))
    assert facts["num_hot_rows"] == sum(naive.num_hot) == min(num_hot_rows, facts["num_rows"])
    assert facts["row_bytes"] == row_bytes and facts["num_train_samples"] == NUM_TRAIN_OF_SPLIT
    hot_train, hot_evaluation = sum(naive.is_hot[:NUM_TRAIN_OF_SPLIT]), sum(naive.is_hot[NUM_TRAIN_OF_SPLIT:])
    assert facts["samples"] == {
        "hot": hot_train,
        "mixed": NUM_TRAIN_OF_SPLIT - hot_train,
        "evaluation": 60,
        "evaluation_hot": hot_evaluation,
    }
    assert (num_hot_rows not in (100, 150)) or 0 < hot_train < NUM_TRAIN_OF_SPLIT


@pytest.mark.parametrize("hot_bytes", [0, 63, 2_000, 5_000, 100_000])
def test_rows_of_several_widths_fill_the_budget_by_lookups_per_byte(
    tmp_path: Path, folder_of_split: Path, samples_of_split: list[Sample], hot_bytes: int
) -> None:
    dims = {"C3": 4, "C7": 64, "C26": 16}
    config = SplitConfig(
        embedding_optimizer="sgd", hot_bytes=ByteSize(hot_bytes), feature_dims=FeatureSettings(dims.items())
    )
    plan = split_in(folder_of_split, tmp_path / "plan", config)
    naive = naive_log(samples_of_split, NUM_TRAIN_OF_SPLIT, min_count=1, num_hot_rows=0)
    widths = [4 * dims.get(name, 16) for name in SCHEMA.sparse]
    rows = sorted(
        (-Fraction(count, widths[f]), f, i)
        for f, table in enumerate(naive.tables)
        for i, (_, count) in enumerate(table)
    )
    num_hot, left = [0] * len(widths), hot_bytes
    for _, f, _ in rows:
        if widths[f] > left:
            break
        left -= widths[f]
        num_hot[f] += 1
    tables = plan.totals["tables"]
    assert [table["num_hot"] for table in tables] == num_hot
    found = {t["name"]: (t["embedding_dim"], t["row_bytes"]) for t in tables if "embedding_dim" in t}
    assert found == {"C3": (4, 16), "C7": (64, 256)} and plan.totals["row_bytes"] == 64
    is_hot = [all(i < n for i, n in zip(ids, num_hot, strict=True)) for ids in naive.ids]
    assert tags_of(plan) == is_hot


def test_a_width_for_no_feature_is_refused(tmp_path: Path, folder_of_split: Path) -> None:
    with pytest.raises(ConfigError, match="feature_dims names 'C33', which is not a feature of this log"):
        split_in(folder_of_split, tmp_path / "plan", SplitConfig(feature_dims=FeatureSettings([("C33", 8)])))
    assert not (tmp_path / "plan").exists()


def test_a_memory_cap_that_cannot_be_kept_is_refused_before_the_folder_is_begun(
    tmp_path: Path, folder_of_split: Path
) -> None:
    vocabulary, samples_of_split = (
        Manifest.read(folder_of_split / "vocabulary"),
        Manifest.read(folder_of_split / "samples"),
    )
    with pytest.raises(MemoryCapError, match="split cannot stay within 1 MiB of memory") as caught:
        split(SplitConfig(), vocabulary, samples_of_split, tmp_path / "plan", Resources(1, MIB))
    assert caught.value.hint == "--memory 161MiB would do; fewer --workers need less"
    assert not (tmp_path / "plan").exists()
    made = split(SplitConfig(), vocabulary, samples_of_split, tmp_path / "plan", Resources(1, 161 * MIB))
    # The tags of a part, and where FAE's modes calibrate, arrays of all rows.
    largest = max(entry.num_samples for entry in samples_of_split.files)
    assert needed_bytes(SplitConfig(), 1000, samples_of_split, 3) == 3 * 2 * largest
    assert needed_bytes(SplitConfig(mode="fae-code"), 1000, samples_of_split, 3) == 3 * 2 * largest + 40_000
    assert split(SplitConfig(), vocabulary, samples_of_split, tmp_path / "plan", Resources(1, 1)) == made


def test_other_budgets_need_another_folder(tmp_path: Path, folder_of_split: Path) -> None:
    made = split_in(folder_of_split, tmp_path / "plan", SplitConfig())
    assert split_in(folder_of_split, tmp_path / "plan", SplitConfig()) == made
    with pytest.raises(ManifestError, match="was written with hot_bytes = 256MiB, now 64"):
        split_in(folder_of_split, tmp_path / "plan", SplitConfig(hot_bytes=ByteSize(64)))
    with pytest.raises(ManifestError, match="was written with embedding_optimizer = adagrad, now sgd"):
        split_in(folder_of_split, tmp_path / "plan", SplitConfig(embedding_optimizer="sgd"))


@pytest.mark.parametrize(
    "changes",
    [
        {"hot_bytes": ByteSize(-1)},
        {"embedding_dim": 0},
        {"embedding_dim": 2**20 + 1},  # readers would take the sealed folder for a damaged one
        {"feature_dims": FeatureSettings([("C1", 2**20 + 1)])},
        {"embedding_optimizer": "adamax"},
    ],
)
def test_nonsense_is_refused_in_split(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        SplitConfig(**changes)
