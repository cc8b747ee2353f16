"""Completion in real shells: what is offered at some place, and that every offer parses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hotset.workflows.cli import main
from hotset.workflows.command_list import COMMANDS
from hotset.workflows.commands.completion import SHELLS, all_options

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
    commands = all_options()
    for shell, script in SHELLS.items():
        (folder / shell).write_text(script(commands))
    return {shell: folder / shell for shell in SHELLS}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["st"], {"stats"}),
        (["ev"], {"evaluate"}),
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


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "bench"])
def test_every_offered_option_parses(
    command: str, scripts: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """An offer that takes no value is refused for what follows it, another for its missing value."""
    typed = ["bash", "--norc", "-c", COMPLETE, str(scripts["bash"]), "hotset", command, "--"]
    offers = set(subprocess.run(typed, capture_output=True, text=True, check=True).stdout.split())
    assert {"--help", "--quiet"} <= offers
    # All three scripts offer the same.
    lines = [line for line in scripts["fish"].read_text().splitlines() if f"from {command}'" in line]
    in_fish = {f"--{line.split(' -l ')[1].split()[0]}" for line in lines}
    assert in_fish == offers - {"--help", "--help-all"}
    assert scripts["bash"].read_text() in scripts["zsh"].read_text()
    for offer in offers - {"--help", "--help-all"}:
        with pytest.raises(SystemExit) as stopped:
            main([command, offer, "--no-such-option"])
        assert stopped.value.code == 2
        said = capsys.readouterr().err.splitlines()[0]
        takes_value = said == f"error: {offer} needs a value"
        assert takes_value or said == f"error: hotset {command} has no option --no-such-option"


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_what_can_stand_there(scripts: dict[str, Path]) -> None:
    for typed, offered in (("st", "stats"), ("train --embedding-o", "--embedding-optimizer")):
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
    assert " -l out -r -d 'New folder for the run: weights, summary, metrics'" in text
