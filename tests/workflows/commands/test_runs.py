"""``hotset runs``: what runs reached, what differs, and their curves.

Tests `runs` and `runs`, too.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.tests.support.browser import open_page
from hotset.workflows.cli import main
from hotset.workflows.commands.runs import differing_settings, groups_of, read_runs, show_run_list
from hotset.workflows.report.charts import curves_chart


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, the second in a folder of its own, and what is none."""
    folder = tmp_path_factory.mktemp("runs")
    common = ["--threads", "1", "--log-every", "1", "-q"]
    assert main(["train", str(data), "--out", str(folder / "plain"), *common]) == 0
    warm = ["--warmup-steps", "3", "--dense-lr", "0.01", "--evaluate-every", "2"]
    assert main(["train", str(data), "--out", str(folder / "day 2/warm"), *common, *warm]) == 0
    (folder / "notes").mkdir()
    (folder / "notes/summary.json").write_text("{")
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main(["runs", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_runs_are_listed_with_what_differs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, runs, "--json"))["runs"]
    assert {run["run"] for run in found} == {"plain", "day 2/warm"}
    assert found[0]["summary"]["auc"] >= found[1]["summary"]["auc"]
    by_name = {run["run"]: run for run in found}
    assert by_name["day 2/warm"]["differs"] == {"dense_lr": 0.01, "evaluate_every": 2, "warmup_steps": 3}
    console = Console(file=io.StringIO(), width=80)
    show_run_list(read_runs(runs), console)
    assert isinstance(console.file, io.StringIO)
    assert max(map(len, console.file.getvalue().splitlines())) <= 80
    shown = printed(capsys, runs)
    assert f"{found[0]['summary']['auc']:.4f}" in shown and "warmup_steps" in shown.replace("\n", "")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_word_is_broken_on_a_narrow_terminal(runs: Path, width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    show_run_list(read_runs(runs), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    words = {word.rstrip(",") for line in lines for word in line.split()}
    assert {"run", "samples/s", "evaluate_every", "warmup_steps", "dense_lr", "0.01"} <= words


def test_schemas_and_fingerprints_are_listed_in_a_word(tmp_path: Path) -> None:
    for name, schema, shards in (
        ("own", 'format = "csv"\nlabel = "click"\n', "ab" * 16),
        ("kaggle", "criteo-kaggle", "cd" * 16),
    ):
        (tmp_path / name).mkdir()
        settings = {"schema": schema, "shards": shards}
        (tmp_path / name / "config.json").write_text(json.dumps(settings))
    console = Console(file=io.StringIO(), width=200)
    show_run_list(read_runs(tmp_path), console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert re.search(r"^own .* [0-9a-f]{8} \(of a file\) +abababab *$", shown, re.MULTILINE)
    assert re.search(r"^kaggle .* criteo-kaggle +cdcdcdcd *$", shown, re.MULTILINE)
    assert "label" not in shown


def test_settings_of_nested_records_are_called_as_their_options(tmp_path: Path) -> None:
    configs = {
        "first": {"init_from": None, "exchange": None},
        "second": {
            "init_from": {"run": "ab" * 16, "id_map": "cd" * 16},
            "exchange": {"vectors": "int8", "dense": "bf16", "ranks": 2},
        },
    }
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    runs = read_runs(tmp_path)
    assert differing_settings(runs) == ["exchange", "exchange_dense", "id_map", "init_from", "ranks"]
    assert runs[1].settings["init_from"] == "ab" * 16 and runs[1].settings["exchange"] == "int8"


def test_a_run_says_what_made_it(runs: Path) -> None:
    found = json.loads((runs / "plain/summary.json").read_text())["provenance"]
    assert "train" in found["command"] and found["machine"]["cores"] >= 1 and "commit" in found


def test_a_page_has_the_table_and_the_curves(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, runs, "--html", tmp_path / "runs.html")
    page = (tmp_path / "runs.html").read_text()
    own = page.partition("<script>")[0]
    assert own.count("<tr>") == 6 and own.count('<div class="chart"') == 2
    assert "://" not in own and "prefers-color-scheme: dark" in own and 'class="scroll"' in own
    # The names of runs stay in sight where a phone scrolls the table, and no row says nothing.
    assert ":first-child { position: sticky; left: 0;" in own and "<td><div>plain</div></td>" in own
    shutil.copytree(runs, tmp_path / "copied")
    summary = tmp_path / "copied/plain/summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"provenance": None}))
    printed(capsys, tmp_path / "copied", "--html", tmp_path / "runs.html")
    assert (tmp_path / "runs.html").read_text().partition("<script>")[0].count("<tr>") == 5


@pytest.mark.slow
def test_a_browser_draws_the_page(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, runs, "--html", tmp_path / "runs.html")
    seen = open_page(tmp_path / "runs.html", tmp_path, dark=True)
    assert seen.console == [] and seen.requests == [] and 'data-drawn="2"' in seen.dom


def test_equal_curves_are_one_line() -> None:
    pytest.importorskip("altair")
    curve = [(1, 0.5), (2, 0.4)]
    curves = {
        "one": curve,
        "other": [(1, 0.6), (2, 0.5)],
        "two": list(curve),
        "none": [],
        "three": list(curve),
    }
    spec = curves_chart("loss", curves)
    points = spec["data"]["values"]
    assert [(point["name"], point["step"]) for point in points] == [
        ("one = two and 1 more", 1), ("one = two and 1 more", 2), ("other", 1), ("other", 2),
    ]  # fmt: skip


def write_run(folder: Path, config: dict[str, Any], summary: dict[str, Any] | None = None) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))


def test_runs_are_grouped_by_test_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A better AUC on another test part is not better, and settings of other placements are no difference."""
    first = {"log_loss": 0.5, "normalized_entropy": 0.8, "num_samples": 100}
    second = {"log_loss": 0.4, "normalized_entropy": 0.8, "num_samples": 100}
    runs: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
        "a": ({"placement": "fae", "cache_policy": "lru", "shards": "s"}, first | {"auc": 0.7}),
        "b": ({"placement": "lookahead", "cache_policy": "lfu", "shards": "s"}, first | {"auc": 0.72}),
        "c": ({"placement": "cache", "cache_policy": "lfu", "shards": "t"}, second | {"auc": 0.9}),
        "d": ({"placement": "cache", "cache_policy": "lru", "shards": "t"}, second | {"auc": 0.8}),
        "e": ({"placement": "fae", "fae_variant": "code", "shards": "s"}, None),
        "f": ({"placement": "fae", "shards": "u"}, None),
    }
    for name, (config, summary) in runs.items():
        write_run(tmp_path / name, config, summary)
    groups = groups_of(read_runs(tmp_path))
    # An unfinished run is with those of its shards, and last where none is scored.
    assert [[run.name for run in group] for group in groups] == [["c", "d"], ["b", "a", "e"], ["f"]]
    assert [differing_settings(group) for group in groups] == [
        ["cache_policy"],
        ["placement", "fae_variant"],
        [],
    ]
    shown = printed(capsys, tmp_path)
    assert "Test part of 100 samples, log loss 0.6250 without a model" in shown
    assert "log loss 0.5000 without a model" in shown and "Without a test score" in shown
    found = json.loads(printed(capsys, tmp_path, "--compare", "--json"))["settings"]
    assert [each["difference_auc"] for each in found] == [
        None,
        pytest.approx(-0.1),
        None,
        pytest.approx(-0.02),
    ]


def test_a_run_that_is_unfinished_or_damaged_is_listed_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("begun", "damaged", "<b>"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"epochs": 1}')
    (tmp_path / "damaged/metrics.jsonl").write_text("{")
    lines = [
        {"step": 1, "loss": 0.5},
        {"step": True, "loss": 1.0},
        {"step": 2, "validation": 3},
        {"step": 3, "validation": {"auc": None}},
        {"step": 4, "evaluation": {"auc": 0.7}},
        ["x"],
    ]
    (tmp_path / "begun/metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found: list[dict[str, Any]] = json.loads(printed(capsys, tmp_path, "--json"))["runs"]
    assert all(run["differs"] == {} for run in found)  # what could not be read does not differ
    wanted = {"begun": True, "damaged": False, "<b>": True}
    assert {run["run"]: run["fault"] is None for run in found} == wanted
    shown = printed(capsys, tmp_path, "--html", tmp_path / "page.html")
    assert "unfinished" in shown and "damaged" in shown
    page = (tmp_path / "page.html").read_text()
    own = page.partition("<script>")[0]
    assert "<b>" not in own and "&lt;b&gt;" in own and '<div class="chart"' not in own


def test_a_folder_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 1
    assert "holds no training run" in capsys.readouterr().err
    assert main(["runs", str(tmp_path / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_settings_are_compared_over_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Dim 32 is better by 0.01 and 0.03 with the same seeds, and has one seed more.
    scores = {(16, 0): 0.70, (16, 1): 0.72, (32, 0): 0.71, (32, 1): 0.75, (32, 2): 0.73}
    for (dim, seed), auc in scores.items():
        folder = tmp_path / f"{dim}-{seed}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"staging_bytes": dim, "seed": seed}))
        summary = {"auc": auc, "log_loss": 0.5, "samples_per_second": 100.0 * dim}
        (folder / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished/config.json").write_text(json.dumps({"staging_bytes": 64, "seed": 0}))
    best, other = json.loads(printed(capsys, tmp_path, "--compare", "--json"))["settings"]
    assert best["settings"] == {"staging_bytes": 32} and best["seeds"] == [0, 1, 2]
    assert best["difference_auc"] is None and best["mean_auc"] == pytest.approx(0.73)
    assert best["deviation_auc"] == pytest.approx(0.02) and best["mean_samples_per_second"] == 3200.0
    assert other["num_pairs"] == 2 and other["difference_auc"] == pytest.approx(-0.02)
    assert other["deviation_difference"] == pytest.approx(0.02 / 2**0.5)
    shown = printed(capsys, tmp_path, "--compare")
    assert "0.7300 ± 0.0200" in shown and "-0.0200 ± 0.0141" in shown and "best" in shown
