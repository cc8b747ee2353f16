"""A first run is told that it compiles, once, and a run that compiles hardly anything is not."""

from __future__ import annotations

import pytest

from hotset.stats.compile_notice import _Notice, call_when_compiling, count_compiled_kernel


@pytest.fixture(autouse=True)
def no_listener_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Notice, "listener", None)
    monkeypatch.setattr(_Notice, "num_compiled", 0)


def test_the_listener_is_called_once_and_after_a_few_kernels() -> None:
    told: list[str] = []
    call_when_compiling(lambda: told.append("first"))
    for _ in range(3):
        count_compiled_kernel()
    assert told == []
    for _ in range(5):
        count_compiled_kernel()
    assert told == ["first"]
    # The next command begins to count anew.
    call_when_compiling(lambda: told.append("second"))
    for _ in range(3):
        count_compiled_kernel()
    assert told == ["first"]
    count_compiled_kernel()
    assert told == ["first", "second"]


def test_nobody_has_to_listen() -> None:
    for _ in range(9):
        count_compiled_kernel()
