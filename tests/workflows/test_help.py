"""Examples of help are commands that parse, and twins in Python are functions that name the command."""

from __future__ import annotations

import inspect
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

import hotset
from hotset.workflows.cli import usage
from hotset.workflows.command_list import COMMANDS, GROUPS, command_class
from hotset.workflows.help import EXAMPLES, IN_PYTHON

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
