"""Hot rows under a byte budget, and the tag of every sample."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import MIB, ByteSize, ConfigError, ManifestError, MemoryCapError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.resume import identity_of_manifest
from hotset.pipeline.preprocess import PreprocessConfig
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages import split as split_stage
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.split import SplitConfig, needed_bytes, split
from hotset.tests.support.logs.criteo_text import SCHEMA, Sample
from hotset.tests.support.logs.criteo_text import draw_samples as draw_log
from hotset.tests.support.naive.naive_stages import naive_log, run_to, tags_of

NUM_TRAIN = 90


@pytest.fixture(scope="module")
def log() -> list[Sample]:
    return draw_log(150, np.random.default_rng(8))


@pytest.fixture(scope="module")
def encoded(log: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything before split, made once."""
    encoded = tmp_path_factory.mktemp("split")
    run_to("encode", encoded, log, PreprocessConfig(count=CountConfig(eval_fraction=0.4)))
    return encoded


def split_in(encoded: Path, out: Path, config: SplitConfig, *, workers: int = 1) -> Manifest:
    vocabulary, samples = (Manifest.read(encoded / name) for name in ("vocabulary", "samples"))
    return split(config, vocabulary, samples, out, Resources(workers=workers))


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("num_hot_rows", [0, 1, 60, 100, 150, 10_000])
@pytest.mark.parametrize(
    ("optimizer", "dim", "row_bytes"), [("sgd", 16, 64), ("adagrad", 16, 128), ("rowwise-adagrad", 4, 20)]
)
def test_hot_rows_and_tags_agree_with_the_naive_ones(
    tmp_path: Path,
    encoded: Path,
    log: list[Sample],
    optimizer: Any,
    dim: int,
    row_bytes: int,
    num_hot_rows: int,
    workers: int,
) -> None:
    hot_bytes = ByteSize(row_bytes * (num_hot_rows + 1) - 1)
    config = SplitConfig(hot_bytes=hot_bytes, embedding_dim=dim, embedding_optimizer=optimizer)
    plan = split_in(encoded, tmp_path / "plan", config, workers=workers)
    naive = naive_log(log, NUM_TRAIN, min_count=1, num_hot_rows=num_hot_rows)
    assert tags_of(plan) == naive.is_hot
    facts, tables = plan.totals, plan.totals["tables"]
    assert [table["num_hot"] for table in tables] == naive.num_hot
    assert [table["name"] for table in tables] == list(SCHEMA.sparse)
    assert [table["num_rows"] for table in tables] == [len(table) for table in naive.tables]
    assert facts["num_rows"] == sum(map(len, naive.tables))
    assert facts["num_hot_rows"] == sum(naive.num_hot) == min(num_hot_rows, facts["num_rows"])
    assert facts["row_bytes"] == row_bytes and facts["num_train_samples"] == NUM_TRAIN
    hot_train, hot_evaluation = sum(naive.is_hot[:NUM_TRAIN]), sum(naive.is_hot[NUM_TRAIN:])
    assert facts["samples"] == {
        "hot": hot_train,
        "mixed": NUM_TRAIN - hot_train,
        "evaluation": 60,
        "evaluation_hot": hot_evaluation,
    }
    assert (num_hot_rows not in (100, 150)) or 0 < hot_train < NUM_TRAIN


@pytest.mark.parametrize("hot_bytes", [0, 63, 2_000, 5_000, 100_000])
def test_rows_of_several_widths_fill_the_budget_by_lookups_per_byte(
    tmp_path: Path, encoded: Path, log: list[Sample], hot_bytes: int
) -> None:
    dims = {"C3": 4, "C7": 64, "C26": 16}
    config = SplitConfig(
        embedding_optimizer="sgd", hot_bytes=ByteSize(hot_bytes), feature_dims=FeatureSettings(dims.items())
    )
    plan = split_in(encoded, tmp_path / "plan", config)
    naive = naive_log(log, NUM_TRAIN, min_count=1, num_hot_rows=0)
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


def bytes_of_most_lookups(log: list[Sample], row_bytes: int) -> int:
    """Return the bytes of the rows that serve 90% of the lookups, counted one by one, in whole KiB."""
    naive = naive_log(log, NUM_TRAIN, min_count=1, num_hot_rows=0)
    counts = sorted((count for table in naive.tables for _, count in table), reverse=True)
    num_rows = next(n for n in range(len(counts) + 1) if 10 * sum(counts[:n]) >= 9 * sum(counts))
    return -(-num_rows * row_bytes // 1024) * 1024


@pytest.mark.parametrize(("optimizer", "row_bytes"), [("sgd", 64), ("adagrad", 128)])
def test_auto_is_the_rows_that_serve_most_lookups_and_the_plan_says_how_many_bytes(
    tmp_path: Path, encoded: Path, log: list[Sample], optimizer: Any, row_bytes: int
) -> None:
    wanted = bytes_of_most_lookups(log, row_bytes)
    plan = split_in(encoded, tmp_path / "auto", SplitConfig(embedding_optimizer=optimizer))
    assert plan.config["hot_bytes"] == wanted
    named = SplitConfig(hot_bytes=ByteSize(wanted), embedding_optimizer=optimizer)
    assert split_in(encoded, tmp_path / "named", named).fingerprint == plan.fingerprint
    assert 0 < plan.totals["num_hot_rows"] < plan.totals["num_rows"]


def test_auto_takes_no_more_than_a_constant(
    tmp_path: Path, encoded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert split_stage.MOST_AUTO_BYTES == 4 * 2**30
    monkeypatch.setattr(split_stage, "MOST_AUTO_BYTES", ByteSize(2048))
    assert split_in(encoded, tmp_path / "plan", SplitConfig()).config["hot_bytes"] == 2048


@pytest.mark.parametrize("is_finished", [True, False])
def test_auto_is_what_the_folder_has_already(tmp_path: Path, encoded: Path, is_finished: bool) -> None:
    out = tmp_path / "plan"
    before = split_in(encoded, out, SplitConfig(hot_bytes=ByteSize(3000)))
    if not is_finished:
        (out / ".partial").mkdir()
        (out / ".partial/begun.json").write_text(json.dumps(identity_of_manifest(before)))
        (out / "manifest.json").unlink()
    assert split_in(encoded, out, SplitConfig()).fingerprint == before.fingerprint
    with pytest.raises(ManifestError, match="hot_bytes = 3000, now 4000"):
        split_in(encoded, out, SplitConfig(hot_bytes=ByteSize(4000)))


def test_a_width_for_no_feature_is_refused(tmp_path: Path, encoded: Path) -> None:
    with pytest.raises(ConfigError, match="feature_dims names 'C33', which is not a feature of this log"):
        split_in(encoded, tmp_path / "plan", SplitConfig(feature_dims=FeatureSettings([("C33", 8)])))
    assert not (tmp_path / "plan").exists()


def test_a_memory_cap_that_cannot_be_kept_is_refused_before_the_folder_is_begun(
    tmp_path: Path, encoded: Path
) -> None:
    vocabulary, samples = (Manifest.read(encoded / "vocabulary"), Manifest.read(encoded / "samples"))
    with pytest.raises(MemoryCapError, match="split cannot stay within 1 MiB of memory") as caught:
        split(SplitConfig(), vocabulary, samples, tmp_path / "plan", Resources(1, MIB))
    assert caught.value.hint == "--memory 161MiB would do; fewer --workers need less"
    assert not (tmp_path / "plan").exists()
    made = split(SplitConfig(), vocabulary, samples, tmp_path / "plan", Resources(1, 161 * MIB))
    # The tags of a part, and where FAE's modes calibrate, arrays of all rows.
    largest = max(entry.num_samples for entry in samples.files)
    assert needed_bytes(SplitConfig(), 1000, samples, 3) == 3 * 2 * largest
    assert needed_bytes(SplitConfig(mode="fae-code"), 1000, samples, 3) == 3 * 2 * largest + 40_000
    assert split(SplitConfig(), vocabulary, samples, tmp_path / "plan", Resources(1, 1)) == made


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
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        SplitConfig(**changes)
