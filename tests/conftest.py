"""Fixtures and settings of all tests."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hotset

try:
    from hypothesis import settings
except ImportError:  # where a GPU is, torch often comes without the packages of development
    pass
else:
    # A busy machine is no failure, and each run draws the same examples: what fails, fails for everybody.
    settings.register_profile("hotset", deadline=None, derandomize=True, database=None)
    settings.load_profile("hotset")

ROOT = Path(__file__).resolve().parent.parent
WHOLE_RUNS = ("fuzz", "system")
"""Folders of tests that need the kernels of all others. Workers begin with others instead,
and so compile different ones."""
if Path(hotset.__file__).resolve().parent != ROOT:
    raise RuntimeError(f"these tests belong to {ROOT}, but hotset is imported from {hotset.__file__}")


_MEMORY = Path("/dev/shm")


def _keep_temporary_files_in_memory() -> None:
    """Take a file system in memory where there is a large one: on a disk, thousands of small files that are
    written, renamed and removed take a quarter of the time."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    system = os.statvfs(_MEMORY)
    # Some tests run a program that they write.
    if system.f_bavail * system.f_frsize >= 8 << 30 and not system.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None


_keep_temporary_files_in_memory()

# Workers share the cores: threads of torch that spin while they wait for others take a third of their time.
# OpenMP reads this when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session", autouse=True)
def _no_notes_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep notes of logs out of the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_cluster_of_another_worker() -> Iterator[None]:
    """Let Ray, which joins a cluster that runs on the machine, see none that other tests have started."""
    folder = tempfile.mkdtemp(prefix="ray")  # not below the folder of tests: paths of sockets are short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Leave files in the page cache: tests kill processes, but no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _kernels_are_compiled_where_they_run() -> Iterator[None]:
    """Let no command start processes that compile: workers of tests compile what they need side by side."""
    from hotset.workflows import compile_ahead

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_ahead, "usable_cores", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def _interrupts_arrive() -> None:
    """Let SIGINT raise again: a background job of a shell ignores it, and so do its children."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _every_message_is_logged() -> None:
    """Undo what a command that ran before in this process set: commands show warnings only."""
    logging.getLogger("hotset").setLevel(logging.NOTSET)


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with the same seed in each test."""
    return np.random.default_rng(20201103)


@pytest.fixture
def real_data() -> Path:
    """The folder of real samples; tests are skipped where there is none."""
    folder = os.environ.get("HOTSET_REAL_DATA")
    if not folder:
        pytest.skip("HOTSET_REAL_DATA names no folder of real samples")
    return Path(folder)


def pytest_collection_finish() -> None:
    """Leave what all tests share out of the searches for garbage, which take 8 % of the time otherwise."""
    gc.collect()
    gc.freeze()


def _folder_of(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").parts[0]


def _leave_cases_to_the_slow_run(items: list[pytest.Item]) -> None:
    """Mark as slow, of tests with the mark ``diagonal``, the cases whose values have positions among those of
    their parameters that do not add up to a multiple of its number."""
    seen: defaultdict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    for item in items:
        mark = item.get_closest_marker("diagonal")
        if mark is None or not isinstance(item, pytest.Function):
            continue
        test = item.nodeid.partition("[")[0]
        total = 0
        for number, value in enumerate(item.callspec._idlist):
            positions = seen[test, number]
            total += positions.setdefault(value, len(positions))
        if total % mark.args[0]:
            item.add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave cases beside a diagonal to the slow run; begin with the longest tests and end with those of whole
    runs; and skip what needs a GPU where torch sees none."""
    _leave_cases_to_the_slow_run(items)
    items.sort(key=lambda item: (item.get_closest_marker("longest") is None, _folder_of(item) in WHOLE_RUNS))
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch  # only when such a test was collected: preprocessing tests do without

    if not torch.cuda.is_available():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device; make gpu-test runs it"))
