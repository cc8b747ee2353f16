"""Hot rows under a budget: a prefix of every table, in the order of lookups or of lookups per byte.

A vocabulary in the order of peeling, held against a slow one, and what it does to samples.

A table on its way from counts to a vocabulary: columns, lookups by rows, and another order.

Rows in the order of a sample's counts, against a walk over the drawn samples.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import MIB, ByteSize, ConfigError, ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.output import Output
from hotset.pipeline.formats.arrow_files import OpenedParts, read_file
from hotset.pipeline.preprocess import PreprocessConfig, resolved, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages import row_order as module
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig, rank
from hotset.pipeline.stages.row_order import (
    Arrangement,
    HotOrder,
    RankedTable,
    SampledOrder,
    _entries,
    _never_worse,
    category_order,
    read_tables,
    sampled_order,
    write_table,
)
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.verify import verify
from hotset.stats.ranking.fae_sampling import draw_samples as draw_times
from hotset.stats.ranking.peeling import Incidence
from hotset.tests.support.logs.criteo_text import NUM_SPARSE, SCHEMA, Sample, draw_samples, tree_of
from hotset.tests.support.naive.naive_peel import Samples, naive_peel
from hotset.tests.support.naive.naive_stages import (
    OOV,
    NaiveLog,
    columns_of,
    ids_of,
    naive_log,
    naive_table,
    rows_of,
    run_to,
    tags_of,
)
from hotset.tests.support.preprocess_runs import CONFIG, failing_writer


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """A vocabulary by frequency."""
    log = draw_samples(100, np.random.default_rng(4))
    return run_to("rank", tmp_path_factory.mktemp("order"), log, CONFIG)


def all_rows(vocabulary: Manifest, row_bytes: list[int]) -> list[tuple[float, int, int]]:
    """Rows as (minus lookups per byte, table, id), the first to be hot first."""
    counts = read_tables(vocabulary, "count")
    return sorted(
        (-int(count) / row_bytes[f], f, i) for f, table in enumerate(counts) for i, count in enumerate(table)
    )


@pytest.mark.parametrize("row_bytes", [[8] * NUM_SPARSE, [8] * 13 + [24] * 13, [5, 7] * 13])
def test_rows_become_hot_by_lookups_per_byte(vocabulary: Manifest, row_bytes: list[int]) -> None:
    order = HotOrder(vocabulary, row_bytes)
    rows = all_rows(vocabulary, row_bytes)
    for budget in (0, 7, 100, 1001, 4000):
        num_hot, num_all = order.num_hot(budget)
        assert sum(num_hot) == num_all
        taken = sum(hot * width for hot, width in zip(num_hot, row_bytes, strict=True))
        # The rows that fit one after the other, up to the first that does not.
        widths = itertools.accumulate(row_bytes[f] for _, f, _ in rows)
        wanted = sum(total <= budget for total in widths)
        found = {(f, i) for f, hot in enumerate(num_hot) for i in range(hot)}
        assert taken <= budget and num_all == wanted
        values = sorted(value for value, f, i in rows if (f, i) in found)
        assert values == pytest.approx([value for value, _, _ in rows[:wanted]])


def test_all_rows_are_hot_in_memory_for_all_of_them(vocabulary: Manifest) -> None:
    lengths = [table.size for table in read_tables(vocabulary, "count")]
    for row_bytes in ([16] * NUM_SPARSE, [16, 32] * 13):
        needed = sum(length * width for length, width in zip(lengths, row_bytes, strict=True))
        assert HotOrder(vocabulary, row_bytes).num_hot(needed) == (lengths, sum(lengths))
        num_hot, num_all = HotOrder(vocabulary, row_bytes).num_hot(needed - 1)
        assert num_all == sum(lengths) - 1 and sum(num_hot) == num_all


def test_more_memory_never_makes_a_row_cold(vocabulary: Manifest) -> None:
    order = HotOrder(vocabulary, [8] * 20 + [40] * 6)
    before = [0] * NUM_SPARSE
    for budget in range(0, 6000, 97):
        num_hot, _ = order.num_hot(budget)
        assert all(now >= then for now, then in zip(num_hot, before, strict=True))
        before = num_hot


def test_a_vocabulary_by_peeling_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its order knew the widths already: another density must not change which rows are first."""

    monkeypatch.setattr("hotset.pipeline.stages.rank.PEEL_FLOOR", 5)
    config = replace(CONFIG, rank=replace(CONFIG.rank, rank_by="peel"))
    vocabulary = run_to("rank", tmp_path, draw_samples(60, np.random.default_rng(5)), config)
    row_bytes = [8] * 13 + [24] * 13
    places = read_tables(vocabulary, "place")
    num_hot, num_all = HotOrder(vocabulary, row_bytes).num_hot(900)
    hot = sorted(place for table, hot in zip(places, num_hot, strict=True) for place in table[:hot].tolist())
    assert hot == list(range(num_all)) and num_all > 30


NUM_TRAIN = 90


@pytest.fixture(scope="module")
def peeled_log() -> list[Sample]:
    return draw_samples(150, np.random.default_rng(8))


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
def peeled(peeled_log: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every stage, made once."""
    peeled = tmp_path_factory.mktemp("peel")
    run_to("pack", peeled, peeled_log, config_of())
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


def test_the_vocabulary_is_in_the_order_of_a_slow_peeling(peeled: Path, peeled_log: list[Sample]) -> None:
    vocabulary = Manifest.read(peeled / "vocabulary")
    assert vocabulary.totals["rank_by"] == "peel"
    naive = naive_log(peeled_log, NUM_TRAIN, min_count=2, num_hot_rows=0)
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
    tmp_path: Path, peeled_log: list[Sample], dims: dict[str, int]
) -> None:
    split = SplitConfig(feature_dims=FeatureSettings(dims.items()), embedding_optimizer="sgd")
    row_bytes = [4 * dims.get(name, 16) for name in SCHEMA.sparse]
    budgets = [1 << power for power in range(6, 16)]
    found, summed = {}, {}
    for order in ("frequency", "peel"):
        (tmp_path / order).mkdir()
        config = resolved(replace(config_of(rank_by=order), split=split))
        assert bool(config.rank.peel_row_bytes) == (bool(dims) and order == "peel")
        run_to("encode", tmp_path / order, peeled_log, config)
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
    run_to("count", tmp_path / "other", draw_samples(150, np.random.default_rng(9)), config_of())
    counts, columns = Manifest.read(peeled / "counts"), Manifest.read(tmp_path / "other" / "columns")
    with pytest.raises(ManifestError, match=r"counts fewer lookups of C\d+ than"):
        rank(RankConfig(rank_by="peel"), counts, tmp_path / "out", columns=columns)


def test_stopped_half_way_it_goes_on_to_the_same_bytes(
    tmp_path: Path, peeled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, columns = Manifest.read(peeled / "counts"), Manifest.read(peeled / "columns")
    monkeypatch.setattr("hotset.pipeline.stages.rank.PEEL_FLOOR", 3)
    config = RankConfig(rank_by="peel")
    rank(config, counts, tmp_path / "unbroken", Resources(workers=1), columns=columns)
    with monkeypatch.context() as patch:
        writer = failing_writer(5, KeyboardInterrupt)
        patch.setattr("hotset.pipeline.stages.row_order.write_batch", writer)
        with pytest.raises(KeyboardInterrupt):
            rank(config, counts, tmp_path / "out", Resources(workers=1), columns=columns)
    assert not (tmp_path / "out" / "manifest.json").exists()
    rank(config, counts, tmp_path / "out", Resources(workers=2), columns=columns)
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "unbroken")


def test_only_samples_that_were_counted_are_peeled(tmp_path: Path, peeled_log: list[Sample]) -> None:
    """A window of days ends in the order of a log of those days alone."""
    config = PreprocessConfig(count=CountConfig(eval_fraction=0.0, count_last=2), rank=config_of().rank)
    parts = (peeled_log[:40], peeled_log[40:70], peeled_log[70:120])
    places = []
    for name, days in (("window", parts), ("alone", parts[1:])):
        (tmp_path / name).mkdir()
        columns_of(tmp_path / name, *days)
        for stage in ("count", "rank"):
            run_stage(stage, getattr(config, stage), tmp_path / name)
        vocabulary = Manifest.read(tmp_path / name / "vocabulary")
        places.append((rows_of(vocabulary), [p.tolist() for p in read_tables(vocabulary, "place")]))
    assert places[0] == places[1]


def incidence_of(peeled_log: Samples, num_rows: int) -> Incidence:
    """Rows and samples both ways."""
    seen = [[number for number, rows in enumerate(peeled_log) if row in rows] for row in range(num_rows)]
    rows_of = [sorted(set(rows)) for rows in peeled_log]
    row_starts, sample_starts = (np.cumsum([0, *map(len, lists)]) for lists in (seen, rows_of))
    row_samples = np.array([sample for numbers in seen for sample in numbers], np.uint32)
    sample_rows = np.array([row for rows in rows_of for row in rows], np.int32)
    return Incidence(row_starts, row_starts[1:].copy(), row_samples, sample_starts, sample_rows)


def naive_never_worse(
    peeled_log: Samples, widths: list[int], width_of_row: list[int], budgets: list[int]
) -> tuple[list[int], list[int]]:
    """Peel the parts between cuts, and cut where a budget has fewer hot samples than by number.

    Returns:
        The rows in their new order, and the cuts.
    """

    def prefix(order: list[int], budget: int) -> list[int]:
        ends = itertools.accumulate(widths[width_of_row[row]] for row in order)
        return order[: sum(end <= budget for end in ends)]

    def num_hot(hot: list[int]) -> int:
        return sum(set(rows) <= set(hot) for rows in peeled_log)

    by_number = list(range(len(width_of_row)))
    cuts = {0, len(by_number)}
    while True:
        order = []
        for first, stop in itertools.pairwise(sorted(cuts)):
            order += naive_peel(peeled_log, width_of_row, widths, first, stop)[::-1]
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
        peeled_log = [sorted(set((rng.zipf(1.3, 3) % num_rows).tolist())) for _ in range(20)]
        counts = np.bincount([row for rows in peeled_log for row in rows], minlength=num_rows)
        place = np.argsort(np.argsort(-counts, kind="stable"))
        peeled_log = [sorted(place[rows].tolist()) for rows in peeled_log]
        width_of_row = rng.integers(len(widths), size=num_rows).astype(np.uint8)
        total = sum(widths[width] for width in width_of_row)
        budgets = np.arange(0, total, 7)
        found = incidence_of(peeled_log, num_rows)
        places, cuts = _never_worse(found, width_of_row, np.array(widths), _entries(found), budgets)
        order, wanted = naive_never_worse(peeled_log, widths, width_of_row.tolist(), budgets.tolist())
        assert np.argsort(places).tolist() == order and cuts == wanted
        num_cuts.append(len(cuts))
    assert max(num_cuts) > 1, "some logs are cut again, and so parts are kept"


NUM_TRAIN_OF_RANKED_TABLES = 70


def naive_rows(samples: list[Sample], feature: int) -> list[tuple[int | str | None, int]]:
    return naive_table([sample.categories[feature] for sample in samples[:NUM_TRAIN_OF_RANKED_TABLES]], 2)


def test_columns_are_those_of_the_naive_table(tables: list[RankedTable], samples: list[Sample]) -> None:
    for feature, table in enumerate(tables):
        naive = naive_rows(samples, feature)
        counts = np.empty(table.num_rows, np.int64)
        categories = np.zeros(table.num_rows, table.dtype)
        table.write_counts(counts)
        table.write_categories(categories)
        assert counts.tolist() == [count for _, count in naive]
        known = [(i, what) for i, (what, _) in enumerate(naive) if isinstance(what, int)]
        assert [int(categories[i]) for i, _ in known] == [what for _, what in known]
        whats = [what for what, _ in naive]
        assert (table.runs.missing_id, table.runs.oov_id) == (
            whats.index(None if None in whats else OOV),
            whats.index(OOV),
        )


def test_places_are_an_order_over_all_tables_by_falling_lookups(tables: list[RankedTable]) -> None:
    rows = []
    for table in tables:
        places = np.empty(table.num_rows, np.int64)
        counts = np.empty(table.num_rows, np.int64)
        table.write_places(places)
        table.write_counts(counts)
        assert (np.diff(places) > 0).all()
        rows += list(zip(places.tolist(), (-counts).tolist(), strict=True))
    rows.sort()
    assert [place for place, _ in rows] == list(range(sum(table.num_rows for table in tables)))
    assert [count for _, count in rows] == sorted(count for _, count in rows)


@pytest.mark.parametrize("asked", [range(0), range(NUM_TRAIN_OF_RANKED_TABLES), range(13, 14), range(5, 61)])
def test_lookups_of_any_samples_come_part_by_part(
    folder: Path, tables: list[RankedTable], samples: list[Sample], asked: range
) -> None:
    columns = Manifest.read(folder / "columns")
    assert len(columns.files) > 3
    opened = OpenedParts()
    for feature in (0, 8, 25):
        id_of = {what: i for i, (what, _) in enumerate(naive_rows(samples, feature))}
        wanted = [id_of.get(samples[n].categories[feature], id_of[OOV]) for n in asked]
        found: list[int] = []
        for first, offsets, ids in tables[feature].iterate_lookups(columns, asked, opened):
            assert first == len(found), "parts come in the order of the log"
            found += ids[offsets[0] : offsets[-1]].tolist()
        assert found == wanted


@pytest.mark.parametrize("room", [0, 1 << 20])
def test_an_arrangement_moves_every_column_and_the_rows_without_a_category(
    tables: list[RankedTable], tmp_path: Path, rng: np.random.Generator, room: int
) -> None:
    table = tables[2]
    order = rng.permutation(table.num_rows)
    extra = {"sampled": rng.integers(0, 9, table.num_rows)}
    arranged = Arrangement(order, np.arange(table.num_rows) + 100, extra)
    found = {}
    for name, arrangement in (("plain", None), ("arranged", arranged)):
        output = Output.begin("rank", 1, RankConfig(), [], tmp_path / name)
        info = write_table(table, arrangement, output, room)
        path = next((tmp_path / name).rglob(table.entry.path))
        found[name] = read_file(path, table.num_rows, {}).to_pydict(), info
        assert write_table(table, arrangement, output, room) == info, "a finished file is not written again"
    plain, moved = found["plain"][0], found["arranged"][0]
    assert moved["category"] == [plain["category"][row] for row in order]
    assert moved["count"] == [plain["count"][row] for row in order]
    assert moved["place"] == arranged.places.tolist() and moved["sampled"] == extra["sampled"].tolist()
    nulls = {i for i, category in enumerate(moved["category"]) if category is None}
    info = found["arranged"][1]
    assert nulls == {info.missing_id, info.oov_id} and info.num_rows == table.num_rows


@pytest.mark.parametrize("num_rows", [1, 7, 8, 9, 64])
def test_the_bitmap_has_a_bit_for_every_row_and_none_behind(num_rows: int) -> None:
    for null in range(num_rows):
        bits = np.frombuffer(module._validity(num_rows, {null}), np.uint8)
        found = np.unpackbits(bits, bitorder="little")
        assert found[:num_rows].tolist() == [row != null for row in range(num_rows)]
        assert not found[num_rows:].any()


NUM_TRAIN_OF_SAMPLED_ORDER = 70
RATE = 0.4
SEED = 3


def order_of(
    folder: Path, tables: list[RankedTable], *, workers: int = 1, with_replacement: bool = False
) -> SampledOrder:
    return sampled_order(
        tables,
        Manifest.read(folder / "columns"),
        range(NUM_TRAIN_OF_SAMPLED_ORDER),
        Resources(workers=workers),
        rate=RATE,
        seed=SEED,
        with_replacement=with_replacement,
    )


@pytest.mark.parametrize("with_replacement", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
def test_rows_are_ranked_by_their_lookups_in_the_drawn_samples(
    folder: Path, tables: list[RankedTable], samples: list[Sample], workers: int, with_replacement: bool
) -> None:
    found = order_of(folder, tables, workers=workers, with_replacement=with_replacement)
    times = np.zeros(NUM_TRAIN_OF_SAMPLED_ORDER, np.uint8)
    assert found.num_drawn == draw_times(NUM_TRAIN_OF_SAMPLED_ORDER, RATE, SEED, with_replacement, times) > 10
    for feature, table in enumerate(tables):
        rows = naive_table([sample.categories[feature] for sample in samples[:NUM_TRAIN_OF_SAMPLED_ORDER]], 2)
        whats = [what for what, _ in rows]
        categories = [samples[n].categories[feature] for n in range(NUM_TRAIN_OF_SAMPLED_ORDER)]
        of_sample: list[int | str | None] = [what if what in whats else OOV for what in categories]
        drawn = Counter[int | str | None]()
        for n, what in enumerate(of_sample):
            drawn[what] += int(times[n])

        def importance(row: int, whats: list[int | str | None] = whats, drawn: Counter = drawn) -> tuple:  # type: ignore[type-arg]
            what = whats[row]
            return -drawn[what], what == OOV, what is not None, what if isinstance(what, int) else 0

        ordered = found.tables[table.name]
        assert ordered.order.tolist() == sorted(range(len(rows)), key=importance)
        assert ordered.counts.tolist() == [drawn[whats[row]] for row in ordered.order]
        firsts = list(dict.fromkeys(of_sample))
        seen = [firsts.index(whats[row]) for row in ordered.order if whats[row] in firsts]
        known = [
            int(n) for n, row in zip(ordered.appearances, ordered.order, strict=True) if whats[row] in firsts
        ]
        assert known == seen and sorted(ordered.appearances.tolist()) == list(range(len(rows)))


def test_places_are_an_order_over_all_tables_by_sampled_counts(
    folder: Path, tables: list[RankedTable]
) -> None:
    found = order_of(folder, tables)
    rows = []
    for number, table in enumerate(tables):
        arranged = found.arrange(table)
        assert (np.diff(arranged.places) > 0).all()
        assert arranged.extra["sampled"].tolist() == found.tables[table.name].counts.tolist()
        counts = (-arranged.extra["sampled"]).tolist()
        rows += [
            (place, count, number) for place, count in zip(arranged.places.tolist(), counts, strict=True)
        ]
    rows.sort()
    assert [place for place, _, _ in rows] == list(range(len(rows)))
    assert [(count, number) for _, count, number in rows] == sorted((c, n) for _, c, n in rows)


def test_ties_are_missing_first_and_oov_last(tables: list[RankedTable]) -> None:
    for table in tables:
        is_oov, is_not_missing, categories = category_order(table)
        assert np.flatnonzero(is_oov).tolist() == [table.runs.oov_id]
        assert np.flatnonzero(~is_not_missing).tolist() in ([], [table.runs.missing_id])
        assert categories.shape == (table.num_rows,)


def test_a_cap_that_cannot_be_kept_is_refused_before_anything_is_read(tables: list[RankedTable]) -> None:
    with pytest.raises(ConfigError, match="rank --rank-by sampled"):
        sampled_order(
            tables,
            None,  # type: ignore[arg-type]
            range(NUM_TRAIN_OF_SAMPLED_ORDER),
            Resources(workers=1, memory_bytes=MIB),
            rate=RATE,
            seed=SEED,
            with_replacement=False,
        )
