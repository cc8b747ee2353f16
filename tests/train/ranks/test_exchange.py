"""The rows of a rank as tables of their own.

The owner of each row, by the ranks that use it, sample by sample.

Ranks of one machine read the lookups of a batch once, and each its own samples.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ConfigError, HotsetError, ShardError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats.batch_checksums import BLOCK_SAMPLES
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train.build import build_trainer
from hotset.train.config import TrainConfig
from hotset.train.data.batch import EmbeddingTable, LookupsOfBatch, MicroBatches, OwnBatch
from hotset.train.data.shard_file import ShardFile, UnchangedFile
from hotset.train.data.shards import ShardSet
from hotset.train.metrics import RunQuality
from hotset.train.ranks import exchange as node_module
from hotset.train.ranks.exchange import HeldRows, Node, NodeLookups, OwnBatches, SharedMemory, choose_owners
from hotset.train.ranks.ranks import OneRank, Ranks, raise_on_any_rank
from hotset.workflows.characterise import DrawnShards

NUM_ROWS = (5, 0, 9)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_each_row_is_held_once_and_keeps_its_order(num_ranks: int, rng: np.random.Generator) -> None:
    owners = rng.integers(0, num_ranks, sum(NUM_ROWS)).astype(np.uint8)
    tables = [EmbeddingTable(f"C{n}", rows, rows // 2, 4) for n, rows in enumerate(NUM_ROWS)]
    every = [HeldRows(NUM_ROWS, owners, rank) for rank in range(num_ranks)]
    for number, table in enumerate(tables):
        ids = [held.ids.of_table(number) for held in every]
        assert sorted(np.concatenate(ids).tolist()) == list(range(table.num_rows))
        for held, own in zip(every, ids, strict=True):
            cut = held.cut(tables)[number]
            assert cut.num_rows == own.size and cut.num_hot == np.count_nonzero(own < table.num_hot)
            first = int(held.first_key_F1[number])
            assert (owners[first + own] == held.rank).all() and (np.diff(own) > 0).all()


def test_served_rows_are_named_by_their_numbers_here(rng: np.random.Generator) -> None:
    owners = rng.integers(0, 2, sum(NUM_ROWS)).astype(np.uint8)
    held = HeldRows(NUM_ROWS, owners, 1)
    chosen = held.keys_R[rng.random(held.keys_R.size) < 0.6].astype(np.int32)
    served = held.served(chosen)
    assert served.counts_U.tolist() == [1] * chosen.size
    tables = np.repeat(np.arange(3), np.diff(served.first_F1))
    ids = held.ids.of(tables, served.rows_U.astype(np.int64))
    np.testing.assert_array_equal(held.first_key_F1[tables] + ids, chosen)


SPEC = ShardSpec(
    num_rows=(50, 40, 300, 9), num_hot=(5, 10, 20, 4), multi_hot=(1,), table_dims=(2, 4, 4, 2), batch_size=24
)


def naive_users(shards: ShardSet, number: int, chosen: list[int], num_ranks: int) -> dict[int, set[int]]:
    """The ranks that use each key of a batch, sample by sample."""
    batch = shards.training_batch(number)
    users: dict[int, set[int]] = {}
    one_hot = [table for table, each in enumerate(shards.tables) if not each.is_multi_hot]
    multi_hot = [table for table, each in enumerate(shards.tables) if each.is_multi_hot]
    first_key = 0
    for table in chosen:
        for sample in range(batch.num_samples):
            rank = sample * num_ranks // shards.batch_size
            if table in one_hot:
                ids = batch.ids_BF[sample, one_hot.index(table)][None]
            else:
                bags = batch.bags[multi_hot.index(table)]
                ids = bags.ids_N[bags.offsets_B1[sample] : bags.offsets_B1[sample + 1]]
            for row in ids:
                users.setdefault(first_key + int(row), set()).add(rank)
        first_key += shards.tables[table].num_rows
    return users


@pytest.mark.parametrize("chosen", [[0, 3], [1, 2]])
@pytest.mark.parametrize(("num_ranks", "num_shares"), [(1, 1), (3, 3), (4, 8)])
def test_a_row_is_owned_by_the_rank_that_uses_it_in_most_steps(
    chosen: list[int], num_ranks: int, num_shares: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", SPEC))
    num_rows = sum(shards.tables[table].num_rows for table in chosen)
    uses = np.zeros((num_rows, num_ranks), np.int64)
    for number in range(shards.num_training_batches):
        for key, users in naive_users(shards, number, chosen, num_ranks).items():
            uses[key, sorted(users)] += 1
    found = choose_owners(shards, chosen, num_ranks, num_shares)
    is_used = uses.any(axis=1)
    np.testing.assert_array_equal(uses[np.arange(num_rows), found][is_used], uses.max(axis=1)[is_used])
    # In ranges of few rows the owners are the same: ties go to the rank with fewer rows so far.
    monkeypatch.setattr("hotset.train.ranks.exchange._RANGE_BYTES", 100 * num_ranks)
    np.testing.assert_array_equal(choose_owners(shards, chosen, num_ranks, num_shares), found)


def test_batches_that_cannot_be_cut_are_refused(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", ShardSpec()))
    with pytest.raises(ConfigError, match="6 micro-batches cannot be divided among 4 ranks"):
        choose_owners(shards, [0], 4, 6)
    with pytest.raises(ConfigError, match="want 1 to 64 ranks, got 65"):
        choose_owners(shards, [0], 65, 65)


def assert_equal(found: LookupsOfBatch, wanted: LookupsOfBatch) -> None:
    np.testing.assert_array_equal(found.ids_BF, wanted.ids_BF)
    assert found.is_hot_only == wanted.is_hot_only
    for own, its in zip(found.bags, wanted.bags, strict=True):
        np.testing.assert_array_equal(own.offsets_B1, its.offsets_B1)
        np.testing.assert_array_equal(own.ids_N, its.ids_N)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note each batch whose lookups are read from a file."""
    read: list[int] = []
    training_lookups = ShardSet.training_lookups

    def noting(shards: ShardSet, number: int) -> LookupsOfBatch:
        read.append(number)
        return training_lookups(shards, number)

    monkeypatch.setattr(ShardSet, "training_lookups", noting)
    return read


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("multi_hot", [(), (0, 2)])
def test_lookups_are_read_once_for_all_ranks(
    num_ranks: int, multi_hot: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "shards", multi_hot=multi_hot)
    wanted = [ShardSet.open(folder).training_lookups(number) for number in range(8)]
    read = count_reads(monkeypatch)

    def work(ranks: Ranks) -> None:
        lookups = NodeLookups(ShardSet.open(folder), Node(ranks), 1 << 20)
        for number in (3, 0, 7, 1, 2, 4, 5, 6, 3, 3, 0):
            assert_equal(lookups.read(number), wanted[number])

    run_thread_ranks(num_ranks, work)
    assert Counter(read) == Counter(range(8))


@given(
    orders=st.lists(st.permutations([*range(8), *range(8)]), min_size=2, max_size=3),
    ring_bytes=st.sampled_from([1, 400, 3000, 9000]),
)
@settings(max_examples=15)
def test_a_ring_too_small_is_read_around(
    orders: list[list[int]], ring_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_shards(tmp_path_factory.mktemp("ring") / "shards", multi_hot=(1,))
    wanted = [ShardSet.open(folder).training_lookups(number) for number in range(8)]

    def work(ranks: Ranks) -> None:
        lookups = NodeLookups(ShardSet.open(folder), Node(ranks), ring_bytes)
        for number in orders[ranks.rank]:
            assert_equal(lookups.read(number), wanted[number])

    run_thread_ranks(len(orders), work)


def test_the_lock_excludes_the_threads_of_a_rank(tmp_path: Path) -> None:
    (tmp_path / "memory").write_bytes(bytes(8))
    memory = SharedMemory(tmp_path / "memory", 8)
    is_inside = threading.Event()

    def enter() -> None:
        with memory.locked():
            is_inside.set()

    thread = threading.Thread(target=enter)
    with memory.locked():
        thread.start()
        assert not is_inside.wait(0.1)
    assert is_inside.wait(10)
    thread.join()


def test_a_rank_does_not_wait_for_one_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "shards")
    monkeypatch.setattr(node_module, "_LOCK_SECONDS", 0.05)

    def work(ranks: Ranks) -> None:
        lookups = NodeLookups(ShardSet.open(folder), Node(ranks))
        is_held = ranks.gather(torch.zeros(1))
        if ranks.rank == 0:
            assert lookups._memory is not None
            with lookups._memory.locked():
                ranks.gather(is_held[0])
                ranks.gather(is_held[0])
            return
        ranks.gather(is_held[0])
        assert_equal(lookups.read(3), ShardSet.open(folder).training_lookups(3))
        ranks.gather(is_held[0])

    run_thread_ranks(2, work, timeout_seconds=10)


def test_what_a_killed_rank_has_half_overwritten_is_read_anew(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", multi_hot=(1,))
    wanted = [ShardSet.open(folder).training_lookups(number) for number in range(8)]

    def work(ranks: Ranks) -> None:
        lookups = NodeLookups(ShardSet.open(folder), Node(ranks), 3000)
        if ranks.rank:
            return
        for killed_at in range(8):
            # The last assignment of a batch that is kept does not happen.
            entries, lookups._entries = lookups._entries, Killing(lookups._entries)  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                lookups.read(killed_at)
            lookups._entries = entries
            found = {number: lookups._find(number) for number in range(8)}
            assert sum(each is not None for each in found.values()) >= min(killed_at, 1)
            for number, each in found.items():
                if each is not None:
                    assert_equal(each, wanted[number])
            lookups.read(killed_at)

    run_thread_ranks(2, work)


class Killing:
    """Entries that end the process when one is set."""

    def __init__(self, entries: Any) -> None:
        self._entries = entries

    def __getitem__(self, number: int) -> Any:
        return self._entries[number]

    def __setitem__(self, *_: object) -> None:
        raise KeyboardInterrupt


def test_ranks_that_cannot_share_memory_read_for_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "shards")

    def none_left(*_: Any) -> int:
        raise OSError

    monkeypatch.setattr(os, "memfd_create", none_left)
    read = count_reads(monkeypatch)

    def work(ranks: Ranks) -> tuple[int, int]:
        node = Node(ranks)
        lookups = NodeLookups(ShardSet.open(folder), node)
        for number in range(8):
            lookups.read(number)
        counts = np.full(3, ranks.rank + 1, np.uint32)
        return node.num_ranks, int(node.summed(lambda: counts)[0])

    assert run_thread_ranks(2, work) == [(1, 1), (1, 2)]
    assert Counter(read) == Counter([*range(8)] * 2)


def test_one_rank_shares_nothing(tmp_path: Path) -> None:
    node = Node(OneRank())
    assert (node.rank, node.num_ranks, node.share(100)) == (0, 1, None)
    assert node.summed(lambda: np.array([4], np.uint32)).tolist() == [4]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_owners_are_those_that_one_rank_finds(
    num_ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "shards", multi_hot=(1,))
    wanted = choose_owners(ShardSet.open(folder), [0, 1, 2], num_ranks, num_ranks)
    read = count_reads(monkeypatch)

    def work(ranks: Ranks) -> bytes:
        return choose_owners(ShardSet.open(folder), [0, 1, 2], num_ranks, num_ranks, Node(ranks)).tobytes()

    assert run_thread_ranks(num_ranks, work) == [wanted.tobytes()] * num_ranks
    assert Counter(read) == Counter(range(8))


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_batch_that_one_rank_cannot_count_is_an_error_of_all(
    damaged: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "shards")
    training_lookups = ShardSet.training_lookups

    def read(shards: ShardSet, number: int) -> LookupsOfBatch:
        if number == damaged:
            raise ShardError("damaged")
        return training_lookups(shards, number)

    monkeypatch.setattr(ShardSet, "training_lookups", read)

    def work(ranks: Ranks) -> str:
        node = Node(ranks)
        with pytest.raises(HotsetError) as refused, raise_on_any_rank(ranks):
            choose_owners(ShardSet.open(folder), [0, 1, 2], 2, 2, node)
        return str(refused.value)

    wanted = [f"rank {damaged} cannot go on"] * 2
    wanted[damaged] = "damaged"
    assert run_thread_ranks(2, work) == wanted


class BytesRead:
    """Bytes that each thread has read of shards: of lookups, and of own samples."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of_thread = threading.local()
        read_at, read_lookups = UnchangedFile.read_at, ShardFile.read_lookups

        def reading(file: UnchangedFile, position: int, num_bytes: int) -> Any:
            counts = self.counts()
            counts["lookups" if getattr(self.of_thread, "is_lookups", False) else "samples"] += num_bytes
            return read_at(file, position, num_bytes)

        def of_lookups(*arguments: Any) -> Any:
            self.of_thread.is_lookups = True
            try:
                return read_lookups(*arguments)
            finally:
                self.of_thread.is_lookups = False

        monkeypatch.setattr(UnchangedFile, "read_at", reading)
        monkeypatch.setattr(ShardFile, "read_lookups", of_lookups)

    def counts(self) -> Counter[str]:
        """Those of this thread."""
        if not hasattr(self.of_thread, "counts"):
            self.of_thread.counts = Counter()
        found: Counter[str] = self.of_thread.counts
        return found


ROW_BYTES = 4 + 13 * 4
"""Label and dense values of a drawn sample."""
IDS_BYTES = 26 * 4


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize(("batch_size", "num_batches"), [(2048, 5), (16384, 2)])
def test_a_rank_reads_its_own_samples(
    num_ranks: int, batch_size: int, num_batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shards"
    DrawnShards(rows_of_table=100, skew=1.0, num_batches=num_batches, batch_size=batch_size).write(folder)
    training = sum(
        entry.num_bytes for _, entry in Manifest.read(folder).parts() if entry.facts["kind"] != "evaluation"
    )
    counted = BytesRead(monkeypatch)

    def work(ranks: Ranks) -> Counter[str]:
        shards = ShardSet.open(folder)
        micro_batches = MicroBatches(batch_size, num_ranks, ranks.rank, num_ranks)
        batches = OwnBatches(shards, micro_batches, NodeLookups(shards, Node(ranks)).read)
        for number in range(num_batches):
            batch = batches.read(number)
            first, stop = micro_batches.own_part(batch_size)
            assert batch.cut(first, stop).num_samples == batch_size // num_ranks
        return counted.counts()

    found = run_thread_ranks(num_ranks, work)
    num_samples = num_batches * batch_size
    for each in found:
        assert each["samples"] == ROW_BYTES * num_samples // num_ranks
        assert each["samples"] <= 1.05 / num_ranks * training
    # The lookups once for all of them, and so every byte of the batches is read once on the machine.
    assert sum(each["lookups"] for each in found) == IDS_BYTES * num_samples


@pytest.mark.parametrize(("num_ranks", "num_validation"), [(2, 0), (4, 2000)])
def test_a_rank_reads_its_own_evaluation_batches(
    num_ranks: int, num_validation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shards"
    drawn = DrawnShards(num_tables=3, rows_of_table=9, skew=1.0, num_batches=1, num_evaluation=8 * 2048)
    drawn.write(folder)
    counted = BytesRead(monkeypatch)

    def work(ranks: Ranks) -> RunQuality:
        shards = ShardSet.open(folder)
        shards.num_validation_samples = num_validation
        config = TrainConfig(threads=1, micro_batches=4, model="small", placement="all-fast")
        predictor = build_trainer(shards, config, ranks=ranks).predictor
        counted.counts().clear()
        return predictor.score_run()

    wanted = work(OneRank())
    found = run_thread_ranks(num_ranks, lambda ranks: (work(ranks), ranks.rank, counted.counts()))
    for quality, rank, each in found:
        assert quality == wanted
        # The part that the validation ends in the middle of a block: two blocks more of each batch at most.
        num_batches = 8 // num_ranks + (num_validation > 0 and rank == 0)
        most = num_batches * 2048 if not num_validation else num_batches * (2048 + 2 * BLOCK_SAMPLES)
        assert 0 < each["samples"] <= most * (ROW_BYTES + 1)
    # The lookups once for all of them.
    assert sum(each["lookups"] for _, _, each in found) == 3 * 4 * 8 * 2048


@pytest.mark.parametrize(("batch_size", "num_ranks", "num_shares"), [(1000, 3, 3), (1000, 5, 5), (300, 2, 4)])
def test_parts_that_end_inside_a_block_read_at_most_two_more(
    batch_size: int, num_ranks: int, num_shares: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(
        tmp_path / "shards", num_hot_only=0, num_mixed=2 * batch_size + 77, batch_size=batch_size
    )
    whole = ShardSet.open(folder)
    counted = BytesRead(monkeypatch)
    row_bytes = 4 + 2 * 4
    for rank in range(num_ranks):
        shards = ShardSet.open(folder)
        micro_batches = MicroBatches(batch_size, num_shares, rank, num_ranks)
        batches = OwnBatches(shards, micro_batches, shards.training_lookups)
        for number in range(3):
            wanted = whole.training_batch(number)
            first, stop = micro_batches.own_part(wanted.num_samples)
            counted.counts().clear()
            found = batches.read(number)
            assert counted.counts()["samples"] <= (stop - first + 2 * BLOCK_SAMPLES) * row_bytes
            assert isinstance(found, OwnBatch)
            own, its = found.cut(first, stop), wanted.cut(first, stop)
            np.testing.assert_array_equal(own.label_B, its.label_B)
            np.testing.assert_array_equal(own.dense_BK, its.dense_BK)
            np.testing.assert_array_equal(own.ids_BF, its.ids_BF)


def test_merged_batches_are_read_in_two_parts(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", num_hot_only=0, num_mixed=150, multi_hot=(1,), batch_size=32)
    shards = ShardSet.open(folder).with_last_batch("merge")
    last = shards.num_training_batches - 1
    whole = shards.training_batch(last)
    assert whole.num_samples == 32 + 22
    for rank in range(4):
        micro_batches = MicroBatches(32, 4, rank, 4)
        found = OwnBatches(shards, micro_batches, shards.training_lookups).read(last)
        first, stop = micro_batches.own_part(whole.num_samples)
        own, its = found.cut(first, stop), whole.cut(first, stop)
        np.testing.assert_array_equal(own.dense_BK, its.dense_BK)
        np.testing.assert_array_equal(own.bags[0].ids_N, its.bags[0].ids_N)
