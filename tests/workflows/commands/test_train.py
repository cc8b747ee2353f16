"""``hotset train`` and ``hotset evaluate``."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.workflows.cli import main
from hotset.workflows.commands.train import show_runs


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


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


def test_what_one_of_several_ranks_counted_is_said_to_be_its_own(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = run_json(capsys, "train", str(data), "--out", str(tmp_path / "run"))
    exchange = {"bytes_by_rank": [{"vectors": 1024, "dense": 512}, {"vectors": 512, "dense": 1024}]}
    ranked = summary | {"exchange": exchange}
    for summaries in ([summary], [summary, ranked]):
        console = Console(file=io.StringIO(), width=80)
        show_runs(summaries, console, with_scores=False)
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        assert sum("(rank 0)" in line for line in lines) == (6 if ranked in summaries else 0)
        assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith("samples/s  ") and lines[-1].split()[-3:] == ["-", "3", "KiB"]
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
    assert (config["embedding_lr"], config["dense_lr"]) == (0.001, 0.001)
    # Told otherwise it obeys, and reports smaller rows to no one.
    assert main(["train", data, "--embedding-optimizer", "sgd", "--out", str(tmp_path / "told")]) == 0
    config = json.loads((tmp_path / "told/config.json").read_text())["config"]
    assert (config["embedding_optimizer"], config["embedding_lr"]) == ("sgd", 10.0)


def test_that_every_row_is_hot_is_said(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(tmp_path / "data")
    assert main(["preprocess", str(log), "--out", data, "--batch-size", "128"]) == 0
    said = "rows fit in --hot-bytes, so every row is hot"
    assert said in capsys.readouterr().err
    # Samples that are only evaluated are not placed.
    assert main(["preprocess", str(log), "--like", data, "--out", str(tmp_path / "next")]) == 0
    assert said not in capsys.readouterr().err
    assert main(["train", data, "--out", str(tmp_path / "lookahead")]) == 0
    assert said in capsys.readouterr().err
    # Of placements that move rows whatever is hot, or none anyway, it would explain nothing.
    assert main(["train", data, "--placement", "hybrid", "--out", str(tmp_path / "hybrid")]) == 0
    assert said not in capsys.readouterr().err
    assert main(["stats", data]) == 0
    assert said in capsys.readouterr().out


def test_nothing_of_the_sort_is_said_where_rows_are_cold(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", str(data)]) == 0
    assert main(["train", str(data), "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "every row is hot" not in said.out + said.err


def test_batches_of_one_sample_do_not_diverge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = str(tmp_path / "data"), str(tmp_path / "run")
    assert main(["generate", "--samples", "400", "--out", f"{data}.tsv"]) == 0
    sizes = ["--batch-size", "1", "--eval-fraction", "0.5", "--hot-bytes", "64KiB"]
    assert main(["preprocess", f"{data}.tsv", *sizes, "--out", data]) == 0
    trained = run_json(capsys, "train", data, "--out", run)
    assert trained["num_steps"] == 200
    # A model that knows the rate of clicks alone has a log loss of 0.57.
    assert trained["log_loss"] < 0.7
    assert run_json(capsys, "evaluate", run, data)["log_loss"] == trained["log_loss"]


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
