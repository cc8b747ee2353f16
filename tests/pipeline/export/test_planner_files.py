"""The inputs of TorchRec's planner are those of the counts, and its classes take them."""

from __future__ import annotations

import json
import runpy
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError, ManifestError
from hotset.pipeline.export.export_shards import export_shards
from hotset.pipeline.export.planner_files import LOAD_FACTORS, cache_statistics
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.ranking.vocabulary_files import read_tables
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.preprocess import preprocess
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.preprocess_runs import CONFIG


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planner")
    (folder / "log.tsv").write_bytes(text_of(draw_samples(300, np.random.default_rng(5))))
    config = replace(CONFIG, count=CountConfig(eval_fraction=0.2))
    preprocess((folder / "log.tsv",), config, folder / "dir", Resources(workers=1))
    return folder / "dir"


@pytest.fixture
def exported(data: Path, tmp_path: Path) -> Path:
    export_shards(Manifest.read(data / "shards"), "torchrec", tmp_path / "out", Resources(workers=1))
    return tmp_path / "out"


@dataclass
class ParameterConstraints:
    pooling_factors: list[float]
    batch_sizes: list[int]
    cache_params: Any


@dataclass
class CacheParams:
    load_factor: float
    stats: Any


class CacheStatistics:
    pass


def with_torchrec(monkeypatch: pytest.MonkeyPatch, **classes: type) -> None:
    """Put a stand-in for TorchRec, which needs builds of torch that hotset does not pin."""
    names = ("torchrec", "torchrec.distributed", "torchrec.distributed.planner")
    for name in (*names, "torchrec.distributed.planner.types", "torchrec.distributed.types"):
        module = types.ModuleType(name)
        vars(module).update(classes)
        monkeypatch.setitem(sys.modules, name, module)


def test_torchrec_gets_constraints_of_every_table(
    exported: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins = {"ParameterConstraints": ParameterConstraints, "CacheStatistics": CacheStatistics}
    with_torchrec(monkeypatch, **stand_ins, CacheParams=CacheParams)
    constraints = runpy.run_path(str(exported / "planner_inputs.py"))["constraints"](exported)
    shards = Manifest.read(data / "shards")
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


def test_counts_and_their_fit_stand_in_one_file(exported: Path, data: Path) -> None:
    found = json.loads((exported / "planner.json").read_text())
    vocabulary = Manifest.read(data / "vocabulary")
    for table, counts in zip(found["tables"].values(), read_tables(vocabulary, "count"), strict=True):
        fit = table["fbgemm"]
        assert fit["num_indices"] == counts.sum() == found["samples"]
        assert fit["heavy_hitters"][0] == counts.max() / counts.sum()
        assert fit["max_index"] == counts.size - 1 and 0 <= fit["fit_error"] < 1
    assert (exported / "train.parquet").exists() and (exported / "columns.json").exists()


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


def test_shards_without_their_vocabulary_are_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "shards").symlink_to(data / "shards")
    with pytest.raises(ManifestError, match="vocabulary does not exist"):
        export_shards(Manifest.read(tmp_path / "shards"), "torchrec", tmp_path / "out", Resources(workers=1))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_torchrecs_own_classes_take_them(exported: Path) -> None:
    pytest.importorskip("torchrec", reason="TorchRec is not installed")
    constraints = runpy.run_path(str(exported / "planner_inputs.py"))["constraints"](exported)
    statistics = next(iter(constraints.values())).cache_params.stats
    assert statistics.expected_miss_rate(0.0) == 1


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


def test_miss_rates_between_two_load_factors_lie_on_a_line(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_torchrec(
        monkeypatch,
        ParameterConstraints=ParameterConstraints,
        CacheStatistics=CacheStatistics,
        CacheParams=CacheParams,
    )
    program = runpy.run_path(str(exported / "planner_inputs.py"))
    tables = json.loads((exported / "planner.json").read_text())["tables"]
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


def test_the_vocabulary_of_another_log_is_not_taken(data: Path, tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_bytes(text_of(draw_samples(40, np.random.default_rng(6))))
    preprocess((tmp_path / "log.tsv",), CONFIG, tmp_path / "other", Resources(workers=1))
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed/shards").symlink_to(data / "shards")
    (tmp_path / "mixed/vocabulary").symlink_to(tmp_path / "other/vocabulary")
    with pytest.raises(ConfigError, match=r"mixed/vocabulary is not the vocabulary of .*mixed/shards"):
        export_shards(Manifest.read(tmp_path / "mixed/shards"), "torchrec", tmp_path / "out")
    assert not (tmp_path / "out").exists()
