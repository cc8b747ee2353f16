"""A table on its way from counts to a vocabulary: columns, lookups by rows, and another order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.output import Output
from hotset.pipeline.formats.arrow_files import read_file
from hotset.pipeline.formats.opened_parts import OpenedParts
from hotset.pipeline.ranking import ranked_tables as module
from hotset.pipeline.ranking.ranked_tables import Arrangement, RankedTable, write_table
from hotset.pipeline.stages.rank import RankConfig
from hotset.tests.support.logs.criteo_text import Sample
from hotset.tests.support.naive.naive_stages import OOV, naive_table

NUM_TRAIN = 70


def naive_rows(samples: list[Sample], feature: int) -> list[tuple[int | str | None, int]]:
    return naive_table([sample.categories[feature] for sample in samples[:NUM_TRAIN]], 2)


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
