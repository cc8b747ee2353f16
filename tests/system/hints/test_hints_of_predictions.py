"""Hints of `predict`: lines that do not fit, and the vocabulary of a run that was trained on shards alone."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hotset
from hotset.tests.support.hints import Shell, follows, hint_of

PREDICT = ("predict", "run", "log.tsv", "--out", "scores.parquet")


@follows("pipeline/stages/encode_raw.py::encode_parts")
def test_a_line_that_does_not_fit_is_fixed(shell: Shell) -> None:
    log = Path("log.tsv").read_text()
    Path("log.tsv").write_text(log + "1\tbroken\n")
    assert shell.refused(*PREDICT) == "fix the line: every line gets a prediction, so none is skipped"
    Path("log.tsv").write_text(log)
    shell.works(*PREDICT)
    hint = shell.refused(*PREDICT, "--overwrite", "--no-label")
    assert hint == "a log without labels is read with --no-label, one that has them without"
    shell.works(*PREDICT, "--overwrite")


@follows("train/serving/predict.py::RunPredictor.parts_of_file")
def test_a_log_of_another_format_is_refused_without_a_schema_to_give(shell: Shell) -> None:
    Path("log.csv").write_text("click,site\n" + "1,a\n0,b\n" * 9)
    hint = shell.refused("predict", "run", "log.csv", "--out", "scores.parquet")
    assert hint == "give a log in the format of those that the run was trained on"
    shell.works(*PREDICT)


@follows("train/serving/run_tables.py::open_vocabulary")
def test_the_vocabulary_is_given_to_a_run_on_shards_alone(shell: Shell) -> None:
    shutil.copytree("data/shards", "alone/shards")
    shell.works("train", "alone", "--threads", "1", "--out", "bare")
    command = ("predict", "bare", "log.tsv", "--out", "scores.parquet")
    assert shell.refused(*command) == "name the folder that preprocess wrote: --vocabulary DIR"
    shell.works(*command, "--vocabulary", "data")


@follows("train/serving/run_tables.py::open_vocabulary#2", "train/serving/run_tables.py::_tables")
def test_the_vocabulary_of_another_log_is_not_taken(shell: Shell) -> None:
    text = Path("log.tsv").read_text().splitlines(keepends=True)
    Path("half.tsv").write_text("".join(text[:300]))
    shell.works("preprocess", "half.tsv", "--out", "other", "--workers", "1")
    shutil.copytree("data/shards", "alone/shards")
    shell.works("train", "alone", "--threads", "1", "--out", "bare")
    for run in ("run", "bare"):
        command = ("predict", run, "log.tsv", "--out", f"{run}.parquet", "--vocabulary")
        assert shell.refused(*command, "other") == "name the folder whose shards the run was trained on"
        shell.works(*command, "data")


@pytest.mark.slow
@follows("train/serving/changes.py::_refuse_other_tables")
def test_a_run_of_other_tables_is_exported_as_a_whole(shell: Shell) -> None:
    shell.works("preprocess", "log.tsv", "--out", "wide", "--embedding-dim", "8", "--workers", "1")
    shell.works("train", "wide", "--threads", "1", "--out", "other")
    command = ("export", "other", "--out", "exported")
    assert shell.refused(*command, "--since", "run") == "export the run as a whole: leave --since out"
    shell.works(*command)


@pytest.mark.slow
@follows("train/serving/export.py::_refuse_missing_onnx")
def test_an_extra_is_installed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    hint = shell.refused("export", "run", "--out", "exported", "--onnx")
    assert "-m pip install" in hint and hint.endswith("[onnx]'")
    shell.works("export", "run", "--out", "exported")


@follows(
    "train/fit.py::Shards.batches",
    "train/fit.py::Shards.counts",
    "train/fit.py::_config_of",
    "workflows/library.py::_with_settings",
)
def test_names_that_were_meant_are_taken_from_python(shell: Shell) -> None:
    shards = hotset.Shards("data")
    kind: Any = "hotonly"
    assert hint_of(lambda: next(shards.batches(kind))) == "did you mean 'hot_only'?"
    next(shards.batches("hot_only"))
    assert hint_of(lambda: shards.counts("C22x")) == "did you mean 'C22'?"
    assert shards.counts("C2").sum() > 0
    assert hint_of(lambda: hotset.predict("run", "log.tsv", batchsize=9)) == "did you mean 'batch_size'?"
    assert hotset.predict("run", "log.tsv", batch_size=9).height == 600
    preprocess = partial(hotset.preprocess, "log.tsv", "other", workers=1)
    assert hint_of(lambda: preprocess(batchsize=9)) == "did you mean 'batch_size'?"
    preprocess(batch_size=9)


@pytest.mark.slow
@follows(
    "train/serving/changes.py::_opened",
    "train/serving/changes.py::apply_changes",
    "train/serving/changes.py::_refuse_unlike_rows",
)
def test_changes_are_applied_to_the_export_that_they_begin_with(shell: Shell) -> None:
    shell.works("train", "data", "--threads", "1", "--seed", "5", "--out", "next")
    shell.works("export", "next", "--since", "run", "--row-type", "bf16", "--out", "packed")
    # The two folders in each other's place.
    hint = shell.refused("apply", "next", "--to", "packed", "--out", "new")
    shell.obey(hint, RUN="run", RUN0="next", FOLDER="exported", CHANGES="back")
    hint = shell.refused("apply", "back", "--to", "exported", "--out", "new")
    shell.obey(hint, RUN="next", RUN0="run", CHANGES="changes")
    hint = shell.refused("apply", "packed", "--to", "exported", "--out", "new")
    assert hint == "write the changes with --row-type fp32"
    shell.works("apply", "changes", "--to", "exported", "--out", "new")
    shell.works("apply", "back", "--to", "new", "--out", "again")
