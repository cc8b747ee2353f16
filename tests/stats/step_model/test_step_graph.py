"""Paths through what waits for what."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.step_model.step_graph import longest_path, step_seconds


def test_the_longest_path_is_not_the_sum() -> None:
    seconds = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 1.0}
    assert longest_path(seconds, {"b": ("a",), "d": ("b", "c")}) == 5
    assert longest_path({}, {}) == 0


def test_parts_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="waits for itself"):
        longest_path({"a": 1.0, "b": 1.0}, {"a": ("b",), "b": ("a",)})


@pytest.mark.parametrize(
    ("loop", "load", "transfers", "wanted"), [(3, 1, 2, 3), (1, 4, 2, 4), (1, 2, 5, 5), (2, 0, 0, 2)]
)
def test_a_step_takes_as_long_as_the_slowest_thread(
    loop: float, load: float, transfers: float, wanted: float
) -> None:
    assert step_seconds(loop, load, transfers) == wanted


def test_transfers_that_may_not_run_ahead_are_part_of_the_step() -> None:
    assert step_seconds(3, 1, 2, is_ahead=False) == 5


def test_a_batch_that_may_not_be_read_ahead_is_part_of_the_step() -> None:
    assert step_seconds(3, 1, 2, is_read_ahead=False) == 4
    # Its rows are moved once it is read, and the loop waits for them where it has to.
    assert step_seconds(3, 4, 5, is_read_ahead=False) == 9
    assert step_seconds(3, 1, 2, is_ahead=False, is_read_ahead=False) == 6
    # Nothing is lost to a thread that works while the loop waits.
    assert step_seconds(3, 1, 2, contention=0.5, is_read_ahead=False) == 5


def test_the_loop_loses_a_share_of_the_work_beside_it() -> None:
    assert step_seconds(3, 1, 1, contention=0.5) == 4
    # While one of its threads works alone the others have a core for themselves.
    assert step_seconds(3, 1, 1, contention=0.5, alone=1) == 3.5
    assert step_seconds(3, 1, 1, contention=0.5, alone=2.5) == 3
    # What the loop waits for runs beside nothing.
    assert step_seconds(3, 1, 2, contention=0.5, alone=0.5, is_ahead=False) == 5.25


def naive_longest(seconds: dict[str, float], before: dict[str, tuple[str, ...]]) -> float:
    """The longest of all chains, each walked from its last part to its first."""

    def chain(part: str) -> float:
        return seconds[part] + max((chain(each) for each in before[part]), default=0.0)

    return max(chain(part) for part in seconds)


@pytest.mark.parametrize("seed", range(8))
def test_the_longest_path_is_the_longest_of_all_chains(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = list("abcdefgh")
    seconds = {name: float(rng.exponential()) for name in names}
    # A part waits for some of those named before it, and parts are given in any order.
    before = {
        name: tuple(other for other in names[:number] if rng.random() < 0.4)
        for number, name in enumerate(names)
    }
    shuffled = {name: seconds[name] for name in rng.permutation(names).tolist()}
    assert longest_path(shuffled, before) == pytest.approx(naive_longest(seconds, before))


def test_contention_never_makes_a_step_quicker() -> None:
    for loop, load, transfers in ((3.0, 1.0, 2.0), (1.0, 4.0, 2.0), (0.0, 0.0, 0.0)):
        found = [step_seconds(loop, load, transfers, contention=share) for share in (0.0, 0.3, 1.0)]
        assert found == sorted(found)
        # With all of it lost, the work beside the loop is as good as in the loop.
        assert found[-1] == loop + load + transfers
