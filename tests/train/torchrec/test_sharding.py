"""Replicated rows of a run, and plans for the others, by TorchRec itself where it is installed."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from hotset.pipeline.errors import ByteSize, ConfigError
from hotset.pipeline.statistics.coverage import table_sizes
from hotset.stats.replication import Network
from hotset.tests.support.real_torchrec import needs_torchrec
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.config import TrainConfig
from hotset.train.data.shards import ShardSet
from hotset.train.torchrec.sharding import (
    cached_rows,
    choose_num_replicated,
    codecs_of,
    constraints_of,
    count_uses,
    plan_sharding,
    use_statistics,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """TorchRec logs and warns about its own code."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def shards(tmp_path: Path) -> ShardSet:
    spec = ShardSpec(
        num_rows=(5, 60, 3000),
        num_hot=(5, 10, 20),
        embedding_dim=16,
        batch_size=512,
        num_hot_only=1000,
        num_mixed=2000,
    )
    return ShardSet.open(write_shards(tmp_path / "shards", spec))


REPLICATED = (5, 3, 4)


@pytest.mark.parametrize("order", ["grouped", "original"])
def test_uses_are_those_of_the_batches_that_training_reads(tmp_path: Path, order: str) -> None:
    write_shards(
        tmp_path,
        ShardSpec(multi_hot=(1, 2), same_table=(2,), num_rows=(5, 40, 40), num_hot=(3, 10, 10), order=order),
    )
    shards = ShardSet.open(tmp_path)
    uses, _ = count_uses(shards, [3, 2])
    wanted = [np.zeros(table.num_rows, np.int64) for table in shards.tables]
    for number in range(shards.num_training_batches):
        batch = shards.training_batch(number)
        ends = [batch.num_samples * rank // 3 for rank in range(4)]
        for rank in range(3):
            part = batch.cut(ends[rank], ends[rank + 1])
            # The second table has two features, whose rows are the same.
            found = [part.ids_BF[:, 0], np.concatenate([bags.ids_N for bags in part.bags])]
            for own, ids in zip(wanted, found, strict=True):
                own[np.unique(ids)] += 1
    assert [own.tolist() for own in uses.uses] == [own.tolist() for own in wanted]
    assert uses.samples_S.sum() == shards.num_training_samples
    assert [table.num_features for table in table_sizes(shards.manifest, "sgd")] == [1, 2]


def test_a_long_epoch_is_sampled_evenly_from_both_kinds(tmp_path: Path) -> None:
    write_shards(tmp_path, ShardSpec(num_hot_only=320, num_mixed=640))
    (uses,) = count_uses(ShardSet.open(tmp_path), [2], most_steps=6)
    is_hot_only = (uses.largest_ST < np.array([5, 10, 20])).all(axis=1)
    assert (uses.num_steps, is_hot_only.sum()) == (6, 2)


def collection(shards: ShardSet) -> tuple[nn.Module, list[Any]]:
    """Return a model with the sharded rows, as the engine builds it, and its sharders."""
    from torchrec import EmbeddingCollection, EmbeddingConfig
    from torchrec.distributed.embedding import EmbeddingCollectionSharder

    configs = [
        EmbeddingConfig(
            name=f"table_{number}",
            num_embeddings=table.num_rows - first,
            embedding_dim=16,
            feature_names=[table.name],
        )
        for number, (table, first) in enumerate(zip(shards.tables, REPLICATED, strict=True))
        if table.num_rows > first
    ]
    model = nn.ModuleDict({"16": EmbeddingCollection(tables=configs, device=torch.device("meta"))})
    return model, [EmbeddingCollectionSharder(fused_params={})]


def plan_of(shards: ShardSet, device: torch.device, optimizer: str, num_ranks: int = 2, **more: Any) -> Any:
    """Return the plan of each table of the collection."""
    model, sharders = collection(shards)
    (uses,) = count_uses(shards, [num_ranks])
    plan = plan_sharding(
        model, sharders, shards, REPLICATED, uses, device=device, optimizer=optimizer, **more
    )
    return plan.plan["16"]


def test_replicated_rows_fit_in_the_hot_bytes(shards: ShardSet) -> None:
    (uses,) = count_uses(shards, [4])
    free = choose_num_replicated(shards, TrainConfig(hot_bytes=ByteSize(1 << 30)), uses)
    row = 4 * 16
    assert 2 * row < sum(free) * row
    short = choose_num_replicated(shards, TrainConfig(hot_bytes=ByteSize(2 * row)), uses)
    assert sum(short) <= 2
    packed = choose_num_replicated(shards, TrainConfig(), uses)
    assert sum(packed) <= 35
    slow = choose_num_replicated(
        shards, TrainConfig(hot_bytes=ByteSize(1 << 30)), uses, Network(exchange_seconds=1)
    )
    assert sum(slow) > sum(free)
    assert choose_num_replicated(shards, TrainConfig(placement="fae"), uses) == (5, 10, 20)


@needs_torchrec
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise-adagrad", "adam"])
def test_every_table_is_planned_and_none_is_copied(shards: ShardSet, num_ranks: int, optimizer: str) -> None:
    tables = plan_of(shards, CPU, optimizer, num_ranks)
    assert set(tables) == {"table_1", "table_2"}
    assert {each.compute_kernel for each in tables.values()} == {"fused"}
    assert {each.sharding_type for each in tables.values()} <= {"table_wise", "row_wise"}


@needs_torchrec
def test_a_table_that_is_more_than_a_part_of_all_may_be_divided_by_rows(shards: ShardSet) -> None:
    model, _ = collection(shards)
    (uses,) = count_uses(shards, [2])
    found = constraints_of(
        model, shards, REPLICATED, uses, device=CPU, optimizer="rowwise-adagrad", cache_bytes=0
    )
    # The planner is told how many of a table's sharded rows a rank looks up in a step.
    cold = int(uses.uses[2][4:].sum())
    assert found["table_2"].pooling_factors == [pytest.approx(cold / (2 * uses.num_steps))]
    assert found["table_1"].sharding_types == ["table_wise"]
    assert found["table_2"].sharding_types == ["table_wise", "row_wise"]


@needs_torchrec
@pytest.mark.parametrize("kind", ["table_wise", "row_wise", "column_wise"])
def test_constraints_of_a_user_come_first(shards: ShardSet, kind: str) -> None:
    from torchrec.distributed.planner import ParameterConstraints

    own = ParameterConstraints(sharding_types=[kind], compute_kernels=["fused"], min_partition=8)
    tables = plan_of(shards, CPU, "sgd", constraints={"table_2": own})
    assert tables["table_2"].sharding_type == kind


@needs_torchrec
def test_a_plan_that_fails_is_one_line(shards: ShardSet) -> None:
    from torchrec.distributed.planner import ParameterConstraints

    own = ParameterConstraints(sharding_types=["grid_shard"], compute_kernels=["fused"])
    with pytest.raises(ConfigError, match="TorchRec finds no place for the sharded rows: No available"):
        plan_of(shards, CPU, "sgd", constraints={"table_2": own})


@needs_torchrec
def test_rows_that_do_not_fit_on_gpus_are_cached(shards: ShardSet) -> None:
    row = 2 * 4 * 16
    cache_bytes = 300 * row
    tables = plan_of(shards, CUDA, "adagrad", cache_bytes=cache_bytes)
    assert tables["table_2"].compute_kernel == "fused_uvm_caching"
    held = sum(
        each.cache_params.load_factor * num_rows if each.cache_params else num_rows
        for each, num_rows in ((tables["table_1"], 57), (tables["table_2"], 2996))
    )
    # Both ranks together hold that many rows.
    assert held * row == pytest.approx(2 * cache_bytes, rel=0.01)
    prefetched = plan_of(shards, CUDA, "adagrad", cache_bytes=cache_bytes, is_prefetched=True)
    for plan, is_prefetched in ((tables, False), (prefetched, True)):
        assert bool(plan["table_2"].cache_params.prefetch_pipeline) == is_prefetched
    everything = plan_of(shards, CUDA, "adagrad", cache_bytes=3000 * row)
    assert {each.compute_kernel for each in everything.values()} == {"fused"}


def test_a_cache_holds_the_most_used_rows_by_bytes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        uses = [rng.integers(0, 5, rng.integers(1, 6)).astype(np.int32) for _ in range(2)]
        sizes = [8, 16]
        limit = int(rng.integers(0, 100))
        found = cached_rows(uses, sizes, limit)
        # One row after another, the one with most uses per byte first.
        rows = [
            (each / size, -table)
            for table, (own, size) in enumerate(zip(uses, sizes, strict=True))
            for each in own
        ]
        wanted, left = [0, 0], limit
        for _, table in sorted(rows, reverse=True):
            if sizes[-table] <= left:
                wanted[-table] += 1
                left -= sizes[-table]
        assert found == [max(1, each) for each in wanted]


def exact_miss_rate(uses: NDArray[np.int32], num_ranks: int, num_steps: int, num_cached: int) -> float:
    """Compute the share of the distinct rows of a step outside a cache, row by row."""
    needed = sorted(
        (1 - (1 - each / (num_ranks * num_steps)) ** num_ranks for each in uses.tolist()), reverse=True
    )
    return float(sum(needed[num_cached:]) / sum(needed))


@needs_torchrec
def test_statistics_are_those_of_rows_one_by_one() -> None:
    uses = np.array([0, 8, 3, 3, 1, 0, 5], np.int32)
    found = use_statistics(uses, 2, 4)
    assert found.expected_miss_rate(0.0) == 1.0
    assert found.expected_miss_rate(1.0) == 0.0
    for num_cached in range(8):
        exact = exact_miss_rate(uses, 2, 4, num_cached)
        assert found.expected_miss_rate(num_cached / 7) == pytest.approx(exact)
    assert found.expected_lookups == pytest.approx(sum(1 - (1 - each / 8) ** 2 for each in uses.tolist()))
    alike = use_statistics(np.full(7, 2, np.int32), 2, 4)
    assert alike.cacheability == pytest.approx(1)
    assert 0 < found.cacheability < 1
    assert found.stable_fingerprint() == use_statistics(uses[::-1].copy(), 2, 4).stable_fingerprint()
    assert found.stable_fingerprint() != alike.stable_fingerprint()


@needs_torchrec
def test_statistics_of_rows_that_nobody_uses() -> None:
    found = use_statistics(np.zeros(4, np.int32), 2, 0)
    assert (found.expected_lookups, found.expected_miss_rate(0), found.expected_miss_rate(1)) == (0, 1, 0)


@needs_torchrec
@pytest.mark.parametrize(("exchange", "error", "num_bytes"), [("fp16", 5e-4, 2), ("int8", 5e-3, 1)])
def test_codecs_send_fewer_bytes(exchange: str, error: float, num_bytes: int) -> None:
    codecs = codecs_of(exchange, CPU)["SEQUENCE_EMBEDDINGS_ALL_TO_ALL"]
    values = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    for codec in (codecs.forward, codecs.backward):
        context = codec.create_context()
        if exchange == "int8":
            context.row_dim = 16
        coded = codec.encode(values, context)
        assert coded.element_size() == num_bytes
        decoded = codec.decode(coded, context).view(64, 16)
        assert (decoded - values).abs().max() <= error * values.abs().max()


def test_codecs_without_torchrec_are_refused() -> None:
    assert codecs_of("none", CPU) is None
    with pytest.raises(ConfigError, match="no bf16 on CPUs"):
        codecs_of("bf16", CPU)
    for other in ("auto", "bounded:0.03"):
        with pytest.raises(ConfigError, match=f"got '{other}'"):
            codecs_of(other, CPU)
