"""A bounded queue between two threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from hotset.train.data.background import BackgroundIterator


def test_items_come_in_order() -> None:
    assert list(BackgroundIterator(range(50), 3, "test")) == list(range(50))
    assert list(BackgroundIterator([], 3, "test")) == []


def test_the_maker_stays_at_most_so_far_ahead() -> None:
    made = 0

    def items() -> Iterator[int]:
        nonlocal made
        for number in range(20):
            made += 1
            yield number

    used = 0
    for _ in BackgroundIterator(items(), 3, "test"):
        used += 1
        time.sleep(0.001)
        # The queue, one in the maker's hands, one in the user's.
        assert made <= used + 3 + 1
    assert used == 20


def test_an_error_arrives_before_what_is_in_the_queue() -> None:
    def items() -> Iterator[int]:
        yield 0
        yield 1
        assert used.wait(60)
        raise OSError("no more")

    used = threading.Event()
    ahead = BackgroundIterator(items(), 10, "test")
    steps = iter(ahead)
    assert next(steps) == 0
    used.set()
    ahead._thread.join()
    with pytest.raises(OSError, match="no more"):
        next(steps)


def test_closing_stops_a_maker_that_waits_for_room() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            closed.set()

    ahead = BackgroundIterator(items(), 2, "test")
    assert next(iter(ahead)) == 0
    ahead.close()
    assert closed.is_set() and not ahead._thread.is_alive()


def test_closing_what_never_started_is_nothing() -> None:
    BackgroundIterator(range(3), 1, "test").close()


@pytest.mark.parametrize(("depth", "given_back"), [(3, 3), (5, 2), (20, 4)])
def test_places_that_are_given_back_together_keep_the_maker_as_far_ahead(depth: int, given_back: int) -> None:
    made = 0
    is_waiting = threading.Event()

    def items() -> Iterator[int]:
        nonlocal made
        for number in range(50):
            made += 1
            yield number

    ahead = BackgroundIterator(items(), depth, "test", given_back)
    used = 0
    for found in ahead:
        assert found == used
        used += 1
        # The maker goes on until it has no place: the next item is in its hands.
        num_returned = (used - 1) // given_back * given_back + given_back * (used % given_back == 0)
        wanted = min(50, depth + num_returned + 1)
        for _ in range(2000):
            if made >= wanted:
                break
            is_waiting.wait(0.001)
        assert made == wanted
    assert used == 50
