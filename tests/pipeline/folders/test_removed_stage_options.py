"""Stage folders with options that are gone are continued at their defaults, and refused by name else.

Tests `removed_options`, too.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.removed_options import REMOVED, without_removed
from hotset.pipeline.preprocess import FOLDERS, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.preprocess_runs import CONFIG, copy_of
from hotset.tests.support.resealed import reseal_later_folders, write_manifest


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of two days, and the folder of the first as an earlier version wrote it."""
    folder = tmp_path_factory.mktemp("removed")
    for day in range(2):
        (folder / f"day_{day}").write_bytes(text_of(draw_samples(60, np.random.default_rng(day))))
    preprocess([folder / "day_0"], CONFIG, folder / "dir", Resources(workers=1))
    for stage, options in REMOVED.items():
        add_settings(folder / "dir", stage, options)
    return folder


def add_settings(folder: Path, stage: str, settings: dict[str, Any]) -> None:
    """Write settings into the manifest of a stage, and make later folders agree."""
    name = FOLDERS[stage]
    if not (folder / name).exists():
        return
    parts = json.loads((folder / name / "manifest.json").read_bytes())
    parts["config"] |= settings
    write_manifest(folder / name, parts)
    reseal_later_folders(folder)


def test_an_old_folder_is_kept_verified_and_extended(made: Path, tmp_path: Path) -> None:
    out = copy_of(made / "dir", tmp_path / "dir")
    days = [made / "day_0", made / "day_1"]
    done: list[bool] = []
    preprocess(days[:1], CONFIG, out, on_stage=lambda report: done.append(report.was_sealed))
    assert done == [True] * 6
    assert verify(out, raw=days[:1]) == []
    preprocess(days, CONFIG, out, extend=True)
    assert verify(out, raw=days) == []


@pytest.mark.parametrize(
    ("stage", "name", "value"),
    [("ingest", "max_bad_fraction", 0.5), ("rank", "peel_floor", 7), ("pack", "train_last", 1)],
)
def test_an_option_that_is_gone_is_refused_by_name(
    stage: str, name: str, value: object, made: Path, tmp_path: Path
) -> None:
    out = copy_of(made / "dir", tmp_path / "dir")
    add_settings(out, stage, {name: value})
    with pytest.raises(ManifestError, match=f"was made with --{name.replace('_', '-')} {value}") as caught:
        preprocess([made / "day_0"], replace(CONFIG), out)
    assert f"--redo {stage}" in str(caught.value.hint)
    faults = verify(out, raw=[made / "day_0"])
    assert any(f"--{name.replace('_', '-')} {value}" in fault for fault in faults)


def test_only_defaults_of_the_stage_are_left_out() -> None:
    config = {"max_bad_fraction": 0.001, "schema": "x"}
    assert without_removed("ingest", config) == {"schema": "x"}
    assert without_removed("rank", config) == config
