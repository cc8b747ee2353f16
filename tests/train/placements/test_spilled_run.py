"""Training whose cold rows do not fit in memory: equal bits, bounded memory, nothing left behind.

Also the tests of `embeddings`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.pipeline.errors import KIB, ByteSize, ConfigError, HotsetError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import assert_equal_bits, no_log, trained
from hotset.train.build import build_trainer
from hotset.train.config import TrainConfig
from hotset.train.data.batch import RecordedOrder
from hotset.train.data.shards import ShardSet
from hotset.train.evaluate import evaluate
from hotset.train.fit import fit
from hotset.train.loop import Trainer, run_steps
from hotset.train.placements import spill_plan, spilled_run
from hotset.train.placements.spill_plan import BlockFile
from hotset.train.placements.spilled_rows import RowStore
from hotset.train.placements.spilled_run import SpilledTier
from hotset.train.run import RunOptions, train

SPEC = ShardSpec(
    num_rows=(5, 2500, 4000),
    num_hot=(5, 10, 20),
    num_mixed=1600,
    num_evaluation=400,
    embedding_dim=16,
    skew=0,
    batch_size=64,
)
LIMIT = 400 * KIB
FIELDS: dict[str, Any] = {"embedding_optimizer": "adagrad", "epochs": 2, "staging_bytes": ByteSize(48 * KIB)}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    return ShardSet.open(write_shards(tmp_path_factory.mktemp("spilled") / "shards", SPEC))


@pytest.fixture(scope="module")
def all_fast(shards: ShardSet) -> Trainer:
    return trained(shards, placement="all-fast", **FIELDS)


def spilled(shards: ShardSet, folder: Path, order: RecordedOrder | None = None, **changes: Any) -> Trainer:
    torch.set_num_threads(1)
    fields: dict[str, Any] = {"placement": "lookahead", "slow_bytes": ByteSize(LIMIT)} | FIELDS | changes
    return build_trainer(shards, TrainConfig(**fields), order, spill_folder=folder)


def stores_of(trainer: Trainer) -> list[RowStore]:
    tiers = [width.slow for width in trainer.embeddings.groups]
    return [tier.store for tier in tiers if isinstance(tier, SpilledTier)]


@pytest.mark.diagonal(3)
@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 0},
        {"prefetch": 0},
        {"prefetch": 3},
        # Some batches have more rows than slots and run in passes.
        {"staging_bytes": ByteSize(10 * KIB)},
    ],
)
def test_rows_in_files_end_with_the_bits_of_rows_in_memory(
    changes: dict[str, Any], shards: ShardSet, all_fast: Trainer, tmp_path: Path
) -> None:
    trainer = spilled(shards, tmp_path, None, **changes)
    (store,) = stores_of(trainer)
    assert store.sizes.num_groups > 2 and store.sizes.num_bytes <= LIMIT

    def nothing_to_leave_behind(*_: Any) -> None:
        assert list(tmp_path.iterdir()) == []  # a run that is killed now leaves no file

    run_steps(trainer, nothing_to_leave_behind)
    assert store.file_bytes[0] > 0 and (trainer.step_source.num_split > 0) == ("staging_bytes" in changes)
    assert_equal_bits(trainer, all_fast)
    assert list(tmp_path.iterdir()) == []


KILLED_RUN = """
import os, signal, sys
import hotset

def progress(stage, done, total, note):
    # In the second epoch, when blocks of rows lie on disk.
    if stage == "train" and done > 0.7 * total:
        os.kill(os.getpid(), signal.SIGKILL)

hotset.fit(
    sys.argv[1], sys.argv[2], placement="lookahead", slow_bytes=int(sys.argv[3]), epochs=2,
    embedding_optimizer="adagrad", staging_bytes=48 * 1024, checkpoint_every=5, progress=progress,
)
"""


@pytest.mark.slow
def test_a_killed_run_leaves_no_rows_in_files_and_resumes_to_the_bits_of_one_in_memory(
    all_fast: Trainer, tmp_path: Path
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    write_shards(data / "shards", SPEC)
    killed = [sys.executable, "-c", KILLED_RUN, str(data), str(run), str(LIMIT)]
    assert subprocess.run(killed, check=False).returncode == -signal.SIGKILL
    # The file of rows has no name; what is left are the files of any run.
    assert {path.name for path in run.iterdir()} == {"config.json", "checkpoints"}

    fields: dict[str, Any] = {"placement": "lookahead", "slow_bytes": ByteSize(LIMIT)} | FIELDS
    done_by_then: list[int] = []
    resumed = fit(data, run, progress=lambda _, done, *__: done_by_then.append(done), **fields)
    assert done_by_then[0] > SPEC.num_mixed / 2
    for number, table in enumerate(all_fast.shards.tables):
        assert torch.equal(resumed.table(table.name), all_fast.embeddings.table(number))


@pytest.mark.parametrize(
    ("optimizer", "limit"), [pytest.param("sgd", 300, marks=pytest.mark.slow), ("adam", 640)]
)
def test_optimizer_state_travels_with_the_rows(
    optimizer: str, limit: int, shards: ShardSet, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"embedding_optimizer": optimizer, "epochs": 2}
    trainer = spilled(shards, tmp_path, slow_bytes=ByteSize(limit * KIB), **fields)
    run_steps(trainer, no_log)
    assert_equal_bits(trainer, trained(shards, placement="all-fast", **(FIELDS | fields)))


def test_a_replayed_order_is_known_ahead_too(shards: ShardSet, tmp_path: Path) -> None:
    order = np.concatenate([np.random.default_rng(5).permutation(shards.num_training_batches)] * 2)
    recorded = RecordedOrder(order.astype(np.int32), 2)
    trainer = spilled(shards, tmp_path, recorded)
    run_steps(trainer, no_log)
    assert_equal_bits(trainer, trained(shards, order.tolist(), placement="all-fast", **FIELDS))


def test_lists_and_rows_of_other_widths_spill_too(tmp_path: Path) -> None:
    spec = ShardSpec(
        num_rows=(900, 900, 2500, 4000),
        num_hot=(5, 5, 10, 20),
        num_mixed=1500,
        embedding_dim=16,
        skew=1.05,
        batch_size=64,
        multi_hot=(1, 3),
        same_table=(1,),
        table_dims=(8, 16, 16),
    )
    opened = ShardSet.open(write_shards(tmp_path / "shards", spec))
    trainer = spilled(opened, tmp_path, slow_bytes=ByteSize(400 * KIB), staging_bytes=ByteSize(96 * KIB))
    assert len(stores_of(trainer)) == 2
    assert sum(store.sizes.num_bytes for store in stores_of(trainer)) <= 400 * KIB
    run_steps(trainer, no_log)
    assert_equal_bits(trainer, trained(opened, placement="all-fast", **FIELDS))


def logits_of(trainer: Trainer) -> NDArray[np.float32]:
    return np.concatenate([logit_B for _, logit_B in trainer.predictor.logits()])


def logits_on_the_way(trainer: Trainer) -> list[NDArray[np.float32]]:
    """Predictions after every 12 steps, and at the end."""
    found = []

    def after_step(trainer: Trainer, *_: Any) -> None:
        if trainer.step % 12 == 0:
            found.append(logits_of(trainer))

    run_steps(trainer, after_step)
    return [*found, logits_of(trainer)]


@pytest.fixture(scope="module")
def wanted_logits(shards: ShardSet, tmp_path_factory: pytest.TempPathFactory) -> list[NDArray[np.float32]]:
    return logits_on_the_way(spilled(shards, tmp_path_factory.mktemp("none"), placement="all-fast"))


@pytest.mark.parametrize("memory", [pytest.param("some", marks=pytest.mark.slow), "little"])
def test_evaluation_on_the_way_reads_the_newest_rows_and_changes_none(
    memory: str,
    shards: ShardSet,
    all_fast: Trainer,
    wanted_logits: list[NDArray[np.float32]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if memory == "little":  # a batch at a time
        monkeypatch.setattr(SpilledTier, "most_read", 1)
    trainer = spilled(shards, tmp_path)
    found = logits_on_the_way(trainer)
    assert len(found) == len(wanted_logits) > 4
    for logits, wanted in zip(found, wanted_logits, strict=True):
        np.testing.assert_array_equal(logits, wanted)
    assert_equal_bits(trainer, all_fast)


def test_weights_are_saved_a_range_at_a_time(shards: ShardSet, all_fast: Trainer, tmp_path: Path) -> None:
    trainer = spilled(shards, tmp_path)
    run_steps(trainer, no_log)
    (store,) = stores_of(trainer)
    weights = trainer.weights()
    for table in shards.tables:
        parts = list(weights.parts(table.name))
        assert torch.equal(torch.cat(parts), all_fast.weights()[table.name])
        assert max(part.shape[0] for part in parts) <= max(2 * store.sizes.arena_rows, table.num_hot)
    assert len(list(weights.parts("C3"))) > 2


def test_too_little_memory_is_refused_before_the_first_step(shards: ShardSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="6,470 cold rows cannot be kept in 20 KiB") as caught:
        spilled(shards, tmp_path, slow_bytes=ByteSize(20 * KIB))
    size = str(caught.value.hint).split()[1]
    assert size.endswith("KiB")
    run_steps(spilled(shards, tmp_path, slow_bytes=ByteSize(int(size[:-3]) * KIB)), no_log)


def test_memory_for_plans_is_bounded_too(
    shards: ShardSet, all_fast: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every list of all rows is in a file, next fetches are found in many passes, plans made in many chunks.
    monkeypatch.setattr(spill_plan, "_LEAST_ROWS", 100)
    monkeypatch.setattr(spilled_run, "_CHUNK_ENTRIES", 256)
    monkeypatch.setattr(spilled_run, "PLANNING_SHARE", 10**9)
    trainer = spilled(shards, tmp_path)
    run_steps(trainer, no_log)
    assert_equal_bits(trainer, all_fast)


def test_a_full_disk_is_one_line(shards: ShardSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = spilled(shards, tmp_path)

    def full(*_: Any) -> int:
        raise HotsetError("the spill file in x cannot be written: No space left on device")

    monkeypatch.setattr(BlockFile, "write", full)
    with pytest.raises(HotsetError, match="No space left on device"):
        run_steps(trainer, no_log)


def test_rows_that_fit_stay_in_memory(shards: ShardSet, tmp_path: Path) -> None:
    trainer = spilled(shards, tmp_path, slow_bytes=ByteSize(6470 * 128))
    assert stores_of(trainer) == []
    assert len(stores_of(spilled(shards, tmp_path, slow_bytes=ByteSize(6470 * 128 - 1)))) == 1


def test_the_spill_file_lies_where_it_is_asked_for(
    shards: ShardSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []
    begin = BlockFile.__init__

    def recorded(file: BlockFile, folder: Path, *rest: int) -> None:
        folders.append(folder)
        begin(file, folder, *rest)

    monkeypatch.setattr(BlockFile, "__init__", recorded)
    config = TrainConfig(slow_bytes=ByteSize(LIMIT), threads=1, **FIELDS)
    with pytest.raises(HotsetError, match="disk is not a folder") as caught:
        train(shards.manifest.folder, config, tmp_path / "run", RunOptions(slow_dir=tmp_path / "disk"))
    assert (
        caught.value.hint == f"`mkdir -p {tmp_path / 'disk'}` creates it" and not (tmp_path / "run").exists()
    )
    (tmp_path / "disk").mkdir()
    summary = train(shards.manifest.folder, config, tmp_path / "run", RunOptions(slow_dir=tmp_path / "disk"))
    assert folders == [tmp_path / "disk"] and list(folders[0].iterdir()) == []
    # The weights that were saved in parts are read as one.
    assert evaluate(tmp_path / "run", shards.manifest.folder).log_loss == summary.log_loss
    # What is read of the file is at most what was written, and the ranges of the weights once more.
    assert 0 < summary.transfers.file_bytes_read and 0 < summary.transfers.file_bytes_written
