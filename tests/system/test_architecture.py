"""The layout holds: imports run one way, packages are listed, the wheel works where no checkout is."""

from __future__ import annotations

import ast
import graphlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("workflows", "train", "pipeline", "stats")
"""A folder imports what stands to its right, never what stands to its left."""

BENCH = ROOT / "workflows" / "bench"
"""Scripts of a checkout, which are not in the wheel."""
TEST_FILES = sorted((ROOT / "tests").rglob("*.py"))
FLOORS = {
    "workflows": (
        "bench",
        "cli commands fit library",
        "command_list report",
        "compile_ahead option_texts",
        "characterise options",
        "console",
        "machine recipes",
    ),
    "train": (
        "fit",
        "own_loop run",
        "torchrec",
        "build run_log verify_run",
        "ranked_run",
        "checkpoints",
        "loop",
        "serving",
        "evaluate",
        "build_embeddings",
        "gpu placements",
        "build_model ranks run_folder step",
        "advice",
        "model",
        "rows",
        "device",
        "metrics",
        "config data threads",
        "config_parts",
    ),
    "pipeline": (
        "dry_run verify",
        "export preprocess stage_work statistics",
        "stages",
        "formats infer_schema",
        "infer_dialect",
        "infer_column",
        "generate raw",
        "folders settings",
        "runtime schema",
        "errors",
    ),
    "stats": (
        "step_times",
        "drift exchange lookahead",
        "curves ranking replication",
        "batch_rows codecs counting peeling shuffle",
        "id_tables metrics row_bytes",
        "kernel",
        "compile_notice simd",
    ),
}
"""Rooms of each folder, and modules at its root: one imports from floors below, never from its own."""

MODULES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
NAMES = {
    ".".join(["hotset", *path.relative_to(ROOT).with_suffix("").parts]): path
    for path in MODULES
    if path.name != "__init__.py"
}
PREPROCESSING = (
    "cli",
    "console",
    "options",
    "recipes",
    "commands.preprocess",
    "commands.stats",
    "commands.data",
    "option_texts",
)
"""Modules of ``workflows`` that must not wait for torch, besides all of ``pipeline`` and ``stats``."""


_DOCSTRING = re.compile(r'r?"""(.*?)"""', re.DOTALL)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Absolute names of all a module imports, inside functions too."""
    return frozenset(_walk_imports(path))


def _walk_imports(path: Path) -> Iterator[str]:
    package = ["hotset", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


@cache
def docstring_of(path: Path) -> str:
    """Docstring of a module, empty where the module does not begin with one."""
    found = _DOCSTRING.match(path.read_text())
    return found[1].strip() if found else ""


@cache
def inner_imports(name: str) -> frozenset[str]:
    """Other modules of the package that a module imports, wherever in it."""
    return imports_of(NAMES[name]) & NAMES.keys() - {name}


def room_of(name: str) -> str:
    """The folder or module, right inside one of `LAYERS`, that a module belongs to."""
    return name.split(".")[2]


def test_imports_run_to_the_right_only() -> None:
    wrong = []
    for path in MODULES:
        to_the_left = LAYERS[: LAYERS.index(path.relative_to(ROOT).parts[0])]
        inside = (name for name in imports_of(path) if name.startswith("hotset."))
        wrong += [
            f"{path} imports {name}" for name in inside if name.split(".")[1] in (*to_the_left, "tests")
        ]
    assert wrong == []


@pytest.mark.parametrize("layer", LAYERS)
def test_rooms_import_from_lower_floors_only(layer: str) -> None:
    floor_of = {room: number for number, rooms in enumerate(FLOORS[layer]) for room in rooms.split()}
    assert floor_of.keys() == {path.stem for path in (ROOT / layer).glob("[!_]*.py")} | {
        path.parent.name for path in (ROOT / layer).glob("*/__init__.py")
    }
    wrong = [
        f"{name} imports {imported}"
        for name in NAMES
        for imported in inner_imports(name)
        if name.startswith(f"hotset.{layer}.")
        and imported.startswith(f"hotset.{layer}.")
        and room_of(name) != room_of(imported)
        and floor_of[room_of(imported)] <= floor_of[room_of(name)]
    ]
    assert wrong == []


def test_no_imports_run_in_a_circle() -> None:
    """Not even those that only type checkers follow."""
    graphlib.TopologicalSorter({name: inner_imports(name) for name in NAMES}).prepare()


def test_no_folder_of_modules_is_too_large_for_one_look() -> None:
    sizes = Counter(path.parent for path in (*NAMES.values(), *TEST_FILES))
    assert {folder: size for folder, size in sizes.items() if size > 20} == {}


def test_test_folders_mirror_those_of_modules() -> None:
    folders = {path.parent.relative_to(ROOT) for path in MODULES}
    in_tests = {path.parent.relative_to(ROOT / "tests") for path in TEST_FILES} - {Path()}
    mirrored = {folder for folder in in_tests if folder.parts[0] not in ("fuzz", "support", "system")}
    assert mirrored <= folders


def test_every_module_has_a_test_file_or_is_named_in_one() -> None:
    named = " ".join(docstring_of(path) for path in TEST_FILES if path.name.startswith("test_"))
    untested = [
        str(path.relative_to(ROOT))
        for path in NAMES.values()
        if BENCH not in path.parents
        and not (ROOT / "tests" / path.relative_to(ROOT)).with_name(f"test_{path.name}").exists()
        and f"`{path.stem}`" not in named
    ]
    assert untested == []


def test_a_folder_keeps_away_from_what_is_not_its_business() -> None:
    files = {"io", "json", "os", "pathlib", "shutil", "tempfile", "polars", "pyarrow"}
    forbidden = {"stats": {"torch", "safetensors", *files}, "pipeline": {"torch", "safetensors"}}
    wrong = []
    for path in MODULES:
        found = {name.split(".")[0] for name in imports_of(path)}
        wrong += [(path, name) for name in found & forbidden.get(path.relative_to(ROOT).parts[0], set())]
    assert wrong == []


def test_every_room_has_its_place_on_the_page_for_readers_of_the_code() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rooms = {path.parent for layer in LAYERS for path in (ROOT / layer).glob("*/__init__.py")}
    absent = [str(room.relative_to(ROOT)) for room in rooms if f"{room.name}/" not in page]
    assert absent == [], "add these rooms to the table in docs/architecture.md"


def test_the_package_imports_no_benchmark() -> None:
    importers = [
        str(path.relative_to(ROOT))
        for path in MODULES
        if BENCH not in path.parents
        and any(name.startswith("hotset.workflows.bench") for name in imports_of(path))
    ]
    assert importers == []


def test_imports_inside_the_package_are_relative() -> None:
    pattern = re.compile(r"^\s*(from|import) hotset\b", re.MULTILINE)
    assert [path for path in MODULES if pattern.search(path.read_text())] == []


def test_every_kernel_has_the_decorator_that_survives_a_bad_cache() -> None:
    allowed = ROOT / "stats/kernel.py"
    found = [path for path in MODULES if path != allowed and re.search(r"\bn?jit\(", path.read_text())]
    assert found == []


def test_tests_import_no_other_test_file() -> None:
    pattern = re.compile(r"hotset\.tests\.([a-z_]+\.)*test_")  # in the code for other processes, too
    importers = [str(path.relative_to(ROOT)) for path in TEST_FILES if pattern.search(path.read_text())]
    assert importers == []


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(("row", "same_row"), [(0, 0), (1, 1)])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_cases_beside_a_diagonal_are_slow(
    row: int, same_row: int, column: int, request: pytest.FixtureRequest
) -> None:
    is_slow = request.node.get_closest_marker("slow") is not None
    assert is_slow == ((row + column) % 2 == 1)


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in [ROOT / "__init__.py", *MODULES, *TEST_FILES]
        if not docstring_of(path)
    ]
    assert silent == []


def test_the_package_list_equals_the_folders() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {
        path.parent.relative_to(ROOT)
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
        if BENCH not in path.parents
    }
    assert sorted(listed) == sorted(["hotset", *(".".join(["hotset", *folder.parts]) for folder in folders)])
    assert all((ROOT / folder / "__init__.py").exists() for folder in folders)


def test_files_beside_modules_are_package_data() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    found = {
        path.relative_to(ROOT).as_posix()
        for package, patterns in listed.items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    beside = [
        path.relative_to(ROOT) for layer in LAYERS for path in (ROOT / layer).rglob("*") if path.is_file()
    ]
    # Results of benchmarks are for the docs, and stay in the checkout.
    left_out = {"__pycache__", "results"}
    data = {path.as_posix() for path in beside if path.suffix != ".py" and not left_out & {*path.parts}}
    assert found == {"py.typed", *data}


def run(*command: str, cwd: Path, **environment: str) -> str:
    """Return what a command prints; a failure shows all of its output."""
    found = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=600
    )
    assert found.returncode == 0, f"{' '.join(command)}\n{found.stdout}\n{found.stderr}"
    return found.stdout


FILE_ROOMS = ("folders", "formats", "raw")
"""Rooms of ``pipeline`` that touch files; with another kind of storage, only these would change."""
FILE_EXCEPTIONS = {
    "export": "writes files of other programs, by their own libraries",
    "errors.py": "asks whether hotset runs from a checkout, for a hint",
    "generate/generate.py": "reads the profiles that come with the package",
    "schema/schema_file.py": "reads a text that the user names, and those that come with the package",
    "runtime": "asks the system about memory, processes and the current folder",
}
_FILE_CALL = re.compile(
    r"(?<![\w.])(?<!def )open\(|\.open\([\"']|\bos\.\w|\bshutil\.|\btempfile\."
    r"|\bnp\.(memmap|fromfile|load|save)\b"
    r"|\.(unlink|mkdir|touch|rmdir|rename|exists|is_file|is_dir|iterdir|r?glob|l?stat|tofile"
    r"|(read|write)_(bytes|text))\("
)


def test_only_folders_formats_and_raw_touch_files() -> None:
    found = [
        f"{name}: {line.strip()}"
        for path in (ROOT / "pipeline").rglob("*.py")
        for name in [path.relative_to(ROOT / "pipeline").as_posix()]
        if not name.startswith((*(f"{room}/" for room in FILE_ROOMS), *FILE_EXCEPTIONS))
        for line in path.read_text().splitlines()
        if _FILE_CALL.search(line)
    ]
    assert not found, "\n".join(found)


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
    _keep_compiled_kernels(folder / "target" / "hotset")
    return folder / "target"


def _keep_compiled_kernels(installed: Path) -> None:
    """Put the compiled kernels of the checkout beside the installed ones, which take most of a minute to
    compile. Numba takes them where a module has the size and the time of the one that was compiled."""
    for path in MODULES:
        if BENCH in path.parents:
            continue
        copy = installed / path.relative_to(ROOT)
        state = path.stat()
        os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns))
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.nb[ic]"):
            (copy.parent / "__pycache__").mkdir(exist_ok=True)
            shutil.copy2(compiled, copy.parent / "__pycache__")


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_data(installed: Path) -> None:
    for path in [
        ROOT / "__init__.py",
        ROOT / "py.typed",
        *(path for path in MODULES if BENCH not in path.parents),
        *(ROOT / "pipeline/generate/profiles").iterdir(),
        *(ROOT / "workflows").rglob("*.html"),
    ]:
        assert (installed / "hotset" / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    assert not (installed / "hotset" / "tests").exists()
    assert not (installed / "hotset" / "workflows" / "bench").exists()


@pytest.mark.slow
def test_the_installed_wheel_helps(installed: Path, tmp_path: Path) -> None:
    where = "import hotset; print(hotset.__file__)"
    assert run(sys.executable, "-c", where, cwd=tmp_path, PYTHONPATH=str(installed)).startswith(
        str(installed)
    )
    usage = run(str(installed / "bin/hotset"), "--help", cwd=tmp_path, PYTHONPATH=str(installed))
    assert "usage: hotset" in usage and "preprocess" in usage and "demo" in usage


@pytest.mark.slow
def test_the_installed_wheel_runs_the_demo(installed: Path, tmp_path: Path) -> None:
    command = (str(installed / "bin/hotset"), "demo", "--samples", "2000")
    assert "all-fast" in run(*command, cwd=tmp_path, PYTHONPATH=str(installed))
