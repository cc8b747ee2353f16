"""A command starts soon: it imports what it needs and nothing that other commands need (`cli`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hotset.tests.support.logs.criteo_text import draw_samples, text_of

TRAINING = ("torch", "safetensors")
TABLES = ("polars", "pyarrow.parquet", "pyarrow.compute", "pandas")
PROCESSES = ("ray",)
DRAWING = ("rich.progress", "altair", "vl_convert")


def unneeded_imports(*groups: tuple[tuple[str, ...], Sequence[tuple[str, ...]]], status: int = 0) -> str:
    """Run commands one after another in a fresh process, and return which imported what they do not need.

    ``groups``: modules that are not needed, and commands; what later commands import, earlier ones may not.
    ``status``: the exit status that all of them have.
    """
    program = f"""
import contextlib, io, sys
class NoPandas:  # which Arrow imports with its first array where it is installed
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ImportError(name)
sys.meta_path.insert(0, NoPandas())
from hotset.workflows.cli import main
found = []
for unneeded, commands in {groups!r}:
    for command in commands:
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                status = main(command)
            except SystemExit as ended:
                status = ended.code
        assert status == {status}, command
        found += [f"{{command[0]}} {{name}}" for name in unneeded if name in sys.modules]
print(", ".join(found))
"""
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_what_needs_no_log_imports_no_library_for_it() -> None:
    everything = (*TRAINING, *TABLES, *PROCESSES, *DRAWING, "numba", "pyarrow")
    found = unneeded_imports(
        ((*everything, "numpy", "argparse"), [("--help",), ("--version",)]),
        (everything, [("train", "--help"), ("evaluate", "--help-all")]),
        ((*TRAINING, *PROCESSES), [("completion", "bash"), ("recipe",)]),
    )
    assert found == ""


def test_commands_on_a_log_import_neither_torch_nor_what_reads_other_logs(tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_bytes(text_of(draw_samples(200, np.random.default_rng(2))))
    folder = str(tmp_path / "out")
    commands = (
        ("preprocess", str(log), "--out", folder, "--hot-bytes", "4KiB", "--batch-size", "16"),
        ("stats", folder),
        ("verify", folder, "--no-rebuild"),
        ("advise", folder),
    )
    assert unneeded_imports(((*TRAINING, *TABLES, *PROCESSES, *DRAWING), commands)) == ""


def test_a_wrong_path_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_bytes(text_of(draw_samples(5, np.random.default_rng(2))))
    no, out = str(tmp_path / "NOPE"), str(tmp_path / "out")
    commands = (
        ("train", no, "--out", out),
        ("train", str(log), "--out", out),
        ("evaluate", no, no),
        ("export", no, "--out", out),
        ("predict", no, str(log), "--out", out),
    )
    assert unneeded_imports(((*TRAINING, *TABLES, *PROCESSES, "numba"), commands), status=1) == ""
