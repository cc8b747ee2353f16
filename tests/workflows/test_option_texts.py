"""Examples of help parse, and its twins in Python name the command; recipes are read as if typed."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hotset
from hotset.pipeline.errors import ByteSize, ConfigError
from hotset.pipeline.preprocess import PreprocessConfig
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.train.config import TrainConfig
from hotset.train.config_parts import RecipeOptions
from hotset.workflows.cli import usage
from hotset.workflows.command_list import COMMANDS, GROUPS, command_class, config_of
from hotset.workflows.commands.preprocess import PreprocessCommand
from hotset.workflows.commands.train import TrainCommand
from hotset.workflows.option_texts import EXAMPLES, IN_PYTHON, read_recipe, with_recipe, write_recipe

README = Path(hotset.__file__).parent / "README.md"


def help_of(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        command_class(command).parse(command, [option])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_shows_two_examples_that_parse(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = help_of(command, "--help", capsys)
    assert len(set(EXAMPLES[command])) == 2
    for example in EXAMPLES[command]:
        assert f"\n  {example}\n" in shown
        # What a shell does with the output is no part of the command.
        name, called, *arguments = shlex.split(example.partition(" > ")[0])
        assert (name, called) == ("hotset", command)
        command_class(command).parse(command, arguments)


def test_the_help_of_all_commands_has_the_groups_of_the_readme() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
    shown = usage()
    for title, names in GROUPS.items():
        (row,) = re.findall(rf"^\| {title} \| (.*) \|$", README.read_text(), re.MULTILINE)
        assert tuple(re.findall(r"`hotset ([a-z-]+)", row)) == names
        block = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert tuple(re.findall(r"^  ([a-z-]+) ", block, re.MULTILINE)) == names


@pytest.mark.parametrize("command", IN_PYTHON)
def test_twins_name_each_other(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    function = IN_PYTHON[command]
    assert f"In Python: hotset.{function}." in " ".join(help_of(command, "--help", capsys).split())
    assert f"``hotset {command}``" in (inspect.getdoc(getattr(hotset, function)) or "")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_no_option_of_developers(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(command, "--help", capsys)
    assert not re.search(r"simulated|\blate:|--kernels|--mover", shown)


@pytest.mark.parametrize("columns", ["60", "80", "100", "140"])
def test_no_number_is_broken_by_wrapping(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for command in COMMANDS:
        lines = help_of(command, "--help-all", capsys).splitlines()
        broken = [line for line in lines if line.endswith("default:")]
        broken += [a for a, b in pairwise(lines) if re.search(r"\d,$", a) and re.match(r"\s+\d{3}\b", b)]
        broken += [line for line in lines if re.match(r"\s+(?:[KMGT]iB|B|samples/s|GB/s)\b", line)]
        assert broken == [], command


preprocess_options = partial(PreprocessCommand.parse, "preprocess")
train_options = partial(TrainCommand.parse, "train")


def recipe(folder: Path, text: str) -> str:
    path = folder / "recipe.toml"
    path.write_text(text)
    return str(path)


def test_options_of_a_recipe_are_those_that_would_be_typed(tmp_path: Path) -> None:
    path = recipe(
        tmp_path,
        """
        [preprocess]
        hot-bytes = "64KiB"
        label = false
        min_count = 4
        valid_fraction = 0.1
        [train]
        placement = "all-fast"
        bottom_mlp = [32, 16]
        embedding_lr = 1e-3
        lr_schedule = "cosine"
        warmup_steps = 10
        """,
    )
    preprocessed = config_of(PreprocessConfig, preprocess_options(["log", "--out", "dir", "--recipe", path]))
    assert preprocessed.split.hot_bytes == 64 * 1024 and not preprocessed.ingest.label
    assert (preprocessed.rank.min_count, preprocessed.count.valid_fraction) == (4, 0.1)
    trained = config_of(TrainConfig, train_options(["dir", "--out", "run", f"--recipe={path}"]))
    assert trained == TrainConfig(
        placement="all-fast",
        bottom_mlp=(32, 16),
        embedding_lr=0.001,
        recipe=RecipeOptions(lr_schedule="cosine", warmup_steps=10),
    )


def test_what_is_typed_wins(tmp_path: Path) -> None:
    path = recipe(tmp_path, "[train]\nepochs = 3\nseed = 4\n[preprocess]\nlabel = false\n")
    options = train_options(["dir", "--epochs", "2", "--out", "run", "--recipe", path])
    assert (options.epochs, options.seed) == (2, 4)
    assert with_recipe("preprocess", ["--recipe", path]) == ["--no-label"]


def test_a_schema_in_a_recipe_sets_the_defaults_that_suit_it(tmp_path: Path) -> None:
    path = recipe(tmp_path, '[preprocess]\nschema = "criteo-1tb"\n')
    options = preprocess_options(["log", "--out", "dir", "--recipe", path])
    assert (options.ingest.schema, options.rank.min_count, options.split.embedding_dim) == (
        "criteo-1tb",
        15,
        64,
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[train]\nepoch = 3\n", r"\[train\] of recipe .* has no option 'epoch'", "epochs: Number of passes"),
        ("[train]\nhot = 3\n[preprocess]\n", r"has no option 'hot'", "help|hot_bytes"),
        ("[train]\nout = 'x'\n", r"has no option 'out'", ""),
        ("[preprocess]\nepochs = 3\n", r"\[preprocess\] of recipe .* has no option 'epochs'", ""),
        ("[trian]\n", r"has 'trian' outside of \[preprocess\] and \[train\]", r"write \[train\]"),
        ("epochs = 3\n", r"has 'epochs' outside", "write options below"),
        ("train = 3\n", "train of recipe .* is 3, want a table", None),
        ("[train]\nepochs = {a = 1}\n", "epochs in .* is {'a': 1}, want a text, a number", None),
        ("[train]\nepochs = [[1]]\n", "epochs in .* want a text, a number", None),
        ("[train]\nepochs = true\n", "epochs in .* is True, want a text, a number", None),
        ("[preprocess]\nlabel = 1\n", "label in .* is 1, want true or false", None),
        ("[train\n", "cannot be read: Expected", "`hotset recipe` prints one"),
        ("[train]\na = 1\na = 2\n", "cannot be read: Cannot overwrite", None),
    ],
)
def test_what_is_no_recipe_is_refused_by_name(
    text: str, message: str, hint: str | None, tmp_path: Path
) -> None:
    path = Path(recipe(tmp_path, text))
    with pytest.raises(ConfigError, match=message) as refused:
        for name in ("train", "preprocess"):
            with_recipe(name, ["--recipe", str(path)])
    if hint is not None:
        assert refused.value.hint is not None
        assert re.search(hint, refused.value.hint)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none", "there is no such file"), (tmp_path, "it is no plain file")):
        with pytest.raises(ConfigError, match=message):
            read_recipe(path)
    (tmp_path / "large").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(ConfigError, match="it has 1,048,577 bytes"):
        read_recipe(tmp_path / "large")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read: 'utf-8'"):
        read_recipe(tmp_path / "bytes")


def test_a_wrong_value_is_refused_as_if_it_had_been_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe(tmp_path, "[train]\nplacement = 'lookahed'\n")
    with pytest.raises(SystemExit):
        train_options(["dir", "--out", "run", "--recipe", path])
    assert "--placement must be one of" in capsys.readouterr().err


def test_a_written_recipe_is_read_back_to_the_same_configs(tmp_path: Path) -> None:
    train = TrainConfig(
        placement="cache",
        hot_bytes=ByteSize(3 * 2**20),
        embedding_lr=1 / 3,
        bottom_mlp=(7, 5),
        recipe=RecipeOptions(clip_gradient=0.1, lr_schedule="linear", decay_steps=9),
    )
    default = PreprocessConfig()
    preprocessed = replace(
        default,
        ingest=replace(default.ingest, label=False),
        rank=replace(default.rank, feature_min_counts=FeatureSettings((("C1", 3), ("C2", 9)))),
        split=replace(default.split, hot_bytes=ByteSize(1000)),
    )
    path = recipe(tmp_path, write_recipe({"preprocess": preprocessed, "train": train}))
    assert config_of(TrainConfig, train_options(["dir", "--out", "run", "--recipe", path])) == train
    found = config_of(PreprocessConfig, preprocess_options(["log", "--out", "dir", "--recipe", path]))
    assert found == preprocessed


def test_texts_are_written_as_toml_reads_them(tmp_path: Path) -> None:
    arguments = json.dumps({"a": 'quo"te\\ and \x7f ünï'}, ensure_ascii=False)
    train = TrainConfig(model="nets:Net", model_args=arguments)
    read: dict[str, Any] = read_recipe(Path(recipe(tmp_path, write_recipe({"train": train}))))
    assert read["train"]["model_args"] == arguments
