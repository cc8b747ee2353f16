"""The command line: help everywhere, one clear line for every mistake, JSON for machines.

The commands (`command_list`) have test files of their own, in `commands/`; `generate` is tested
here.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline import errors
from hotset.pipeline.errors import install_hint
from hotset.train.checkpoints.resume import Interrupted
from hotset.workflows import cli
from hotset.workflows.cli import main
from hotset.workflows.command_list import COMMANDS, command_class
from hotset.workflows.console import say
from hotset.workflows.options import options_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_text_and_stands_in_the_readme(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: hotset {command}" in shown and "--" in shown
    assert [line for line in shown.splitlines()[1:] if len(line) > 60] == []
    assert not any(sign in shown for sign in ("{None}", "default: )", "``", "(default: None)"))
    assert f"hotset {command}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_few_screens_and_help_all_has_the_rest(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = []
    for option in ("-h", "--help", "--help-all"):
        with pytest.raises(SystemExit):
            main([command, option])
        shown.append(capsys.readouterr().out)
    usual, same, whole = shown
    assert usual == same and len(usual.splitlines()) <= 100
    every = {option.name for option in options_of(command_class(command))}
    assert [name for name in every if not re.search(rf"^  .*{name}\b", whole, re.MULTILINE)] == []


def test_usage_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {command} " in shown for command in COMMANDS)
    assert "Exit status: 0 " in shown
    assert main([]) == 2 and main(["frobnicate"]) == 2
    assert main(["-V"]) == 0


def test_a_mistyped_command_offers_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "error: there is no command 'trian'\nhint: hotset train\n"
    assert main(["version"]) == 2
    assert capsys.readouterr().err.endswith("hint: hotset --version\n")
    # A word that is near to none offers none.
    assert main(["verb"]) == main(["frobnicate"]) == 2
    assert capsys.readouterr().err.endswith("hint: hotset --help lists the commands\n")


def test_a_wheel_names_the_packages_of_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(errors, "_CHECKOUT", tmp_path)
    requires = [
        "numpy>=2",
        "onnx>=1.17; extra == 'onnx'",
        'onnxruntime ; extra == "onnx"',
        "x; extra == 'on'",
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: requires)
    assert shlex.split(install_hint("onnx"))[1:] == ["-m", "pip", "install", "onnx>=1.17", "onnxruntime"]


def test_another_system_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["stats", "DIR"]) == 1
    assert capsys.readouterr().err == (
        "error: hotset runs on Linux, and this is darwin\nhint: use Docker, with its Dockerfile\n"
    )


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_a_forgotten_schema_is_named_with_commands_that_work(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"my log.{ending}"
    header = ("click", "country", "device")
    rows = [(number % 2, f"c{number % 7}", f"d{number % 5}") for number in range(200)]
    text = "\n".join(",".join(map(str, row)) for row in [header, *rows]) + "\n"
    if ending == "parquet":
        columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
        pq.write_table(pa.table(columns), path)
    else:
        path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    assert main(["preprocess", str(path), "--out", "out"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert f"looks like {'Parquet' if ending == 'parquet' else 'CSV'}" in error
    proposing = shlex.split(hint.split("`hotset ")[1].split("`")[0])
    assert proposing == ["schema", str(path), ">", "schema.toml"]
    assert main(proposing[:2]) == 0
    Path("schema.toml").write_text(capsys.readouterr().out)
    assert main(["preprocess", str(path), "--out", "out", "--schema", "schema.toml"]) == 0


def test_an_extra_is_installed_from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    python, dash_m, pip, install, wanted = shlex.split(install_hint("train"))
    assert (python, dash_m, pip, install) == (sys.executable, "-m", "pip", "install")
    assert wanted == f"{ROOT}[train]"


def test_a_wrong_option_is_a_usage_error(log: Path, tmp_path: Path) -> None:
    for arguments in (["--frobnicate"], ["--eval-fraction", "2"], ["--hot-bytes", "4Mip"]):
        with pytest.raises(SystemExit) as stopped:
            main(["preprocess", str(log), "--out", str(tmp_path / "out"), *arguments])
        assert stopped.value.code == 2
    assert not (tmp_path / "out").exists()


def test_what_a_user_can_fix_is_one_line_and_exit_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.tsv").write_text("0\tx\n")
    assert main(["preprocess", str(tmp_path / "bad.tsv"), "--out", str(tmp_path / "out")]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and "line 1" in error and "2 fields" in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("option", ["--schema", "--like", "--recipe"])
def test_an_option_that_decides_defaults_takes_no_store(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preprocess", "log", "--out", str(tmp_path / "d"), option, "s3://b/x.toml"]) == 1
    assert "x.toml is in a store, want a path on this machine" in capsys.readouterr().err


def test_without_torch_the_extra_is_named(data: Path, tmp_path: Path) -> None:
    commands = (["demo", "--samples", "500"], ["train", str(data), "--out", "RUN"])
    program = "import sys; sys.modules['torch'] = None; from hotset.workflows.cli import main"
    program += f"; sys.exit({{main(each) for each in {commands}}} != {{1}})"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    hint = f"hint: {install_hint('train')}"
    errors = {f"error: hotset {name} needs torch" for name, *_ in commands}
    assert {*done.stderr.splitlines()} == {*errors, hint} and done.stderr.count(hint) == len(commands)


def test_a_message_stands_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    say("error: 127.0.0.1:1234: [bold] refused")
    assert capsys.readouterr().err == "error: 127.0.0.1:1234: [bold] refused\n"


def test_a_generated_log_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "log.tsv"
    arguments = ["generate", "--samples", "50", "--out", str(out)]
    assert main(arguments) == 0
    assert f"{out}: 50 samples" in capsys.readouterr().out
    assert main(arguments) == 1
    assert str(out) in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--no-label"]) == 0
    assert len(out.read_text().splitlines()) == 50


def test_a_cache_of_kernels_that_cannot_be_written_is_noted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.stats.kernel._faults", ["/x cannot be written: full", "/y"])
    assert main(["generate", "--samples", "5", "--out", str(tmp_path / "log.tsv")]) == 0
    note, hint = capsys.readouterr().err.splitlines()
    assert note.startswith("note: ") and "/x cannot be written: full" in note
    assert "NUMBA_CACHE_DIR" in hint


_ON_A_FULL_DISK = """
import os, sys
from hotset.workflows import cli
for number, (words, num_lines) in enumerate({cases}):
    if not (child := os.fork()):
        os.dup2(os.open(str(number), os.O_CREAT | os.O_WRONLY), 2)
        if num_lines:
            cli._run = lambda *_: print("line\\n" * num_lines) or 0
        sys.exit(cli.main(words))
    # Python itself ends with 120 where it cannot write the rest at exit.
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1, words
"""


def test_a_full_disk_behind_stdout_is_one_line(tmp_path: Path) -> None:
    """Of help, a line and many, each in a process of its own, which has imported the command line before."""
    cases: list[tuple[list[str], int]] = [(["stats"], 1), (["stats"], 100_000)]
    cases += [(words, 0) for words in (["--help"], ["--version"], ["train", "--help"], [])]
    program = _ON_A_FULL_DISK.format(cases=cases)
    with open("/dev/full", "w") as full:
        subprocess.run([sys.executable, "-c", program], stdout=full, cwd=tmp_path, check=True)
    said = [(tmp_path / str(number)).read_text() for number in range(len(cases))]
    assert said == ["error: stdout cannot be written: No space left on device\n"] * len(cases)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ImportError("torch.so: failed to map segment from shared object"),
            "hotset stats: there is not enough memory: torch.so: failed to map",
        ),
        (
            MemoryError("malloc of size 99 failed"),
            "hotset stats: there is not enough memory: malloc of size 99",
        ),
        (RuntimeError("can't start new thread"), "hotset stats: the system starts no more threads"),
        (OSError(24, "Too many open files", "/x"), "/x: too many open files"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr("hotset.workflows.cli._run", fail)
    assert main(["stats"]) == 1
    first, hint = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {message}") and "ulimit" in hint


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr("hotset.workflows.cli._run", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["stats"])


def test_quiet_and_verbose_stand_before_or_behind_the_command(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["preprocess", str(log), "--out", str(tmp_path / "out")]
    assert main(["-q", *arguments]) == 0
    said = capsys.readouterr()
    assert said.err == "" and "samples" in said.out
    assert main([*arguments, "--verbose"]) == 0
    said = capsys.readouterr()
    assert (
        "pipeline.folders.output: " in said.err and "is finished" in said.err and "already done" in said.err
    )
    # The next command starts as usual.
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert "already done" in said.err and "output: " not in said.err


def test_a_verbose_error_shows_where_it_was_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", str(tmp_path / "nowhere"), "-v"]) == 1
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said and "error: " in said.splitlines()[-2]


def test_the_first_of_several_ranks_says_how_an_interrupted_run_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(arguments: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_answer", interrupt)
    said = []
    for variables in ({}, {"WORLD_SIZE": "2", "RANK": "0"}, {"WORLD_SIZE": "2", "RANK": "1"}):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert main(["train", "DIR", "--out", "RUN"]) == 130
        said.append(capsys.readouterr().err)
    alone, first, second = said
    assert alone.endswith("hint: `hotset train DIR --out RUN` resumes the run\n")
    assert "the same command of the launcher resumes the run" in first and second == ""


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (Interrupted(signal.SIGINT, "stopped after step 4 of 9"), "stopped after step 4 of 9"),
        (KeyboardInterrupt(), "the steps up to the last checkpoint of --out are kept, where it has one"),
    ],
)
def test_an_interrupted_run_tells_the_steps_that_are_left(
    error: KeyboardInterrupt, left: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(arguments: Sequence[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_answer", interrupt)
    assert main(["train", "DIR", "--out", "RUN"]) == 130
    assert f"interrupted: {left}" in capsys.readouterr().err


def test_sigterm_ends_a_command_as_ctrl_c_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminated(*_: object) -> int:
        signal.raise_signal(signal.SIGTERM)
        return 0

    monkeypatch.setattr("hotset.workflows.cli._run", terminated)
    assert main(["export-shards", "data"]) == 130
    assert capsys.readouterr().err == "interrupted: nothing was written\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_import_that_ctrl_c_breaks_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise AttributeError("partially initialized module")

    monkeypatch.setattr("hotset.workflows.cli._run", interrupted)
    assert main(["export-shards", "data"]) == 130
    assert capsys.readouterr().err == "interrupted: nothing was written\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_ends_the_reader_of_stdout_too_is_one_line() -> None:
    program = (
        "import signal, sys; from hotset.workflows import cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "cli._run = lambda *_: (print('half'), signal.raise_signal(signal.SIGINT))\n"
        "sys.exit(cli.main(['export-shards', 'data']))"
    )
    reader, stdout = os.pipe()
    os.close(reader)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=env)
    os.close(stdout)
    assert (done.returncode, done.stderr) == (130, "interrupted: nothing was written\n")


def test_only_commands_that_keep_finished_work_say_so_when_they_are_interrupted() -> None:
    """A new command is named here, or says what is left of it."""
    keeping = {"demo", "preprocess", "ingest", "count", "rank", "encode", "split", "pack"}
    keeping |= {"train", "characterise"}
    others = {name for name in COMMANDS if command_class(name).on_interrupt == "nothing was written"}
    assert set(COMMANDS) - others == keeping - {"train"}


@pytest.mark.parametrize(
    ("closing", "words", "status"),
    [
        (">&-", ["train", "--help"], 0),
        ("2>&-", ["frobnicate"], 2),
        ("<&- >&- 2>&-", ["train", "--help"], 0),
        ("<&- >&- 2>&-", ["stats", "nowhere"], 1),
    ],
)
def test_streams_that_the_caller_closed_are_null_devices(closing: str, words: list[str], status: int) -> None:
    command = shlex.join([sys.executable, "-m", "hotset.workflows.cli", *words])
    done = subprocess.run(["sh", "-c", f"{command} {closing}"], capture_output=True, text=True)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_no_file_takes_the_number_of_a_closed_stream() -> None:
    program = (
        "import os; from hotset.workflows.cli import main; main(['--version']);"
        "print('kept', file=open('/dev/stderr', 'w')) if os.open(os.devnull, os.O_RDONLY) > 2 else None"
    )
    command = shlex.join([sys.executable, "-c", program])
    done = subprocess.run(["sh", "-c", f"{command} <&- >&-"], capture_output=True, text=True)
    assert done.stderr == "kept\n"


@pytest.mark.parametrize("columns", ["0", "1", "7"])
def test_a_terminal_of_hardly_any_columns_shows_messages_and_help(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["stats", "nowhere"]) == 1
    assert "".join(capsys.readouterr().err.split()).startswith("error:nowhere/vocabularydoesnotexist")
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit) as stopped:
        main(["recipe", "--help"])
    assert stopped.value.code == 0 and "--json" in capsys.readouterr().out


def test_a_name_that_is_not_utf_8_is_printed_as_the_bytes_that_it_is() -> None:
    program = (
        "import sys; from hotset.workflows import cli; cli._run = lambda *_: print('a\\udcff') or 0;"
        "sys.exit(cli.main(['verify', 'a']))"
    )
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a\xff\n", b"")


def test_a_command_in_a_folder_that_was_removed_says_so(log: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    words = [sys.executable, "-m", "hotset.workflows.cli", "preprocess", str(log), "--out", "x"]
    done = subprocess.run(
        ["sh", "-c", f"rmdir ../here; {shlex.join(words)}"],
        cwd=tmp_path / "here",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "error: the current folder was removed\nhint: cd to a folder that is there\n"


@pytest.mark.parametrize(("world_size", "ends_at_once"), [("", False), ("1", False), ("2", True)])
def test_a_rank_ends_at_once_with_all_that_it_has_said(world_size: str, ends_at_once: bool) -> None:
    """Whatever the libraries do at the end of a process."""
    program = "import atexit, os; atexit.register(os.abort); from hotset.workflows.cli import leave; "
    found = subprocess.run(
        [sys.executable, "-c", program + "print('said', end=''); leave(3)"],
        env=os.environ | {"WORLD_SIZE": world_size},
        capture_output=True,
        text=True,
    )
    assert found.returncode == (3 if ends_at_once else -signal.SIGABRT)
    assert found.stdout == "said" or not ends_at_once


_READ = """
import os, sys
from pathlib import Path
import numpy as np
from hotset.pipeline.formats.arrow_files import map_batch, write_batch
from hotset.workflows.cli import main

main(["verify", "nothing"])
path = Path(os.fsdecode(bytes.fromhex(sys.argv[1])))
write_batch(path, {"a": np.arange(40_000)})
values = np.asarray(map_batch(path).column("a"))
assert values.sum() == 40_000 * 39_999 // 2
os.truncate(path, 4096)
print(values.sum())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_command_whose_mapped_file_is_cut_short_ends_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a \xff.arrow")
    ended = subprocess.run(
        [sys.executable, "-c", _READ, os.fsencode(path).hex()], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    *_, error, hint = ended.stderr.splitlines()
    shown = str(path).encode(errors="backslashreplace").decode()
    assert error == f"error: {shown} was cut short by another program while it was in use"
    assert hint.startswith("hint: leave the folder alone")
    assert "Traceback" not in ended.stderr
