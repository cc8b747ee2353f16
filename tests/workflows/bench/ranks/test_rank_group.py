"""A group of ranks answers calls, and ends in one line whatever happens to one of them."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from hotset.pipeline.errors import HotsetError
from hotset.tests.support.processes.thread_processes import (
    ThreadContext,
    ThreadProcess,
    echo_rank,
    gather_numbers,
)
from hotset.train.ranks.ranks import RankError
from hotset.workflows.bench.ranks import rank_group as module
from hotset.workflows.bench.ranks.rank_group import RankGroup

LOST = {"error": "rank 0 lost another rank", "hint": "look elsewhere", "is_lost": True}
REFUSED = {"error": "no such codec", "hint": "take int8", "is_lost": False}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are threads that reply what they are told."""
    monkeypatch.setattr(module, "get_context", lambda _: ThreadContext())
    monkeypatch.setattr(module, "_serve", echo_rank)
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.2)


def call(group: RankGroup, *replies: Any) -> list[Any]:
    return group.call(gather_numbers, replies=replies)


@pytest.mark.usefixtures("threads")
def test_every_rank_answers_every_call_until_the_group_is_closed() -> None:
    with RankGroup(3) as group:
        for number in range(3):
            found = call(group, *({"found": rank + number} for rank in range(3)))
            assert found == [number, number + 1, number + 2]
    assert not any(process.is_alive() for process in group.processes)
    assert [process.exitcode for process in group.processes] == [0, 0, 0]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("replies", "kind", "message"),
    [
        (({"found": 1}, None), RankError, "rank 1 of 2 ended with status 0"),
        ((LOST, None), RankError, "rank 1 of 2 ended with status 0"),
        ((None, LOST), RankError, "rank 0 of 2 ended with status 0"),
        ((LOST, REFUSED), HotsetError, "no such codec"),
        ((REFUSED, LOST), HotsetError, "no such codec"),
        ((LOST, LOST), RankError, "rank 0 lost another rank"),
    ],
)
def test_the_cause_is_told_and_not_what_followed_from_it(
    replies: tuple[Any, ...], kind: type[HotsetError], message: str
) -> None:
    with RankGroup(2) as group, pytest.raises(HotsetError, match=message) as error:
        call(group, *replies)
    assert type(error.value) is kind
    assert error.value.hint is not None
    assert not any(process.is_alive() for process in group.processes)


@pytest.mark.usefixtures("threads")
def test_a_rank_that_was_killed_is_told_with_its_signal() -> None:
    with RankGroup(2) as group:
        assert call(group, {"found": 1}, {"found": 2}) == [1, 2]
        victim = group.processes[1]
        assert isinstance(victim, ThreadProcess)
        victim.exitcode = -signal.SIGKILL
        with pytest.raises(RankError, match="rank 1 of 2 was killed by SIGKILL"):
            call(group, {"found": 1}, None)


@pytest.mark.slow
def test_processes_gather_and_one_that_is_killed_is_told_in_one_line() -> None:
    with RankGroup(2, timeout_seconds=300) as group:
        assert group.call(gather_numbers, seconds=0.0) == [[0, 1], [0, 1]]
        # At any moment, while both are at work or between two calls.
        victim = group.processes[1].pid
        assert victim is not None
        timer = threading.Timer(0.5, os.kill, (victim, signal.SIGKILL))
        timer.start()
        with pytest.raises(RankError, match="rank 1 of 2 was killed by SIGKILL"):
            while True:
                group.call(gather_numbers, seconds=0.2)
        timer.join()
    assert not any(process.is_alive() for process in group.processes)
