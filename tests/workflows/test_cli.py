"""The command line: help everywhere, one clear line for every mistake, JSON for machines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.workflows.cli import COMMANDS, main
from hotset.workflows.console import say

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "log.tsv"
    generate(GenerateConfig(samples=3000, seed=1, scale=100), path, workers=1)
    return path


@pytest.fixture(scope="module")
def data(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "dir"
    words = ["preprocess", str(log), "--out", str(out), "--hot-bytes", "64KiB", "--batch-size", "128"]
    assert main(words) == 0
    return out


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("command", [*(name for name in COMMANDS if name != "bench"), "bench preprocess"])
def test_every_command_has_a_help_text_and_stands_in_the_readme(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: hotset {command}" in shown and "--" in shown
    assert f"hotset {command}" in (ROOT / "README.md").read_text()


def test_usage_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {command} " in shown for command in COMMANDS)
    assert main([]) == 2 and main(["frobnicate"]) == 2


def test_a_wrong_option_is_a_usage_error(log: Path, tmp_path: Path) -> None:
    for words in (["--frobnicate"], ["--eval-fraction", "2"], ["--hot-bytes", "4Mip"]):
        with pytest.raises(SystemExit) as stopped:
            main(["preprocess", str(log), "--out", str(tmp_path / "out"), *words])
        assert stopped.value.code == 2
    assert not (tmp_path / "out").exists()


def test_what_a_user_can_mend_is_one_line_and_exit_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.tsv").write_text("0\tx\n")
    assert main(["preprocess", str(tmp_path / "bad.tsv"), "--out", str(tmp_path / "out")]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and "line 1" in error and "2 fields" in error
    assert hint.startswith("hint: ")


def test_other_settings_are_refused_and_redo_makes_the_stage_again(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preprocess", str(log), "--out", str(tmp_path / "out"), "--hot-bytes", "64KiB"]
    assert main(words) == 0
    words[-1] = "32KiB"
    assert main(words) == 1
    assert "plan was made with hot_bytes = 65536, now 32768" in capsys.readouterr().err
    assert main([*words, "--redo", "split"]) == 0
    assert main(["rank", str(tmp_path / "out"), "--min-count", "3"]) == 1
    assert "min_count = 1, now 3" in capsys.readouterr().err
    assert main(["rank", str(tmp_path / "out"), "--min-count", "3", "--redo"]) == 0
    assert not (tmp_path / "out" / "shards").exists()


def test_stages_one_by_one_give_what_preprocess_gives(log: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["ingest", str(log), "--out", str(out)]) == 0
    for stage in ("count", "rank", "encode"):
        assert main([stage, str(out)]) == 0
    assert main(["split", str(out), "--hot-bytes", "64KiB"]) == 0
    assert main(["pack", str(out), "--batch-size", "128"]) == 0
    files = sorted(path.relative_to(data) for path in data.rglob("*"))
    assert files == sorted(path.relative_to(out) for path in out.rglob("*"))
    assert all(
        (data / file).read_bytes() == (out / file).read_bytes() for file in files if (data / file).is_file()
    )


def test_stats_has_the_promised_keys(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "stats", str(data))
    assert {"name", "num_rows", "num_lookups", "top_share"} <= set(found["features"][0])
    assert len(found["features"]) == 26
    assert {"bytes", "hot_lookup_share", "hot_sample_share"} <= set(found["budgets"][0])
    assert {budget["bytes"] for budget in found["budgets"]} >= {
        2**20,
        2**22,
        2**24,
        2**26,
        2**28,
        2**30,
        65536,
    }
    chosen = next(budget for budget in found["budgets"] if budget["is_chosen"])
    samples = found["samples"]
    assert chosen["hot_sample_share"] == samples["hot"] / (samples["hot"] + samples["mixed"])
    assert {"hot_only", "mixed"} <= set(found["batches"])
    assert main(["stats", str(data)]) == 0
    assert "fully hot samples" in capsys.readouterr().out


def test_train_and_evaluate_have_the_promised_keys(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    trained = run_json(capsys, "train", str(data), "--placement", "fae", "--out", str(out))
    assert {
        "auc", "log_loss", "accuracy", "num_samples", "placement", "samples_per_second",
        "bytes_to_fast", "bytes_to_slow", "run",
    } <= set(trained)  # fmt: skip
    evaluated = run_json(capsys, "evaluate", str(out), str(data))
    for key in ("auc", "log_loss", "accuracy", "num_samples"):
        assert evaluated[key] == trained[key]
    assert main(["train", str(data), "--out", str(out)]) == 1
    assert str(out) in capsys.readouterr().err


def test_the_demo_runs_again_and_refuses_a_folder_it_did_not_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["demo", "--samples", "2000", "--out", str(tmp_path / "demo")]
    for _ in range(2):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert "all-fast" in shown and "fae" in shown and "hotset stats" in shown
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert main(["demo", "--out", str(tmp_path / "mine")]) == 1
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_preprocessing_commands_do_not_import_torch(log: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from hotset.workflows.cli import main; "
        f"status = main(['preprocess', {str(log)!r}, '--out', {str(tmp_path / 'out')!r}]); "
        f"status += main(['stats', {str(tmp_path / 'out')!r}]); "
        "assert status == 0 and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize("words", [["demo", "--samples", "500"], ["train", "DIR"], ["bench", "quality"]])
def test_without_torch_the_extra_is_named(words: list[str], tmp_path: Path) -> None:
    program = "import sys; sys.modules['torch'] = None; from hotset.workflows.cli import main"
    program += f"; sys.exit(main({words}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: hotset {words[0]} needs torch",
        "hint: pip install 'hotset[train]'",
    ]


def test_a_message_stands_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    say("error: 127.0.0.1:1234: [bold] refused")
    assert capsys.readouterr().err == "error: 127.0.0.1:1234: [bold] refused\n"
