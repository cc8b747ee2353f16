"""Stages refuse before a finished folder is removed, or before they begin one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import HotsetError, ManifestError
from hotset.pipeline.folders.discard import discard_files
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.sizes import MIB
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.encode import EncodeConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.preprocess import preprocess, run_stage
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.refusals import refuse_stage
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.stages.stage_order import FOLDERS
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.preprocess_runs import CONFIG, copy_of

DEFAULTS: dict[str, Any] = {
    "count": CountConfig(),
    "rank": RankConfig(),
    "encode": EncodeConfig(),
    "split": SplitConfig(),
    "pack": PackConfig(),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of `preprocess`, for reading only."""
    out = tmp_path_factory.mktemp("refusals")
    (out / "log.tsv").write_bytes(text_of(draw_samples(100, np.random.default_rng(3))))
    preprocess([out / "log.tsv"], CONFIG, out / "dir", Resources(workers=1))
    return out / "dir"


@pytest.mark.parametrize("stage", DEFAULTS)
def test_a_small_memory_cap_is_refused_before_the_folder_is_begun(
    stage: str, made: Path, tmp_path: Path
) -> None:
    for path in made.iterdir():
        if path.name != FOLDERS[stage]:
            (tmp_path / path.name).symlink_to(path)
    little = Resources(workers=1, memory_bytes=MIB)
    for run in (refuse_stage, run_stage):
        with pytest.raises(HotsetError, match="cannot stay within 1 MiB of memory"):
            run(stage, DEFAULTS[stage], tmp_path, little)
    assert not (tmp_path / FOLDERS[stage]).exists()
    refuse_stage(stage, DEFAULTS[stage], tmp_path, Resources(workers=1))
    assert not (tmp_path / FOLDERS[stage]).exists()


@pytest.mark.parametrize(
    ("stage", "config", "megabytes", "message"),
    [
        ("count", CountConfig(eval_files=1), 0, "no sample to train on"),
        ("rank", RankConfig(rank_by="peel"), 180, "rank --rank-by peel cannot stay within 180 MiB"),
        ("rank", RankConfig(rank_by="sampled"), 180, "rank --rank-by sampled cannot stay within 180 MiB"),
        ("split", SplitConfig(mode="fae-code"), 0, "needs ids by sampled counts"),
    ],
)
def test_settings_that_the_inputs_rule_out_are_refused(
    stage: str, config: Any, megabytes: int, message: str, made: Path
) -> None:
    resources = Resources(workers=1, memory_bytes=megabytes * MIB or None)
    with pytest.raises(HotsetError, match=message):
        refuse_stage(stage, config, made, resources)


def test_discarded_inputs_are_refused(made: Path, tmp_path: Path) -> None:
    out = copy_of(made, tmp_path / "dir")
    discard_files(out / "samples")
    with pytest.raises(ManifestError, match="samples was discarded"):
        refuse_stage("pack", PackConfig(), out)
