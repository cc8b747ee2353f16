"""A folder and runs made by commit 22a087e are read, continued, and refused where they cannot be.

``tests/support/data/old`` holds them; ``make.sh`` in it names the commands that made them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotset.pipeline.folders.manifest import Manifest, hash_file
from hotset.tests.support.edits.sealed_edits import set_key
from hotset.tests.support.golden import DATA
from hotset.tests.support.resealed import write_manifest
from hotset.workflows.cli import main

IGNORED = ("schedule", "exchange", "lookups")
"""Folders that stages wrote which are gone."""

SMALL = ("--bottom-mlp", "4", "--top-mlp", "4", "--threads", "1", "--epochs", "2", "--staging-bytes", "2KiB")
"""Options of the runs."""
PREPARED = ("--embedding-dim", "4", "--hot-bytes", "1KiB", "--batch-size", "16", "--workers", "1")
"""Options of the folder."""


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old folders, which is the current folder."""
    copy = tmp_path / "old"
    shutil.copytree(DATA / "old", copy)
    monkeypatch.chdir(copy)
    return copy


@pytest.mark.parametrize(
    "command",
    [
        "stats data",
        "advise data",
        "verify data",
        "verify data --inputs day0.csv",
        "verify run",
        "recipe data run",
        "runs .",
        "export-shards data --out shards",
        "train data --out other",
        "evaluate run data",
        "predict run day1.csv --out scores.csv",
    ],
)
def test_every_command_reads_them(command: str, old: Path) -> None:
    assert main([*command.split(), "-q"]) == 0


@pytest.mark.parametrize("command", ["stats", "verify", "train --placement lookahead --out trained"])
def test_folders_of_stages_that_are_gone_change_nothing(
    command: str, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = command.split()
    assert main([name, "data", *options, "-q"]) == 0
    printed = capsys.readouterr()
    for folder in IGNORED:
        shutil.rmtree(old / "data" / folder)
    for path in old.glob("trained*"):
        path.rename(old / "with_them")
    assert main([name, "data", *options, "-q"]) == 0
    without = capsys.readouterr()
    if name == "train":
        weights = [(old / run / "weights.safetensors").read_bytes() for run in ("with_them", "trained")]
        assert weights[0] == weights[1]
    else:
        assert printed == without


def test_broken_folders_of_stages_that_are_gone_are_not_looked_at(old: Path) -> None:
    for folder in IGNORED:
        for path in (old / "data" / folder).iterdir():
            path.write_bytes(b"no file of any stage")
    for command in ("verify data", "stats data", f"train data --out other {' '.join(SMALL)}"):
        assert main([*command.split(), "-q"]) == 0, command


def test_a_finished_folder_is_finished(old: Path) -> None:
    before = {path: path.read_bytes() for path in (old / "data").rglob("*.arrow")}
    assert main(["preprocess", "day0.csv", "--schema", "log.toml", "--out", "data", *PREPARED, "-q"]) == 0
    assert {path: path.read_bytes() for path in before} == before


def test_a_folder_is_continued_with_other_settings(old: Path) -> None:
    counts = (old / "data/counts/manifest.json").read_bytes()
    call = ["preprocess", "day0.csv", "--schema", "log.toml", "--out", "data", *PREPARED, "--min-count", "2"]
    assert main([*call, "--redo", "rank", "-q"]) == 0
    assert (old / "data/counts/manifest.json").read_bytes() == counts
    assert Manifest.read(old / "data/vocabulary").config["min_count"] == 2


def test_a_folder_is_extended(old: Path) -> None:
    logs = ("day0.csv", "day1.csv", "--schema", "log.toml")
    assert main(["preprocess", *logs, "--out", "data", *PREPARED, "--extend", "-q"]) == 0
    assert main(["preprocess", *logs, "--out", "fresh", *PREPARED, "-q"]) == 0
    fresh = {path.relative_to(old / "fresh"): path.read_bytes() for path in (old / "fresh").rglob("*.arrow")}
    assert {path: (old / "data" / path).read_bytes() for path in fresh} == fresh


def test_a_folder_is_extended_with_its_own_settings(old: Path) -> None:
    logs = ("day0.csv", "day1.csv", "--schema", "log.toml")
    assert main(["preprocess", *logs, "--out", "fresh", *PREPARED, "-q"]) == 0
    assert main(["preprocess", "day0.csv", "day1.csv", "--out", "data", "--extend", "-q"]) == 0
    fresh = {path.relative_to(old / "fresh"): path.read_bytes() for path in (old / "fresh").rglob("*.arrow")}
    assert {path: (old / "data" / path).read_bytes() for path in fresh} == fresh


def test_a_folder_goes_on_with_its_hot_bytes(old: Path) -> None:
    settings = ("--embedding-dim", "4", "--batch-size", "16")
    shutil.rmtree(old / "data/shards")
    assert main(["preprocess", "day0.csv", "--schema", "log.toml", "--out", "data", *settings, "-q"]) == 0
    assert Manifest.read(old / "data/plan").config["hot_bytes"] == 1024


def test_an_unfinished_run_is_resumed(old: Path) -> None:
    assert (old / "unfinished/checkpoints/step-000000012.json").exists()
    call = ["train", "data", *SMALL, "--checkpoint-every", "6", "-q", "--out"]
    assert main([*call, "unfinished"]) == 0
    assert main([*call, "fresh"]) == 0
    order = np.load(old / "unfinished/batch_order.npy")
    np.testing.assert_array_equal(order, np.load(old / "fresh/batch_order.npy"))
    # Its first steps may have been computed by another CPU.
    found, wanted = (
        json.loads((old / run / "summary.json").read_text())["log_loss"] for run in ("unfinished", "fresh")
    )
    assert found == pytest.approx(wanted, abs=1e-4)


def test_a_run_is_continued_by_another(old: Path) -> None:
    assert main(["train", "data", *SMALL, "--init-from", "run", "--out", "next", "-q"]) == 0
    assert main(["export", "next", "--since", "run", "--out", "changes", "-q"]) == 0
    assert main(["apply", "changes", "--to", "exported", "--out", "served", "-q"]) == 0


def test_an_exported_model_is_loaded(old: Path) -> None:
    program = torch.export.load(old / "exported/model.pt2")
    assert program.module() is not None


DELETED_SETTINGS: dict[str, tuple[str, str, Any]] = {
    "--max-bad-fraction": ("columns", "max_bad_fraction", 0.5),
    "--peel-floor": ("vocabulary", "peel_floor", 64),
    "--peel-row-bytes": ("vocabulary", "peel_row_bytes", [["item", 8]]),
    "--with-replacement": ("vocabulary", "with_replacement", True),
    "--train-last": ("shards", "train_last", 1),
}
"""Of each deleted option of a stage: the folder that records it, its name there, and another value."""
STILL_RECORDED = ("--peel-row-bytes", "--with-replacement")
"""Options that follow from others now, and whose settings manifests record all the same."""

DELETED_OF_RUNS: dict[str, tuple[str, Any]] = {
    "--plan": ("plan", "online"),
    "--window": ("window", 16),
    "--kernels": ("kernels", "twins"),
    "--history-length": ("history_length", 7),
    "--attention-mlp": ("attention_mlp", [8]),
    "--last-mlp": ("last_mlp", [8]),
    "--cross-structure": ("cross_structure", "parallel"),
    "--lr-schedule-of": ("recipe.lr_schedule_of", "dense"),
    "--decay-start": ("recipe.decay_start", 3),
    "--decay-power": ("recipe.decay_power", 1.5),
    "--plateau-factor": ("recipe.plateau_factor", 0.5),
    "--plateau-patience": ("recipe.plateau_patience", 2),
    "--evaluate-time": ("recipe.evaluate_time", 60.0),
}
"""Of each deleted option of ``train``: where a run records it, and another value."""
STILL_SETTINGS = ("--kernels", "--lr-schedule-of")
"""Options that programs set still."""
OF_OTHER_MODELS = ("--history-length", "--attention-mlp", "--last-mlp", "--cross-structure")
"""Options of layers that the old run has not."""


@pytest.mark.parametrize("option", DELETED_SETTINGS)
def test_a_folder_made_with_a_deleted_option_is_not_continued(
    option: str, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, name, value = DELETED_SETTINGS[option]
    manifest = old / "data" / folder / "manifest.json"
    parts = json.loads(manifest.read_text())
    parts["config"][name] = value
    write_manifest(manifest.parent, parts)
    for later in ("samples", "plan", "shards"):
        if later != folder:
            shutil.rmtree(old / "data" / later)
    assert main(["preprocess", "day0.csv", "--schema", "log.toml", "--out", "data", *PREPARED, "-q"]) == 1
    assert_one_line_names(name if option in STILL_RECORDED else option, capsys)


@pytest.mark.parametrize("option", DELETED_OF_RUNS)
def test_a_run_made_with_a_deleted_option_is_not_resumed(
    option: str, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, value = DELETED_OF_RUNS[option]
    set_key("config.json", f"config.{name}", value)(old / "unfinished")
    call = ["train", "data", *SMALL, "--checkpoint-every", "6", "--out", "unfinished", "-q"]
    assert main(call) == 1
    assert_one_line_names(name if option in STILL_SETTINGS else option, capsys)


def assert_one_line_names(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Hold stderr to one line of an error that names ``option``; hints may follow."""
    error, *hints = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and option in error
    assert all(line.startswith(("hint: ", " ")) for line in hints)


def test_a_run_made_with_deleted_options_serves(old: Path) -> None:
    for option, (name, value) in DELETED_OF_RUNS.items():
        if option not in OF_OTHER_MODELS:
            set_key("config.json", f"config.{name}", value)(old / "run")
    _seal_again(old / "run")
    assert main(["evaluate", "run", "data", "-q"]) == 0
    assert main(["predict", "run", "day1.csv", "--out", "scores.csv", "-q"]) == 0
    assert main(["export", "run", "--out", "served", "-q"]) == 0


def _seal_again(run: Path) -> None:
    parts = json.loads((run / "manifest.json").read_text())
    for entry in parts["files"]:
        entry["bytes"], entry["xxh3_128"] = hash_file(run / entry["path"])
    write_manifest(run, parts)
