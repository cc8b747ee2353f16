"""Candidates take turns, and a ratio compares those of one round."""

from __future__ import annotations

from functools import partial

from hotset.workflows.bench.measuring.rounds import median_ratio, take_turns


def test_candidates_take_turns() -> None:
    log: list[str] = []

    def run(name: str) -> int:
        log.append(name)
        return len(log)

    results = take_turns(
        {name: partial(run, name) for name in "ab"}, 3, lambda name, done: log.append(f"{name}{done}")
    )
    assert log == ["a", "a1", "b", "b2", "a", "a3", "b", "b4", "a", "a5", "b", "b6"]
    assert results == {"a": [1, 5, 9], "b": [3, 7, 11]}
    assert take_turns({"a": lambda: 1}, 0) == {"a": []}


def test_a_ratio_is_taken_within_a_round_and_its_median_over_rounds() -> None:
    assert median_ratio([3.0, 8.0, 40.0], [1.0, 2.0, 20.0]) == 3.0
