"""Tables of a vocabulary on their way from counts, and hot rows under a budget: a prefix of every table."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.totals import SamplesTotals
from hotset.pipeline.formats.arrow_files import OpenedParts, read_file
from hotset.pipeline.preprocess import preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages import row_order as module
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.row_order import (
    Arrange,
    Arrangement,
    HotOrder,
    RankedTable,
    hot_curves,
    levels_of_tables,
    read_tables,
    write_table,
)
from hotset.tests.support.logs.criteo_text import NUM_SPARSE, Sample, draw_samples
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import draw_log, write_csv
from hotset.tests.support.naive.naive_stages import OOV, ids_of, naive_table, run_to
from hotset.tests.support.preprocess_runs import CONFIG


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


NUM_TRAIN = 70


def naive_rows(samples: list[Sample], feature: int) -> list[tuple[int | str | None, int]]:
    return naive_table([sample.categories[feature] for sample in samples[:NUM_TRAIN]], 2)


@pytest.mark.parametrize("asked", [range(0), range(NUM_TRAIN), range(13, 14), range(5, 61)])
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
    arranges: dict[str, Arrange | None] = {"plain": None, "arranged": lambda _: arranged}
    for name, arrange in arranges.items():
        output = Output.begin("rank", 1, RankConfig(), [], tmp_path / name)
        info = write_table(table, arrange, output, room)
        path = next((tmp_path / name).rglob(table.entry.path))
        found[name] = read_file(path, table.num_rows, {}).to_pydict(), info
        assert write_table(table, arrange, output, room) == info, "a finished file is not written again"
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


NUM_SAMPLES = 90


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Encoded samples in parts of a few lines."""
    log = draw_samples(NUM_SAMPLES, np.random.default_rng(8))
    return run_to("encode", tmp_path_factory.mktemp("curve"), log, CONFIG)


def drawn_budgets(encoded: Manifest, num_budgets: int, rng: np.random.Generator) -> np.ndarray:
    """(num_budgets, num_tables), hot rows of each table, not falling."""
    tables = SamplesTotals.of(encoded).tables
    drawn = [np.sort(rng.integers(0, table.num_rows + 1, num_budgets)) for table in tables]
    return np.stack(drawn, axis=1)


@pytest.mark.parametrize("num_train", [1, 37, NUM_SAMPLES])
@pytest.mark.parametrize("workers", [1, 3])
def test_curves_are_those_of_a_walk_over_the_samples(
    encoded: Manifest, num_train: int, workers: int, rng: np.random.Generator
) -> None:
    assert len(encoded.files) > 3, "parts end before and behind the last training sample"
    tables = SamplesTotals.of(encoded).tables
    budgets = [drawn_budgets(encoded, 4, rng) for _ in range(3)]
    orders = [levels_of_tables(num_hot, tables) for num_hot in budgets]
    told: list[tuple[int, int]] = []
    resources = Resources(workers=workers, progress=lambda _, done, total: told.append((done, total)))
    curves = hot_curves(encoded, orders, 4, num_train, resources)
    ids = np.array(ids_of(encoded)[:num_train])
    for curve, num_hot in zip(curves, budgets, strict=True):
        is_hot = ids[None] < num_hot[:, None]
        assert curve.samples.tolist() == is_hot.all(axis=2).sum(axis=1).tolist()
        assert curve.lookups.tolist() == is_hot.sum(axis=(1, 2)).tolist()
        assert curve.num_lookups == num_train * len(tables)
    # In samples, and full once the last training sample is counted, whatever parts there are behind it.
    ends = itertools.accumulate(entry.num_samples for entry in encoded.files)
    assert told[-1] == (num_train, num_train)
    assert told[:-1] == [(end, num_train) for end in ends if end < num_train]


def test_no_budget_and_all_rows_are_the_ends(encoded: Manifest) -> None:
    tables = SamplesTotals.of(encoded).tables
    rows = [table.num_rows for table in tables]
    (curve,) = hot_curves(encoded, [levels_of_tables(np.array([[0] * len(rows), rows]), tables)], 2, 50)
    assert curve.samples.tolist() == [0, 50]
    assert curve.lookups.tolist() == [0, curve.num_lookups] == [0, 50 * len(rows)]


def test_every_lookup_of_a_list_counts(tmp_path: Path, rng: np.random.Generator) -> None:
    log = draw_log(40, KINDS, np.random.default_rng(3), empty_lists=True)
    preprocess([write_csv(tmp_path / "log", log)], recipe(log, "csv"), tmp_path / "dir", until="encode")
    samples = Manifest.read(tmp_path / "dir" / "samples")
    tables = SamplesTotals.of(samples).tables
    rows = np.array([[table.num_rows for table in tables]])
    (curve,) = hot_curves(samples, [levels_of_tables(rows, tables)], 1, 40)
    lookups = [(table.lookups_train or 0) + (table.lookups_evaluation or 0) for table in tables]
    lookups = [number if table.is_multi_hot else 40 for number, table in zip(lookups, tables, strict=True)]
    assert curve.num_lookups == curve.lookups[0] == sum(lookups) and curve.samples.tolist() == [40]
