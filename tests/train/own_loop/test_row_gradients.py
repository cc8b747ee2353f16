"""Rows take the steps of a twin in plain torch, whose tables are parameters.

The twin has a `torch.nn.Parameter` for each table; clipping, `GradScaler` and schedules see both alike.
"""

from __future__ import annotations

import copy
import gc
import math
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.utils import clip_grad_norm_

import hotset.nn
from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.config import EMBEDDING_LR
from hotset.train.data.dataset import ShardDataset

SPEC = ShardSpec(
    num_rows=(60, 60, 80, 200),
    num_hot=(3, 3, 5, 10),
    num_hot_only=0,
    num_mixed=120,
    num_evaluation=10,
    skew=1.2,
    batch_size=12,
    multi_hot=(2,),
    same_table=(1,),
    table_dims=(4, 4, 2),
)
TABLES = {"C1": "C1", "C2": "C1", "C3": "C3", "C4": "C4"}
"""Table of each feature."""
PLACEMENTS: tuple[dict[str, Any], ...] = (
    {"placement": "all-fast"},
    {"placement": "hybrid"},
    {"placement": "fae"},
    {"placement": "cache", "staging_bytes": 4000, "prefetch": 2},
    {"placement": "lookahead", "staging_bytes": 300},
    {"placement": "lookahead", "staging_bytes": 4000, "device": "late:3"},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("own_loop") / "shards", SPEC)


@dataclass(frozen=True)
class Step:
    """What a user may do in a step."""

    used: tuple[frozenset[str], ...] = (frozenset(TABLES),)
    """Features that the loss of each batch of the step depends on."""
    most_norm: float | None = None
    clips_tables: bool = True
    frozen: frozenset[str] = frozenset()
    rate: float = 1.0
    """Factor of the learning rates."""
    is_infinite: bool = False


def loss_of(vectors: dict[str, torch.Tensor], net: torch.nn.Linear, step: Step, part: int) -> torch.Tensor:
    total = net.weight.square().sum()
    for number, name in enumerate(sorted(step.used[part]), 1):
        total = total + (number * vectors[name].square() + vectors[name] * net.weight[0, 0]).sum() / 8
    return total * math.inf if step.is_infinite else total


class Twin:
    """Tables as parameters of torch, whose rows step lazily as documented, in float64."""

    def __init__(self, emb: hotset.nn.Embeddings, choices: dict[str, dict[str, Any]]) -> None:
        state = emb.state_dict()
        self.tables = {
            name: torch.nn.Parameter(state[f"{name}.weight"].double()) for name in ("C1", "C3", "C4")
        }
        self.choices = choices
        self.state: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self.tables}
        self.used = {name: torch.zeros(len(table), dtype=torch.bool) for name, table in self.tables.items()}

    def __call__(self, batch: dict[str, Any], used: frozenset[str]) -> dict[str, torch.Tensor]:
        found = {}
        for feature, name in TABLES.items():
            ids = batch[feature].long()
            if feature == "C3":
                offsets = batch["C3_offsets"].long()
                found[feature] = torch.nn.functional.embedding_bag(
                    ids, self.tables[name], offsets, mode="sum", include_last_offset=True
                )
            else:
                found[feature] = self.tables[name][ids]
            if feature in used and self.tables[name].requires_grad:
                self.used[name][ids] = True
        return found

    def step(self, rate: float) -> None:
        for name, table in self.tables.items():
            if table.grad is None:
                continue
            own, rows = self.choices[name], self.used[name].nonzero().squeeze(1)
            kind = own["embedding_optimizer"]
            lr = own.get("embedding_lr", EMBEDDING_LR[kind]) * rate
            with torch.no_grad():
                weight = table[rows]
                grad = table.grad[rows] + own.get("decay", 0.0) * weight
                table[rows] = weight - self.change(name, kind, rows, grad) * lr

    def change(self, name: str, kind: str, rows: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """Return the change of rows for a rate of 1, by the definitions of the optimizers."""
        table, state = self.tables[name], self.state[name]

        def kept(key: str) -> torch.Tensor:
            return state.setdefault(key, torch.zeros_like(table.detach()))

        if kind == "sgd":
            return grad
        if kind == "momentum":
            kept("m")[rows] = 0.9 * kept("m")[rows] + grad
            return kept("m")[rows]
        if kind == "adam":
            kept("t")[rows] += 1
            kept("m")[rows] = 0.9 * kept("m")[rows] + 0.1 * grad
            kept("v")[rows] = 0.999 * kept("v")[rows] + 0.001 * grad * grad
            mean = kept("m")[rows] / (1 - 0.9 ** kept("t")[rows])
            return mean / ((kept("v")[rows] / (1 - 0.999 ** kept("t")[rows])).sqrt() + 1e-8)
        squares = grad * grad
        if kind == "rowwise-adagrad":
            squares = squares.mean(1, keepdim=True).expand_as(grad)
        kept("v")[rows] += squares
        return grad / (kept("v")[rows].sqrt() + 1e-10)

    def zero_grad(self) -> None:
        for name, table in self.tables.items():
            table.grad = None
            self.used[name][:] = False


def net_of(dtype: torch.dtype) -> torch.nn.Linear:
    found = torch.nn.Linear(2, 2, dtype=dtype)
    with torch.no_grad():
        found.weight.copy_(torch.tensor([[0.5, -1.0], [2.0, 0.25]]))
    return found


def batches_of(folder: Path, steps: list[Step]) -> list[dict[str, Any]]:
    return list(ShardDataset(folder, seed=3))[: sum(len(step.used) for step in steps)]


def trained(
    folder: Path,
    steps: list[Step],
    choices: dict[str, dict[str, Any]],
    *,
    reads_ahead: bool,
    scale: float | None,
    **placement: Any,
) -> dict[str, torch.Tensor]:
    """Rows after some steps of `hotset.nn.Embeddings`, written as a user of torch would."""
    emb = hotset.nn.Embeddings(folder, threads=1, seed=5, tables=choices, **placement)  # type: ignore[arg-type]
    net = net_of(torch.float32)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    first = [group["lr"] for group in emb.optimizer.param_groups]
    batches = batches_of(folder, steps)
    parts = {len(step.used) for step in steps}
    ahead = iter(batches)
    if reads_ahead and len(parts) == 1:
        ahead = emb.read_ahead(batches, batches_per_step=parts.pop())
    for step in steps:
        optimizer.zero_grad()
        emb.optimizer.zero_grad()
        for name, rows in emb.rows.items():
            rows.requires_grad_(name not in step.frozen)
        for group, lr in zip(emb.optimizer.param_groups, first, strict=True):
            group["lr"] = lr * step.rate
        for part in range(len(step.used)):
            loss = loss_of(emb(next(ahead)), net, step, part)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if not any(TABLES[name] not in step.frozen for used in step.used for name in used):
            continue  # no row has a gradient
        if step.most_norm is not None:
            scaler.unscale_(optimizer)
            scaler.unscale_(emb.optimizer)
            of_rows = list(emb.rows.values()) if step.clips_tables else []
            clip_grad_norm_([*net.parameters(), *of_rows], step.most_norm)
        scaler.step(optimizer)
        if step.is_infinite and scale is None:
            with pytest.raises(HotsetError, match=r"is not finite, and step\(\) has changed no row"):
                emb.step()
        else:
            scaler.step(emb.optimizer)
        scaler.update(scale)
    assert next(ahead, None) is None
    return emb.state_dict()


def wanted(
    folder: Path, steps: list[Step], choices: dict[str, dict[str, Any]], scale: float | None
) -> dict[str, torch.Tensor]:
    twin = Twin(hotset.nn.Embeddings(folder, threads=1, seed=5, placement="all-fast"), choices)
    net = net_of(torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    ahead = iter(batches_of(folder, steps))
    for step in steps:
        optimizer.zero_grad()
        twin.zero_grad()
        for name, table in twin.tables.items():
            table.requires_grad_(name not in step.frozen)
        for part in range(len(step.used)):
            loss_of(twin(next(ahead), step.used[part]), net, step, part).backward()  # type: ignore[no-untyped-call]
        if not any(TABLES[name] not in step.frozen for used in step.used for name in used):
            continue
        if step.most_norm is not None:
            of_rows = list(twin.tables.values()) if step.clips_tables else []
            clip_grad_norm_([*net.parameters(), *of_rows], step.most_norm)
        if not step.is_infinite:
            optimizer.step()
            twin.step(step.rate)
        elif scale is None:
            optimizer.step()
    return {name: table.detach() for name, table in twin.tables.items()}


def kinds() -> st.SearchStrategy[dict[str, Any]]:
    kind = st.sampled_from(["sgd", "momentum", "adagrad", "rowwise-adagrad", "adam"])
    rate, decay = st.sampled_from([0.05, 0.2]), st.sampled_from([0.0, 0.01])
    return st.fixed_dictionaries(
        {"embedding_optimizer": kind}, optional={"embedding_lr": rate, "decay": decay}
    )


def some_steps() -> st.SearchStrategy[list[Step]]:
    features = st.frozensets(st.sampled_from(sorted(TABLES)), min_size=1)
    step = st.builds(
        Step,
        st.lists(features, min_size=1, max_size=3).map(tuple),
        st.none() | st.sampled_from([0.1, 2.0]),
        st.booleans(),
        st.frozensets(st.sampled_from(sorted(set(TABLES.values()))), max_size=2),
        st.sampled_from([1.0, 0.5]),
    )
    return st.lists(step, min_size=1, max_size=3)


TWO = Step(used=(frozenset({"C1", "C4"}), frozenset({"C2", "C3"})), most_norm=0.5)
ALL_ADAM = {name: {"embedding_optimizer": "adam", "decay": 0.01} for name in ("C1", "C3", "C4")}
EACH = {
    "C1": {"embedding_optimizer": "rowwise-adagrad"},
    "C3": {"embedding_optimizer": "adam", "embedding_lr": 0.05},
    "C4": {"embedding_optimizer": "sgd", "embedding_lr": 0.1},
}


@given(
    some_steps(),
    st.fixed_dictionaries({"C1": kinds(), "C3": kinds(), "C4": kinds()}),
    st.sampled_from(PLACEMENTS),
    st.booleans(),
    st.sampled_from([None, 1024.0]),
)
@settings(max_examples=12)
@example([TWO, TWO], ALL_ADAM, PLACEMENTS[4], True, 1024.0)
@example([TWO, Step(frozen=frozenset({"C3"})), TWO], EACH, PLACEMENTS[5], False, None)
@example([Step(most_norm=0.1), Step(is_infinite=True), Step()], EACH, PLACEMENTS[3], True, 1024.0)
def test_rows_take_the_steps_of_a_twin_in_torch(
    folder: Path,
    steps: list[Step],
    choices: dict[str, dict[str, Any]],
    placement: dict[str, Any],
    reads_ahead: bool,
    scale: float | None,
) -> None:
    found = trained(folder, steps, choices, reads_ahead=reads_ahead, scale=scale, **placement)
    for name, table in wanted(folder, steps, choices, scale).items():
        torch.testing.assert_close(found[f"{name}.weight"].double(), table, rtol=2e-4, atol=2e-5)
    # Wherever the rows are, and whether or not they are read ahead: the same bits.
    same = trained(folder, steps, choices, reads_ahead=False, scale=scale, placement="all-fast")
    assert [name for name in found if not torch.equal(found[name], same[name])] == []


@pytest.mark.parametrize("reads_ahead", [True, False])
def test_a_gradient_that_is_not_finite_changes_no_row(folder: Path, reads_ahead: bool) -> None:
    emb = hotset.nn.Embeddings(folder, placement="lookahead", staging_bytes=4000)
    batches = list(ShardDataset(folder))[:3]
    before = emb.state_dict()
    ahead = emb.read_ahead(batches) if reads_ahead else iter(batches)
    (emb(next(ahead))["C4"].sum() * math.nan).backward()
    with pytest.raises(HotsetError, match=r"^the gradient of table 'C4' is not finite"):
        emb.step()
    emb.zero_grad()
    assert all(torch.equal(tensor, before[name]) for name, tensor in emb.state_dict().items())
    # What was dropped is no part of the next step.
    emb(next(ahead))["C1"].sum().backward()
    emb.step()
    after = emb.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert {name.partition(".")[0] for name in changed} == {"C1"}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after.values())


def test_schedules_of_torch_set_the_rates_of_rows(folder: Path) -> None:
    batch = next(iter(ShardDataset(folder)))
    options: dict[str, Any] = {"placement": "hybrid", "embedding_optimizer": "sgd"}
    emb = hotset.nn.Embeddings(folder, **options, embedding_lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(emb.optimizer, 1, gamma=0.5)
    twin = hotset.nn.Embeddings(folder, **options)
    for rate in (1.0, 0.5, 0.25):
        for each in (emb, twin):
            each(batch)["C1"].square().sum().backward()
        emb.step()
        schedule.step()
        twin.step(lr=rate)
    found, same = emb.state_dict(), twin.state_dict()
    assert all(torch.equal(found[name], same[name]) for name in found)
    assert [group["name"] for group in emb.optimizer.param_groups] == ["C1", "C3", "C4"]


def test_tables_with_own_optimizers_are_saved_and_loaded(folder: Path) -> None:
    batches = list(ShardDataset(folder))[:4]

    def train(emb: hotset.nn.Embeddings, some: list[dict[str, Any]]) -> hotset.nn.Embeddings:
        for batch in some:
            sum(each.square().sum() for each in emb(batch).values()).backward()
            emb.step()
        return emb

    options: dict[str, Any] = {"tables": EACH, "placement": "lookahead", "staging_bytes": 4000}
    whole = train(hotset.nn.Embeddings(folder, **options), batches).state_dict()
    assert {name: tuple(state.shape) for name, state in whole.items() if name.endswith("state")} == {
        "C1.state": (60, 1),
        "C3.state": (80, 9),
    }
    half = train(hotset.nn.Embeddings(folder, **options), batches[:2])
    other = hotset.nn.Embeddings(folder, **{**options, "placement": "hybrid"})
    other.load_state_dict(half.state_dict())
    found = train(other, batches[2:]).state_dict()
    assert [name for name in whole if not torch.equal(found[name], whole[name])] == []


def test_frozen_tables_take_no_part(folder: Path) -> None:
    emb = hotset.nn.Embeddings(folder, placement="lookahead", staging_bytes=4000)
    batch = next(iter(ShardDataset(folder)))
    emb.rows["C3"].requires_grad_(False)
    vectors = emb(batch)
    assert {name for name, each in vectors.items() if each.requires_grad} == {"C1", "C2", "C4"}
    assert emb.rows["C1"].grad is None
    sum(each.sum() for each in vectors.values()).backward()
    assert emb.rows["C3"].grad is None and emb.rows["C4"].grad is not None
    ids = set(batch["C1"].tolist() + batch["C2"].tolist())
    assert grad_of(emb, "C1").shape == (len(ids), 4)
    emb.zero_grad()
    # A module whose tables are all frozen may stand in a loop as it is.
    assert emb.requires_grad_(False) is emb
    before = emb.state_dict()
    for each in emb.read_ahead(ShardDataset(folder)):
        emb(each)
        emb.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in emb.state_dict().items())


def test_gradients_may_be_set_and_dropped_by_table(folder: Path) -> None:
    batch = next(iter(ShardDataset(folder)))
    found = []
    for is_set in (False, True):
        emb = hotset.nn.Embeddings(folder, placement="hybrid")
        before = emb.state_dict()
        loss = sum((each * (1 if is_set else 2)).sum() for each in emb(batch).values())
        loss.backward()
        if is_set:
            emb.rows["C1"].grad = grad_of(emb, "C1") * 2
        emb.rows["C4"].grad = None
        emb.step()
        found.append(emb.state_dict())
        assert torch.equal(found[-1]["C4.weight"], before["C4.weight"])
    assert torch.equal(found[0]["C1.weight"], found[1]["C1.weight"])
    with pytest.raises(ConfigError, match="that no loss depends on have no gradient to set"):
        emb.rows["C1"].grad = torch.zeros(1, 4)


def grad_of(emb: hotset.nn.Embeddings, table: str) -> torch.Tensor:
    found = emb.rows[table].grad
    assert found is not None
    return found


def test_gradients_that_were_changed_are_not_added_to(folder: Path) -> None:
    emb = hotset.nn.Embeddings(folder, placement="hybrid")
    batches = list(ShardDataset(folder))[:3]
    emb(batches[0])["C1"].sum().backward()
    # To look at them changes nothing.
    norm = torch.nn.utils.get_total_norm([grad_of(emb, "C1")])
    emb(batches[1])["C1"].sum().backward()
    assert torch.nn.utils.get_total_norm([grad_of(emb, "C1")]) > norm
    clip_grad_norm_(emb.rows.values(), 0.1)
    loss = emb(batches[2])["C1"].sum()
    with pytest.raises(ConfigError, match="comes after the gradients were clipped or scaled"):
        loss.backward()


def test_rows_are_freed_with_their_module(folder: Path) -> None:
    emb = hotset.nn.Embeddings(folder, placement="hybrid")
    kept: list[Callable[[], object]] = [
        weakref.ref(emb),
        weakref.ref(emb._gradients),
        weakref.ref(emb.rows["C1"]),
    ]
    gc.disable()
    try:
        emb(next(iter(ShardDataset(folder))))["C1"].sum().backward()
        emb.step()
        del emb
        assert [each() for each in kept] == [None] * 3
    finally:
        gc.enable()


def test_what_is_no_table_and_no_setting_is_refused(folder: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"C9": {}}, r"has no table 'C9'"),
        ({"C1": {"lr": 0.1}}, "there is no setting 'lr'"),
        ({"C1": {"embedding_optimizer": "lion"}}, "embedding_optimizer must be one of"),
        ({"C1": {"embedding_lr": -1.0}}, "embedding_lr must be above 0"),
        ({"C1": {"decay": 1.0}}, "embedding_decay must be from 0 to below 1"),
    ]
    for tables, message in refused:
        with pytest.raises(ConfigError, match=message):
            hotset.nn.Embeddings(folder, tables=tables)


def test_copies_are_refused_in_one_line(folder: Path) -> None:
    emb = hotset.nn.Embeddings(folder, placement="hybrid")
    copies: list[Callable[[Any], Any]] = [copy.deepcopy, copy.copy, pickle.dumps]
    for copied in copies:
        with pytest.raises(ConfigError, match="cannot be copied or pickled"):
            copied(emb)
