"""Calls of several threads come back in the order in which they were asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.readers import Readers
from hotset.train.data.shards import Shards


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


def test_threads_read_batches_of_one_file_at_a_time(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec(num_mixed=400)))
    numbers = list(range(shards.num_training_batches)) * 3
    with Readers(4) as readers:
        for number, batch in readers.in_order(shards.training_batch, numbers):
            np.testing.assert_array_equal(batch.ids_BF, shards.training_batch(number).ids_BF)
