"""Completion in real shells (`shell_scripts`, `completion_command`): what is offered at some place."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hotset.workflows.command_list import COMMANDS
from hotset.workflows.completion.kept_options import read_commands
from hotset.workflows.completion.shell_scripts import SHELLS

COMPLETE = """
source "$0"
COMP_WORDS=("$@")
COMP_CWORD=$(( $# - 1 ))
_hotset
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The script of each shell."""
    folder = tmp_path_factory.mktemp("completion")
    commands = read_commands()
    for shell, script in SHELLS.items():
        (folder / shell).write_text(script(commands))
    return {shell: folder / shell for shell in SHELLS}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["st"], {"stats"}),
        (["ev"], {"evaluate"}),
        (["bench", "k"], {"kills"}),
        (["bench", "kills", "--ki"], {"--kills"}),
        (["train", "--embedding-o"], {"--embedding-optimizer"}),
        (["train", "DIR", "--embedding-optimizer", "a"], {"adagrad", "adam"}),
        (["preprocess", "--no-l"], {"--no-label"}),
        (["preprocess", "log.tsv", "--out", ""], {""}),  # bash itself offers files there
        (["preprocess", "lo"], {""}),
        (["completion", "--q"], {"--quiet"}),
    ],
)
def test_bash_offers_what_can_stand_there(
    typed: list[str], offered: set[str], scripts: dict[str, Path]
) -> None:
    command = ["bash", "--norc", "-c", COMPLETE, str(scripts["bash"]), "hotset", *typed]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (set(done.stdout.splitlines()), done.stderr) == (offered, "")


def test_bash_offers_every_command(scripts: dict[str, Path]) -> None:
    command = ["bash", "--norc", "-c", COMPLETE, str(scripts["bash"]), "hotset", ""]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()) == set(COMMANDS)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_what_can_stand_there(scripts: dict[str, Path]) -> None:
    for typed, offered in (
        ("st", "stats"),
        ("bench k", "kills"),
        ("train --embedding-o", "--embedding-optimizer"),
    ):
        program = f"source {scripts['fish']}; complete -C 'hotset {typed}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", program], capture_output=True, text=True, check=True
        )
        assert offered in done.stdout.split()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_its_script(scripts: dict[str, Path]) -> None:
    program = f"source {scripts['zsh']} && print $_comps[hotset]"
    done = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=True)
    assert "_hotset" in done.stdout


def test_a_line_of_help_stands_beside_each_name_in_fish(scripts: dict[str, Path]) -> None:
    text = scripts["fish"].read_text()
    assert text.count(" -a train -d 'train a model on shards'") == 1
    assert " -l out -r -d 'New folder for the run: weights, summary and metrics'" in text
