"""A bounded queue between two threads.

Calls of several threads come back in the order in which they were asked for.

Pieces of work are done once each, by threads that use none of torch's.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from hotset.train.threads import BackgroundIterator, Readers, WorkThreads, one_torch_thread


def test_items_come_in_order() -> None:
    assert list(BackgroundIterator(range(50), 3, "test")) == list(range(50))
    assert list(BackgroundIterator([], 3, "test")) == []


def test_an_error_arrives_after_what_is_in_the_queue() -> None:
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
    assert ahead.fault() is None
    assert (ahead.peek(0), ahead.peek(1), ahead.peek(2)) == (1, None, None)
    assert isinstance(ahead.fault(2), OSError)
    assert next(steps) == 1
    assert isinstance(ahead.fault(), OSError)
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


@pytest.mark.parametrize(("depth", "given_back"), [(3, 1), (3, 3), (5, 2), (20, 4)])
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


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_results_are_in_the_order_of_the_calls(num_threads: int) -> None:
    later = threading.Event()

    def square(number: int) -> int:
        # The first call ends last where there are threads for it.
        if number == 0 and num_threads > 1:
            assert later.wait(10)
        later.set()
        return number * number

    with Readers(num_threads) as readers:
        assert list(readers.in_order(square, range(9))) == [(number, number**2) for number in range(9)]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_no_more_is_asked_for_than_there_are_threads(num_threads: int) -> None:
    asked = 0

    def numbers() -> Iterator[int]:
        nonlocal asked
        while asked < 8:
            asked += 1
            yield asked

    with Readers(num_threads) as readers:
        for number, _ in readers.in_order(str, numbers()):
            assert asked <= number + num_threads


@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_error_is_raised_in_its_turn(num_threads: int) -> None:
    found = []
    with Readers(num_threads) as readers, pytest.raises(ZeroDivisionError):
        for number, _ in readers.in_order(lambda number: 1 // (3 - number), range(9)):
            found.append(number)
    assert found == [0, 1, 2]


def test_all_calls_are_over_when_the_block_ends() -> None:
    """Also after an error, which would else be met by another thread as a call that was cancelled."""
    begun, may_end = threading.Event(), threading.Event()
    done = []

    def work() -> None:
        begun.set()
        assert may_end.wait(10)
        done.append(True)

    with pytest.raises(KeyError), Readers(1) as readers:
        readers.submit(work)
        late = readers.submit(done.append, False)
        assert begun.wait(10)
        threading.Timer(0.01, may_end.set).start()
        raise KeyError
    assert done == [True, False] and late.result(timeout=0) is None


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_pieces", [0, 1, 2, 40])
def test_each_piece_is_done_once(num_threads: int, num_pieces: int) -> None:
    done: list[tuple[int, int]] = []
    WorkThreads(num_threads).run(lambda piece, worker: done.append((piece, worker)), num_pieces)
    assert Counter(piece for piece, _ in done) == Counter(range(num_pieces))
    assert {worker for _, worker in done} <= set(range(num_threads))


@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_work_at_the_same_time_each_with_a_number_of_its_own(num_threads: int) -> None:
    together = threading.Barrier(num_threads, timeout=60)
    workers = []

    def work(_: int, worker: int) -> None:
        together.wait()  # passes only where all pieces are under way
        workers.append(worker)

    WorkThreads(num_threads).run(work, num_threads)
    assert sorted(workers) == list(range(num_threads))


def test_the_caller_works_too_and_does_not_wait_for_helpers_that_have_not_begun() -> None:
    threads = WorkThreads(2)
    release = threading.Event()
    threads._pool.submit(release.wait)  # the only helper is busy elsewhere
    done: list[int] = []
    threads.run(lambda piece, _: done.append(piece), 4)
    release.set()
    assert done == [0, 1, 2, 3]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_an_error_of_any_thread_reaches_the_caller(num_threads: int) -> None:
    def work(piece: int, _: int) -> None:
        if piece == 3:
            raise OSError("piece 3")

    threads = WorkThreads(num_threads)
    with pytest.raises(OSError, match="piece 3"):
        threads.run(work, 8)
    threads.run(lambda *_: None, 8)


def test_threads_run_operators_by_themselves() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        threads = WorkThreads(2)
        threads._pool.submit(int).result()  # the helper begins before the others change their number
        torch.set_num_threads(3)
        found: list[int] = [threads._pool.submit(torch.get_num_threads).result()]
        threads.run(lambda *_: found.append(torch.get_num_threads()), 6)
        assert set(found) == {1} and torch.get_num_threads() == 3
        with one_torch_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
