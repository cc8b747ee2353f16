"""A new log gets the ids of the log a model was trained on, and no sample of it trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats.arrow_files import fixed_lists, read_batch
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.pipeline.stages.adopt import adopt
from hotset.pipeline.verify.verify import verify
from hotset.workflows.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adopt")
    generate(GenerateConfig(samples=2000, scale=100), folder / "day1.tsv", workers=1)
    generate(GenerateConfig(samples=700, scale=100, start=2000), folder / "day2.tsv", workers=1)
    words = ["preprocess", str(folder / "day1.tsv"), "--out", str(folder / "one"), "--hot-bytes", "64KiB"]
    assert main([*words, "--batch-size", "128", "--eval-fraction", "0"]) == 0
    return folder


def test_ids_are_those_of_a_log_that_holds_both_days(model: Path, tmp_path: Path) -> None:
    days = [str(model / "day1.tsv"), str(model / "day2.tsv")]
    words = ["preprocess", *days, "--eval-files", "1", "--hot-bytes", "64KiB", "--batch-size", "128"]
    assert main([*words, "--out", str(tmp_path / "both")]) == 0
    assert main(["preprocess", days[1], "--like", str(model / "one"), "--out", str(tmp_path / "two")]) == 0
    together, alone = (Manifest.read(tmp_path / name / "samples") for name in ("both", "two"))
    ids = [
        fixed_lists(read_batch(samples, samples.files[-1]).column("ids"), 26, np.int32)
        for samples in (together, alone)
    ]
    np.testing.assert_array_equal(ids[0], ids[1])
    shards = [Manifest.read(tmp_path / name / "shards") for name in ("both", "two")]
    evaluation = [
        [entry.xxh3_128 for entry in folder.files if entry.facts["kind"] == "evaluation"] for folder in shards
    ]
    assert evaluation[0] == evaluation[1]
    assert shards[1].totals["samples"] == {"hot_only": 0, "mixed": 0, "evaluation": 700}
    assert shards[1].config["batch_size"] == 128
    assert verify(tmp_path / "two") == []


def test_the_same_command_finds_it_finished_and_counting_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preprocess", str(model / "day2.tsv"), "--out", str(tmp_path / "two")]
    assert main([*words, "--like", str(model / "one")]) == 0
    before = sorted((path, path.read_bytes()) for path in tmp_path.rglob("*.*"))
    assert main([*words, "--like", str(model / "one")]) == 0
    assert before == sorted((path, path.read_bytes()) for path in tmp_path.rglob("*.*"))
    assert main(words) == 1
    assert "holds stage 'adopt', want 'rank'" in capsys.readouterr().err


def test_a_model_of_another_day_is_evaluated(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preprocess", str(model / "day2.tsv"), "--like", str(model / "one")]
    assert main([*words, "--out", str(tmp_path / "two")]) == 0
    assert main(["train", str(model / "one"), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / "two")]) == 0
    samples = [
        line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("samples ")
    ]
    assert samples == ["700"]
    assert main(["train", str(tmp_path / "two"), "--out", str(tmp_path / "none")]) == 1
    assert "no training batch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"sparse": ["C1", "site"]}, "the log has C1, C2"), ({"schema": "other"}, "under different schemas")],
)
def test_other_features_are_refused(
    model: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    columns, vocabulary = (Manifest.read(model / "one" / name) for name in ("columns", "vocabulary"))
    other = replace(columns, totals=columns.totals | changes)
    with pytest.raises(ManifestError, match=message):
        adopt(columns, other, vocabulary, tmp_path / "out")
