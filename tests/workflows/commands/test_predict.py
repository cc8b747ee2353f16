"""``hotset predict`` as a user types it."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from hotset.tests.support.scored_runs import NUM_EVALUATION, ScoredRun, run_on_criteo
from hotset.workflows.cli import main


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    return run_on_criteo(tmp_path_factory.mktemp("predict"))


def test_a_log_is_predicted_from_the_command_line(
    scored: ScoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores.parquet"
    command = ["predict", str(scored.run), str(scored.log), "--out", str(out)]
    assert main([*command, "--batch-size", "32", "--threads", "1"]) == 0
    assert capsys.readouterr() == ("", f"wrote {NUM_EVALUATION} predictions to {out}\n")
    frame = pl.read_parquet(out)
    assert frame.columns == ["probability"] and frame["probability"].is_between(0, 1).all()

    assert main(command) == 1
    assert "exists" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "num_samples": NUM_EVALUATION}
    assert pl.read_parquet(out)["probability"].len() == NUM_EVALUATION

    # Wrong usage and a log of labels that is said to have none.
    with pytest.raises(SystemExit):
        main([*command, "--batch-size", "0"])
    assert "--batch-size must be 1 or more, got 0" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--no-label"]) == 1
    assert "test.tsv, line 1: found 40 fields, want 39 between tabs" in capsys.readouterr().err


def test_what_cannot_be_read_or_written_is_one_line_and_leaves_nothing(
    scored: ScoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of `predict` and of `export`, which open runs alike."""
    run, log, out = scored.run, scored.log, tmp_path / "out"
    (tmp_path / "folder").mkdir()
    packed = gzip.compress(log.read_bytes())
    (tmp_path / "cut.tsv.gz").write_bytes(packed[: len(packed) // 2])
    shutil.copytree(run, tmp_path / "bare", ignore=shutil.ignore_patterns("weights.safetensors"))
    shutil.copytree(run, tmp_path / "begun", ignore=shutil.ignore_patterns("summary.json"))
    before = sorted(tmp_path.rglob("*"))
    cases: list[tuple[list[Path | str], str]] = [
        (["predict", run, tmp_path / "none.tsv"], "none.tsv cannot be read: No such file"),
        (["predict", run, tmp_path / "folder"], "folder cannot be read: Is a directory"),
        (["predict", run, tmp_path / "cut.tsv.gz"], "cut.tsv.gz cannot be read to its end"),
        (["predict", run, log, "--vocabulary", tmp_path / "none"], "none/vocabulary does not exist"),
        (["predict", run, log, "--vocabulary", log], f"{log} is not a folder"),
    ]
    commands: list[tuple[str, list[Path | str]]] = [
        ("predict", [log]),
        ("export", []),
        ("export", ["--since", run]),
    ]
    for name, rest in commands:
        cases += [
            ([name, tmp_path / "none", *rest], "none does not exist"),
            ([name, log, *rest], f"{log} is not a folder"),
            ([name, scored.data, *rest], "data holds no training run: it has no summary.json"),
            ([name, tmp_path / "begun", *rest], "begun is unfinished: it has no summary.json"),
            ([name, tmp_path / "bare", *rest], "bare/weights.safetensors cannot be read: No such file"),
        ]
    cases += [
        (["export", run, "--since", tmp_path / "none"], "none does not exist"),
        (["export", run, "--since", run, "--evaluate", tmp_path / "none"], "none does not exist"),
    ]
    for arguments, wanted in cases:
        assert main([*map(str, arguments), "--out", str(out)]) == 1
        shown = capsys.readouterr()
        line, *hints = shown.err.splitlines()
        assert line.startswith("error: ") and wanted in line and shown.out == ""
        assert all(hint.startswith("hint: ") for hint in hints) and len(hints) <= 1
    for target, wanted in (
        (tmp_path / "no/such/out", "such is not a directory"),
        (tmp_path / "folder", "folder"),
    ):
        for words in (["predict", str(run), str(log)], ["export", str(run), "--since", str(run)]):
            assert main([*words, "--out", str(target)]) == 1
            assert wanted in capsys.readouterr().err.splitlines()[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_arguments_that_are_missing_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["predict"])
    assert capsys.readouterr().err.startswith("error: RUN, LOG and --out are missing\n")
