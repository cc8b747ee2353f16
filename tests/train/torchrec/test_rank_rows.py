"""The rows of ranks by table and id: a run resumes from what was written, and starts runs of both engines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotset.tests.support.processes.torchrec_ranks import FAULTS, Case, RankPool, losses_of, settings_of
from hotset.tests.support.real_torchrec import needs_torchrec, torchrec_or_skip
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train import run
from hotset.train.checkpoints.files import newest_whole
from hotset.train.config_parts import CheckpointSettings
from hotset.train.ranks.ranks import Ranks, gather_texts
from hotset.train.rows.embeddings import RowsPart
from hotset.train.run_folder.weights import STATES, open_weights
from hotset.train.verify_run import verify_run

SPEC = ShardSpec(
    num_rows=(30, 400, 900),
    num_hot=(30, 20, 40),
    batch_size=64,
    num_hot_only=640,
    num_mixed=700,
    num_evaluation=300,
    num_validation=90,
    table_dims=(8, 4, 8),
    embedding_dim=8,
    skew=1.3,
)
# Checkpoints come between two lines of the log, whose losses the ranks have not added up yet.
SETTINGS = {
    "embedding_optimizer": "adagrad",
    "evaluate_every": 4,
    "keep_best": True,
    "epochs": 2,
    "log_every": 4,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, rank_pool: RankPool) -> Path:
    """The log, a run of two ranks, and one that lost a rank."""
    folder = tmp_path_factory.mktemp("checkpoints")
    write_shards(folder / "shards", SPEC)
    train(folder, "hotset")
    cases = [case_of(folder, "unbroken"), case_of(folder, "killed", dies_after=17)]
    errors = rank_pool.run(2, cases)
    # The other rank is told in one line.
    assert "RankError: rank 0 lost another rank" in errors[0]
    assert errors[1] == "killed"
    return folder


def case_of(folder: Path, out: str, **more: Any) -> Case:
    """Return a case whose tables are cut at the hot rows."""
    case = {"shards": folder / "shards", "out": folder / out, "config": SETTINGS, "every": 5}
    return case | {"num_replicated": SPEC.num_hot} | more


def train(folder: Path, out: str, init_from: Path | None = None, **more: Any) -> None:
    """Train with hotset's own engine."""
    config = settings_of(SETTINGS | {"placement": "all-fast"} | more)
    off = CheckpointSettings(checkpoint_every="off")
    run.train(folder / "shards", config, folder / out, run.RunOptions(checkpoints=off, init_from=init_from))


def weights_of(run: Path) -> bytes:
    """Return the file of weights of a finished run."""
    return (run / "weights.safetensors").read_bytes()


def assert_equal_losses(found: Path, wanted: Path) -> None:
    """Compare losses up to the order of additions."""
    np.testing.assert_allclose(losses_of(found), losses_of(wanted), atol=1e-5)


@needs_torchrec
@pytest.mark.slow
def test_a_run_that_lost_a_rank_is_resumed(folder: Path, rank_pool: RankPool) -> None:
    checkpoint = newest_whole(folder / "killed/checkpoints")
    assert checkpoint is not None and checkpoint.state.step == 15
    # Each rank has written rows of its own.
    assert {int(entry.path.split("-")[2][:4]) for entry in checkpoint.rows} == {0, 1}
    for name in ("killed-copy", "unfinished-copy"):
        shutil.copytree(folder / "killed", folder / name)
    assert rank_pool.run(2, [case_of(folder, "killed")]) == ["", ""]
    assert losses_of(folder / "killed") == losses_of(folder / "unbroken")
    assert weights_of(folder / "killed") == weights_of(folder / "unbroken")
    assert verify_run(folder / "killed") == []
    # The best weights were set behind caches that hold none of the last step.
    assert json.loads((folder / "unbroken.purges.json").read_text()) > 0
    # Other numbers of ranks go on from it, with other rows replicated; and so does hotset's own engine.
    copied = case_of(folder, "killed-copy", num_replicated=[0, 3, 900])
    started = case_of(folder, "started", init_from=folder / "hotset")
    assert rank_pool.run(3, [copied, started]) == [""] * 3
    assert_equal_losses(folder / "killed-copy", folder / "unbroken")
    train(folder, "own-started", folder / "hotset")
    assert_equal_losses(folder / "started", folder / "own-started")
    train(folder, "from-finished", folder / "unbroken")
    assert_equal_losses(folder / "from-finished", folder / "own-started")
    train(folder, "from-checkpoint", folder / "unfinished-copy")
    assert losses_of(folder / "from-checkpoint")[0] < losses_of(folder / "hotset")[0]


@needs_torchrec
@pytest.mark.slow
def test_adam_goes_on_with_its_averages_and_the_steps_of_rows(folder: Path, rank_pool: RankPool) -> None:
    adam: dict[str, Any] = {"embedding_optimizer": "adam", "embedding_lr": 0.02, "keep_best": False}

    def adam_case(out: str, **more: Any) -> Case:
        # Tables that are made up: FBGEMM's are for GPUs.
        return case_of(folder, out, config=SETTINGS | adam, made_up=True) | more

    assert rank_pool.run(2, [adam_case("adam")]) == ["", ""]
    (unread,) = (name for name in FAULTS if "cannot read" in name)
    assert "ShardError" in rank_pool.run(2, [adam_case("adam-broken", fault=unread)])[1]
    shutil.copytree(folder / "adam-broken", folder / "adam-copy")
    assert rank_pool.run(2, [adam_case("adam-broken")]) == ["", ""]
    assert losses_of(folder / "adam-broken") == losses_of(folder / "adam")
    assert weights_of(folder / "adam-broken") == weights_of(folder / "adam")
    train(folder, "adam-hotset", **adam)
    assert_equal_losses(folder / "adam", folder / "adam-hotset")
    copied = adam_case("adam-copy", num_replicated=[0, 3, 900])
    started = adam_case("adam-started", init_from=folder / "adam-hotset")
    assert rank_pool.run(3, [copied, started]) == [""] * 3
    assert_equal_losses(folder / "adam-copy", folder / "adam")
    train(folder, "adam-own-started", folder / "adam", **adam)
    assert_equal_losses(folder / "adam-started", folder / "adam-own-started")
    # Each row has taken as many steps as with hotset's own optimizer.
    found, wanted = (open_weights(folder / name / STATES) for name in ("adam", "adam-hotset"))
    for name in ("C1", "C2", "C3"):
        states, own = (each[name].numpy() for each in (found, wanted))
        np.testing.assert_array_equal(states[:, -1], own[:, -1])
        np.testing.assert_allclose(states, own, atol=1e-6)
        assert own[:, -1].max() > 5


@needs_torchrec
@pytest.mark.slow
def test_a_part_of_the_columns_has_its_part_of_the_state() -> None:
    torchrec_or_skip()
    from hotset.train.torchrec.rank_rows import HeldPart, _set_rows

    given = np.arange(2 * 9, dtype=np.float32).reshape(2, 9)
    weights = np.arange(2 * 4, dtype=np.float32).reshape(2, 4)
    rows = RowsPart(np.zeros(2, np.int32), np.array([6, 5], np.int32), weights, given)
    kept = (torch.zeros(3, 3), torch.zeros(3, 3), torch.zeros(3, 1))
    part = HeldPart(0, 4, 3, 1, 3, torch.zeros(3, 3), kept)
    _set_rows(part, rows, 4)
    state = part.rows(5, 7, state=True).numpy()
    # Both averages of its columns, and the count of steps.
    np.testing.assert_array_equal(state, given[::-1, [1, 2, 3, 5, 6, 7, 8]])
    np.testing.assert_array_equal(part.rows(5, 7, state=False), weights[::-1, 1:])
    assert not kept[0][0].any()
    whole = np.zeros((2, 9), np.float32)
    whole[:, part.columns(9, 4)] = state
    assert whole[0].tolist() == [0, 10, 11, 12, 0, 14, 15, 16, 17]


def test_texts_of_all_ranks_are_gathered() -> None:
    texts = ["", "a", "ö" * 300]

    def work(ranks: Ranks) -> Sequence[str]:
        return gather_texts(ranks, texts[ranks.rank])

    assert run_thread_ranks(3, work) == [texts] * 3
