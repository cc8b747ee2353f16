"""``hotset train``, ``evaluate``, ``predict``, ``export`` and ``apply`` as a user types them."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from hotset.pipeline.runtime import progress
from hotset.pipeline.runtime.tasks import ProgressCallback
from hotset.tests.support.scored_runs import NUM_EVALUATION, ScoredRun, run_on_criteo
from hotset.train.serving import changes as module
from hotset.train.serving.changes import TableChanges
from hotset.workflows.cli import main
from hotset.workflows.commands.train import _explain_training_loss, show_runs


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_is_shown_as_a_table(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", str(data), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "rows initialized on first use" in said.out and said.err == f"wrote {out}\n"
    assert main(["evaluate", str(out), str(data)]) == 0
    evaluated = capsys.readouterr().out
    assert said.out.startswith(evaluated)
    assert evaluated.split()[:6] == ["all", "samples", "hot", "mixed", "with", "oov"]
    assert "\nAUC   " in evaluated and "\nPR-AUC  " in evaluated and "\ncalibration  " in evaluated
    assert max(map(len, said.out.splitlines())) <= 80


def test_without_a_terminal_training_reports_in_plain_lines(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "Lines", partial(progress.Lines, every_seconds=0))
    options = ("--evaluate-every", "2", "--max-steps", "5", "--threads", "1")
    assert main(["train", str(data), "--out", str(tmp_path / "run"), *options]) == 0
    lines = capsys.readouterr().err.splitlines()
    first, last = [line for line in lines if line.startswith("train ")][:5:4]
    assert re.fullmatch(r"train \d+%: step 1, loss 0\.\d{4}", first)
    assert re.match(r"train \d+%: step 5, loss 0\.\d{4}, AUC 0\.\d{4}", last)
    assert any(re.match(r"evaluate \d+%: [\d,]+ samples, loss ", line) for line in lines)
    assert main(["train", "-q", str(data), "--out", str(tmp_path / "other"), *options]) == 0
    assert capsys.readouterr().err == ""


def test_what_one_of_several_ranks_counted_is_said_to_be_its_own(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = run_json(capsys, "train", str(data), "--out", str(tmp_path / "run"))
    exchange = {"bytes_by_rank": [{"vectors": 1024, "dense": 512}, {"vectors": 512, "dense": 1024}]}
    ranked = summary | {"exchange": exchange}
    for summaries in ([summary], [summary, ranked]):
        console = Console(file=io.StringIO(), width=80)
        show_runs(summaries, console)
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        assert sum("(rank 0)" in line for line in lines) == (6 if ranked in summaries else 0)
        assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith("samples/s  ") and lines[-2].split()[-3:] == ["-", "3", "KiB"]
    (tmp_path / "run/summary.json").write_text(json.dumps(ranked))
    assert main(["runs", str(tmp_path)]) == 0
    assert "(rank 0)" in capsys.readouterr().out


def test_a_refused_setting_is_named_as_an_option(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(data), "--out", "run", "--epochs", "0"])
    assert stopped.value.code == 2
    assert "error: --epochs must be 1 or more, got 0" in capsys.readouterr().err


def test_the_optimizer_is_named_once(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(tmp_path / "data")
    arguments = ["preprocess", str(log), "--out", data, "--hot-bytes", "64KiB", "--batch-size", "128"]
    assert main([*arguments, "--embedding-optimizer", "adam"]) == 0
    # Train follows the shards, so that no bytes differ from those that were counted.
    capsys.readouterr()
    assert main(["train", data, "--out", str(tmp_path / "follows")]) == 0
    assert "warning" not in capsys.readouterr().err
    config = json.loads((tmp_path / "follows/config.json").read_text())["config"]
    assert (config["embedding_optimizer"], config["dense_optimizer"]) == ("adam", "adam")
    assert (config["embedding_lr"], config["dense_lr"]) == (0.005, 0.001)
    # Told otherwise it obeys, and reports smaller rows to no one.
    assert main(["train", data, "--embedding-optimizer", "sgd", "--out", str(tmp_path / "told")]) == 0
    config = json.loads((tmp_path / "told/config.json").read_text())["config"]
    assert (config["embedding_optimizer"], config["embedding_lr"]) == ("sgd", 10.0)


@pytest.fixture(scope="module")
def all_hot(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of which every row is hot, with a validation part."""
    out = tmp_path_factory.mktemp("all_hot") / "data"
    settings = ("--hot-bytes", "256MiB", "--batch-size", "128", "--valid-fraction", "0.2")
    assert main(["preprocess", str(log), "--out", str(out), *settings]) == 0
    return out


@pytest.mark.parametrize(
    ("shards", "placement", "is_shown"),
    [
        ("all_hot", "lookahead", False),
        ("all_hot", "fae", False),
        ("all_hot", "hybrid", True),
        ("data", "lookahead", True),
        ("data", "all-fast", False),
    ],
)
def test_what_moved_is_printed_where_something_can_move(
    shards: str,
    placement: str,
    is_shown: bool,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = str(request.getfixturevalue(shards))
    capsys.readouterr()
    assert main(["train", folder, "--placement", placement, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "samples/s" in said.out and ("bytes to the fast tier" in said.out) == is_shown
    # That every row is hot is said once, by preprocess.
    assert "--hot-bytes" not in said.out + said.err


def test_a_log_loss_that_rises_over_the_epochs_is_said(
    all_hot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said_after(*options: str) -> str:
        run = tmp_path / "-".join(options)
        call = ["train", str(all_hot), "--evaluate-every", "7", "--dense-lr", "0.05", "--out", str(run)]
        assert main([*call, *options]) == 0
        return capsys.readouterr().err

    rise = "the log loss of the validation part rose from "
    line = next(line for line in said_after("--epochs", "5").splitlines() if line.startswith(rise))
    assert " at step " in line and line.endswith("train for fewer epochs, or give --keep-best")
    assert rise not in said_after("--epochs", "1")
    assert rise not in said_after("--epochs", "5", "--keep-best")


def test_a_model_that_learned_its_samples_by_heart_is_said_without_evaluations(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said_after(*options: str) -> str:
        run = str(tmp_path / "-".join(options))
        assert main(["train", str(data), "--log-every", "2", "--out", run, *options]) == 0
        return capsys.readouterr().err

    fall = "the training loss fell from "
    line = next(line for line in said_after("--epochs", "6").splitlines() if line.startswith(fall))
    assert line.endswith("train for one epoch, or give a validation part and --keep-best")
    assert fall not in said_after("--epochs", "1")


@pytest.mark.parametrize(
    ("losses", "test_loss", "is_said"),
    [
        ([0.9, 0.5, 0.3, 0.1], 0.7, True),
        # The test part is predicted as well as what the model had not seen.
        ([0.9, 0.5, 0.3, 0.1], 0.5, False),
        # A loss that hardly falls is no such sign, nor is one of the first epoch's beginning.
        ([0.9, 0.5, 0.48, 0.46], 0.7, False),
        ([0.9, None, 0.3, 0.1], 0.7, False),
        ([0.9, 0.5, 0.3, 0.1], None, False),
    ],
)
def test_losses_of_epochs_are_compared_with_that_of_the_test_part(
    losses: list[float | None], test_loss: float | None, is_said: bool
) -> None:
    entries: list[dict[str, Any]] = [
        {"samples": 50 * number, "loss": loss} for number, loss in enumerate(losses, 1) if loss is not None
    ]
    summary = {"num_training_samples": 200, "log_loss": test_loss, "stopped": None}
    assert (_explain_training_loss([*entries, {"step": 4}], summary, 2) is not None) == is_said
    assert _explain_training_loss(entries, summary | {"stopped": "max_steps"}, 2) is None


def test_a_model_worse_than_the_click_rate_is_said(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doubt = "above 1: the click rate alone would predict better"
    for rate, is_doubtful in (("1e9", True), ("0.1", False)):
        run = str(tmp_path / rate)
        assert main(["train", str(data), "--embedding-lr", rate, "--out", run]) == 0
        assert capsys.readouterr().err.count(doubt) == is_doubtful
        assert main(["evaluate", run, str(data)]) == 0
        assert capsys.readouterr().err.count(doubt) == is_doubtful


def test_batches_of_one_sample_do_not_diverge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = str(tmp_path / "data"), str(tmp_path / "run")
    assert main(["generate", "--samples", "400", "--out", f"{data}.tsv"]) == 0
    sizes = ["--batch-size", "1", "--eval-fraction", "0.5", "--hot-bytes", "64KiB"]
    assert main(["preprocess", f"{data}.tsv", *sizes, "--out", data]) == 0
    trained = run_json(capsys, "train", data, "--out", run)
    assert trained["num_steps"] == 200
    # A model that knows the rate of clicks alone has a log loss of 0.57.
    assert trained["log_loss"] < 0.7


@pytest.mark.real_data
@pytest.mark.slow
def test_a_newcomer_without_options_gets_the_good_recipe(
    real_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = real_data / "criteo_kaggle_uniform_110k.tsv.gz"
    data = str(tmp_path / "data")
    assert main(["preprocess", str(log), "--eval-fraction", "0.2", "--out", data]) == 0
    aucs = []
    for seed in range(3):
        run = str(tmp_path / f"run-{seed}")
        aucs.append(run_json(capsys, "train", data, "--seed", str(seed), "--out", run)["auc"])
    assert sum(aucs) / 3 >= 0.762


REFUSED = """
    --epochs 0 | --placement nowhere | --hot-bytes many | --max-time forever | --embedding-optimizer newton
    --device cuda:99 | --device tpu | --slow-bytes 1KiB | --slow-dir missing | --recipe missing.toml
    --model nets:Nope | --model nets:Net | --model missing.module:Net | --model os:getcwd
    --cross-rank 4 --model dlrm | --model-args {"a":1} | --patience 3 | --keep-best
    --init-from missing
"""


def test_no_refused_option_leaves_a_folder(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text("import torch\n\nclass Net(torch.nn.Module):\n    pass\n")
    wanted = sorted(tmp_path.iterdir())
    cases = [case.split() for line in REFUSED.splitlines() for case in line.split(" | ") if case.strip()]
    for words in cases:
        try:
            status = main(["train", str(data), "--out", "runs/new", *words])
        except SystemExit as stopped:
            assert isinstance(stopped.code, int)
            status = stopped.code
        assert status in (1, 2), words
        said = capsys.readouterr().err
        assert said.startswith("error: ") and "None" not in said, words
        assert sorted(path for path in tmp_path.iterdir() if path.name != "__pycache__") == wanted, words


def test_an_interrupt_while_results_are_shown_says_that_the_run_is_finished(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hotset.workflows.commands.train.show_quality", interrupted)
    out = tmp_path / "run"
    assert main(["train", str(data), "--out", str(out)]) == 130
    assert capsys.readouterr().err == f"interrupted: the run is finished: {out}\n"


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    return run_on_criteo(tmp_path_factory.mktemp("predict"))


def test_a_log_is_predicted_from_the_command_line(
    scored: ScoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores.parquet"
    command = ["predict", str(scored.run), str(scored.log), "--out", str(out)]
    assert main([*command, "--threads", "1"]) == 0
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
        main([*command, "--threads", "0"])
    assert "--threads must be 1 or more, got 0" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--no-label"]) == 1
    assert "test.tsv, line 1: found 40 fields, want 39 between tabs" in capsys.readouterr().err


def test_columns_of_the_log_are_kept_beside_the_scores(
    scored: ScoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores.parquet"
    command = ["predict", str(scored.run), str(scored.log), "--overwrite", "--out", str(out)]
    assert main(command) == 0
    alone = pl.read_parquet(out)
    assert main([*command, "--keep", "label,C3"]) == 0
    frame = pl.read_parquet(out)
    lines = [line.split("\t") for line in scored.log.read_text().splitlines()]
    assert frame.columns == ["probability", "label", "C3"]
    assert frame.select("label", "C3").rows() == [(line[0], line[16]) for line in lines]
    assert frame["probability"].equals(alone["probability"])
    capsys.readouterr()
    for names, message in (
        ("C3,C99", "has no column 'C99'"),
        ("C3,C3", "twice"),
        ("probability", "the scores"),
    ):
        assert main([*command, "--keep", names]) == 1
        assert message in capsys.readouterr().err
    assert pl.read_parquet(out).equals(frame)


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
        (["predict", run, tmp_path / "folder"], "folder is a folder without data files"),
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


def test_changes_are_exported_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scored = run_on_criteo(tmp_path)
    run, out = str(scored.run), str(tmp_path / "changes")
    command = ["export", run, "--since", run, "--row-type", "bf16", "--evaluate", str(scored.data)]
    assert main([*command, "--out", out]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"wrote {out}\n"
    lines = [line.split() for line in shown.out.splitlines() if line]
    assert lines[0] == ["table", "rows", "new", "changed", "gone"]
    assert lines[1][0] == "C1" and lines[1][2:] == ["0", "0", "0"]
    assert [line[0] for line in lines[-2:]] == ["AUC", "log"] and len(lines[-1]) == 5

    assert main([*command, "--out", f"{out}2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["changes"]["C26"]["num_gone"] == 0 and found["log_loss"] != found["log_loss_fp32"]
    # Shards that do not fit are found before anything is written, and a folder is never written over.
    assert main(["export", run, "--since", run, "--evaluate", run, "--out", f"{out}3"]) == 1
    assert "holds the stage 'train'" in capsys.readouterr().err and not Path(f"{out}3").exists()
    assert main(["export", run, "--since", run, "--out", out]) == 1
    assert f"error: {out} exists\n" in capsys.readouterr().err
    assert main([*command, "--out", f"{out}3", "--onnx"]) == 1
    assert "changes have no graph: --onnx is for a whole export" in capsys.readouterr().err


COUNTS = [TableChanges("site", 1200, 3, 40, 2), TableChanges("tags", 7, 0, 0, 0)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, ...]]:
    """What changes were applied, without a program, which takes seconds to record."""
    found: list[tuple[Path, ...]] = []

    def applied(*folders: Path, progress: ProgressCallback) -> list[TableChanges]:
        found.append(folders)
        return COUNTS

    monkeypatch.setattr(module, "apply_changes", applied)
    return found


def test_the_folders_go_where_they_are_named(
    calls: list[tuple[Path, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "new")
    assert main(["apply", "changes", "--to", "exported", "--out", out]) == 0
    assert calls == [(Path("exported"), Path("changes"), Path(out))]
    shown = capsys.readouterr()
    assert shown.err == f"wrote {out}\n"
    lines = [line.split() for line in shown.out.splitlines() if line]
    assert lines == [
        ["table", "rows", "new", "changed", "gone"],
        ["site", "1,200", "3", "40", "2"],
        ["tags", "7", "0", "0", "0"],
    ]
    assert main(["apply", "changes", "--to", "exported", "--out", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["out"] == out
    assert found["changes"]["site"] == {"num_rows": 1200, "num_new": 3, "num_changed": 40, "num_gone": 2}


def test_a_folder_is_never_written_over(
    calls: list[tuple[Path, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", "changes", "--to", "exported", "--out", str(tmp_path)]) == 1
    assert f"error: {tmp_path} exists\n" in capsys.readouterr().err and calls == []
    with pytest.raises(SystemExit) as stopped:
        main(["apply", str(tmp_path / "a"), "--to", str(tmp_path / "b")])
    assert stopped.value.code == 2 and calls == []
    assert "error: --out is missing" in capsys.readouterr().err


def test_folders_that_are_no_exports_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["apply", str(tmp_path / "none"), "--to", str(tmp_path), "--out", str(tmp_path / "new")]
    assert main(command) == 1
    (line, *hints) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}") and all(each.startswith("hint: ") for each in hints)
    assert not (tmp_path / "new").exists()
