"""References of the docs lead somewhere: pages, folders and modules, commands and their options.

Their sentences stay short.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from functools import cache
from pathlib import Path
from statistics import mean

import pytest

from hotset.workflows.cli import main
from hotset.workflows.command_list import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_of_the_code_exist(page: Path) -> None:
    paths = re.findall(r"(?<!hub/)\b(?:stats|pipeline|train|workflows|tests)/[\w/.-]*\w", page.read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []


def commands_of(page: Path) -> list[list[str]]:
    """The words of every ``hotset`` command in the code of a page, options with their values included."""
    text = re.sub(r"```text\n.*?```", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"\\\n\s*", "", text)  # a command on several lines
    lines = re.findall(r"^    (?:torchrun .* -m )?(hotset .*)$", text, re.MULTILINE)
    lines += re.findall(r"`((?:\.venv/bin/)?hotset [^`]*)`", text)
    return [shlex.split(line.split("|")[0].split(">")[0], comments=True) for line in lines]


@cache
def help_of(command: str) -> str:
    """The help of a command as it is printed."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.raises(SystemExit) as stopped:
        raise SystemExit(main([command, "--help-all"]))
    assert stopped.value.code == 0
    return output.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists_and_has_the_options_it_is_given(page: Path) -> None:
    wrong = []
    for _, *words in commands_of(page):
        command = words[0] if words and not words[0].startswith("-") else "--help"
        if command not in COMMANDS:
            if command not in ("COMMAND", "--help", "…"):
                wrong.append(" ".join(words))
            continue
        arguments = [word.split("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)]
        shown = help_of(command)
        wrong += [f"{command} {option}" for option in arguments if not re.search(rf"{option}\b", shown)]
    assert wrong == []


def test_the_readme_is_short_and_says_first_what_was_measured_on_a_gpu() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) < 200
    assert any("On an H100" in line for line in lines[:25])


def test_the_readme_has_commands_to_parse() -> None:
    assert len(commands_of(ROOT / "README.md")) >= 25 and len(commands_of(ROOT / "docs/commands.md")) >= 20


def sentences(page: Path) -> list[int]:
    """Numbers of words of the sentences of a page; code is one word, and tables and headings are left out."""
    text = re.sub(
        r"^```.*?^```|^(?:    |\||#|!|:::).*?$", "\n", page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "", text))
    paragraphs = re.split(r"\n\s*\n|\n\s*- ", text)
    found = [each.split() for one in paragraphs for each in re.split(r"(?<=[.!?])[\s*)]+|:\n", one)]
    return [len(words) for words in found if len(words) > 2]


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=lambda page: page.name
)
def test_sentences_are_short(page: Path) -> None:
    lengths = sentences(page)
    assert mean(lengths) <= 20 and max(lengths) <= 40
