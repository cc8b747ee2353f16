"""Hot rows under a byte budget, and the tag of every sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.count import CountConfig
from hotset.pipeline.errors import ConfigError, ManifestError
from hotset.pipeline.manifest import Manifest
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.split import SplitConfig, split
from hotset.tests.criteo_text import SCHEMA, Sample, draw_samples
from hotset.tests.naive_stages import naive_log, run_to, tags_of
from hotset.workflows.preprocess import PreprocessConfig

NUM_TRAIN = 90


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return draw_samples(150, np.random.default_rng(8))


@pytest.fixture(scope="module")
def folder(samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything before split, made once."""
    folder = tmp_path_factory.mktemp("split")
    run_to("encode", folder, samples, PreprocessConfig(count=CountConfig(eval_fraction=0.4)))
    return folder


def split_in(folder: Path, out: Path, config: SplitConfig, *, workers: int = 1) -> Manifest:
    vocabulary, encoded = Manifest.read(folder / "vocabulary"), Manifest.read(folder / "samples")
    return split(config, vocabulary, encoded, out, workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("num_hot_rows", [0, 1, 60, 100, 150, 10_000])
@pytest.mark.parametrize(
    ("optimizer", "dim", "row_bytes"),
    [("sgd", 16, 64), ("adagrad", 16, 128), ("rowwise-adagrad", 4, 20)],
)
def test_hot_rows_and_tags_agree_with_the_naive_ones(
    tmp_path: Path,
    folder: Path,
    samples: list[Sample],
    optimizer: Any,
    dim: int,
    row_bytes: int,
    num_hot_rows: int,
    workers: int,
) -> None:
    hot_bytes = ByteSize(row_bytes * (num_hot_rows + 1) - 1)
    config = SplitConfig(hot_bytes=hot_bytes, embedding_dim=dim, embedding_optimizer=optimizer)
    plan = split_in(folder, tmp_path / "plan", config, workers=workers)
    naive = naive_log(samples, NUM_TRAIN, min_count=1, num_hot_rows=num_hot_rows)
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


def test_other_budgets_need_another_folder(tmp_path: Path, folder: Path) -> None:
    made = split_in(folder, tmp_path / "plan", SplitConfig())
    assert split_in(folder, tmp_path / "plan", SplitConfig()) == made
    with pytest.raises(ManifestError, match="was made with hot_bytes = 268435456, now 64"):
        split_in(folder, tmp_path / "plan", SplitConfig(hot_bytes=ByteSize(64)))
    with pytest.raises(ManifestError, match="was made with embedding_optimizer = sgd, now adagrad"):
        split_in(folder, tmp_path / "plan", SplitConfig(embedding_optimizer="adagrad"))


@pytest.mark.parametrize(
    "changes",
    [
        {"hot_bytes": ByteSize(-1)},
        {"embedding_dim": 0},
        {"embedding_optimizer": "adamax"},
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        SplitConfig(**changes)
