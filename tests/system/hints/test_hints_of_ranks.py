"""Hints of several ranks, which no command starts yet."""

from __future__ import annotations

import socket

import pytest
import torch

from hotset.tests.support.hints import follows, hint_of
from hotset.train.data.batch_shares import BatchShares
from hotset.train.ranks.ranks import Ranks, refuse_other_plans
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.train.ranks.torch_ranks import join_ranks


def free_port() -> str:
    """Return a port that nobody listens at."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return str(opened.getsockname()[1])


def launched(monkeypatch: pytest.MonkeyPatch, rank: int, num_ranks: int) -> None:
    """Set the variables that torchrun sets."""
    values = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in (values | {"RANK": str(rank), "WORLD_SIZE": str(num_ranks)}).items():
        monkeypatch.setenv(name, value)


@follows("train/ranks/torch_ranks.py::join_ranks", "train/ranks/torch_ranks.py::_lost_ranks")
def test_a_process_becomes_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rank 1 waits for rank 0, which was started by hand; its error is the first one.
    launched(monkeypatch, rank=1, num_ranks=2)
    assert hint_of(lambda: join_ranks(timeout_seconds=0.1)) == "look for the first error among the ranks"
    monkeypatch.delenv("RANK")
    assert hint_of(join_ranks).endswith("or set them as torchrun does")
    launched(monkeypatch, rank=0, num_ranks=1)
    ranks = join_ranks()
    try:
        assert ranks.gather(torch.tensor([7]))[0].tolist() == [7]
    finally:
        ranks.close()


@follows("train/data/batch_shares.py::BatchShares.__post_init__")
def test_ranks_take_equally_many_shares() -> None:
    hint = hint_of(lambda: BatchShares(100, 6, 0, 4))
    assert hint == "--shares 4 gives each rank one"
    BatchShares(100, int(hint.split()[1]), 0, 4)


@follows("train/ranks/ranks.py::refuse_other_plans")
def test_all_ranks_get_the_same_options() -> None:
    plans = [b"a" * 16, b"b" * 16]

    def hint(ranks: Ranks) -> str:
        return hint_of(lambda: refuse_other_plans(ranks, plans[ranks.rank]))

    assert set(run_thread_ranks(2, hint)) == {"give all ranks the same shards, options and version of hotset"}
    run_thread_ranks(2, lambda ranks: refuse_other_plans(ranks, plans[0]))
