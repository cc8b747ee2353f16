"""Commands to paste are run as they are printed, and write the folder that they promise (`provenance`)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import GIB, MIB, parse_byte_size
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.statistics.folder import provenance
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.logs.list_logs import KINDS
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_parquet
from hotset.workflows.cli import main
from hotset.workflows.report.report_commands import preprocess_command, rebuild_commands, size_option

CASES: dict[str, list[str]] = {
    "defaults": [],
    "two days": ["--eval-files", "1", "--batch-size", "32", "--order", "original", "--block-bytes", "4KiB"],
    "peeled": ["--rank-by", "peel", "--feature-dims", "C3=8", "--seed", "7"],
    "as FAE": ["--mode", "fae-code", "--hot-bytes", "16KiB", "--embedding-optimizer", "sgd"],
    "rare": ["--min-count", "3", "--feature-min-counts", "C1=2,C5=4", "--on-bad-line", "skip"],
    "no label": ["--no-label", "--eval-fraction", "0.25", "--embedding-dim", "4"],
}


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two days and a Parquet log, the current one."""
    samples = draw_samples(240, np.random.default_rng(2))
    (tmp_path / "day 0").write_bytes(text_of(samples[:150]))
    (tmp_path / "day 1").write_bytes(text_of(samples[150:]))
    (tmp_path / "unlabeled").write_bytes(text_of(samples, label=False))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str) -> None:
    program, *arguments = shlex.split(line)
    assert program == "hotset" and main(arguments) == 0


def fingerprints(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = provenance(Path(folder))["fingerprints"]
    return found


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("case", CASES)
def test_the_command_of_a_folder_writes_it_again(logs: Path, case: str) -> None:
    raw = {"two days": ["day 0", "day 1"], "no label": ["unlabeled"]}.get(case, ["day 0"])
    assert main(["preprocess", *raw, *CASES[case], "--out", "first"]) == 0
    line = preprocess_command(provenance(Path("first")), Path("second out"))
    run(line)
    assert fingerprints("first") == fingerprints("second out")
    if case == "defaults":
        assert line == "hotset preprocess 'day 0' --out 'second out'"


def test_a_schema_file_is_named_as_one(logs: Path) -> None:
    log = draw_log(90, KINDS, np.random.default_rng(3))
    write_parquet(logs / "log.parquet", log)
    (logs / "SCHEMA.toml").write_text(schema_text(log, format="parquet"))
    arguments = ["log.parquet", "--schema", "SCHEMA.toml", "--texts", "3", "--batch-size", "8"]
    assert main(["preprocess", *arguments, "--out", "first"]) == 0
    found = provenance(Path("first"))
    assert found["schema"].startswith("toml:") and found["logs"][0]["samples"] == 90
    run(preprocess_command(found, Path("second")))
    assert fingerprints("first") == fingerprints("second")


def test_provenance_names_what_a_folder_comes_from(logs: Path) -> None:
    assert main(["preprocess", "day 0", "day 1", "--eval-files", "1", "--out", "data"]) == 0
    found = provenance(Path("data"))
    assert [(log["name"], log["samples"], log["train_samples"]) for log in found["logs"]] == [
        ("day 0", 150, 150),
        ("day 1", 90, 0),
    ]
    assert found["logs"][0]["bytes"] == (logs / "day 0").stat().st_size
    assert (found["schema"], found["is_adopted"], found["bad_lines"]) == ("criteo-kaggle", False, {})
    assert found["fingerprints"]["shards"] == Manifest.read(logs / "data" / "shards").fingerprint
    assert main(["preprocess", "day 1", "--like", "data", "--out", "other"]) == 0
    adopted = provenance(Path("other"))
    assert adopted["is_adopted"]
    assert preprocess_command(adopted, Path("x")) == "hotset preprocess 'day 1' --like MODEL_DIR --out x"


@pytest.mark.parametrize("first", ["split", "rank"])
def test_rebuilding_with_another_setting_is_a_run_from_scratch_with_it(logs: Path, first: str) -> None:
    settings = ["--embedding-dim", "8", "--batch-size", "16", "--min-count", "2"]
    other = {"split": {"hot_bytes": "3KiB"}, "rank": {"rank_by": "peel"}}[first]
    given = [word for name, text in other.items() for word in (f"--{name.replace('_', '-')}", text)]
    usual = ["--hot-bytes", "2KiB"] if first == "rank" else []
    for folder, options in (("first", usual), ("wanted", [*usual, *given])):
        assert main(["preprocess", "day 0", *settings, *options, "--out", folder]) == 0
    before = fingerprints("first")
    for line in rebuild_commands(provenance(Path("first")), Path("first"), first=first, **other):
        run(line)
    assert fingerprints("first") == fingerprints("wanted") != before


def test_sizes_are_short_and_never_below(rng: np.random.Generator) -> None:
    for size in [
        1,
        1023,
        1024,
        2_965_821,
        16 * MIB,
        300 * MIB + 5,
        7 * GIB,
        *rng.integers(1, 2**40, 200).tolist(),
    ]:
        text = size_option(size)
        assert size <= parse_byte_size(text) <= 1.011 * size and len(text) <= 8
    assert [size_option(size) for size in (2_965_821, 16 * MIB, 300 * MIB + 5)] == [
        "2.83MiB",
        "16MiB",
        "301MiB",
    ]
