"""``hotset demo``."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hotset.tests.support.terminal import run_in_terminal
from hotset.workflows.cli import main
from hotset.workflows.commands import demo
from hotset.workflows.commands.demo import DemoCommand
from hotset.workflows.console import command_prefix, say_error


@pytest.mark.slow
def test_the_demo_runs_again_and_refuses_a_folder_it_did_not_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["demo", "--samples", "3000", "--out", str(tmp_path / "demo")]
    for _ in range(2):
        assert main(arguments) == 0
        shown = capsys.readouterr().out
        assert (
            "all-fast" in shown
            and "fae" in shown
            and "C26" not in shown
            and f"{command_prefix()} stats " in shown
        )
        # FAE has its own order of batches.
        (weights,) = (line.split()[-3:] for line in shown.splitlines() if line.startswith("weights of"))
        assert weights == ["-", "no", "yes"]
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
    assert main(["demo", "--out", str(tmp_path / "mine/thesis.txt")]) == 1
    assert "thesis.txt cannot be written: File exists\nhint: " in capsys.readouterr().err
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_a_log_of_another_schema_is_shown_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{number % 3 == 0:d},{number % 7},{'ab'[number % 2]}|c,{number - 300}" for number in range(600)]
    log, schema = tmp_path / "clicks.csv", tmp_path / "clicks.toml"
    log.write_text("\n".join(["click,item,tags,delta", *rows, ""]))
    schema.write_text(
        'format = "csv"\nlabel = "click"\ndense = ["delta"]\n[sparse]\nitem = "integer"\n'
        'tags = { kind = "text", list = true, separator = "|" }\n'
    )
    arguments = ["demo", "--data", str(log), "--schema", str(schema), "--out", str(tmp_path / "demo")]
    assert main([*arguments, "--samples", "500"]) == 0
    shown = capsys.readouterr().out
    # One vector of 16 floats up and one down for each of three lookups of a training sample.
    assert "hybrid, with every row in host memory, would move 384 bytes per sample." in shown
    assert f"--schema {schema} --out" in shown
    # Without lines there are no first ones, and without a log there is nothing to describe.
    log.write_bytes(b"PAR1" + bytes(100))
    assert main([*arguments, "--samples", "500"]) == 1
    assert "is Parquet" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--schema", "avazu", "--out", str(tmp_path / "demo")])
    assert "--schema describes the log of --data" in capsys.readouterr().err


def test_a_demo_that_was_killed_while_it_noted_its_settings_begins_anew(tmp_path: Path) -> None:
    options = DemoCommand(samples=100, out=tmp_path)
    demo._claim(options)
    (note,) = tmp_path.iterdir()
    whole = note.read_text()
    note.write_text(whole[:5])
    (tmp_path / "log.tsv").touch()
    demo._claim(options)
    assert note.read_text() == whole and not (tmp_path / "log.tsv").exists()


def test_next_commands_are_not_broken_into_lines() -> None:
    program = "from hotset.workflows.console import *; "
    program += "print_command(stdout_console(), 'hotset stats ' + 'x ' * 50 + 'y')"
    _, screen = run_in_terminal(["-c", program], 60)
    shown = [line for line in screen.lines if line]
    # Full rows: the terminal alone continues the command, and copies it as one line.
    assert len(shown) == 2 and len(shown[0]) >= 59 and "".join(shown).startswith("  hotset stats x x")


def test_the_printed_command_is_one_that_this_shell_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "my venv" / "bin" / "hotset"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(script), "demo"])
    monkeypatch.setenv("PATH", "/nonexistent")
    assert command_prefix() == "'my venv/bin/hotset'"
    # Hints have the same word, those that are a command and those that quote one.
    assert main(["trian"]) == 2
    assert capsys.readouterr().err.endswith("\nhint: 'my venv/bin/hotset' train\n")
    say_error("wrong", "`hotset rank hotset` runs it")
    assert capsys.readouterr().err.endswith("hint: `'my venv/bin/hotset' rank hotset` runs it\n")
    monkeypatch.setenv("PATH", str(script.parent))
    assert command_prefix() == "hotset"
