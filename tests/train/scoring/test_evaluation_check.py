"""Runs on large shards begin at once, and end with a checkpoint where a batch turns out to be damaged."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import HotsetError, ShardError
from hotset.pipeline.formats.stored_batches import DamagedBatchError
from hotset.tests.support.processes.ranked_runs import train_on_ranks
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train.config import TrainConfig
from hotset.train.data import shards as shards_module
from hotset.train.data.batch_order import read_batch_order
from hotset.train.data.shards import Shards
from hotset.train.ranks.ranks import OneRank, Ranks
from hotset.train.run import RunOptions, train
from hotset.train.scoring.evaluation_check import EvaluationCheck

CONFIG = TrainConfig(threads=1, log_every=2, placement="all-fast", epochs=2, seed=3, micro_batches=2)


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let shards of any size be large ones."""
    monkeypatch.setattr(shards_module, "_HASHED_FIRST_BYTES", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_shards(tmp_path / "shards")


@contextmanager
def flipped(folder: Path, name: str, place: int) -> Iterator[None]:
    """Flip a bit inside the block."""
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
    try:
        yield
    finally:
        path.write_bytes(whole)


def place_of_step(folder: Path, order: Any, step: int) -> tuple[str, int]:
    """File and position of a dense value of the batch of a step."""
    shards = Shards.open(folder)
    position = shards._training[int(order[step])]
    file = shards._files[position.file]
    assert file._stored is not None
    stored = file._stored.batch(position.file, position.index)
    return file.path.name, stored.start + stored.layout.buffers["dense", "values"].start + 3


def weights_of(run: Path) -> bytes:
    return (run / "weights.safetensors").read_bytes()


@pytest.mark.parametrize("step", [0, 7, 15])
def test_a_damaged_batch_ends_the_run_with_a_checkpoint(step: int, folder: Path, tmp_path: Path) -> None:
    train(folder, CONFIG, tmp_path / "unbroken")
    order = read_batch_order(tmp_path / "unbroken" / "batch_order.npy")
    # The batch of the second epoch was read in the first, before it was damaged.
    name, place = place_of_step(folder, order, step)
    first = min(number for number, batch in enumerate(order.tolist()) if batch == order[step])
    with flipped(folder, name, place), pytest.raises(DamagedBatchError) as refused:
        train(folder, CONFIG, tmp_path / "run")
    assert str(refused.value).startswith(f"{folder / name} is damaged: batch ")
    assert "dense of samples 0 to 31" in str(refused.value)
    # The thread that reads ahead meets the batch a few steps before its turn.
    kept = re.search(r"; the checkpoint of step (\d+) is kept$", str(refused.value))
    # The first batches are looked at before a run begins.
    assert (tmp_path / "run" / "config.json").exists() == (step > 0)
    if kept:
        assert 0 < int(kept[1]) <= first
        assert refused.value.hint is not None
        assert refused.value.hint.endswith("; then the same command resumes the run")
    assert kept or first < 6
    train(folder, CONFIG, tmp_path / "run")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "unbroken")


def test_damaged_evaluation_shards_end_the_run_in_its_first_steps(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(folder, CONFIG, tmp_path / "unbroken")
    hashed = threading.Event()
    work = EvaluationCheck._work

    def working(check: EvaluationCheck) -> None:
        work(check)
        hashed.set()

    def wait_after_two(stage: str, done: int, total: int, note: str = "", step: int = 0, /) -> None:
        if step == 2:
            assert hashed.wait(10)

    monkeypatch.setattr(EvaluationCheck, "_work", working)
    with flipped(folder, "evaluation-00000.arrow", 2000), pytest.raises(ShardError) as refused:
        train(folder, CONFIG, tmp_path / "run", RunOptions(progress=wait_after_two))
    assert "evaluation-00000.arrow is damaged: its checksum is" in str(refused.value)
    assert "; the checkpoint of step 2 is kept" in str(refused.value) or "of step 1 " in str(refused.value)
    train(folder, CONFIG, tmp_path / "run")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "unbroken")


def test_verify_hashes_all_before_the_first_step(folder: Path, tmp_path: Path) -> None:
    for name in ("mixed-00000.arrow", "evaluation-00000.arrow"):
        with (
            flipped(folder, name, 2000),
            pytest.raises(HotsetError, match=rf"{name} is damaged: its checksum"),
        ):
            train(folder, CONFIG, tmp_path / "run", RunOptions(verify=True))
        assert not (tmp_path / "run").exists()


def test_small_shards_and_old_ones_are_hashed_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not Shards.open(folder).verify()
    assert Shards.open(folder).verify(is_first=True)
    assert Shards.open(write_shards(tmp_path / "old", has_checksums=False)).verify()
    monkeypatch.setattr(shards_module, "_HASHED_FIRST_BYTES", 2**20)
    assert Shards.open(folder).verify()


@pytest.mark.parametrize("kind", ["training", "evaluation"])
def test_all_ranks_save_what_one_of_them_cannot_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec(num_mixed=800))
    train(folder, CONFIG, tmp_path / "unbroken")
    order = read_batch_order(tmp_path / "unbroken" / "batch_order.npy")
    # The last batch of an epoch: others may be read ahead before a first step is there to be saved.
    name, place = place_of_step(folder, order, len(order) // 2 - 1)
    if kind == "evaluation":
        name, place = "evaluation-00000.arrow", 2000
    with flipped(folder, name, place), pytest.raises(ShardError, match=rf"{name} is damaged: .*is kept"):
        train_on_ranks(2, monkeypatch, folder, CONFIG, tmp_path / "run")
    train_on_ranks(2, monkeypatch, folder, CONFIG, tmp_path / "run")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "unbroken")


def test_the_check_leaves_files_when_the_run_ends(folder: Path) -> None:
    check = EvaluationCheck(Shards.open(folder), OneRank())
    check.wait()
    check.wait()
    check.close()
    with flipped(folder, "evaluation-00000.arrow", 2000):
        check = EvaluationCheck(Shards.open(folder), OneRank())
        with pytest.raises(ShardError, match="evaluation-00000"):
            check.wait()
        check.close()


def test_ranks_wait_for_one_that_hashes_longer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = threading.Event()
    work = EvaluationCheck._work

    def working(check: EvaluationCheck) -> None:
        if check._ranks.rank:
            hashed.wait(0.6)
        work(check)

    monkeypatch.setattr(EvaluationCheck, "_work", working)

    def check(ranks: Ranks) -> None:
        EvaluationCheck(Shards.open(folder), ranks).wait()

    run_thread_ranks(2, check, timeout_seconds=0.3)


def test_a_file_that_is_gone_or_cannot_be_opened_ends_the_run_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Shards.open(folder)
    (folder / "evaluation-00000.arrow").rename(folder / "away")
    check = EvaluationCheck(shards, OneRank())
    with pytest.raises(ShardError, match=r"evaluation-00000\.arrow cannot be read: .*No such file"):
        check.wait()

    def none_left(path: Path) -> tuple[int, str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    # What the system lacks is no HotsetError of shards, but stops all ranks in the same way.
    monkeypatch.setattr(shards_module, "hash_file", none_left)
    check = EvaluationCheck(shards, OneRank())
    with pytest.raises(ShardError, match="open files"):
        check.wait()
