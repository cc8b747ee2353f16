"""Run the tests that need a GPU, each as a check.

A check is recorded as soon as its test ends.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest

from .part_settings import PartSettings
from .records import Records

_ROOT = Path(__file__).resolve().parents[3]
_TEST_SECONDS = 60
"""Time of a test, where a plugin can stop it."""
_TRACE_CHARACTERS = 1500


def run_tests(settings: PartSettings, records: Records) -> None:
    """Run the tests that need a GPU, where the checkout has any, and write down each.

    Without a GPU they are only collected, which imports all they need.
    """
    files = [
        str(path) for path in sorted((_ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()
    ]
    if not files:
        records.check("tests", False, f"{_ROOT} has no tests that need a GPU")
        return
    options = ["-q", "-W", "default", "-m", "gpu", "-p", "no:cacheprovider", "--rootdir", str(_ROOT)]
    options += ["-c", str(_ROOT / "pyproject.toml")]
    # Without a GPU the tests can at least be collected, which finds what no longer imports.
    if settings.torch_device.type == "cpu":
        records.check("tests are collected", pytest.main([*options, "--collect-only", *files]) == 0)
        return
    if importlib.util.find_spec("pytest_timeout") is not None:
        options.append(f"--timeout={_TEST_SECONDS}")
    options.append("--continue-on-collection-errors")
    writer = CheckWriter(records)
    ended = pytest.main([*options, *files], plugins=[writer])
    # A run without a single test has found nothing.
    records.check("tests are run", writer.num_collected > 0, f"pytest ended with {ended}")


class CheckWriter:
    """A plugin of pytest that writes a check for each test, and stops where there is no time for another.

    Args:
        records: get a check for every test, and the names of all.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self.num_collected = 0
        self._begin = 0.0
        self._last_seconds = 0.0
        self._faults: list[str] = []
        self._is_skipped = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out the tests that an earlier call has run; others have left out those without a GPU."""
        self.num_collected = len(items)
        left = set(self._records.announce([item.nodeid for item in items]))
        items[:] = [item for item in items if item.nodeid in left]

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self._records.check(f"{report.nodeid} is collected", False, _end_of(report))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> bool | None:
        """End the run before a test that would be killed in its middle."""
        if self._records.has_time(self._last_seconds):
            return None
        item.session.shouldstop = "no time is left"
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._begin = time.monotonic()
        self._faults = []
        self._is_skipped = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        """The fixtures or the body of a test have ended."""
        if report.failed:
            self._faults.append(_end_of(report))
        self._is_skipped |= report.skipped

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended, so it is written down."""
        self._last_seconds = time.monotonic() - self._begin
        detail = "skipped" if self._is_skipped else "".join(self._faults[:1])
        self._records.check(nodeid, not self._faults and not self._is_skipped, detail)
        self._records.finish(nodeid)


def _end_of(report: Any) -> str:
    return str(report.longreprtext)[-_TRACE_CHARACTERS:]
