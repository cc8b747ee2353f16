"""CPU seconds are divided among the functions that were seen."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hotset.workflows.bench.measuring.frame_samples import OTHER, seconds_of_parts


class Watched(dict[str, str]):
    """Parts that note which of them was seen."""

    def __init__(self, **parts: str) -> None:
        super().__init__(parts)
        self.is_seen = {function: threading.Event() for function in [*parts, OTHER]}

    def get(self, function: str, default: Any = None) -> Any:
        found = super().get(function)
        # The outermost frame of all is asked for only where none further in has a part.
        self.is_seen[function if found else OTHER].set()
        return found


def wait_inside(watched: Watched, function: str) -> None:
    assert watched.is_seen[function].wait(60)


def test_the_innermost_function_with_a_part_is_the_one_that_counts() -> None:
    watched = Watched(wait_inside="waiting", work="work")

    def job() -> None:
        wait_inside(watched, "wait_inside")

    found = seconds_of_parts(job, watched)
    assert list(found) == ["waiting", "work", OTHER]
    assert found["waiting"] > 0 and found["work"] == 0 and min(found.values()) >= 0


def test_functions_without_a_part_count_as_other() -> None:
    watched = Watched(work="work")
    found = seconds_of_parts(lambda: wait_inside(watched, OTHER), watched)
    assert found["work"] == 0 and found[OTHER] > 0


def test_a_job_that_fails_stops_being_watched() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        seconds_of_parts(lambda: 1 // 0, {})
    assert threading.active_count() == before


def test_a_job_too_short_to_be_seen_has_no_other_part() -> None:
    found = seconds_of_parts(lambda: None, {"work": "work"})
    assert found["work"] == 0 and found[OTHER] > 0
