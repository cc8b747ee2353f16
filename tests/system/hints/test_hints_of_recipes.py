"""Hints of the options of a recipe: schedules, parts of the log and scores."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from hotset.tests.support.hints import Shell, follows, hint_of
from hotset.train.metrics import ScoreCounter, SortedScores
from hotset.train.ranks.ranks import OneRank
from hotset.train.resuming.best_weights import BestWeights

TRAIN = ("train", "data", "--threads", "1", "--out")


@follows("pipeline/stages/count.py::CountConfig.__post_init__")
def test_validation_by_files_goes_with_a_test_part_by_files(shell: Shell) -> None:
    arguments = ("preprocess", "log.tsv", "log.tsv", "log.tsv", "--batch-size", "64", "--valid-files", "1")
    hint = shell.refused(*arguments, "--out", "other")
    assert hint == "give --eval-files too, or --eval-fraction 0 for no test part"
    shell.works(*arguments, "--eval-files", "1", "--out", "other")
    shell.works(*arguments, "--eval-fraction", "0", "--out", "another")


@follows("train/recipe_options.py::RecipeOptions._refuse_unused")
def test_a_decay_wants_a_schedule(shell: Shell) -> None:
    hint = shell.refused(*TRAIN, "other", "--decay-steps", "3")
    assert hint == "give --lr-schedule linear, cosine or polynomial too"
    shell.works(*TRAIN, "other", "--decay-steps", "3", "--lr-schedule", "cosine")


@follows("train/metrics.py::ScoreCounter.add")
def test_diverged_weights_ask_for_lower_rates(shell: Shell) -> None:
    none = np.zeros(1, np.bool_)
    label = np.zeros(1, np.float32)
    hint = hint_of(lambda: ScoreCounter().add(np.full(1, np.nan, np.float32), label, none, none))
    assert hint == "train again with lower --embedding-lr or --dense-lr"
    shell.works(*TRAIN, "other", "--embedding-lr", "0.01", "--dense-lr", "0.001")


@follows("train/metrics.py::SortedScores._spill")
def test_scores_want_room_on_the_disk(shell: Shell, tmp_path: Path) -> None:
    words = np.arange(9, dtype=np.uint64)
    folder = tmp_path / "full"
    hint = hint_of(lambda: SortedScores(folder, part_words=2).add(words))
    assert hint == "free 8 bytes of disk space there for each sample that is evaluated"
    folder.mkdir()
    scores = SortedScores(folder, part_words=2)
    scores.add(words)
    assert scores.count().counts_G3[0, 1] == 9


@follows(
    "workflows/recipe_file.py::read_recipe",
    "workflows/recipe_file.py::read_recipe#2",
    "workflows/recipe_file.py::_unknown",
)
def test_a_recipe_is_corrected_by_its_hints(shell: Shell) -> None:
    # The command that the hint names prints what to begin with.
    hint = shell.refused(*TRAIN, "other", "--recipe", "recipe.toml")
    assert hint == "`hotset recipe` prints one to begin with"
    Path("recipe.toml").write_text(shell.works("recipe"))
    shell.works(*TRAIN, "other", "--recipe", "recipe.toml")
    Path("recipe.toml").write_text("[trian]\nepoch = 1\n")
    hint = shell.refused(*TRAIN, "third", "--recipe", "recipe.toml")
    assert hint == "write [train]"
    Path("recipe.toml").write_text("[train]\nepoch = 1\n")
    assert shell.refused(*TRAIN, "third", "--recipe", "recipe.toml").startswith("epochs: Number of passes")
    Path("recipe.toml").write_text("[train]\nepochs = 1\n")
    shell.works(*TRAIN, "third", "--recipe", "recipe.toml")


@follows(
    "workflows/commands/recipe.py::_configs_of",
    "train/run_config.py::read_settings",
    "workflows/commands/recipe.py::_config_of_folder",
)
def test_what_a_recipe_can_be_printed_of_is_named(shell: Shell) -> None:
    Path("empty").mkdir()
    hint = shell.refused("recipe", "empty")
    assert hint == "give a recipe file, the DIR of preprocess --out, or the RUN of train --out"
    shell.works("preprocess", "log.tsv", "--like", "data", "--out", "like")
    assert shell.refused("recipe", "like") == "give that folder"
    Path("empty/config.json").write_text("{}")
    assert shell.refused("recipe", "empty") == "give the folder that a training run wrote"
    shell.works("recipe", "data", "run")


@follows(
    "train/build_embeddings.py::_refuse_no_validation",
    "train/build_embeddings.py::_refuse_no_validation#2",
)
def test_early_stop_wants_a_validation_part_and_all_rows(shell: Shell) -> None:
    hint = shell.refused(*TRAIN, "other", "--patience", "2")
    assert hint.startswith("give preprocess --valid-fraction 0.1 or --valid-files 1, with --redo count")
    preprocess = ("preprocess", "log.tsv", "--out", "data", "--hot-bytes", "64KiB", "--batch-size", "128")
    shell.works(*preprocess, "--valid-fraction", "0.1", "--redo", "count")
    small = (*TRAIN, "other", "--patience", "2", "--slow-bytes", "64KiB")
    hint = shell.refused(*small)
    assert hint == "leave --slow-bytes out"
    shell.works(*TRAIN, "third", "--patience", "2")


@follows("train/resuming/best_weights.py::BestWeights._is_whole")
def test_damaged_best_weights_are_left_out(shell: Shell) -> None:
    Path("best-000000003.safetensors").write_bytes(b"x")
    best = BestWeights(Path("."), 2, OneRank())
    best.restore({"step": 3, "xxh3_128": "0" * 32})
    trainer: Any = SimpleNamespace(step=9)
    hint = hint_of(lambda: best.load(trainer))
    assert hint == "remove it and give the same command again: it keeps the weights of the last step"
    Path("best-000000003.safetensors").unlink()
    assert not best.load(trainer)


@follows("workflows/commands/runs.py::read_runs")
def test_runs_are_listed_of_the_folder_that_holds_them(shell: Shell) -> None:
    Path("empty").mkdir()
    assert shell.refused("runs", "empty") == "give the folder that runs were written to"
    assert "run" in shell.works("runs", ".")


@follows(
    "workflows/options.py::Option._parse_word",
    "workflows/options.py::_typed_values",
    "workflows/options.py::_typed_values#2",
    "workflows/options.py::_unknown",
)
def test_wrong_usage_is_corrected_by_its_hints(shell: Shell) -> None:
    hint = shell.refused(*TRAIN, "other", "--placement", "all-fats")
    assert hint == "--placement all-fast"
    shell.works(*TRAIN, "other", *hint.split())
    assert shell.refused("evaluate", "other", "data", "log.tsv") == "hotset evaluate RUN DIR"
    assert shell.refused("evaluate", "other").startswith("hotset evaluate RUN DIR (")
    shell.works("evaluate", "other", "data")
    hint = shell.refused("evaluate", "other", "data", "--jsom")
    assert hint.startswith("--json: ")
    shell.works("evaluate", "other", "data", hint.split(":")[0])
