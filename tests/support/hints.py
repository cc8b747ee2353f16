"""Hints as a user meets them: a shell in which a command is refused, and its hint is followed as printed.

Every place in the code that gives a hint has a name here, and each case of `tests/system/hints` names the
places whose hints it followed: in the first line of a case of `hints.txt`, or by `follows`. `test_hints`
compares the two lists; a case fails where a place that it names was not reached.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hotset.pipeline.errors import HotsetError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.stages.rank import map_ids
from hotset.train.config import TrainConfig
from hotset.train.config_parts import CheckpointSettings
from hotset.train.run import RunOptions, train
from hotset.workflows.cli import main

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "system" / "hints"
LAYERS = ("stats", "pipeline", "train", "workflows")
Case = TypeVar("Case", bound=Callable[..., None])
reached: set[str] = set()
"""Places that gave a hint in the test that runs."""


@dataclass(frozen=True, slots=True)
class Place:
    """One call with a hint of its own in the code."""

    name: str
    """``pipeline/errors.py::parse_byte_size``; the second in one function has ``#2`` behind it."""
    path: str
    first_line: int
    last_line: int
    needs_case: bool
    """False of a bare `hint_to_rewrite`, whose one hint is followed for each stage folder."""


@cache
def places() -> dict[str, Place]:
    """Every place by its name. Errors that only pass on the hint of another are none."""
    found: dict[str, Place] = {}
    for layer in LAYERS:
        for path in sorted((ROOT / layer).rglob("*.py")):
            # Scripts of a checkout are for those who work on it.
            if (ROOT / "workflows" / "bench") in path.parents:
                continue
            text = path.read_text()
            for function, call, hint in _hints_in(ast.parse(text), "") if "hint=" in text else ():
                name = f"{path.relative_to(ROOT)}::{function}"
                number = 1 + sum(other.split("#")[0] == name for other in found)
                name += f"#{number}" if number > 1 else ""
                last_line = call.end_lineno or call.lineno
                is_shared = isinstance(hint, ast.Call) and ast.unparse(hint.func) == "hint_to_rewrite"
                found[name] = Place(name, str(path), call.lineno, last_line, not is_shared)
    return found


def _hints_in(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Call, ast.expr]]:
    for child in ast.iter_child_nodes(node):
        inner = function
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{function}.{child.name}" if function else child.name
        if isinstance(child, ast.Call):
            hints = [word.value for word in child.keywords if word.arg == "hint"]
            if hints and not (isinstance(hints[0], ast.Attribute) and hints[0].attr == "hint"):
                yield inner, child, hints[0]
        yield from _hints_in(child, inner)


def follows(names: str) -> Callable[[Case], Case]:
    """Name the places whose hints a case follows, as `names_in` reads them."""

    def mark(case: Case) -> Case:
        case.__dict__["follows"] = names
        return case

    return mark


def names_in(names: str) -> list[str]:
    """Return the places in ``"a.py::f f#2 b.py::g"``: a name without a file is of the file before it."""
    found: list[str] = []
    for word in names.split():
        path = "" if "::" in word else found[-1].partition("::")[0] + "::"
        found.append(path + word)
    return found


@contextmanager
def hints_recorded() -> Iterator[None]:
    """Keep in `reached` which places give a hint inside the block."""
    real = HotsetError.__init__
    reached.clear()

    def recording(error: HotsetError, message: str, *, hint: str | None = None) -> None:
        real(error, message, hint=hint)
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        if hint is not None and caller is not None:
            path = str(Path(caller.f_code.co_filename).resolve())
            reached.update(
                place.name
                for place in places().values()
                if place.path == path and place.first_line <= caller.f_lineno <= place.last_line
            )

    HotsetError.__init__ = recording  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        HotsetError.__init__ = real  # type: ignore[method-assign]


class Shell:
    """Runs commands in a folder, as a user types them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.patch = pytest.MonkeyPatch()
        """Undone by the word ``restore``, and at the end of the case."""
        self.hint = ""
        """That of the last refusal."""
        self._capsys = capsys

    def run(self, *arguments: object) -> tuple[int, str, str]:
        """Run ``hotset`` and return its exit status, stdout and stderr."""
        self._capsys.readouterr()
        # A module of the user is imported anew, as by a new process.
        for name in ("nets", "losses"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            status = int(stopped.code or 0)
        said = self._capsys.readouterr()
        return status, said.out, said.err

    def works(self, *arguments: object) -> str:
        """Run ``hotset``, which has to succeed, and return its stdout."""
        status, out, err = self.run(*arguments)
        assert status == 0, err
        return out

    def refused(self, *arguments: object) -> str:
        """Run ``hotset``, which has to be refused in one line with a hint, and return the hint."""
        status, _, err = self.run(*arguments)
        lines = [line for line in err.splitlines() if line.startswith(("error: ", "hint: "))]
        assert status in (1, 2) and [line.split(":")[0] for line in lines] == ["error", "hint"], err
        self.hint = lines[1].removeprefix("hint: ")
        return self.hint

    def obey(self, hint: str, **words: object) -> None:
        """Run every command of a hint, as printed.

        Args:
            words: what the user puts in place of words in capitals, such as ``RAW``.
        """
        commands = re.findall(r"`([^`]+)`", hint)
        assert commands, hint
        for command in commands:
            for part in command.split(" && "):
                self._execute([str(words.get(word, word)) for word in shlex.split(part)])

    def _execute(self, words: list[str]) -> None:
        if words[:2] == ["rm", "-r"]:
            shutil.rmtree(words[2])
        elif words[:2] == ["mkdir", "-p"]:
            Path(words[2]).mkdir(parents=True, exist_ok=True)
        elif ">" in words:
            position = words.index(">")
            assert words[0] == "hotset"
            Path(words[position + 1]).write_text(self.works(*words[1:position]))
        else:
            assert words[0] == "hotset", words
            status, _, err = self.run(*words[1:])
            # A report of damage ends with 1, too.
            assert status == 0 or (words[1], err) == ("verify", ""), err


def hint_of(call: Callable[[], Any]) -> str:
    """Return the hint of the HotsetError that ``call`` raises, where no command can in a test."""
    with pytest.raises(HotsetError) as caught:
        call()
    assert caught.value.hint
    return caught.value.hint


class Killed(BaseException):
    """Stands for a kill."""


def interrupt(out: str) -> None:
    """Begin a run of ``data``, and end it as if killed after its first checkpoint."""

    def die(*_: object) -> None:
        raise Killed

    every_step = CheckpointSettings(checkpoint_every=1)
    with pytest.raises(Killed):
        train(
            Path("data"), TrainConfig(threads=1), Path(out), RunOptions(checkpoints=every_step, progress=die)
        )


def write_map(old: str, new: str) -> None:
    """Map the ids of one folder to those of another, which gets the map."""
    before, after = (Manifest.read(Path(name, "vocabulary")) for name in (old, new))
    map_ids(before, after, Path(new, "id_map"))


def table() -> list[str]:
    """Return the cases of `hints.txt`."""
    text = (CASES / "hints.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [case.strip("\n") for case in "\n".join(lines).split("\n\n") if case.strip()]


def claimed() -> list[str]:
    """Return the places that the cases in `tests/system/hints` name, read from the files."""
    calls = (
        node
        for path in sorted(CASES.glob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "follows"
    )
    named = [ast.literal_eval(call.args[0]) for call in calls]
    named += [first for first in (case.splitlines()[0] for case in table()) if "::" in first]
    return [name for names in named for name in names_in(names)]
