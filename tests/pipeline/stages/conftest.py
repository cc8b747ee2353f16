"""A counted log and its tables by frequency, which the orders of rows are tested on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.rank import RankConfig, rank_tables
from hotset.pipeline.stages.row_order import RankedTable
from hotset.tests.support.logs.criteo_text import Sample, draw_samples
from hotset.tests.support.naive.naive_stages import run_to
from hotset.tests.support.preprocess_runs import CONFIG


@pytest.fixture(scope="package")
def samples() -> list[Sample]:
    """The log: 100 samples, 70 of them for training."""
    return draw_samples(100, np.random.default_rng(9))


@pytest.fixture(scope="package")
def folder(samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Columns and counts of the log; not to be changed."""
    folder = tmp_path_factory.mktemp("counted")
    run_to("count", folder, samples, CONFIG)
    return folder


@pytest.fixture(scope="package")
def tables(folder: Path) -> list[RankedTable]:
    """Its tables, whose rows are in the order by frequency."""
    return rank_tables(RankConfig(min_count=2), Manifest.read(folder / "counts"), Resources(workers=1))
