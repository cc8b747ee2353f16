"""The room that a stage has under a memory cap.

Tests `resources`, too.
"""

from __future__ import annotations

import resource

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.runtime.memory import (
    FIXED_BYTES,
    available_bytes,
    default_memory_bytes,
    groups_within,
    room_for,
    workers_within,
)
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.sizes import MIB


def test_the_room_is_what_the_process_leaves_of_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: 0)
    assert room_for("count", Resources(memory_bytes=FIXED_BYTES + 50 * MIB), 8 * MIB) == 50 * MIB
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: FIXED_BYTES)
    assert room_for("count", Resources(memory_bytes=FIXED_BYTES + 50 * MIB), 8 * MIB) == 18 * MIB
    assert room_for("count", Resources(memory_bytes=FIXED_BYTES + 50 * MIB), 40 * MIB) == 40 * MIB
    assert room_for("count", Resources(), 1) == default_memory_bytes() - FIXED_BYTES - 32 * MIB


def test_a_cap_given_is_refused_where_it_cannot_be_kept_and_the_default_never_is() -> None:
    with pytest.raises(ConfigError, match="pack cannot stay within 170 MiB of memory") as caught:
        room_for("pack", Resources(memory_bytes=170 * MIB), 10 * MIB + 1)
    assert caught.value.hint == "--memory 171MiB would do; fewer --workers need less"
    room_for("pack", Resources(memory_bytes=171 * MIB), 10 * MIB + 1)
    assert room_for("pack", Resources(), 1 << 50) == 1 << 50


def test_as_many_workers_as_fit_are_taken_and_one_that_does_not_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: 0)
    cap = FIXED_BYTES + 100 * MIB
    for workers, wanted in ((1, 1), (3, 3), (4, 3), (50, 3)):
        assert workers_within("ingest", Resources(workers, cap), 33 * MIB, option="--x") == wanted
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: FIXED_BYTES)
    assert (
        workers_within("ingest", Resources(4, cap), 33 * MIB, option="--x") == 2
    )  # 32 MiB are the allocators'
    with pytest.raises(ConfigError, match="ingest cannot stay within 260 MiB of memory") as caught:
        workers_within("ingest", Resources(4, cap), 101 * MIB, option="--block-bytes")
    assert caught.value.hint == "--memory 261MiB would do; a smaller --block-bytes needs less"
    # Without a cap a quarter of the machine's memory bounds the workers, and nothing is refused.
    assert workers_within("ingest", Resources(4), 1 << 50, option="--x") == 1


def test_available_memory_is_the_least_of_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "hotset.pipeline.runtime.memory"
    found = available_bytes()
    assert found is not None and found > MIB
    monkeypatch.setattr(f"{module}._available_to_cgroup", lambda: 5)
    assert available_bytes() == 5
    for name in ("machine", "cgroup", "process"):
        monkeypatch.setattr(f"{module}._available_to_{name}", lambda: None)
    assert available_bytes() is None


def test_the_limit_of_a_process_is_what_its_addresses_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 50, 1 << 50))
    monkeypatch.setattr("hotset.pipeline.runtime.memory._available_to_machine", lambda: None)
    monkeypatch.setattr("hotset.pipeline.runtime.memory._available_to_cgroup", lambda: None)
    found = available_bytes()
    assert found is not None and 1 << 49 < found < 1 << 50


@pytest.mark.parametrize(
    ("room", "groups"),
    [
        (0, [[3], [1], [1], [5], [2]]),
        (5, [[3, 1, 1], [5], [2]]),
        (4, [[3, 1], [1], [5], [2]]),
        (12, [[3, 1, 1, 5, 2]]),
    ],
)
def test_groups_are_as_long_as_the_room_allows(room: int, groups: list[list[int]]) -> None:
    assert list(groups_within(room, [3, 1, 1, 5, 2], lambda item: item)) == groups
    assert list(groups_within(room, [], lambda item: item)) == []
