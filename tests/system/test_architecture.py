"""The layout holds: imports run one way, packages are listed, the wheel works where no checkout is."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("workflows", "train", "pipeline", "stats")
"""A folder imports what stands to its right, never what stands to its left."""

MODULES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
IDS = [str(path.relative_to(ROOT)) for path in MODULES]
PREPROCESSING = (
    "cli",
    "console",
    "options",
    "recipes",
    "commands.preprocess_commands",
    "commands.stats_command",
    "commands.schema_command",
)
"""Modules of ``workflows`` that must not wait for torch, besides all of ``pipeline`` and ``stats``."""


def imports_of(path: Path) -> Iterator[str]:
    """Absolute names of all a module imports, inside functions too."""
    package = ["hotset", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_imports_run_to_the_right_only(path: Path) -> None:
    layer = LAYERS.index(path.relative_to(ROOT).parts[0])
    inside = [name.split(".")[1] for name in imports_of(path) if name.startswith("hotset.")]
    for name in set(inside) & {*LAYERS, "tests"}:
        assert name in LAYERS[layer:], f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_a_folder_keeps_away_from_what_is_not_its_business(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    files = {"io", "json", "os", "pathlib", "shutil", "tempfile", "joblib", "polars", "pyarrow"}
    forbidden = {"stats": {"torch", "safetensors", *files}, "pipeline": {"torch", "safetensors"}}
    found = {name.split(".")[0] for name in imports_of(path)}
    assert not found & forbidden.get(layer, set())


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_imports_inside_the_package_are_relative(path: Path) -> None:
    absolute = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("hotset"))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("hotset") for alias in node.names))
    ]
    assert not absolute


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in [ROOT / "__init__.py", *MODULES, *(ROOT / "tests").rglob("*.py")]
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_the_package_list_equals_the_folders() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}
    assert sorted(listed) == sorted(["hotset", *(".".join(["hotset", *folder.parts]) for folder in folders)])
    assert all((ROOT / folder / "__init__.py").exists() for folder in folders)


def run(*command: str, cwd: Path, **environment: str) -> str:
    """What a command prints; fails with all it said where it does not end well."""
    found = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=600
    )
    assert found.returncode == 0, f"{' '.join(command)}\n{found.stdout}\n{found.stderr}"
    return found.stdout


def test_preprocessing_never_imports_torch(tmp_path: Path) -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in MODULES
        if path.relative_to(ROOT).parts[0] in ("pipeline", "stats")
    ]
    names += [f"workflows.{name}" for name in PREPROCESSING]
    lines = ["import importlib, sys"]
    lines += [f"importlib.import_module('hotset.{name}')" for name in names if not name.endswith("__init__")]
    found = run(sys.executable, "-c", "\n".join([*lines, "print('torch' in sys.modules)"]), cwd=tmp_path)
    assert found.strip() == "False"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel without its dependencies, in a folder outside the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    not_source = shutil.ignore_patterns(".*", "__pycache__", "build", "demo", "dist", "*.egg-info")
    shutil.copytree(ROOT, folder / "source", ignore=not_source)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    alone = ("--no-deps", "--no-index")
    build = ("wheel", "--no-build-isolation", *alone, "--wheel-dir", str(folder), str(folder / "source"))
    run(*pip, *build, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    run(*pip, "install", *alone, "--target", str(folder / "target"), str(wheel), cwd=folder)
    return folder / "target"


def test_the_wheel_holds_the_package_and_its_data(installed: Path) -> None:
    for path in [
        ROOT / "__init__.py",
        ROOT / "py.typed",
        *MODULES,
        *(ROOT / "pipeline/generate/profiles").glob("*.json"),
        *(ROOT / "workflows").rglob("*.html"),
    ]:
        assert (installed / "hotset" / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    assert not (installed / "hotset" / "tests").exists()


def test_the_installed_wheel_helps(installed: Path, tmp_path: Path) -> None:
    where = "import hotset; print(hotset.__file__)"
    assert run(sys.executable, "-c", where, cwd=tmp_path, PYTHONPATH=str(installed)).startswith(
        str(installed)
    )
    usage = run(str(installed / "bin/hotset"), "--help", cwd=tmp_path, PYTHONPATH=str(installed))
    assert "usage: hotset" in usage and "preprocess" in usage and "demo" in usage


def test_the_installed_wheel_runs_the_demo(installed: Path, tmp_path: Path) -> None:
    command = (str(installed / "bin/hotset"), "demo", "--samples", "2000")
    assert "all-fast" in run(*command, cwd=tmp_path, PYTHONPATH=str(installed))
