"""The vocabulary in the order of peeling and by FAE's sample, and what they do to samples.

A vocabulary in the order of peeling, held against a slow one, and what it does to samples.

FAE's modes through every stage: sampled order, thresholds, hot rows, and what they lose.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import MIB, ByteSize, ConfigError, ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.preprocess import PreprocessConfig, resolved, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.orders import _never_worse, calibrate, sampled_order
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig, rank
from hotset.pipeline.stages.row_order import HotOrder, RankedTable, read_tables
from hotset.pipeline.stages.split import SplitConfig, split
from hotset.pipeline.verify import verify
from hotset.stats.peeling import Incidence, entry_order
from hotset.stats.ranking import ProfiledTable, draw_samples, estimate_bytes
from hotset.tests.support.logs.criteo_text import SCHEMA, Sample, tree_of
from hotset.tests.support.logs.criteo_text import draw_samples as draw_log
from hotset.tests.support.naive.naive_peel import Samples, naive_peel
from hotset.tests.support.naive.naive_stages import (
    OOV,
    NaiveLog,
    columns_of,
    ids_of,
    naive_log,
    rows_of,
    run_to,
    tags_of,
)
from hotset.tests.support.resealed import reseal
from hotset.workflows.cli import main

NUM_TRAIN = 90


@pytest.fixture(scope="module")
def log() -> list[Sample]:
    return draw_log(150, np.random.default_rng(8))


@pytest.fixture(scope="module", autouse=True)
def _low_floor() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotset.pipeline.stages.rank.PEEL_FLOOR", 7)
        yield


def config_of(**fields: object) -> PreprocessConfig:
    rank_config = RankConfig(**({"rank_by": "peel", "min_count": 2} | fields))  # type: ignore[arg-type]
    return PreprocessConfig(
        count=CountConfig(eval_fraction=0.4),
        rank=rank_config,
        split=SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(64 * 60)),
        pack=PackConfig(batch_size=16),
    )


@pytest.fixture(scope="module")
def peeled(log: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every stage, made once."""
    peeled = tmp_path_factory.mktemp("peel")
    run_to("pack", peeled, log, config_of())
    return peeled


def naive_order(naive: NaiveLog, cuts: list[int]) -> list[int]:
    """Places by frequency in their new order; the rows up to the first cut stay."""
    above = [
        [place - cuts[0] for f, row in enumerate(ids) if (place := naive.places[f][row]) >= cuts[0]]
        for ids in naive.ids[:NUM_TRAIN]
    ]
    num_rows, order = sum(map(len, naive.places)), list(range(cuts[0]))
    for first, stop in itertools.pairwise([*cuts, num_rows]):
        dropped = naive_peel(above, [0] * (num_rows - cuts[0]), [1], first - cuts[0], stop - cuts[0])
        order += [place + cuts[0] for place in reversed(dropped)]
    return order


@pytest.mark.slow
def test_the_vocabulary_is_in_the_order_of_a_slow_peeling(peeled: Path, log: list[Sample]) -> None:
    vocabulary = Manifest.read(peeled / "vocabulary")
    assert vocabulary.totals["rank_by"] == "peel"
    naive = naive_log(log, NUM_TRAIN, min_count=2, num_hot_rows=0)
    facts = vocabulary.totals["peel"]
    assert facts["floor"] == 7
    row_at = {place: (f, row) for f, places in enumerate(naive.places) for row, place in enumerate(places)}
    order = [row_at[place] for place in naive_order(naive, [7, *facts["cuts"]])]
    places = [[new for new, (table, _) in enumerate(order) if table == f] for f in range(len(naive.tables))]
    tables = [[naive.tables[f][row] for table, row in order if table == f] for f in range(len(naive.tables))]
    assert [place.tolist() for place in read_tables(vocabulary, "place")] == places
    assert rows_of(vocabulary) == tables


def test_everything_that_follows_uses_it(peeled: Path) -> None:
    assert verify(peeled) == []
    plan, encoded = Manifest.read(peeled / "plan"), Manifest.read(peeled / "samples")
    num_hot = [table["num_hot"] for table in plan.totals["tables"]]
    assert sum(num_hot) == 60
    is_hot = [all(i < n for i, n in zip(ids, num_hot, strict=True)) for ids in ids_of(encoded)]
    assert tags_of(plan) == is_hot and any(is_hot) and not all(is_hot)


def hot_samples_by_budget(peeled: Path, row_bytes: list[int], budgets: list[int]) -> list[int]:
    vocabulary, encoded = Manifest.read(peeled / "vocabulary"), Manifest.read(peeled / "samples")
    order, ids = HotOrder(vocabulary, row_bytes), np.array(ids_of(encoded))[:NUM_TRAIN]
    return [int((ids < np.array(order.num_hot(budget)[0])).all(axis=1).sum()) for budget in budgets]


@pytest.mark.parametrize("dims", [{}, {"C3": 4, "C7": 64, "C26": 8}])
def test_it_never_makes_fewer_samples_hot_than_frequency(
    tmp_path: Path, log: list[Sample], dims: dict[str, int]
) -> None:
    split = SplitConfig(feature_dims=FeatureSettings(dims.items()), embedding_optimizer="sgd")
    row_bytes = [4 * dims.get(name, 16) for name in SCHEMA.sparse]
    budgets = [1 << power for power in range(6, 16)]
    found, summed = {}, {}
    for order in ("frequency", "peel"):
        (tmp_path / order).mkdir()
        config = resolved(replace(config_of(rank_by=order), split=split))
        assert bool(config.rank.peel_row_bytes) == (bool(dims) and order == "peel")
        run_to("encode", tmp_path / order, log, config)
        found[order] = hot_samples_by_budget(tmp_path / order, row_bytes, budgets)
        finer = list(range(64, 1 << 14, 256))
        summed[order] = sum(hot_samples_by_budget(tmp_path / order, row_bytes, finer))
    assert all(ours >= wanted for ours, wanted in zip(found["peel"], found["frequency"], strict=True))
    assert summed["peel"] > summed["frequency"]


@pytest.mark.parametrize("floor", [0, 50, 10_000])
def test_workers_do_not_change_a_byte(
    tmp_path: Path, peeled: Path, floor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, columns = Manifest.read(peeled / "counts"), Manifest.read(peeled / "columns")
    monkeypatch.setattr("hotset.pipeline.stages.rank.PEEL_FLOOR", floor)
    config = RankConfig(rank_by="peel")
    made = [
        rank(config, counts, tmp_path / f"{workers}", Resources(workers=workers), columns=columns)
        for workers in (1, 3)
    ]
    assert tree_of(tmp_path / "1") == tree_of(tmp_path / "3")
    if floor == 10_000:
        by_frequency = rank(RankConfig(), counts, tmp_path / "frequency")
        assert rows_of(made[0]) == rows_of(by_frequency)


def test_what_peeling_needs_is_said(tmp_path: Path, peeled: Path) -> None:
    counts, columns = Manifest.read(peeled / "counts"), Manifest.read(peeled / "columns")
    with pytest.raises(ConfigError, match="rank_by peel needs the columns"):
        rank(RankConfig(rank_by="peel"), counts, tmp_path / "out")
    with pytest.raises(ConfigError, match="rank --rank-by peel cannot stay within 180 MiB") as caught:
        rank(
            RankConfig(rank_by="peel"),
            counts,
            tmp_path / "out",
            Resources(memory_bytes=180 << 20, workers=1),
            columns=columns,
        )
    hint = "MiB would do; fewer --workers need less"
    assert hint in str(caught.value.hint)
    few = FeatureSettings([("C3", 8)])
    with pytest.raises(ConfigError, match="peel_row_bytes has no entry for 'C1'"):
        rank(RankConfig(rank_by="peel", peel_row_bytes=few), counts, tmp_path / "few", columns=columns)


def test_counts_of_another_log_are_refused(
    tmp_path: Path, peeled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.pipeline.stages.rank.PEEL_FLOOR", 0)
    (tmp_path / "other").mkdir()
    run_to("count", tmp_path / "other", draw_log(150, np.random.default_rng(9)), config_of())
    counts, columns = Manifest.read(peeled / "counts"), Manifest.read(tmp_path / "other" / "columns")
    with pytest.raises(ManifestError, match=r"counts fewer lookups of C\d+ than"):
        rank(RankConfig(rank_by="peel"), counts, tmp_path / "out", columns=columns)


def test_only_samples_that_were_counted_are_peeled(tmp_path: Path, log: list[Sample]) -> None:
    """A window of days ends in the order of a log of those days alone."""
    config = PreprocessConfig(count=CountConfig(eval_fraction=0.0, count_last=2), rank=config_of().rank)
    parts = (log[:40], log[40:70], log[70:120])
    places = []
    for name, days in (("window", parts), ("alone", parts[1:])):
        (tmp_path / name).mkdir()
        columns_of(tmp_path / name, *days)
        for stage in ("count", "rank"):
            run_stage(stage, getattr(config, stage), tmp_path / name)
        vocabulary = Manifest.read(tmp_path / name / "vocabulary")
        places.append((rows_of(vocabulary), [p.tolist() for p in read_tables(vocabulary, "place")]))
    assert places[0] == places[1]


def incidence_of(log: Samples, num_rows: int) -> Incidence:
    """Rows and samples both ways."""
    seen = [[number for number, rows in enumerate(log) if row in rows] for row in range(num_rows)]
    rows_of = [sorted(set(rows)) for rows in log]
    row_starts, sample_starts = (np.cumsum([0, *map(len, lists)]) for lists in (seen, rows_of))
    row_samples = np.array([sample for numbers in seen for sample in numbers], np.uint32)
    sample_rows = np.array([row for rows in rows_of for row in rows], np.int32)
    return Incidence(row_starts, row_starts[1:].copy(), row_samples, sample_starts, sample_rows)


def naive_never_worse(
    log: Samples, widths: list[int], width_of_row: list[int], budgets: list[int]
) -> tuple[list[int], list[int]]:
    """Peel the parts between cuts, and cut where a budget has fewer hot samples than by number.

    Returns:
        The rows in their new order, and the cuts.
    """

    def prefix(order: list[int], budget: int) -> list[int]:
        ends = itertools.accumulate(widths[width_of_row[row]] for row in order)
        return order[: sum(end <= budget for end in ends)]

    def num_hot(hot: list[int]) -> int:
        return sum(set(rows) <= set(hot) for rows in log)

    by_number = list(range(len(width_of_row)))
    cuts = {0, len(by_number)}
    while True:
        order = []
        for first, stop in itertools.pairwise(sorted(cuts)):
            order += naive_peel(log, width_of_row, widths, first, stop)[::-1]
        wanted = {budget: prefix(by_number, budget) for budget in budgets}
        worse = {len(hot) for budget, hot in wanted.items() if num_hot(prefix(order, budget)) < num_hot(hot)}
        if not worse:
            return order, sorted(cuts - {0, len(by_number)})
        cuts |= worse


@pytest.mark.parametrize("widths", [[16], [40, 16]])
def test_parts_between_cuts_are_peeled_as_by_the_twin(widths: list[int], rng: np.random.Generator) -> None:
    num_rows = 12
    num_cuts = []
    for _ in range(150):
        log = [sorted(set((rng.zipf(1.3, 3) % num_rows).tolist())) for _ in range(20)]
        counts = np.bincount([row for rows in log for row in rows], minlength=num_rows)
        place = np.argsort(np.argsort(-counts, kind="stable"))
        log = [sorted(place[rows].tolist()) for rows in log]
        width_of_row = rng.integers(len(widths), size=num_rows).astype(np.uint8)
        total = sum(widths[width] for width in width_of_row)
        budgets = np.arange(0, total, 7)
        found = incidence_of(log, num_rows)
        places, cuts = _never_worse(found, width_of_row, np.array(widths), entry_order(found), budgets)
        order, wanted = naive_never_worse(log, widths, width_of_row.tolist(), budgets.tolist())
        assert np.argsort(places).tolist() == order and cuts == wanted
        num_cuts.append(len(cuts))
    assert max(num_cuts) > 1, "some logs are cut again, and so parts are kept"


NUM_TRAIN, RATE, SEED = 90, 0.3, 5


def fae_config(mode: Any, hot_bytes: int = 64 * 40) -> PreprocessConfig:
    return resolved(
        PreprocessConfig(
            count=CountConfig(eval_fraction=0.4),
            rank=RankConfig(sampling_rate=RATE, sampling_seed=SEED, min_count=2),
            split=SplitConfig(mode=mode, hot_bytes=ByteSize(hot_bytes), embedding_optimizer="sgd"),
        )
    )


@pytest.fixture(scope="module", params=["fae-code", "fae-paper"])
def made(request: pytest.FixtureRequest, log: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every stage in each mode; tables are tiny, so the paper's 1 MB is made 500 bytes."""
    made = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotset.pipeline.stages.orders.LARGE_TABLE_BYTES", 500)
        run_to(
            "pack", made, log, fae_config(request.param, 64 * (40 if request.param == "fae-code" else 200))
        )
    return made


def test_ids_are_ranks_by_sampled_counts(made: Path, log: list[Sample]) -> None:
    vocabulary = Manifest.read(made / "vocabulary")
    with_replacement = "code" in made.name
    assert vocabulary.totals["rank_by"] == "sampled"
    assert vocabulary.config["with_replacement"] == with_replacement
    times = np.zeros(NUM_TRAIN, np.uint8)
    drawn = draw_samples(NUM_TRAIN, RATE, SEED, with_replacement, times)
    assert vocabulary.totals["sampling"] == {"num_drawn_samples": drawn} and drawn > 10
    naive = naive_log(log, NUM_TRAIN, min_count=2, num_hot_rows=0)
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


def test_the_vocabulary_says_in_which_order_rows_appeared(made: Path) -> None:
    vocabulary, samples = Manifest.read(made / "vocabulary"), Manifest.read(made / "samples")
    assert vocabulary.version == 2
    found = [each.tolist() for each in read_tables(vocabulary, "appearance")]
    assert found == appearances_of(vocabulary, samples)


def test_rows_are_profiled_in_the_order_of_first_appearance(
    log: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held against the same estimate from the ids of the log; tables are tiny, and so are chunks here."""
    monkeypatch.setattr("hotset.pipeline.stages.orders.LARGE_TABLE_BYTES", 500)
    monkeypatch.setattr("hotset.stats.ranking.CHUNK_ROWS", 3)
    monkeypatch.setattr("hotset.stats.ranking.NUM_CHUNKS", 4)
    config = fae_config("fae-paper")
    run_to("encode", tmp_path, log, replace(config, rank=replace(config.rank, min_count=1)))
    vocabulary = Manifest.read(tmp_path / "vocabulary")
    sizes = [64 * table["num_rows"] for table in vocabulary.totals["tables"]]
    small = sum(size for size in sizes if size < 500)
    _, info = calibrate("fae-paper", vocabulary, [64] * 26, small + 64 * 40)
    assert info.threshold is not None
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
    wanted = estimate_bytes(naive, info.threshold)
    assert info.estimated_bytes == tuple(
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
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the made was written: `verify` runs the stages again.
    monkeypatch.setattr("hotset.pipeline.stages.orders.LARGE_TABLE_BYTES", 500)
    assert verify(made) == []
    vocabulary, plan = Manifest.read(made / "vocabulary"), Manifest.read(made / "plan")
    tables, facts = plan.totals["tables"], plan.totals["calibration"]
    num_hot, sampled = [table["num_hot"] for table in tables], read_tables(vocabulary, "sampled")
    assert facts["hot_bytes"] == 64 * sum(num_hot) == 64 * plan.totals["num_hot_rows"]
    assert facts["num_unsampled_hot_rows"] == sum(
        int((counts[:hot] == 0).sum()) for counts, hot in zip(sampled, num_hot, strict=True)
    )
    if "code" in made.name:
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
    ids = np.array(ids_of(Manifest.read(made / "samples")))[:NUM_TRAIN]
    best = 0
    of_rows = read_tables(vocabulary, "count")
    rows = sorted((-int(c), f, i) for f, table in enumerate(of_rows) for i, c in enumerate(table))
    chosen = {(f, i) for _, f, i in rows[: facts["exact"]["num_hot_rows"]]}
    best = sum(all((f, int(i)) in chosen for f, i in enumerate(row)) for row in ids)
    assert facts["exact"] == {"num_hot_rows": sum(num_hot), "hot_samples": best}


def test_stats_say_what_was_lost(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(made)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(made.name[:8]))
    assert "samples and chose" in line and "with exact counts" in line
    assert ("covers that" in line) == ("paper" in made.name)


def test_workers_and_interruptions_do_not_change_a_byte(tmp_path: Path, made: Path) -> None:
    counts, columns = Manifest.read(made / "counts"), Manifest.read(made / "columns")
    config = RankConfig(rank_by="sampled")
    for workers in (1, 3):
        rank(config, counts, tmp_path / f"{workers}", Resources(workers=workers), columns=columns)
    assert tree_of(tmp_path / "1") == tree_of(tmp_path / "3")


def test_other_vocabularies_and_small_budgets_are_refused(tmp_path: Path, log: list[Sample]) -> None:
    config = fae_config("fae-paper")
    run_to("encode", tmp_path, log, replace(config, rank=RankConfig()))
    vocabulary, encoded = Manifest.read(tmp_path / "vocabulary"), Manifest.read(tmp_path / "samples")
    with pytest.raises(ConfigError, match=r"needs ids by sampled counts, .* has them by frequency") as caught:
        split(config.split, vocabulary, encoded, tmp_path / "plan")
    assert "--rank-by sampled" in str(caught.value.hint)
    (tmp_path / "sampled").mkdir()
    run_to("encode", tmp_path / "sampled", log, config)
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


NUM_COUNTED = 70
SHARE_DRAWN = 0.4
SEED_OF_DRAW = 3


def test_a_cap_that_cannot_be_kept_is_refused_before_anything_is_read(tables: list[RankedTable]) -> None:
    with pytest.raises(ConfigError, match="rank --rank-by sampled"):
        sampled_order(
            tables,
            None,  # type: ignore[arg-type]
            range(NUM_COUNTED),
            Resources(workers=1, memory_bytes=MIB),
            rate=SHARE_DRAWN,
            seed=SEED_OF_DRAW,
            with_replacement=False,
        )
