"""Ids that anybody may have made reach no kernel unchecked.

Ranks of a loop of one's own end with the rows of one process that trains on all their samples.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grad_norm_

import hotset.nn
from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.thread_ranks import ThreadRanks, _Mailboxes
from hotset.tests.support.trained_models import joined, weighted_sum
from hotset.train.data.batch import Batch, EmbeddingTable, FeatureBags
from hotset.train.data.dataset import ShardDataset
from hotset.train.own_loop import embedding_module
from hotset.train.own_loop.lookups import (
    LoopRanks,
    SharedBatches,
    gather_batches,
    gather_gradients,
    read_lookups,
)
from hotset.train.ranks.ranks import RankError

ONE_HOT = EmbeddingTable("a", 10, 4, 2)
LISTS = EmbeddingTable("b", 20, 5, 2, is_multi_hot=True)
GOOD: dict[str, Any] = {"a": [3, 0], "b": [4, 1, 2], "b_offsets": [0, 1, 3], "label": "anything"}


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_lookups_are_those_of_the_dictionary(kind: Any) -> None:
    features = {name: kind(value) if name != "label" else value for name, value in GOOD.items()}
    batch = read_lookups([ONE_HOT, LISTS], features)
    assert batch.ids_BF.tolist() == [[3], [0]] and batch.num_samples == 2
    assert batch.bags[0].ids_N.tolist() == [4, 1, 2] and batch.bags[0].offsets_B1.tolist() == [0, 1, 3]
    assert batch.is_hot_only
    assert not read_lookups([ONE_HOT, LISTS], features | {"a": [4, 0]}).is_hot_only
    assert not read_lookups([ONE_HOT, LISTS], features | {"b": [4, 5, 0]}).is_hot_only
    assert read_lookups([LISTS], features).num_samples == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": [3, 10]}, "feature 'a' has the id 10, and its table 10 rows"),
        ({"a": [-1, 0]}, "feature 'a' has the id -1"),
        ({"a": np.array([2**32, 0])}, "feature 'a' has the id 4294967296"),
        ({"a": [[1, 2]]}, r"'a' is int64 of shape \(1, 2\), want a vector of integers"),
        ({"a": [1.0, 2.0]}, "'a' is float64"),
        ({"a": [1]}, "'b' has 2 samples, and 'a' has 1"),
        ({"b_offsets": [0, 2]}, "'b_offsets' must ascend from 0 to 3"),
        ({"b_offsets": [0, 4, 3]}, "'b_offsets' must ascend"),
        ({"b_offsets": [1, 1, 3]}, "'b_offsets' must ascend"),
        ({"b_offsets": np.array([], np.int64)}, "'b_offsets' must ascend"),
        (
            {"a": [1, 2, 3, 4], "a_offsets": [0, 2, 4]},
            "the batch has 'a_offsets', and feature 'a' has one id",
        ),
        ({"a": np.array([True, False])}, "'a' is bool"),
        ({"b": np.array([2**63, 0, 0], np.uint64)}, "feature 'b' has the id 9223372036854775808"),
        ({"b": 4}, r"'b' is int64 of shape \(\)"),
    ],
)
def test_other_ids_and_shapes_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_lookups([ONE_HOT, LISTS], GOOD | changed)


def test_a_missing_feature_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^the batch has no 'b_offsets'; it has 'a', 'b'$"):
        read_lookups([ONE_HOT, LISTS], {"a": [1], "b": [1]})


def test_a_feature_may_be_called_like_the_offsets_of_another() -> None:
    """It is a feature of its own where the other one has no lists."""
    tables = [ONE_HOT, EmbeddingTable("a_offsets", 5, 1, 2)]
    assert read_lookups(tables, {"a": [9], "a_offsets": [4]}).ids_BF.tolist() == [[9, 4]]


def test_no_samples_are_a_batch_too() -> None:
    batch = read_lookups(
        [ONE_HOT, LISTS],
        {"a": torch.empty(0, dtype=torch.int32), "b": np.empty(0, np.int64), "b_offsets": [0]},
    )
    assert (
        batch.num_samples == 0 and batch.ids_BF.shape == (0, 1) and batch.bags[0].offsets_B1.tolist() == [0]
    )


PAGE = Path(__file__).resolve().parents[3] / "docs/python.md"
SPEC = ShardSpec(
    num_rows=(60, 80, 200),
    num_hot=(3, 5, 10),
    num_hot_only=0,
    num_mixed=160,
    num_evaluation=20,
    skew=1.2,
    batch_size=10,
    multi_hot=(1,),
    table_dims=(4, 4, 2),
)
SETTINGS: dict[str, Any] = {"embedding_optimizer": "adagrad", "threads": 1}
PLACEMENTS: tuple[dict[str, Any], ...] = (
    {"placement": "all-fast"},
    {"placement": "hybrid"},
    {"placement": "fae"},
    {"placement": "lookahead", "staging_bytes": 6000, "prefetch": 2},
    {"placement": "lookahead", "staging_bytes": 300},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("ranks") / "shards", SPEC)


def on_ranks(
    num_ranks: int, work: Callable[[LoopRanks], Any], monkeypatch: pytest.MonkeyPatch | None = None
) -> list[Any]:
    """Do work in threads that are ranks; those that `Embeddings` joins are theirs."""
    mailboxes = [_Mailboxes(num_ranks, 60.0) for _ in range(2)]
    own = threading.local()
    if monkeypatch is not None:
        monkeypatch.setattr(embedding_module, "loop_ranks", lambda: own.ranks)

    def run(rank: int) -> Any:
        own.ranks = LoopRanks(*(ThreadRanks(each, rank) for each in mailboxes))
        try:
            return work(own.ranks)
        finally:
            own.ranks.steps.close()
            own.ranks.ahead.close()

    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(run, range(num_ranks)))


def batches_of(folder: Path) -> list[dict[str, Any]]:
    return list(ShardDataset(folder, seed=3))


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("batches_per_step", [1, 2, None])
@pytest.mark.parametrize("settings", PLACEMENTS)
def test_ranks_end_with_the_rows_of_one_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], batches_per_step: int | None
) -> None:
    """Which takes the mean over two ranks; also clipped, with evaluations and where the loop ends early."""
    batches, num_steps = batches_of(folder), 3
    size = batches_per_step or 1
    alone = hotset.nn.Embeddings(folder, placement="all-fast", **SETTINGS)
    for step in range(num_steps):
        of_step = [batches[2 * (step * size + part) + rank] for rank in range(2) for part in range(size)]
        (weighted_sum(alone(joined(of_step))) / 2).backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(alone.rows.values(), 2.0)
        alone.step()

    def train(ranks: LoopRanks) -> dict[str, torch.Tensor]:
        emb = hotset.nn.Embeddings(folder, **SETTINGS, **settings)
        own = batches[ranks.steps.rank :: 2]
        ahead: Iterator[dict[str, Any]] = iter(own)
        if batches_per_step is not None:
            ahead = emb.read_ahead(own, batches_per_step=size)
        for _ in range(num_steps):
            for _ in range(size):
                weighted_sum(emb(next(ahead))).backward()  # type: ignore[no-untyped-call]
            clip_grad_norm_(emb.rows.values(), 2.0)
            emb.step()
            with torch.no_grad():
                emb(batches[ranks.steps.rank])
        del ahead
        found: dict[str, torch.Tensor] = emb.state_dict()
        return found

    wanted = alone.state_dict()
    for found in on_ranks(2, train, monkeypatch):
        assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_a_rank_with_fewer_batches_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = batches_of(folder)

    def train(ranks: LoopRanks) -> str:
        emb = hotset.nn.Embeddings(folder, placement="all-fast", **SETTINGS)
        try:
            for _ in emb.read_ahead(batches[: 2 + ranks.steps.rank]):
                pass
        except ConfigError as error:
            return str(error)
        return ""

    assert on_ranks(2, train, monkeypatch) == ["", "rank 0 has fewer batches than rank 1"]


def test_ranks_with_other_rows_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(ranks: LoopRanks) -> None:
        hotset.nn.Embeddings(folder, placement="all-fast", seed=ranks.steps.rank)

    with pytest.raises(RankError, match="rank 1 differs from rank 0 in seed"):
        on_ranks(2, build, monkeypatch)


def test_batches_and_gradients_of_any_sizes_arrive() -> None:
    def batch(rank: int) -> Batch:
        offsets = np.array([0, *[rank] * rank], np.int32)
        ids = np.arange(3 * rank, dtype=np.int32).reshape(rank, 3)
        none = torch.empty(0)
        return Batch(
            none, none, ids, None, rank == 1, (FeatureBags(offsets, np.arange(rank, dtype=np.int32)),)
        )

    def exchange(ranks: LoopRanks) -> None:
        rank = ranks.steps.rank
        for other, found in enumerate(gather_batches(ranks.steps, batch(rank))):
            wanted = batch(other)
            assert found is not None and found.is_hot_only == wanted.is_hot_only
            np.testing.assert_array_equal(found.ids_BF, wanted.ids_BF)
            np.testing.assert_array_equal(found.bags[0].offsets_B1, wanted.bags[0].offsets_B1)
            np.testing.assert_array_equal(found.bags[0].ids_N, wanted.bags[0].ids_N)
        grads = [np.full((rank, 2, 3), rank, np.float32), np.full((rank, 1, 2), 10 * rank, np.float32)]
        whole, flags = gather_gradients(ranks.steps, grads, np.full((rank, 3), rank == 2, np.bool_))
        assert whole[0][:, 0, 0].tolist() == [1, 2, 2] and whole[1].shape == (3, 1, 2)
        assert flags[:, 0].tolist() == [False, True, True] and flags.shape == (3, 3)
        shared = SharedBatches(ranks.ahead)
        if rank == 0:
            shared.end()
            shared.end()
        else:
            with pytest.raises(ConfigError, match=f"rank 0 has fewer batches than rank {rank}"):
                shared.held([{}], [batch(rank)])
            shared.end()

    on_ranks(3, exchange)


def test_a_rank_without_a_process_group_is_refused_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, message in (
        ("2", "is one of several ranks, and has joined no process group"),
        ("two", "WORLD_SIZE"),
    ):
        monkeypatch.setenv("WORLD_SIZE", number)
        with pytest.raises(ConfigError, match=message):
            hotset.nn.Embeddings(folder)
    monkeypatch.setenv("WORLD_SIZE", "1")
    hotset.nn.Embeddings(folder, placement="hybrid")


@pytest.mark.slow
def test_the_program_of_the_page_trains_on_two_ranks(tmp_path: Path) -> None:
    (program,) = re.findall(
        r"```python\n(import hotset\nimport torch\nimport torch.distributed.*?)```",
        PAGE.read_text(),
        re.DOTALL,
    )
    assert len(program.splitlines()) <= 30
    generate(GenerateConfig(samples=600, seed=1, scale=1000), tmp_path / "log.tsv", workers=1)
    hotset.preprocess(tmp_path / "log.tsv", tmp_path / "data", batch_size=64, workers=1)
    # Each rank says what it has at the end.
    (tmp_path / "loop.py").write_text(
        program.replace(
            "dist.destroy_process_group()",
            'torch.save(emb.state_dict(), f"rows{dist.get_rank()}.pt")\ndist.destroy_process_group()',
        )
    )
    root = Path(hotset.__file__).resolve().parent
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "hotset").symlink_to(root)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "path"), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "loop.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    saved, first, second = (torch.load(tmp_path / name) for name in ("ranks.pt", "rows0.pt", "rows1.pt"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(saved["rows"]["C3.weight"], first["C3.weight"]) and first["C3.state"].any()
