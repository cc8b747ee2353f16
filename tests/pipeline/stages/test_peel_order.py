"""A vocabulary in the order of peeling, held against a slow one, and what it does to samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ByteSize, ConfigError, ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.preprocess import PreprocessConfig, resolved, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.peel_order import _entries, _never_worse
from hotset.pipeline.stages.rank import RankConfig, rank
from hotset.pipeline.stages.row_order import HotOrder, read_tables
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.verify import verify
from hotset.stats.ranking.peeling import Incidence
from hotset.tests.support.logs.criteo_text import SCHEMA, Sample, draw_samples, tree_of
from hotset.tests.support.naive.naive_peel import Samples, naive_peel
from hotset.tests.support.naive.naive_stages import (
    NaiveLog,
    columns_of,
    ids_of,
    naive_log,
    rows_of,
    run_to,
    tags_of,
)

NUM_TRAIN = 90


@pytest.fixture(scope="module")
def log() -> list[Sample]:
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
    run_to("count", tmp_path / "other", draw_samples(150, np.random.default_rng(9)), config_of())
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
        places, cuts = _never_worse(found, width_of_row, np.array(widths), _entries(found), budgets)
        order, wanted = naive_never_worse(log, widths, width_of_row.tolist(), budgets.tolist())
        assert np.argsort(places).tolist() == order and cuts == wanted
        num_cuts.append(len(cuts))
    assert max(num_cuts) > 1, "some logs are cut again, and so parts are kept"
