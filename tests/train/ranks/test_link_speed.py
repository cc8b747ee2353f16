"""All ranks measure the same link, whatever its speed."""

from __future__ import annotations

import pytest

from hotset.train.ranks import link_speed
from hotset.train.ranks.link_speed import measure_link, slowest
from hotset.train.ranks.ranks import Ranks
from hotset.train.ranks.thread_ranks import run_thread_ranks


def test_every_rank_finds_the_line_through_both_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    # 0.5 s, and a second for each 10 MiB.
    monkeypatch.setattr(link_speed, "_trial", lambda ranks, num_bytes: 0.5 + num_bytes / (10 << 20))
    for speed in run_thread_ranks(3, measure_link):
        assert speed.delay_seconds == pytest.approx(0.5)
        # Two messages of that size leave a rank in that time.
        assert speed.bytes_per_second == pytest.approx(20 << 20)


def test_messages_are_sent_and_the_slowest_rank_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_speed, "_MOST_TRIALS", 2)
    found = run_thread_ranks(2, measure_link)
    assert found[0] == found[1] and found[0].bytes_per_second > 0

    def largest(ranks: Ranks) -> float:
        return slowest(ranks, float(ranks.rank))

    assert run_thread_ranks(3, largest) == [2.0] * 3
