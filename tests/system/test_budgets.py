"""The product stays small: its options, what a command imports, and what a step calls.

A number here falls with the code that it counts and rises for nobody.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.raw import text_parts
from hotset.tests.support.own_calls import Function, calls_of_each_step, own_calls
from hotset.train import run
from hotset.workflows.cli import main
from hotset.workflows.command_list import COMMANDS
from hotset.workflows.commands.data import all_options

ALLOWED_OPTIONS = Path(__file__).with_name("options.txt")
"""All options, as lines ``command --option``; a new one needs a line here, and a reason in its commit."""

MOST_IMPORTED_BY_HELP = 9
MOST_IMPORTED_BY_PREPROCESS = 62
MOST_IMPORTED_BY_TRAIN = 82
"""Modules and packages of hotset that a process imports for one command."""

MOST_CALLS_TO_THE_LOOP = 7
MOST_CALLS_TO_A_LINE = 12
"""Calls from the command to what it is about, as docs/architecture.md lists them."""

MOST_FUNCTIONS_OF_A_STEP = 90
MOST_MODULES_OF_A_STEP = 25
"""What a step runs of hotset where nothing moves. Functions of more than 60 lines, tables of lambdas and
``exec`` are no way to meet this."""


def test_options_are_those_of_the_list() -> None:
    found = {f"{command} {each.name}" for command, (_, options) in all_options().items() for each in options}
    found -= {f"{command} {option}" for command in COMMANDS for option in ("--quiet", "--verbose")}
    allowed = ALLOWED_OPTIONS.read_text().splitlines()
    assert len(allowed) == len(set(allowed))
    assert sorted(found - set(allowed)) == [], "a new option needs a line in options.txt"
    assert sorted(set(allowed) - found) == [], "take options that are gone out of options.txt"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of `STEPS` batches, beside the log that they were made from."""
    folder = tmp_path_factory.mktemp("budgets")
    log, out = str(folder / "log.tsv"), str(folder / "data")
    assert main(["generate", "-q", "--samples", "4000", "--seed", "1", "--scale", "1000", "--out", log]) == 0
    assert main([*PREPROCESS, log, "--out", out]) == 0
    return folder


STEPS = 55
PREPROCESS = ("preprocess", "-q", "--hot-bytes", "64KiB", "--batch-size", "64", "--workers", "1")


def imported_by(*command: str) -> list[str]:
    """Return the names of our modules and packages that one command imports in a fresh process."""
    program = (
        "import sys\n"
        "from hotset.workflows.cli import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "own = (name for name in sys.modules if name.partition('.')[0] == 'hotset')\n"
        "print(*sorted(own), file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, *command], check=True, capture_output=True, text=True
    )
    return found.stderr.split()


def test_help_imports_few_modules() -> None:
    assert len(imported_by("--help")) <= MOST_IMPORTED_BY_HELP


def test_preprocessing_imports_few_modules(data: Path, tmp_path: Path) -> None:
    found = imported_by(*PREPROCESS, str(data / "log.tsv"), "--out", str(tmp_path / "out"))
    assert len(found) <= MOST_IMPORTED_BY_PREPROCESS, "\n".join(found)


def test_training_in_one_process_imports_few_modules(data: Path, tmp_path: Path) -> None:
    options = (
        "--placement",
        "all-fast",
        "--threads",
        "1",
        "--max-steps",
        "2",
        "--out",
        str(tmp_path / "run"),
    )
    found = imported_by("train", "-q", str(data / "data"), *options)
    assert len(found) <= MOST_IMPORTED_BY_TRAIN, "\n".join(found)


def test_a_step_calls_few_functions(data: Path, tmp_path: Path) -> None:
    def calls(epochs: int) -> Counter[Function]:
        options = ("--placement", "all-fast", "--threads", "1", "--epochs", str(epochs))
        out = str(tmp_path / str(epochs))
        return own_calls(lambda: main(["train", "-q", str(data / "data"), "--out", out, *options]))

    functions = calls_of_each_step(calls(1), calls(3), 2 * STEPS)
    assert len(functions) > 10, "the steps were not seen"
    assert len(functions) <= MOST_FUNCTIONS_OF_A_STEP, "\n".join(map(str, functions))
    assert len({function.module for function in functions}) <= MOST_MODULES_OF_A_STEP


def calls_to(
    module: Any, name: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, str]]:
    """Return module and name of each of our functions that run when ``name`` is first called."""
    wanted: Callable[..., Any] = getattr(module, name)
    found: list[tuple[str, str]] = []

    def note(*arguments: Any, **more: Any) -> Any:
        names = [(each.frame.f_globals["__name__"], each.function) for each in inspect.stack(0)]
        own = [name for name in names if name[0].startswith("hotset.") and "tests" not in name[0].split(".")]
        found[:] = found or own
        return wanted(*arguments, **more)

    monkeypatch.setattr(module, name, note)
    assert main([*command]) == 0
    return found


def test_few_calls_lead_to_the_loop(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("train", "-q", str(data / "data"), "--out", str(tmp_path / "run"), "--max-steps", "2")
    found = calls_to(run, "train_steps", command, monkeypatch)
    assert found and len(found) <= MOST_CALLS_TO_THE_LOOP, found
    assert len({module for module, _ in found}) <= 3, found


def test_few_calls_lead_to_a_line(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (*PREPROCESS, str(data / "log.tsv"), "--out", str(tmp_path / "out"))
    found = calls_to(text_parts, "parse_block", command, monkeypatch)
    assert found and len(found) <= MOST_CALLS_TO_A_LINE, found
    assert len({module for module, _ in found}) <= 6, found


def test_fae_is_one_file_that_three_builders_import() -> None:
    train = Path(run.__file__).parent
    found = {
        path.name
        for path in train.rglob("*.py")
        if "fae import" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] == "fae"
    }
    assert found == {"placements.py", "build.py", "build_embeddings.py"}
