"""Rows in the order of a sample's counts, against a walk over the drawn samples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.ranking.ranked_tables import RankedTable
from hotset.pipeline.ranking.sampled_order import SampledOrder, category_order, sampled_order
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.sizes import MIB
from hotset.stats.ranking.fae_sampling import draw_samples as draw_times
from hotset.tests.support.logs.criteo_text import Sample
from hotset.tests.support.naive.naive_stages import OOV, naive_table

NUM_TRAIN = 70
RATE = 0.4
SEED = 3


def order_of(
    folder: Path, tables: list[RankedTable], *, workers: int = 1, with_replacement: bool = False
) -> SampledOrder:
    return sampled_order(
        tables,
        Manifest.read(folder / "columns"),
        range(NUM_TRAIN),
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
    times = np.zeros(NUM_TRAIN, np.uint8)
    assert found.num_drawn == draw_times(NUM_TRAIN, RATE, SEED, with_replacement, times) > 10
    for feature, table in enumerate(tables):
        rows = naive_table([sample.categories[feature] for sample in samples[:NUM_TRAIN]], 2)
        whats = [what for what, _ in rows]
        categories = [samples[n].categories[feature] for n in range(NUM_TRAIN)]
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
            range(NUM_TRAIN),
            Resources(workers=1, memory_bytes=MIB),
            rate=RATE,
            seed=SEED,
            with_replacement=False,
        )
