"""Every placement ends with the bits of all-fast, and what would break that is noticed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.preprocess import preprocess
from hotset.pipeline.settings import LastBatch
from hotset.stats.row_bytes import OPTIMIZERS
from hotset.stats.shuffle import epoch_order
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import (
    FIELDS,
    STAGING,
    STATELESS,
    TIGHT,
    assert_equal_bits,
    no_log,
    trained,
)
from hotset.train.build import build_trainer
from hotset.train.config import TrainConfig
from hotset.train.config_parts import RecipeOptions
from hotset.train.data.shards import ShardSet
from hotset.train.loop import Trainer
from hotset.train.metrics import Kind
from hotset.train.rows.step_plan import Transfer
from hotset.train.rows.table_group import TableGroup
from hotset.workflows.recipes import small_real_sample


@st.composite
def shard_specs(draw: st.DrawFn) -> ShardSpec:
    """Draw a small log; of small batches only a few, as each step costs milliseconds whatever its size."""
    batch_size = draw(st.sampled_from([1, 7, 64, 300]))
    num_rows = tuple(draw(st.lists(st.integers(1, 400), min_size=2, max_size=4)))
    num_hot = tuple(draw(st.integers(1, rows)) for rows in num_rows)
    # Features that share the table of the one before them have its rows.
    same_table = tuple(sorted(draw(st.sets(st.integers(1, len(num_rows) - 1)))))
    for feature in same_table:
        num_rows, num_hot = (
            (*numbers[:feature], numbers[feature - 1], *numbers[feature + 1 :])
            for numbers in (num_rows, num_hot)
        )
    return ShardSpec(
        num_rows=num_rows,
        num_hot=num_hot,
        same_table=same_table,
        batch_size=batch_size,
        num_hot_only=draw(st.integers(0, min(40, 10 * batch_size))),
        num_mixed=draw(st.integers(1, min(60, 20 * batch_size))),
        num_evaluation=draw(st.sampled_from([0, min(20, 4 * batch_size)])),
        num_dense=draw(st.integers(0, 2)),
        multi_hot=tuple(sorted(draw(st.sets(st.integers(0, len(num_rows) - 1))))),
        table_dims=draw(st.sampled_from([None, (2, 4, 4, 2), (7, 7, 7, 7)])),
        embedding_dim=draw(st.sampled_from([1, 4, 5])),
        skew=draw(st.sampled_from([1.1, 1.5, 3.0])),
        order=draw(st.sampled_from(["grouped", "original"])),
        seed=draw(st.integers(0, 1000)),
    )


ANY_RUN = given(
    spec=shard_specs(),
    optimizer=st.sampled_from(OPTIMIZERS),
    dense_optimizer=st.sampled_from(["same", "adam"]),
    epochs=st.integers(1, 2),
    staging_bytes=st.sampled_from([None, 0, 500, 5_000, 50_000]),
    prefetch=st.integers(0, 4),
    frozen=st.sets(st.integers(0, 3), max_size=2),
    last_batch=st.sampled_from(["keep", "keep", "drop", "merge"]),
)


@ANY_RUN
@settings(max_examples=5, deadline=None)
def test_placements_end_with_equal_bits(**run: Any) -> None:
    check_placements(**run)


@pytest.mark.slow
@ANY_RUN
@settings(max_examples=20, deadline=None)
def test_placements_end_with_equal_bits_in_many_runs(**run: Any) -> None:
    check_placements(**run)


def check_placements(
    spec: ShardSpec,
    optimizer: Any,
    dense_optimizer: Any,
    epochs: int,
    staging_bytes: int | None,
    prefetch: int,
    frozen: set[int],
    last_batch: LastBatch,
) -> None:
    """Train under every placement and compare bits, replayed orders included."""
    fields: dict[str, Any] = {
        "embedding_optimizer": optimizer,
        "dense_optimizer": dense_optimizer,
        "epochs": epochs,
        "embedding_lr": 0.1,
        "staging_bytes": staging_bytes,
        "prefetch": prefetch,
    }
    with tempfile.TemporaryDirectory() as folder:
        shards = ShardSet.open(write_shards(Path(folder) / "shards", spec))
        names = [table.name for number, table in enumerate(shards.tables) if number in frozen]
        has_whole = shards.with_last_batch("drop").num_training_batches
        fields |= {"freeze": tuple(names), "last_batch": last_batch if has_whole else "keep"}
        all_fast = trained(shards, placement="all-fast", **fields)
        start = build_trainer(shards, TrainConfig(placement="all-fast", **fields)).weights()
        assert all(torch.equal(all_fast.weights()[name], start[name]) for name in names)
        for placement in (*STATELESS, *STAGING):
            assert_equal_bits(trained(shards, **placement, **fields), all_fast)
        fae = trained(shards, placement="fae", **fields)
        for placement in ({"placement": "all-fast"}, STAGING[0]):
            assert_equal_bits(trained(shards, fae.batch_numbers, **placement, **fields), fae)
        assert_equal_bits(trained(shards, all_fast.batch_numbers, placement="fae", **fields), all_fast)


def test_runs_that_stop_early_end_with_equal_bits(tmp_path: Path) -> None:
    """Batches of the other kind are planned ahead of the last step."""
    shards = ShardSet.open(write_shards(tmp_path / "shards", replace(TIGHT, num_hot_only=200, num_mixed=400)))
    hot_only, mixed = (np.flatnonzero(shards.is_hot_only == kind).tolist() for kind in (True, False))
    assert min(len(hot_only), len(mixed) // 2) > 6, "more than are planned ahead"
    first_hot_only, first_mixed = len(mixed) // 2, len(mixed) // 2 + len(hot_only)
    order = mixed[:first_hot_only] + hot_only + mixed[first_hot_only:]
    for max_steps in (first_hot_only, first_hot_only + 1, first_mixed, first_mixed + 1):
        run = FIELDS | {"epochs": 1, "recipe": RecipeOptions(max_steps=max_steps)}
        all_fast = trained(shards, order, note_step, placement="all-fast", **run)
        assert all_fast.step == max_steps
        for placement in (STAGING[0], {"placement": "fae"}):
            assert_equal_bits(trained(shards, order, note_step, **placement, **run), all_fast)


def note_step(trainer: Trainer, *_: object) -> None:
    """Let a run stop where its recipe says so, as its log does."""
    trainer.stopping.note_step(trainer.step, is_time_over=False)


@pytest.mark.parametrize(
    "optimizer",
    # Adam has the most state: two numbers of each weight, and the number of the step.
    [name if name == "adam" else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS],
)
def test_placements_end_with_equal_bits_under_a_recipe(optimizer: Any, tmp_path: Path) -> None:
    """The rate of each step is another, and rows decay where they are updated."""
    shards = ShardSet.open(write_shards(tmp_path / "shards", TIGHT))
    recipe = RecipeOptions(
        warmup_steps=5, lr_schedule="polynomial", clip_gradient=0.1, dense_decay=0.01, embedding_decay=0.05
    )
    fields: dict[str, Any] = FIELDS | {"embedding_optimizer": optimizer, "embedding_lr": 0.1}
    all_fast = trained(shards, placement="all-fast", recipe=recipe, **fields)
    for placement in (*STATELESS, *STAGING, {"placement": "fae"}):
        assert_equal_bits(
            trained(shards, all_fast.batch_numbers, recipe=recipe, **placement, **fields), all_fast
        )
    # Each option matters.
    for changes in (
        {"warmup_steps": 6},
        {"lr_schedule": "linear"},
        {"clip_gradient": 0.2},
        {"dense_decay": 0.0},
        {"embedding_decay": 0.0},
    ):
        other = trained(shards, placement="all-fast", recipe=replace(recipe, **changes), **fields)
        with pytest.raises(AssertionError):
            assert_equal_bits(other, all_fast)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dense_optimizer", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("placement", ["all-fast", "hybrid", "lookahead"])
def test_bits_do_not_depend_on_the_number_of_threads(
    placement: str, dense_optimizer: str, tmp_path: Path
) -> None:
    """Batches of several tiles, the last batch short, with evaluation on the way."""
    spec = ShardSpec(
        batch_size=1300, num_hot_only=1300, num_mixed=3000, num_evaluation=1300, order="original"
    )
    shards = ShardSet.open(write_shards(tmp_path / "shards", spec))
    fields: dict[str, Any] = {"placement": placement, "dense_optimizer": dense_optimizer, "epochs": 2}
    wanted: list[float | None] = []
    alone = trained(shards, after_step=evaluating(wanted), threads=1, **fields)
    for threads in (2, 3):
        found: list[float | None] = []
        assert_equal_bits(trained(shards, after_step=evaluating(found), threads=threads, **fields), alone)
        assert found == wanted and len(wanted) > 1


def test_placements_end_with_equal_bits_in_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.train.build_embeddings.cpu_features", lambda: frozenset({"amx_bf16"}))
    shards = ShardSet.open(write_shards(tmp_path / "shards", TIGHT))
    all_fast = trained(shards, placement="all-fast", dense_dtype="bf16", **FIELDS)
    # The dense layers are the same whatever moves the rows: one placement of each kind is enough.
    for placement in (STATELESS[0], STAGING[0], STAGING[-1]):
        assert_equal_bits(trained(shards, dense_dtype="bf16", **placement, **FIELDS), all_fast)
    assert differs(shards, all_fast, placement="all-fast"), "fp32 has other bits"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    """Shards whose rows come and go all the time in so few slots."""
    return ShardSet.open(write_shards(tmp_path_factory.mktemp("data") / "shards", TIGHT))


@pytest.fixture(scope="module")
def all_fast(shards: ShardSet) -> Trainer:
    """The weights that training has to end with."""
    return trained(shards, placement="all-fast", **FIELDS)


@pytest.fixture(scope="module")
def losses_of_all_fast(shards: ShardSet, all_fast: Trainer) -> dict[bool, list[float | None]]:
    """What evaluation on the way finds, in the order of the run and in that order replayed."""
    found: dict[bool, list[float | None]] = {False: [], True: []}
    for is_replayed, losses in found.items():
        order = all_fast.batch_numbers if is_replayed else None
        trained(shards, order, after_step=evaluating(losses), placement="all-fast", **FIELDS)
        assert len(losses) > 5
    return found


def evaluating(losses: list[float | None]) -> Callable[..., None]:
    """Evaluate after every third step."""

    def after_step(trainer: Trainer, *_: Any) -> None:
        if trainer.step % 3 == 0:
            losses.append(trainer.predictor.mean_loss(1000))

    return after_step


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("placement", [*STATELESS, *STAGING], ids=str)
def test_evaluation_on_the_way_sees_the_newest_rows_and_changes_none(
    placement: dict[str, Any],
    shards: ShardSet,
    all_fast: Trainer,
    losses_of_all_fast: dict[bool, list[float | None]],
) -> None:
    found: list[float | None] = []
    trainer = trained(shards, after_step=evaluating(found), **placement, **FIELDS)
    assert found == losses_of_all_fast[False]
    assert_equal_bits(trainer, all_fast)


@pytest.mark.parametrize("placement", ["fae", *(p["placement"] for p in STATELESS), "lookahead"])
def test_evaluation_on_the_way_of_a_replayed_order_sees_the_newest_rows(
    placement: str, shards: ShardSet, all_fast: Trainer, losses_of_all_fast: dict[bool, list[float | None]]
) -> None:
    """A known order is planned ahead of the batch being computed, and so of the evaluation after it."""
    found: list[float | None] = []
    order = all_fast.batch_numbers
    trainer = trained(shards, order, after_step=evaluating(found), placement=placement, **FIELDS)
    assert found == losses_of_all_fast[True]
    assert_equal_bits(trainer, all_fast)


def differs(shards: ShardSet, all_fast: Trainer, **fields: Any) -> bool:
    """Whether the bits differ from those of all-fast."""
    try:
        assert_equal_bits(trained(shards, **fields, **FIELDS), all_fast)
    except AssertionError:
        return True
    return False


def test_a_fetch_that_overtakes_a_write_back_is_noticed(
    shards: ShardSet, all_fast: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: dict[int, Transfer] = {}
    transfer = TableGroup.load

    def overtaking(group: TableGroup, wanted: Transfer, kind: Kind | None = None) -> None:
        before = late.pop(id(group), Transfer())
        transfer(group, Transfer(fetch=wanted.fetch, initialize=wanted.initialize), kind)
        transfer(group, Transfer(write_back=before.write_back), kind)
        late[id(group)] = wanted

    monkeypatch.setattr(TableGroup, "load", overtaking)
    assert differs(shards, all_fast, placement="lookahead")


def test_epochs_without_a_cold_lookup_end(tmp_path: Path) -> None:
    spec = ShardSpec(num_rows=(3, 4), num_hot=(3, 4), num_hot_only=40, num_mixed=0, order="original")
    shards = ShardSet.open(write_shards(tmp_path / "shards", spec))
    trained(shards, placement="lookahead", epochs=3)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("placement", [*STATELESS, *STAGING], ids=str)
def test_what_moves_is_counted_by_table_as_by_kind(placement: dict[str, Any], shards: ShardSet) -> None:
    trainer = trained(shards, **placement, **FIELDS)
    row_bytes = 4 * 4 * (2 if placement in STAGING else 1)
    counts = trainer.embeddings.rows_by_table()
    found = tuple(sum(table[way] for table in counts) * row_bytes for way in ("to_fast", "to_slow"))
    assert found == trainer.meter.training_bytes() and min(found) > 0
    batches = [shards.training_batch(number).ids_BF for number in range(shards.num_training_batches)]
    ids = [np.unique(np.concatenate([ids_BF[:, feature] for ids_BF in batches])) for feature in (0, 1)]
    num_cold = sum(np.count_nonzero(i >= t.num_hot) for i, t in zip(ids, shards.tables, strict=True))
    made = sum(table["made"] for table in counts)
    # Each row is made once, at its first use; a warm cache makes others besides.
    if placement["placement"] == "lookahead":
        assert made == num_cold
    elif placement in STAGING:
        assert made >= sum(i.size for i in ids)


def test_an_error_of_a_transfer_ends_the_run(shards: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise OSError("no such row")

    monkeypatch.setattr(TableGroup, "load", failing)
    monkeypatch.setattr(TableGroup, "warm_up", lambda group: None)
    with pytest.raises(OSError, match="no such row"):
        trained(shards, after_step=no_log, placement="lookahead", **FIELDS)


@pytest.mark.slow
@pytest.mark.real_data
def test_placements_end_with_equal_bits_on_a_real_sample(real_data: Path, tmp_path: Path) -> None:
    preprocess([real_data / "criteo_kaggle_uniform_110k.tsv.gz"], small_real_sample(), tmp_path)
    shards = ShardSet.open(tmp_path)
    kinds = shards.is_hot_only
    order = epoch_order(kinds, 0, 0, spread=True)[:10].tolist()
    fields: dict[str, Any] = {"embedding_optimizer": "adagrad"}
    all_fast = trained(shards, order, placement="all-fast", **fields)
    for placement in (*STATELESS, *STAGING, {"placement": "fae"}):
        assert_equal_bits(trained(shards, order, **placement, **fields), all_fast)
