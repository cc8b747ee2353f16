"""Initial values, the same on any device.

Rows beyond the memory given lie in a spill file.

Layouts and tiers, with rows in slots of their own and staging slots.

Tests `build_embeddings`, too.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import MIB, ByteSize, HotsetError
from hotset.tests.support.drawn_tiers import one_hot_ids
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.trained_models import assert_equal_bits, no_log, trained
from hotset.train.build import build_trainer
from hotset.train.config import TrainConfig
from hotset.train.data.shards import ShardSet
from hotset.train.loop import run_steps
from hotset.train.rows.tiers import (
    HostMemory,
    InitialValues,
    Layout,
    Tier,
    check_memory_for_rows,
    initial_values_with_torch,
    mapped_rows,
)


def test_torch_makes_the_bits_numba_makes() -> None:
    initial = InitialValues.of(5, [0, 3], [10, 1_000_000])
    tables_N, ids_N = np.array([0, 1, 1, 0, 1]), np.array([0, 999_999, 3, 9, 123_456])
    rows = torch.empty(5, 7)
    initial.write(tables_N, ids_N, rows, np.arange(5))
    streams = torch.from_numpy(initial.streams_F[tables_N].view(np.int64))
    bounds = torch.from_numpy(initial.bounds_F[tables_N])
    assert torch.equal(initial_values_with_torch(streams, torch.from_numpy(ids_N), bounds, 7), rows)


def test_tables_count_by_their_number_in_the_shards() -> None:
    first, alone = InitialValues.of(5, [0, 3], [10, 20]), InitialValues.of(5, [3], [20])
    assert first.streams_F[1] == alone.streams_F[0] and first.bounds_F[1] == alone.bounds_F[0]


def test_mapped_rows_are_zeros_in_a_nameless_file(tmp_path: Path) -> None:
    rows = mapped_rows(5, 3, tmp_path)
    assert rows.shape == (5, 3) and not rows.any()
    rows[2] = 7.0
    assert rows[2].eq(7.0).all() and list(tmp_path.iterdir()) == []
    assert mapped_rows(0, 3, tmp_path).shape == (0, 3)


def test_memory_is_used_up_before_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mapped: list[int] = []

    def recorded(num_rows: int, width: int, folder: Path) -> torch.Tensor:
        mapped.append(num_rows)
        return mapped_rows(num_rows, width, folder)

    monkeypatch.setattr("hotset.train.rows.tiers.mapped_rows", recorded)
    memory = HostMemory(100, tmp_path)
    for num_rows in (20, 5, 2):
        memory.rows(num_rows, 2)
    assert mapped == [20] and memory.left_bytes == 100 - 56


def test_a_disk_without_room_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HotsetError, match="no room for 40 B of rows: No space left"):
        mapped_rows(5, 2, tmp_path)


@pytest.mark.parametrize("placement", [{"placement": "cache"}, {"placement": "hybrid"}])
def test_a_model_larger_than_memory_trains_to_the_same_bits(
    placement: dict[str, Any], tmp_path: Path
) -> None:
    # Placements that do not know a whole epoch ahead; the others are in test_spilled_training.
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    fields: dict[str, Any] = {"embedding_optimizer": "adagrad", "epochs": 2, "staging_bytes": 2000}
    all_fast = trained(shards, placement="all-fast", **fields)
    config = TrainConfig(slow_bytes=ByteSize(1000), **fields, **placement)
    capped = build_trainer(shards, config, spill_folder=tmp_path)
    before = set(tmp_path.iterdir())
    run_steps(capped, no_log)
    assert_equal_bits(capped, all_fast)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"placement": "hybrid"}, "--slow-bytes 3MiB keeps the other rows in a file in --out"),
        ({"placement": "all-fast"}, "--placement lookahead --slow-bytes 3MiB"),
        ({"placement": "hybrid", "slow_bytes": ByteSize(5 * MIB)}, "--slow-bytes 3MiB"),
        ({"placement": "hybrid", "slow_bytes": ByteSize(3 * MIB)}, None),
    ],
)
def test_more_rows_than_memory_are_refused_before_they_are_allocated(
    fields: dict[str, Any], hint: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.train.rows.tiers.available_bytes", lambda: 4 * MIB)
    shards = ShardSet.open(write_shards(tmp_path / "shards", num_rows=(5, 40, 300_000)))
    config = TrainConfig(threads=1, **fields)
    if hint is None:
        build_trainer(shards, config, spill_folder=tmp_path)
        return
    monkeypatch.setattr("hotset.train.build_embeddings._build_tiers", lambda *_: pytest.fail("allocated"))
    with pytest.raises(HotsetError, match=r"300,045 embedding rows take .* and 4 MiB is available") as caught:
        build_trainer(shards, config, spill_folder=tmp_path)
    assert hint in str(caught.value.hint)


def test_a_command_without_a_file_for_rows_offers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.train.rows.tiers.available_bytes", lambda: 4 * MIB)
    with pytest.raises(HotsetError) as caught:
        check_memory_for_rows(9, 0, 5 * MIB, HostMemory(None, Path(), may_spill=False))
    assert "--slow-bytes" not in str(caught.value.hint) and "more memory" in str(caught.value.hint)


def test_rows_to_be_pinned_have_pages_of_their_own(tmp_path: Path) -> None:
    host = HostMemory(None, tmp_path, is_pinned=True)
    rows = [host.rows(3, 4), host.rows(0, 4), host.rows(2, 1)]
    assert [tuple(each.shape) for each in rows] == [(3, 4), (0, 4), (2, 1)]
    assert all(each.data_ptr() % mmap.PAGESIZE == 0 for each in rows if each.numel())
    assert all((each == 0).all() for each in rows)
    rows[0].fill_(7)
    assert (rows[2] == 0).all()


def test_tables_stand_one_after_the_other() -> None:
    layout = Layout.of([0, 2, 0], [3, 6, 0])
    assert layout.base_F.tolist() == [0, 3, 7] and layout.num_own_slots == 7
    assert [layout.slots_of_table(table) for table in range(3)] == [slice(0, 3), slice(3, 7), slice(7, 7)]
    slots, num_absent = layout.locate(one_hot_ids(np.array([[2, 5, 0], [3, 2, 1]], np.int32)))
    assert slots.tolist() == [2, 6, -1, -1, 3, -1] and num_absent == 3


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="before it begins"):
        Layout.of([3], [2])


def test_initial_values_do_not_depend_on_the_layout() -> None:
    num_rows = [6, 9]
    whole = Tier(Layout.of([0, 0], num_rows), 4, 0)
    cold = Tier(Layout.of([2, 5], num_rows), 4, 0, num_staging=3)
    for tier in (whole, cold):
        tier.initialize(InitialValues.of(11, [0, 1], num_rows))
    assert torch.equal(cold.weights_SD[:4], whole.weights_SD[2:6])
    assert torch.equal(cold.weights_SD[4:8], whole.weights_SD[6 + 5 :])


def test_tables_and_seeds_start_from_other_values() -> None:
    def values(seed: int) -> torch.Tensor:
        tier = Tier(Layout.of([0, 0], [5, 5]), 3, 0)
        tier.initialize(InitialValues.of(seed, [0, 1], [5, 5]))
        return tier.weights_SD

    first, second = values(0), values(1)
    assert not torch.equal(first[:5], first[5:]) and not torch.equal(first, second)
    assert first.abs().max() < np.sqrt(1 / 5)


def test_state_starts_at_zero_and_counts_in_a_row() -> None:
    tier = Tier(Layout.of([0], [4]), 3, 1, num_staging=2)
    assert tier.state_SW.shape == (6, 1) and not tier.state_SW.any()
    assert tier.row_bytes == 16
