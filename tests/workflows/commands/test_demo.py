"""``hotset demo``."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hotset.workflows.cli import main
from hotset.workflows.console import command_prefix


def test_the_demo_runs_again_and_refuses_a_folder_it_did_not_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["demo", "--samples", "600", "--out", str(tmp_path / "demo")]
    for _ in range(2):
        assert main(arguments) == 0
        shown = capsys.readouterr().out
        assert "all-fast" in shown and "fae" in shown and f"{command_prefix()} stats " in shown
        assert "and ended with exactly the weights of all-fast." in shown
    # Every command that is printed works as it stands, but for the user's own log.
    prefix = f"  {command_prefix()} "
    commands = [line.removeprefix(prefix) for line in shown.splitlines() if line.startswith(prefix)]
    assert len(commands) == 4
    mine = {"YOUR-LOG.tsv.gz": str(tmp_path / "demo/log.tsv"), "DIR": str(tmp_path / "dir")}
    for command in commands:
        assert main([mine.get(word, word) for word in shlex.split(command)]) == 0, command
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert main(["demo", "--out", str(tmp_path / "mine")]) == 1
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_the_printed_command_is_one_that_this_shell_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "my venv" / "bin" / "hotset"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(script), "demo"])
    monkeypatch.setenv("PATH", "/nonexistent")
    assert command_prefix() == "'my venv/bin/hotset'"
    monkeypatch.setenv("PATH", str(script.parent))
    assert command_prefix() == "hotset"
