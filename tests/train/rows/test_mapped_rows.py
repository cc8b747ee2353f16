"""Rows beyond the memory given lie in a spill file."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hotset.pipeline.errors import MIB, ByteSize, HotsetError
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.trained_models import assert_equal_bits, no_log, trained
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.rows.mapped_rows import HostMemory, mapped_rows, refuse_more_rows_than_memory
from hotset.train.trainer import run_steps
from hotset.train.trainer_building.build_trainer import build_trainer


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

    monkeypatch.setattr("hotset.train.rows.mapped_rows.mapped_rows", recorded)
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


@pytest.mark.parametrize(
    "placement",
    [{"placement": "cache"}, {"placement": "hybrid"}],
)
def test_a_model_larger_than_memory_trains_to_the_same_bits(
    placement: dict[str, Any], tmp_path: Path
) -> None:
    # Placements that do not know a whole epoch ahead; the others are in test_spilled_training.
    shards = Shards.open(write_shards(tmp_path / "shards"))
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
    monkeypatch.setattr("hotset.train.rows.mapped_rows.available_bytes", lambda: 4 * MIB)
    shards = Shards.open(write_shards(tmp_path / "shards", num_rows=(5, 40, 300_000)))
    config = TrainConfig(threads=1, **fields)
    if hint is None:
        build_trainer(shards, config, spill_folder=tmp_path)
        return
    monkeypatch.setattr(
        "hotset.train.execution.build_widths._build_tiers", lambda *_: pytest.fail("allocated")
    )
    with pytest.raises(HotsetError, match=r"300,045 embedding rows take .* and 4 MiB is available") as caught:
        build_trainer(shards, config, spill_folder=tmp_path)
    assert hint in str(caught.value.hint)


def test_a_command_without_a_file_for_rows_offers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.train.rows.mapped_rows.available_bytes", lambda: 4 * MIB)
    with pytest.raises(HotsetError) as caught:
        refuse_more_rows_than_memory(9, 0, 5 * MIB, HostMemory(None, Path(), may_spill=False))
    assert "--slow-bytes" not in str(caught.value.hint) and "more memory" in str(caught.value.hint)


def test_rows_to_be_pinned_have_pages_of_their_own(tmp_path: Path) -> None:
    host = HostMemory(None, tmp_path, is_pinned=True)
    rows = [host.rows(3, 4), host.rows(0, 4), host.rows(2, 1)]
    assert [tuple(each.shape) for each in rows] == [(3, 4), (0, 4), (2, 1)]
    assert all(each.data_ptr() % mmap.PAGESIZE == 0 for each in rows if each.numel())
    assert all((each == 0).all() for each in rows)
    rows[0].fill_(7)
    assert (rows[2] == 0).all()
