"""Whole processes are timed from outside."""

from __future__ import annotations

import os

import pytest

from hotset.pipeline.errors import HotsetError
from hotset.workflows.bench.measuring.whole_process import time_module


def test_a_process_is_timed_whole() -> None:
    taken = time_module("timeit", ["-n", "1", "-r", "1", "pass"])
    assert 0 < taken.cpu_seconds and 0 < taken.wall_seconds
    # Only its own CPU seconds count, not those of earlier ones.
    again = time_module("timeit", ["-n", "1", "-r", "1", "pass"])
    assert again.cpu_seconds < os.times().children_user + os.times().children_system


def test_variables_reach_the_process() -> None:
    code = "import os; assert os.environ['WANTED'] == 'yes'"
    time_module("timeit", ["-n", "1", "-r", "1", "-s", code, "pass"], {"WANTED": "yes"})


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(HotsetError, match=r"python -m no_such_module ended with 1: .*No module named"):
        time_module("no_such_module", [])
