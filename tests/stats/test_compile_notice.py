"""The clock of rates stands still while any thread compiles; who listens hears of each kernel."""

from __future__ import annotations

import pytest

from hotset.stats import compile_notice
from hotset.stats.compile_notice import call_when_compiling, compiling, note_compiled_kernel, working_clock


class Clock:
    """A clock that is set by hand."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(compile_notice, "perf_counter", found)
    monkeypatch.setattr(compile_notice._Compiling, "seconds", 0.0)
    return found


def test_the_clock_stands_still_until_the_last_thread_has_compiled(clock: Clock) -> None:
    clock.seconds = 3
    with compiling():
        clock.seconds = 5
        with compiling():  # as another thread that waits for the compiler, or a kernel that calls one
            clock.seconds = 9
        assert working_clock() == 3
        clock.seconds = 11
    assert working_clock() == 3
    clock.seconds = 12
    assert working_clock() == 4


def test_the_clock_goes_on_where_a_kernel_cannot_be_compiled(clock: Clock) -> None:
    with pytest.raises(ValueError), compiling():
        clock.seconds = 2
        raise ValueError
    clock.seconds = 3
    assert working_clock() == 1


def test_a_listener_hears_of_each_kernel_and_nobody_has_to_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_notice._Compiling, "listener", None)
    note_compiled_kernel("first")
    heard: list[str] = []
    call_when_compiling(heard.append)
    note_compiled_kernel("second")
    note_compiled_kernel("third")
    assert heard == ["second", "third"]
