"""Hot rows under a budget: a prefix of every table, in the order of lookups or of lookups per byte."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.hot_rows.hot_order import HotOrder
from hotset.pipeline.ranking.vocabulary_files import read_tables
from hotset.tests.support.logs.criteo_text import NUM_SPARSE, draw_samples
from hotset.tests.support.naive.naive_stages import run_to
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
