"""The smallest case of each script runs and writes what made it.

Tests `ranks`, `harness`, `polars_program`, `training`, `placements`, `kills`, `quality`, `logs`
and `processes`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.workflows.bench import harness, kills, ranks
from hotset.workflows.cli import main
from hotset.workflows.command_list import command_class


def run(script: str, out: Path, *arguments: object) -> dict[str, Any]:
    """Return the result that a script writes."""
    module = importlib.import_module(f"hotset.workflows.bench.{script}")
    words = [*map(str, arguments), "--out", str(out / "result.json"), "--scratch", str(out)]
    assert harness.run_script(module.PARSER, module.measure, words) == 0
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    assert {"cpu", "commit", "libraries", "python"} <= found["machine"].keys()
    assert "out" not in found["settings"] and "scratch" not in found["settings"]
    return found


@pytest.fixture
def commands_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scripts run commands of hotset in this process; starting one takes longer than a small case."""
    time_process = harness.time_process

    def time_here(words: Sequence[str], status: int = 0) -> harness.Seconds:
        arguments = list(itertools.dropwhile(lambda word: word == "env" or "=" in word, words))
        if arguments[:3] == [sys.executable, "-m", "hotset"]:
            del arguments[:3]
        elif arguments[0].endswith(".venv/bin/hotset"):
            del arguments[0]
        else:
            return time_process(words, status)
        begin = time.perf_counter()
        try:
            ended = main(arguments)
        except SystemExit as end:  # how a help text ends
            ended = int(end.code or 0)
        assert ended == status
        seconds = time.perf_counter() - begin
        return seconds, seconds

    monkeypatch.setattr(harness, "time_process", time_here)

    run_hotset = harness.run_hotset

    def run_here(arguments: Sequence[str], scratch: Path, num_ranks: int = 1) -> None:
        if num_ranks > 1:
            run_hotset(arguments, scratch, num_ranks)
        else:
            assert main(list(arguments)) == 0

    monkeypatch.setattr(harness, "run_hotset", run_here)

    def measure_here(scratch: Path, function: Any, warm_up: Any, job: Any, *more: Any, **_: int) -> Any:
        return harness._measure(scratch, function, warm_up, job, more, room_bytes=0)

    monkeypatch.setattr(harness, "measure_in_fresh_process", measure_here)
    monkeypatch.setattr(harness, "memory_limit", lambda _: nullcontext())


@pytest.mark.slow
@pytest.mark.usefixtures("commands_in_process")
def test_preprocess_writes_the_samples_of_polars(tmp_path: Path) -> None:
    found = run("preprocess", tmp_path, "--samples", 3000, "--rounds", 1)
    assert found["ratios"]["polars / hotset"]["wall"] > 0 and found["data"]["num_samples"] == 3000
    assert found["processes"]["ratio"]["cpu"] > 0


@pytest.mark.slow
def test_pack_writes_the_same_bytes_in_passes_and_in_two_phases(tmp_path: Path) -> None:
    found = run("preprocess", tmp_path, "--phases", "--limit", "600MiB", "--times", 0.01, "--rounds", 1)
    assert found["equal_bytes"] and set(found["ways"]) == {"passes", "two phases"}


@pytest.mark.slow
@pytest.mark.usefixtures("commands_in_process")
def test_preprocess_grows(tmp_path: Path) -> None:
    runs = run("preprocess", tmp_path, "--growth", "2000")["runs"]
    assert [each["num_samples"] for each in runs] == [2000]
    assert all(each["polars"]["samples_per_second"] > 0 for each in runs)


@pytest.mark.slow
def test_splits_are_counted_by_batch_size_and_budget(tmp_path: Path) -> None:
    sizes = ("--batch-sizes", 256, 512, "--budgets", 1, "--ranks", 2, 4)
    rows = run("ranks", tmp_path, "splits", "--samples", 4000, *sizes)["comparisons"]
    assert [(row["batch_size"], row["devices"]) for row in rows] == [(256, 2), (256, 4), (512, 2), (512, 4)]
    for row in rows:
        crossing = {name: split["crossing_kb"] for name, split in row["splits"].items()}
        assert min(crossing.values()) == crossing["chosen split"] and row["excess"] < 0.01


@pytest.mark.slow
@pytest.mark.usefixtures("commands_in_process")
def test_logs_of_every_form_are_measured(tmp_path: Path) -> None:
    parts = ("--groups", 3, "--files", 3, "--rounds", 1)
    # The first cap is refused, and what its hint names is measured.
    forms = ("--forms", "columns parquet", "--columns", 20, "--megabytes", 1, "--memory", 8)
    found = run("logs", tmp_path, *forms, "--samples", 200, *parts)
    assert [each["refused_mib"] for each in found["memory"]] == [8, 8]
    assert all(0 < each["of_cap"] <= 1.05 for each in found["memory"])
    assert found["small_parts"]["groups_over_one"]["cpu"] > 0
    assert {*found["speeds"]} == {"samples", "csv", "parquet"}


def test_a_checkout_of_dlrm_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module("hotset.workflows.bench.preprocess")
    words = ["--dlrm", str(tmp_path), "--scratch", str(tmp_path)]
    assert harness.run_script(module.PARSER, module.measure, words) == 1
    assert "has no data_utils.py" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dlrm", "dcnv2"])
def test_train_step(model: str, tmp_path: Path) -> None:
    shape = ("--batch-sizes", 64, "--embedding-dims", 8, "--threads", 1, "--model", model)
    rounds = ("--rounds", 1, "--round-samples", 256)
    ratios = {each["name"]: each for each in run("training", tmp_path, "steps", *shape, *rounds)["ratios"]}
    assert ratios["torch fp32"]["wall_ratio"] == 1.0 and ratios["hotset fp32"]["cpu_ratio"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("commands_in_process")
def test_checkouts(tmp_path: Path) -> None:
    log = ("--samples", 1000, "--train-samples", 2000, "--batch-sizes", 64, "--embedding-dims", 8)
    once = ("--threads", 1, "--placements", "all-fast", "--epochs", 2, "--rounds", 1)
    other = Path(__file__).resolve().parents[3]
    found = run("processes", tmp_path, "--other", other, *log, *once)
    assert found["preprocess"]["cpu_ratio"] > 0 and len(found["train"]) == 1
    assert found["commits"]["this"] == found["commits"]["other"]


@pytest.mark.slow
@pytest.mark.usefixtures("commands_in_process")
def test_the_first_commands_of_a_user(tmp_path: Path) -> None:
    found = run("processes", tmp_path, "--demo-samples", 3000, "--rounds", 1)
    demo = found["demo"]
    assert demo["cold"]["wall_seconds"] > 0 and len(demo["rounds"]["warm"]) == 1


@pytest.mark.slow
def test_window(tmp_path: Path) -> None:
    log = ("--samples", 20000, "--batch-size", 64, "--order", "original", "--epochs", 1)
    cases = run("placements", tmp_path, "window", *log)["cases"]
    assert len(cases) == 6 and all(case["batches"] > 100 for case in cases)
    assert all(abs(case["excess"]) < 0.001 for case in cases)


@pytest.mark.slow
def test_placements(tmp_path: Path) -> None:
    log = ("--samples", 8000, "--batch-size", 128, "--shares", 0.1)
    (share,) = run("placements", tmp_path, *log, "--rounds", 1)["shares"]
    assert share["bytes"]["hybrid"]["to_fast"] == 26 * 16 * 4
    assert share["ratios"]["lookahead / belady"] >= 1
    assert share["rounds"]["lookahead"][0]["auc"] == share["rounds"]["all-fast"][0]["auc"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated log of a few thousand samples."""
    path = tmp_path_factory.mktemp("log") / "log.tsv"
    generate(GenerateConfig(samples=4000, scale=100), path)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("commands_in_process")
def test_quality_of_variations(log: Path, tmp_path: Path) -> None:
    varied = ("--vary", "--placement all-fast", "--vary", "--placement lookahead")
    found = run("quality", tmp_path, "seeds", "--data", log, "--seeds", 2, *varied)
    first, second = found["auc"].values()
    assert first == second and found["auc_difference"]["--placement lookahead"]["mean"] == 0.0


@pytest.mark.slow
def test_kills(tmp_path: Path) -> None:
    found = run("kills", tmp_path, "--kills", 1, "--samples", 3000)
    assert found["faults"] == [] and found["identical"] == found["folders"] >= 1


def test_killed_trainings_have_options_of_today(tmp_path: Path) -> None:
    for of in ("train", "ranks", "restarts"):
        for kind in kills._training_kinds(tmp_path, tmp_path, of):
            command, *words = kind.arguments
            command_class(command).parse(command, [*words, "--out", str(tmp_path / "out")])


@pytest.mark.slow
def test_a_checkpoint_of_few_rows_stalls_less(tmp_path: Path) -> None:
    stall = kills.measure_stall(200_000, tmp_path)
    assert len(stall["all_changed_ms"]) == len(stall["copy_ms"]) == 5
    assert min(stall["few_changed_ms"]) < max(stall["all_changed_ms"])


@pytest.mark.slow
def test_orders(tmp_path: Path, log: Path) -> None:
    budgets = run("placements", tmp_path, "orders", "--data", log)["budgets"]
    assert budgets[-1]["peel"]["hot_sample_share"] == 1.0


@pytest.mark.slow
def test_bytes_between_ranks(tmp_path: Path) -> None:
    (two,) = run("ranks", tmp_path, "bytes", "--samples", 20_000, "--ranks", 2)["ranks"]
    rows = two["rows_per_sample"]
    assert rows["every lookup"] > rows["deduplicated"] > rows["owners by use"] >= rows["least possible"]


@pytest.mark.slow
def test_bytes_of_codecs(tmp_path: Path) -> None:
    slices = run("ranks", tmp_path, "codecs", "--samples", 4000)["slices"]
    assert slices[0]["ratios"]["distinct rows, int8"] > slices[0]["ratios"]["distinct rows, fp16"]


@pytest.mark.slow
@pytest.mark.usefixtures("commands_in_process")
def test_two_ranks_end_with_the_bits_of_one_process(tmp_path: Path) -> None:
    found = run("ranks", tmp_path, "speed", "--samples", 20_000, "--rounds", 1)
    assert found["has_equal_bits"] and len(found["contestants"]) == 3


@pytest.mark.slow
def test_files_are_opened(tmp_path: Path) -> None:
    found = run("training", tmp_path, "steps", "--open-files", 200)
    assert 0 < found["seconds_to_open"] < found["seconds_to_first_step"]


@pytest.mark.slow
@pytest.mark.usefixtures("commands_in_process")
def test_larger_than_memory_ends_with_equal_bits(tmp_path: Path) -> None:
    sizes = ("--memory", "640MiB", "--times", 0.25, "--batches", 2, "--cold-shares", 0.1, "--rounds", 1)
    (share,) = run("training", tmp_path, "memory", *sizes)["shares"]
    assert share["equal_bits"] and len(share["contestants"]) == 3


def test_a_result_that_cannot_be_written_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = harness.new_parser(harness.__spec__, "Measure.")
    words = ["--out", str(tmp_path / "nowhere/result.json")]
    assert harness.run_script(parser, lambda *_: pytest.fail("measured"), words) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_candidates_take_turns() -> None:
    calls: list[str] = []
    turns = {name: lambda name=name: calls.append(name) for name in "ab"}
    harness.take_turns(turns, 3)
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert harness.median_ratio([2.0, 9.0, 4.0], [1.0, 1.0, 2.0]) == 2.0


@pytest.mark.slow
def test_examples_have_the_scores_of_plain_torch(log: Path, tmp_path: Path) -> None:
    sizes = ("--samples", 3000, "--seeds", 1, "--epochs", 1)
    found = run("quality", tmp_path, "examples", *sizes, "--data", log)
    compared = [of_label for of_model in found["auc"].values() for of_label in of_model.values()]
    assert len(compared) == 6
    for each in (*compared, *found["real"]["auc"].values()):
        assert abs(each["difference"]["plain torch"]["mean"]) < 1e-3
    assert set(found["conversions"]) == {"after a click", "click and conversion"}


def test_what_differs_too_far_is_a_fault() -> None:
    near = {"ranks": 1, "first_losses": 1e-6, "all_losses": 2e-4, "auc": 0.0}
    row = {"log": "lists", "optimizer": "sgd", "rows": "split", "from_hotset": [near], "between": [near]}
    assert ranks.faults_of_engines(row) == []
    for name, far in (("first_losses", 2e-5), ("all_losses", 3e-4), ("auc", 6e-4)):
        (fault,) = ranks.faults_of_engines(row | {"from_hotset": [near | {name: far}]})
        assert fault.startswith(f"lists, sgd, split, 1 ranks: {name} differ by {far:.2g}, more than")
    counted = {"all_to_all": 1000.0, "all_reduce": 500.0, "other": 3.0}
    mixed = {"all_to_all_calls": 5, "counted": counted, "predicted": {"all_to_all": 980, "all_reduce": 500}}
    assert ranks.faults_of({"ranks": 2, "split": "FAE", "mixed": mixed}) == []
    assert len(ranks.faults_of({"ranks": 2, "split": "FAE", "hot_only": mixed})) == 1
    few = mixed | {"predicted": {"all_to_all": 900, "all_reduce": 700}}
    assert len(ranks.faults_of({"ranks": 2, "split": "FAE", "mixed": few})) == 2
