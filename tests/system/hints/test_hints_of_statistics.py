"""Hints of the commands that look at folders: stats, advise, verify, the report, the demo and benchmarks."""

from __future__ import annotations

import json
import re
import resource
import sys
from pathlib import Path

import pytest

from hotset.pipeline import verify as rebuild
from hotset.pipeline.errors import install_hint
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.statistics import frequencies
from hotset.tests.support.hints import Shell, follows, hint_of
from hotset.tests.support.resealed import write_manifest


@follows("pipeline/statistics/drift.py::parts_of_log")
def test_too_many_parts(shell: Shell) -> None:
    arguments = ["stats", "data", "--series", "drift", "--parts"]
    hint = shell.refused(*arguments, "300")
    shell.works(*arguments, hint.split("--parts ")[1])


@follows(
    "pipeline/statistics/frequencies.py::frequency_statistics",
    "pipeline/statistics/frequencies.py::frequency_statistics#2",
)
def test_a_series_is_named_and_damage_is_looked_for(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(inspected: object) -> None:
        raise KeyError("C1")

    with monkeypatch.context() as patched:
        patched.setitem(frequencies.SERIES, "features", fail)
        shell.obey(shell.refused("stats", "data"))
    hint = hint_of(lambda: frequencies.frequency_statistics(Path("data"), Resources(), series=["x"]))
    frequencies.frequency_statistics(
        Path("data"), Resources(), series=hint.removeprefix("use one of ").split(", ")[:1]
    )


@follows("pipeline/statistics/frequencies.py::_refuse_little_memory")
def test_statistics_that_take_less_memory(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["stats", "data", "--series"]
    with monkeypatch.context() as patched:
        patched.setattr(frequencies, "available_bytes", lambda: 1000)
        hint = shell.refused(*arguments, "unique_rows")
        assert hint.startswith("free memory, raise the limit `ulimit -v`, or ask for less: `--series ")
        shell.works(*arguments, *hint.split("--series ")[1].rstrip("`").split())
    shell.works(*arguments, "unique_rows")


@follows(
    "pipeline/statistics/table_rows.py::open_table",
    "pipeline/statistics/table_rows.py::TableRows.by_id",
    "pipeline/statistics/table_rows.py::parse_category",
)
def test_rows_of_a_table_are_found(shell: Shell) -> None:
    feature = shell.refused("stats", "data", "--feature", "C99").removeprefix("use one of ").split(", ")[0]
    arguments = ["stats", "data", "--feature", feature]
    last = re.search(r"from 0 to (\d+)", shell.refused(*arguments, "--id", "999999"))
    assert last is not None
    shell.works(*arguments, "--id", last[1])
    hint = shell.refused(*arguments, "--category", "no hex")
    assert hint.startswith("write hex digits, 8 at most")
    for name in re.findall(r"\(\w+\)", hint):
        shell.works(*arguments, "--category", name)


@follows("pipeline/verify.py::_read_manifests")
def test_a_folder_without_stages(shell: Shell) -> None:
    Path("empty").mkdir()
    assert shell.refused("verify", "empty") == "give the folder that preprocess or train wrote (its --out)"
    for folder in ("data", "run"):
        shell.works("verify", folder, *(["--no-rebuild"] if folder == "data" else []))


@follows("pipeline/verify.py::_build_from_other_vocabulary")
def test_the_vocabulary_of_the_model_is_given(shell: Shell) -> None:
    shell.works("preprocess", "log.tsv", "--like", "data", "--out", "adopted")
    shell.works("preprocess", "log.tsv", "--min-count", "3", "--out", "third")
    status, out, _ = shell.run("verify", "adopted", "--other-vocabulary", "third")
    assert status == 1 and "was not made from the vocabulary" in out
    made = Manifest.read(Path("adopted/vocabulary"))
    hint = hint_of(lambda: rebuild._build_from_other_vocabulary(made, {}, Path("third"), Resources()))
    assert "--other-vocabulary the folder that --like" in hint
    shell.works("verify", "adopted", "--other-vocabulary", "data")


@follows(
    "workflows/report/write.py::check_html",
    "workflows/report/write.py::check_html#2",
    "workflows/report/write.py::check_html#3",
    "workflows/report/write.py::_not_written",
    "workflows/report/write.py::write_html",
)
def test_where_a_report_goes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shell.refused("stats", "data", "--html", "data") == "give another --html FILE"
    assert shell.refused("stats", "data", "--parquet", "log.tsv") == "give another --parquet FOLDER"
    shell.works("stats", "data", "--parquet", "series")
    shell.works("preprocess", "log.tsv", "--like", "data", "--out", "adopted")
    hint = shell.refused("stats", "adopted", "--html", "report.html")
    assert hint == "report on the folder its ids come from"  # test_report writes such a one
    monkeypatch.setitem(sys.modules, "altair", None)
    assert shell.refused("stats", "data", "--html", "other.html") == install_hint("report")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (60 << 30, 60 << 30))
    hint = shell.refused("stats", "data", "--html", "other.html")
    assert hint == "`ulimit -v unlimited`, or --json or --parquet, which draw nothing"
    shell.works("stats", "data", "--json")
    shell.works("stats", "data", "--parquet", "other")


@follows(
    "train/advice.py::read_workload",
    "pipeline/stages/shuffle.py::PackInputs.refuse_other_parts",
    "pipeline/stages/shuffle.py::PackInputs.refuse_other_parts#2",
)
def test_folders_that_do_not_fit_together(shell: Shell) -> None:
    whole = Path("data/plan/manifest.json").read_text()
    for change in ("tables", "files"):
        parts = json.loads(whole)
        if change == "tables":
            parts["totals"]["tables"][0]["name"] = "other"
        else:
            parts["files"] = parts["files"][:-1]
        write_manifest(Path("data/plan"), parts)
        commands = [["pack", "data", "--redo"]] + ([["advise", "data"]] if change == "tables" else [])
        for command in commands:
            assert shell.refused(*command) == "`hotset verify data` reports which folder is at fault"
    assert shell.run("verify", "data", "--no-rebuild")[0] == 1


@follows("train/advice.py::_conclusion")
def test_memory_in_which_a_placement_fits(shell: Shell) -> None:
    hint = shell.refused("advise", "data", "--fast-bytes", "1KiB")
    least = re.search(r"--fast-bytes (\w+) would do", hint)
    assert least is not None
    shell.works("advise", "data", "--fast-bytes", least[1])


@follows("workflows/commands/demo.py::_claim")
def test_a_demo_takes_no_folder_of_someone_else(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        shell.refused("demo", "--samples", "300", "--out", "run") == "give another --out, or empty the folder"
    )
    shell.works("demo", "--samples", "300", "--out", "another")


@follows("workflows/cli.py::_run")
def test_the_extra_of_training_is_installed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_torch(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("hotset.workflows.command_list.importlib.import_module", without_torch)
    assert shell.refused("train", "data", "--out", "other") == install_hint("train")


@follows("workflows/commands/runs.py::compare_settings")
def test_runs_are_compared_once_they_have_scores(shell: Shell) -> None:
    Path("runs/one").mkdir(parents=True)
    Path("runs/one/config.json").write_text("{}")
    assert "finish runs" in shell.refused("runs", "runs", "--compare")
    Path("runs/one/summary.json").write_text('{"auc": 0.5}')
    shell.works("runs", "runs", "--compare")
