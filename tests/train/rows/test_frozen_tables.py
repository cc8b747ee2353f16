"""Tables that no step changes, and rows that start with given values, under every placement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from hotset.pipeline.errors import KIB, ByteSize, ConfigError
from hotset.tests.support.naive.naive_lookups import SPEC, naive_embeddings
from hotset.tests.support.processes.ranked_runs import train_on_ranks
from hotset.tests.support.processes.stopped_runs import assert_same_files, train_until
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import EACH_WAY, assert_equal_bits, no_log
from hotset.train.build import build_trainer
from hotset.train.build_embeddings import RunStart
from hotset.train.config import TrainConfig
from hotset.train.config_parts import RecipeOptions
from hotset.train.data.batch import RecordedOrder
from hotset.train.data.shards import ShardSet
from hotset.train.loop import Trainer, run_steps
from hotset.train.rows.backends import RowOptimizer
from hotset.train.rows.embeddings import RowsPart
from hotset.train.run import train

DECAY = RecipeOptions(embedding_decay=0.01)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    return ShardSet.open(write_shards(tmp_path_factory.mktemp("frozen") / "shards", SPEC))


def given_rows(shards: ShardSet, optimizer: str) -> Iterator[RowsPart]:
    """Every third row of each table, with values of its own."""
    for number, table in enumerate(shards.tables):
        ids_N = np.arange(0, table.num_rows, 3, dtype=np.int32)
        rng = np.random.default_rng(number)
        vectors_ND = rng.normal(size=(ids_N.size, table.embedding_dim)).astype(np.float32)
        width = RowOptimizer(optimizer, 1.0).state_width(table.embedding_dim)
        tables_N = np.full(ids_N.size, number, np.int32)
        yield RowsPart(tables_N, ids_N, vectors_ND, np.zeros((ids_N.size, width), np.float32))


def begun(
    shards: ShardSet, order: list[int] | None = None, *, has_given: bool = True, **fields: Any
) -> Trainer:
    torch.set_num_threads(1)
    settings: dict[str, Any] = {"embedding_optimizer": "adam", "recipe": DECAY} | fields
    config = TrainConfig(**settings)
    recorded = None if order is None else RecordedOrder(np.array(order, np.int32), config.epochs)
    optimizer = str(config.embedding_optimizer)
    start = RunStart(lambda: given_rows(shards, optimizer)) if has_given else None
    return build_trainer(shards, config, recorded, start=start)


def trained(shards: ShardSet, order: list[int] | None = None, **fields: Any) -> Trainer:
    trainer = begun(shards, order, **fields)
    run_steps(trainer, no_log)
    return trainer


def names_of(shards: ShardSet) -> list[str]:
    return [table.name for table in shards.tables]


@pytest.mark.parametrize("frozen", [(), (0,), (1,), (0, 1, 2)])
def test_training_is_that_of_tables_of_torch_that_are_shared_frozen_and_given(
    shards: ShardSet, frozen: tuple[int, ...]
) -> None:
    names = [names_of(shards)[table] for table in frozen]
    fields: dict[str, Any] = {"embedding_optimizer": "adagrad", "dense_optimizer": "sgd", "threads": 1}
    fields |= {"embedding_lr": 0.1, "dense_lr": 0.05, "freeze": tuple(names), "recipe": RecipeOptions()}
    trainer = begun(shards, placement="lookahead", staging_bytes=ByteSize(3_000), **fields)
    # The twin begins with the initial values of a run that is given nothing, and sets the rows by itself.
    plain = begun(shards, placement="all-fast", has_given=False, **fields)
    tables = {name: plain.weights()[name].clone() for name in names_of(shards)}
    for name, part in zip(tables, given_rows(shards, "adagrad"), strict=True):
        tables[name][torch.from_numpy(part.ids_N).long()] = torch.from_numpy(part.weights_ND)
    before = {name: tensor.clone() for name, tensor in tables.items()}
    for name, tensor in tables.items():
        tensor.requires_grad_(name not in names)
    run_steps(trainer, no_log)
    learned = [tensor for tensor in tables.values() if tensor.requires_grad]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(plain.model.parameters(), lr=0.05)]
    optimizers += [torch.optim.Adagrad(learned, lr=0.1, eps=1e-10)] if learned else []
    for number in trainer.batch_numbers:
        batch = shards.training_batch(number)
        logit_B = plain.model.logits(batch.dense_BK, naive_embeddings(tables, batch, shards))
        loss = binary_cross_entropy_with_logits(logit_B, batch.label_B, reduction="sum") / shards.batch_size
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
    weights = trainer.weights()
    for number, (name, tensor) in enumerate(tables.items()):
        if name in names:
            assert torch.equal(weights[name], before[name])
            assert not trainer.embeddings.table(number, state=True).any()
        else:
            assert not torch.equal(weights[name], before[name])
            torch.testing.assert_close(weights[name], tensor.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("momentum", marks=pytest.mark.slow)])
def test_placements_and_devices_end_with_equal_bits(shards: ShardSet, optimizer: str) -> None:
    fields: dict[str, Any] = {"embedding_optimizer": optimizer, "prefetch": 1}
    fields |= {"staging_bytes": ByteSize(4_000), "freeze": (names_of(shards)[1],)}
    all_fast = trained(shards, placement="all-fast", **fields)
    for number, placement in enumerate(EACH_WAY):
        assert_equal_bits(trained(shards, **placement, **fields), all_fast)
        device = ("late", "late:3")[number % 2]
        assert_equal_bits(trained(shards, device=device, **placement, **fields), all_fast)
    assert_equal_bits(trained(shards, device="late", placement="all-fast", **fields), all_fast)
    # Batches with more cold rows than slots run in passes.
    tight = trained(shards, placement="lookahead", **fields | {"staging_bytes": ByteSize(500)})
    assert tight.step_source.num_split
    assert_equal_bits(tight, all_fast)
    for device in ("cpu", "late"):
        fae = trained(shards, all_fast.batch_numbers, placement="fae", device=device, **fields)
        assert_equal_bits(fae, all_fast)


ONE_HOT = ShardSpec(
    num_rows=(5, 300, 400), num_hot=(5, 10, 20), num_mixed=900, num_dense=3, skew=1.2, batch_size=64
)


@pytest.mark.parametrize(
    ("placement", "kernels"),
    [("all-fast", None), ("lookahead", None), ("lookahead", "torch"), ("hybrid-dedup", "torch")],
)
def test_steps_that_a_device_is_given_leave_frozen_rows(
    tmp_path: Path, placement: str, kernels: str | None
) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", ONE_HOT))
    fields: dict[str, Any] = {"freeze": ("C1", "C3"), "placement": placement, "epochs": 2}
    fields |= {"staging_bytes": ByteSize(12_000)}
    on_host = trained(shards, **fields)
    on_device = trained(shards, device="late", kernels=kernels, **fields)
    if kernels is None:
        assert_equal_bits(on_device, on_host)
    start = begun(shards, **fields)
    for name in ("C1", "C3"):
        assert torch.equal(on_device.weights()[name], start.weights()[name])
    assert not torch.equal(on_device.weights()["C2"], start.weights()["C2"])


SPILLED = ShardSpec(
    num_rows=(5, 900, 1500), num_hot=(5, 10, 20), num_mixed=900, embedding_dim=16, skew=0, batch_size=64
)
IN_FILES: dict[str, Any] = {"freeze": ("C2",), "epochs": 2, "embedding_optimizer": "adagrad"}
IN_FILES |= {"staging_bytes": ByteSize(48 * KIB), "slow_bytes": ByteSize(200 * KIB)}


def test_rows_in_files_end_with_equal_bits(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", SPILLED))
    all_fast = trained(shards, placement="all-fast", **IN_FILES | {"slow_bytes": None})
    spilled = trained(shards, placement="lookahead", **IN_FILES)
    assert spilled.embeddings.file_bytes()[1] > 0
    assert_equal_bits(spilled, all_fast)


@pytest.mark.slow
def test_a_stopped_run_with_rows_in_files_resumes_to_equal_bits(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", SPILLED)
    config = TrainConfig(**IN_FILES, threads=1)
    train(tmp_path, config, tmp_path / "wanted")
    train_until(1_400, tmp_path, config, tmp_path / "found")
    train(tmp_path, config, tmp_path / "found")
    assert_same_files(tmp_path / "found", tmp_path / "wanted")


def test_ranks_end_with_equal_bits(tmp_path: Path, shards: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
    data = shards.manifest.folder
    for placement in ("lookahead", "hybrid-dedup"):
        config = TrainConfig(
            placement=placement,
            threads=1,
            micro_batches=2,
            freeze=(names_of(shards)[0],),
            staging_bytes=ByteSize(4_000),
            recipe=DECAY,
        )
        train(data, config, tmp_path / f"{placement}-1")
        with monkeypatch.context() as patched:
            train_on_ranks(2, patched, data, config, tmp_path / f"{placement}-2")
        assert_same_files(tmp_path / f"{placement}-2", tmp_path / f"{placement}-1", ("weights.safetensors",))


def test_frozen_rows_are_in_no_checkpoint_and_have_no_states(shards: ShardSet) -> None:
    name = names_of(shards)[2]
    trainer = begun(shards, placement="lookahead", has_given=False, freeze=(name,), threads=1)
    for group in trainer.embeddings.groups:
        assert group.changed is None
    tracked = build_trainer(shards, trainer.config, tracks_changes=True)
    run_steps(tracked, no_log)
    (group,) = [each for each in tracked.embeddings.groups if 2 in each.tables]
    assert group.frozen == (group.tables.index(2),)
    assert group.changed is not None
    if group.tables == (2,):
        assert group.changed.num_used == 0


def test_a_table_that_there_is_not_is_refused(shards: ShardSet) -> None:
    name = names_of(shards)[0]
    with pytest.raises(
        ConfigError, match=f"--freeze: .* has no table '{name}x'\nhint: did you mean '{name}'"
    ):
        begun(shards, freeze=(f"{name}x",))
    with pytest.raises(ConfigError, match="freeze must be a list of texts, got 'item'"):
        TrainConfig(freeze="item")  # type: ignore[arg-type]
