"""Hints of the model of histories, on a log of them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hotset.tests.support.hints import Shell, follows

SCHEMA = """format = "csv"
label = "label"
[sparse]
user = "integer"
item = { kind = "integer", list = true }
shop = { kind = "integer", list = true }
"""
PREPROCESS = ("--schema", "log.toml", "--batch-size", "16", "--eval-fraction", "0.2", "--workers", "1")
TRAIN = (
    "train",
    "lists",
    "--threads",
    "1",
    "--model",
    "tbsm",
    "--model-args",
    '{"history_length": 3}',
    "--out",
    "new",
)


def write_log(shell: Shell, *, items: str = "1|2|3|4", shops: str = "5|6|7|8") -> None:
    """Preprocess a log whose histories are of four elements, but for one of its samples."""
    lines = [f"{number % 2},{number % 5},{items},{shops}" for number in (7,)]
    lines += [f"{number % 2},{number % 5},1|2|{number % 3}|4,5|6|7|{number % 4}" for number in range(60)]
    Path("lists.csv").write_text("\n".join(["label,user,item,shop", *lines]) + "\n")
    Path("log.toml").write_text(SCHEMA)
    shell.works("preprocess", "lists.csv", *PREPROCESS, "--out", "lists")


@follows("train/data/batch.py::IdReader._first_bags")
def test_a_history_is_longer_than_the_model_takes(shell: Shell) -> None:
    write_log(shell, items="1|2|3|4|5", shops="5|6|7|8|9")
    hint = shell.refused(*TRAIN)
    assert hint == "train with --model-args '{\"history_length\": 4}', or shorten the lists of the log"
    shell.works(*TRAIN[:-4], *shlex.split(hint.removeprefix("train with ").split(",")[0]), "--out", "other")


@follows("train/dense/dense_step.py::HistoryStep._lengths")
def test_histories_of_a_sample_are_of_one_length(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(shell, items="1|3|4")
    hint = shell.refused(*TRAIN)
    assert hint == "mend the lists of the log, empty elements for missing values included"
    Path("mended").mkdir()
    monkeypatch.chdir("mended")
    # The missing value as an empty element.
    write_log(shell, items="1||3|4")
    shell.works(*TRAIN)


@follows("train/model/tbsm.py::Tbsm.__init__")
def test_a_model_of_histories_needs_lists(shell: Shell) -> None:
    hint = shell.refused("train", "data", *TRAIN[2:])
    assert hint == "use --model dlrm, or describe the histories as lists in the schema"
    shell.works("train", "data", "--threads", "1", *hint.split(",")[0].split()[1:], "--out", "other")
    write_log(shell)
    shell.works(*TRAIN)


@follows(
    "train/model/choose_model.py::_tbsm",
    "train/model/choose_model.py::_tbsm#2",
    "train/advice.py::_shape_of#2",
)
def test_options_of_the_model_of_histories(shell: Shell) -> None:
    write_log(shell)
    assert shell.refused(*TRAIN, "--pooling", "mean") == "leave --pooling out"
    shell.works(*TRAIN)
    hint = shell.refused(*TRAIN[:-1], "other", "--top-mlp", "none")
    assert hint == "give --top-mlp 15,15, or leave it out"
    shell.works(*TRAIN[:-1], "other", *hint.split(",", 1)[0].split()[1:2], "15,15")
    hint = shell.refused("advise", "lists", "--model", "tbsm")
    shell.works("advise", "lists", *hint.removeprefix("use ").split()[:2])
