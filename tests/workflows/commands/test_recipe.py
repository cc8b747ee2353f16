"""``hotset recipe`` and ``--recipe``: an experiment is one file.

Tests the options of `train`, too.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from hotset.workflows.cli import main


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main(["recipe", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_defaults_are_written_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = printed(capsys)
    found = tomllib.loads(text)
    assert found["train"]["placement"] == "lookahead" and found["preprocess"]["hot_bytes"] == "256MiB"
    assert "# embedding_lr is not set\n" in text
    (tmp_path / "recipe.toml").write_text(text)
    assert printed(capsys, tmp_path / "recipe.toml") == text
    (tmp_path / "part.toml").write_text("[train]\nepochs = 4\n")
    part = tomllib.loads(printed(capsys, tmp_path / "part.toml"))
    assert part.keys() == {"train"} and part["train"]["epochs"] == 4 and part["train"]["cache_batches"] == 1
    assert json.loads(printed(capsys, "--json", tmp_path / "part.toml"))["train"]["epochs"] == 4


def test_an_experiment_is_repeated_from_what_its_folders_say(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--hot-bytes", "40KiB", "--batch-size", "64", "--valid-fraction", "0.1", "--min-count", "2"]
    assert main(["preprocess", str(log), "--out", str(tmp_path / "first"), *options]) == 0
    options = ["--threads", "1", "--warmup-steps", "3", "--embedding-decay", "0.01", "--bottom-mlp", "8,4"]
    assert main(["train", str(tmp_path / "first"), "--out", str(tmp_path / "run"), *options]) == 0
    recipe = tmp_path / "experiment.toml"
    recipe.write_text(printed(capsys, tmp_path / "first", tmp_path / "run"))
    again = str(tmp_path / "again")
    assert main(["preprocess", str(log), "--out", again, "--recipe", str(recipe)]) == 0
    assert main(["train", again, "--out", str(tmp_path / "other"), "--recipe", str(recipe)]) == 0
    for name in ("first/shards/manifest.json", "run/weights.safetensors"):
        other = name.replace("first", "again").replace("run", "other")
        assert (tmp_path / name).read_bytes() == (tmp_path / other).read_bytes()


def test_a_schema_of_ones_own_is_not_written_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text("click,age,site\n" + "1,3,a\n0,4,b\n" * 40)
    (tmp_path / "log.toml").write_text(
        'format = "csv"\nlabel = "click"\ndense = ["age"]\n[sparse]\nsite = "text"\n'
    )
    arguments = [str(tmp_path / "log.csv"), "--schema", str(tmp_path / "log.toml"), "--batch-size", "16"]
    assert main(["preprocess", *arguments, "--out", str(tmp_path / "dir")]) == 0
    assert "# schema is in a file of your own: name it\n" in printed(capsys, tmp_path / "dir")


def test_what_has_no_options_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["recipe", str(tmp_path / "empty")]) == 1
    assert "is neither a folder of preprocess nor a run of train" in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    for text in ("{", "[]", '{"config": 3}', '{"config": {"epochs": "x"}}', '{"config": {"recipe": []}}'):
        (tmp_path / "run/config.json").write_text(text)
        assert main(["recipe", str(tmp_path / "run")]) == 1
        assert "error: " in capsys.readouterr().err
