"""Measure the share of small faults that the tests find: ``python -m hotset.tests.fuzz.mutants``.

Faults are drawn by a seed over the modules of stats, pipeline and train: a changed comparison, a changed
constant, or a removed statement. Each is made in a copy of the checkout, where first the test files of its
module run and then, if these pass, those of `WIDER_TESTS`. A fault that no test finds survives. Kernels of
GPUs are left out, because most machines run none of them.

A longer run begins with the faults of a shorter one. The same command continues where it was stopped.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("stats", "pipeline", "train")
LEFT_OUT = ("gpu", "device.py", "step.py")
"""Folders and files whose code needs a GPU, or a simulated one in most of its tests."""
WIDER_TESTS = {
    "stats": ("tests/pipeline/test_preprocess.py",),
    "pipeline": ("tests/pipeline/test_preprocess.py", "tests/system/test_multi_hot.py"),
    "train": ("tests/train/test_run.py", "tests/train/test_evaluate.py"),
}
"""Tests of whole runs, which find what those of a module do not."""
NOT_COPIED = (".*", "build", "demo", "*.egg-info")
OTHER_COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: text of a module, and its replacement."""

    path: str
    line: int
    kind: str
    start: int
    """Position of the text in the bytes of the module."""
    stop: int
    after: str


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """Return all faults that can be made in a module, in the order of its text."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, kind, after in _changes(ast.parse(source)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[node.end_lineno - 1] + node.end_col_offset
        name = path.relative_to(root).as_posix()
        found.append(Mutant(name, node.lineno, kind, start, stop, after))
    return found


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Yield the nodes that can be changed, inside functions alone, with the text in their place."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                yield from _changes_in(statement)


def _changes_in(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    # Functions inside a function are visited as functions; the parts of an f-string have no place.
    if isinstance(node, ast.FunctionDef | ast.JoinedStr | ast.Assert):
        return
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = ast.Compare(node.left, [OTHER_COMPARISON[type(node.ops[0])]()], node.comparators)
        yield node, "comparison", f"({ast.unparse(other)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        value = (not node.value) if isinstance(node.value, bool) else node.value + 1
        yield node, "constant", f"{value!r}"
    elif isinstance(node, ast.AugAssign | ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield node, "statement", "pass"
    annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
    for child in ast.iter_child_nodes(node):
        if child is not annotation:
            yield from _changes_in(child)


def draw(root: Path, seed: int, number: int) -> list[Mutant]:
    """Return ``number`` faults; more of them begin with those of fewer."""
    files = [
        path
        for layer in LAYERS
        for path in sorted((root / layer).rglob("*.py"))
        if not {*path.relative_to(root).parts} & {*LEFT_OUT}
    ]
    every = [mutant for path in files for mutant in mutants_of(path, root)]
    # Kinds take turns: constants are by far the most, and statements are as informative.
    order = random.Random(seed)
    kinds = ("comparison", "constant", "statement")
    drawn = [[mutant for mutant in every if mutant.kind == kind] for kind in kinds]
    for mutants in drawn:
        order.shuffle(mutants)
    return [mutant for three in zip(*drawn, strict=False) for mutant in three][:number]


def tests_of(path: str, root: Path) -> list[str]:
    """Return the test files of a module: that of its name, and those whose docstring names it."""
    stem = Path(path).stem
    own = root / "tests" / Path(path).with_name(f"test_{stem}.py")
    named = [
        test
        for test in sorted((root / "tests" / Path(path).parts[0]).rglob("test_*.py"))
        if f"`{stem}`" in (ast.get_docstring(ast.parse(test.read_text())) or "")
    ]
    return [test.relative_to(root).as_posix() for test in ([own] if own.exists() else []) + named]


def judge(mutant: Mutant, clean: Path, limit_seconds: float) -> dict[str, Any]:
    """Make one fault in a copy of ``clean`` and return which tests found it.

    Args:
        clean: a copy of the checkout, called ``hotset``, with its compiled kernels.
        limit_seconds: time after which tests are ended; a fault that hangs them is found.
    """
    changed = clean.parent / "changed"
    shutil.rmtree(changed, ignore_errors=True)
    # Linked files keep their times, by which compiled kernels are found; whoever writes one replaces it.
    shutil.copytree(clean, changed / "hotset", copy_function=os.link)
    path = changed / "hotset" / mutant.path
    source = path.read_bytes()
    path.unlink()
    path.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.stop :])
    before = source[mutant.start : mutant.stop].decode()
    begun = time.monotonic()
    result = "survived"
    for tests in (tests_of(mutant.path, clean), list(WIDER_TESTS[Path(mutant.path).parts[0]])):
        present = [name for name in tests if (clean / name).exists()]
        if present and result == "survived":
            result = run_tests(changed, present, limit_seconds)
    return asdict(mutant) | {
        "before": before,
        "result": result,
        "seconds": round(time.monotonic() - begun, 1),
    }


def run_tests(folder: Path, tests: list[str], limit_seconds: float) -> str:
    """Run test files of the package in ``folder``: killed, hung or survived."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]
    process = subprocess.Popen(
        command,
        cwd=folder / "hotset",
        env=os.environ | {"PYTHONPATH": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status = process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return "hung"
    # Status 5 says that every test of a file is slow.
    return "survived" if status in (0, 5) else "killed"


def main() -> None:
    """Draw faults, judge each, and write what was found after every one."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--number", type=int, default=200, help="faults to draw")
    parser.add_argument("--seed", type=int, default=28, help="seed of the draw")
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout whose tests are judged")
    parser.add_argument(
        "--limit-seconds", type=float, default=300.0, help="time that tests of a fault may take"
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the result")
    options = parser.parse_args()
    done = json.loads(options.out.read_text())["mutants"] if options.out.exists() else []
    # The name begins with a dot, so that a copy made inside the checkout does not contain itself.
    with tempfile.TemporaryDirectory(prefix=".mutants-", dir=options.out.parent) as scratch:
        clean = Path(scratch) / "hotset"
        shutil.copytree(options.root, clean, ignore=shutil.ignore_patterns(*NOT_COPIED))
        for mutant in draw(clean, options.seed, options.number)[len(done) :]:
            done.append(judge(mutant, clean, options.limit_seconds))
            found = sum(each["result"] != "survived" for each in done)
            report = {"seed": options.seed, "number": len(done), "killed": found, "mutants": done}
            options.out.write_text(json.dumps(report, indent=1) + "\n")
            print(
                f"{found} of {len(done)} found; {mutant.path}:{mutant.line} {done[-1]['result']}", flush=True
            )


if __name__ == "__main__":
    main()
