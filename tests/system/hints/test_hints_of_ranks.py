"""Hints of several ranks, here those of one process."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch

import hotset.nn
from hotset.pipeline.errors import ByteSize
from hotset.tests.support.hints import follows, hint_of
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train.build_embeddings import resolve
from hotset.train.config import ChosenExchange, TrainConfig
from hotset.train.data.batch import BatchShares
from hotset.train.data.shards import Shards
from hotset.train.ranks.codes import refuse_unknown_tables
from hotset.train.ranks.ranks import Ranks, join_ranks, refuse_other_plans


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


@follows("train/ranks/ranks.py::join_ranks", "train/ranks/ranks.py::_lost_ranks")
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


@follows("train/own_loop.py::_refuse_ranks")
def test_a_loop_of_ones_own_is_started_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_shards(tmp_path / "shards")
    launched(monkeypatch, rank=0, num_ranks=2)
    hint = hint_of(lambda: hotset.nn.Embeddings(folder))
    assert hint.startswith("hotset.fit trains your module on ranks; or start this program by itself")
    launched(monkeypatch, rank=0, num_ranks=1)
    hotset.nn.Embeddings(folder)


@follows("train/data/batch.py::BatchShares.__post_init__")
def test_a_batch_has_a_sample_for_each_share() -> None:
    hint = hint_of(lambda: BatchShares(3, 4))
    assert hint == "preprocess with a larger --batch-size, or use fewer shares or ranks"
    BatchShares(4, 4)
    BatchShares(3, 3)


@follows("train/data/batch.py::BatchShares.__post_init__#2")
def test_ranks_take_equally_many_shares() -> None:
    hint = hint_of(lambda: BatchShares(100, 6, 0, 4))
    assert hint == "--micro-batches 4 gives each rank one"
    BatchShares(100, int(hint.split()[1]), 0, 4)


@follows("train/ranks/ranks.py::_refuse_others")
def test_all_ranks_get_the_same_options() -> None:
    plans = [b"a" * 16, b"b" * 16]

    def hint(ranks: Ranks) -> str:
        return hint_of(lambda: refuse_other_plans(ranks, plans[ranks.rank]))

    assert set(run_thread_ranks(2, hint)) == {
        "give all ranks the same DIR (its shards/), options and version of hotset"
    }
    run_thread_ranks(2, lambda ranks: refuse_other_plans(ranks, plans[0]))


@follows("train/build_embeddings.py::_refuse_rows_in_a_file")
def test_an_option_of_one_process_is_left_out(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards"))
    hint = hint_of(lambda: resolve(shards, TrainConfig(slow_bytes=ByteSize(1000)), 2))
    assert hint == "leave --slow-bytes out"
    assert resolve(shards, TrainConfig(), 2).micro_batches == 2


@follows("train/build_embeddings.py::resolve")
def test_ranks_compute_on_the_cpu(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards"))
    hint = hint_of(lambda: resolve(shards, TrainConfig(device="cuda"), 2))
    assert hint == "use --device cpu, or start one process"
    resolve(shards, TrainConfig(device="cpu"), 2)


@follows("train/ranks/codes.py::refuse_unknown_tables")
def test_a_bound_is_of_a_table_of_the_shards(tmp_path: Path) -> None:
    tables = Shards.open(write_shards(tmp_path / "shards")).tables
    hint = hint_of(lambda: refuse_unknown_tables(ChosenExchange("bounded:0.1,nope=0.2"), tables))
    assert hint == f"tables are {', '.join(table.name for table in tables)}"
    refuse_unknown_tables(ChosenExchange(f"bounded:0.1,{tables[0].name}=0.2"), tables)
