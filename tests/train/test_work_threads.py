"""Pieces of work are done once each, by threads that use none of torch's."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import torch

from hotset.train.work_threads import WorkThreads, one_torch_thread


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


def test_all_calls_are_made() -> None:
    done: list[str] = []
    WorkThreads(2).run_all(*(lambda name=name: done.append(name) for name in ("rows", "first", "second")))
    assert sorted(done) == ["first", "rows", "second"]
