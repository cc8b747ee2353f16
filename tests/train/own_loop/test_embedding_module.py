"""A loop of one's own ends with the bits of `hotset.fit`, whatever its placement and its interruptions."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hotset.nn
from hotset.pipeline.errors import ConfigError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import LinearNet, joined, no_log, weighted_sum
from hotset.train.build import build_trainer
from hotset.train.build_model import name_of
from hotset.train.config import TrainConfig
from hotset.train.data.dataset import ShardDataset
from hotset.train.data.shards import ShardSet
from hotset.train.loop import run_steps
from hotset.train.own_loop import row_gradients
from hotset.train.own_loop.lookups import read_lookups

SPEC = ShardSpec(
    num_rows=(60, 80, 200),
    num_hot=(3, 5, 10),
    num_hot_only=40,
    num_mixed=200,
    skew=1.2,
    batch_size=20,
    multi_hot=(1,),
    table_dims=(4, 4, 2),
)
FIELDS: dict[str, Any] = {"embedding_optimizer": "adagrad", "seed": 3}
PLACEMENTS: tuple[dict[str, Any], ...] = (
    *({"placement": name} for name in ("hybrid", "hybrid-dedup", "hybrid-uva", "fae")),
    {"placement": "cache", "staging_bytes": 3000, "prefetch": 2},
    {"placement": "lookahead", "staging_bytes": 3000, "prefetch": 2},
    # Fewer slots than a batch has cold rows, so that batches run in passes.
    {"placement": "lookahead", "staging_bytes": "300"},
)


class Loop:
    """A training loop as a user would write it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        torch.set_num_threads(1)
        self.emb = hotset.nn.Embeddings(folder, threads=1, **FIELDS, **settings)
        torch.manual_seed(0)
        self.net = LinearNet(self.emb.inputs)
        self.first = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.001)

    def train(self, batch: dict[str, Any]) -> None:
        logit = self.net(batch["dense"], self.emb(batch))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, batch["label"], reduction="sum")
        self.optimizer.zero_grad()
        (loss / SPEC.batch_size).backward()  # type: ignore[no-untyped-call]
        self.emb.step()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """Copies of all weights and states."""
        return copy.deepcopy(self.emb.state_dict() | self.net.state_dict())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("own_loop") / "shards", SPEC)


@pytest.fixture(scope="module")
def wanted(folder: Path) -> dict[str, Any]:
    return of_trainer(folder)


def of_trainer(folder: Path) -> dict[str, Any]:
    """Weights and states of two epochs of all-fast, those of the trainer itself."""
    loop = Loop(folder, placement="all-fast")
    shards = ShardSet.open(folder)
    config = TrainConfig(placement="all-fast", model=name_of(loop.first), epochs=2, threads=1, **FIELDS)
    trainer = build_trainer(shards, config, model_source=loop.first)
    run_steps(trainer, no_log)
    found = {name.removeprefix("dense."): tensor for name, tensor in trainer.model.state_dict().items()}
    for number, table in enumerate(shards.tables):
        found[f"{table.name}.weight"] = trainer.embeddings.table(number)
        found[f"{table.name}.state"] = trainer.embeddings.table(number, state=True)
    return found


def assert_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    values = {name.rpartition("module.")[2]: tensor for name, tensor in wanted.items()}
    assert found.keys() == values.keys()
    assert [name for name in found if not torch.equal(found[name], values[name])] == []


def batches_of(folder: Path, epoch: int, first: int = 0) -> ShardDataset:
    dataset = ShardDataset(folder, seed=FIELDS["seed"])
    dataset.set_epoch(epoch, first)
    return dataset


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("settings", [{"placement": "all-fast"}, *PLACEMENTS])
def test_a_loop_of_ones_own_ends_with_the_bits_of_the_trainer(
    folder: Path, wanted: dict[str, Any], settings: dict[str, Any]
) -> None:
    loop = Loop(folder, **settings)
    for epoch in range(2):
        for batch in loop.emb.read_ahead(batches_of(folder, epoch)):
            loop.train(batch)
    assert_equal(loop.state(), wanted)


def test_a_loop_over_features_of_one_table_ends_with_the_bits_of_the_trainer(tmp_path: Path) -> None:
    spec = replace(SPEC, num_rows=(60, 60, 200), num_hot=(3, 3, 10), same_table=(1,), table_dims=(4, 2))
    shared = write_shards(tmp_path / "shards", spec)
    loop = Loop(shared, **PLACEMENTS[-2])
    for epoch in range(2):
        for batch in loop.emb.read_ahead(batches_of(shared, epoch)):
            loop.train(batch)
    assert_equal(loop.state(), of_trainer(shared))
    # Batches whose losses depend on no feature of a width add nothing to its rows.
    before = loop.state()
    for number, batch in enumerate(loop.emb.read_ahead(batches_of(shared, 0), batches_per_step=2)):
        loop.emb(batch)["C3" if number % 2 else "C2"].sum().backward()
        if number % 2:
            loop.emb.step()
            break
    after = loop.state()
    assert {name for name in after if not torch.equal(after[name], before[name])} == {
        "C1.weight",
        "C1.state",
        "C3.weight",
        "C3.state",
    }


@pytest.mark.parametrize("settings", [{"placement": "all-fast"}, *PLACEMENTS])
def test_a_loop_on_a_device_ends_with_the_bits_of_the_host(
    folder: Path, wanted: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Also where it ends early now and then, and batches come that nobody announced."""
    loop = Loop(folder, device="late:4", **settings)
    for batch in loop.emb.read_ahead(batches_of(folder, 0)):
        loop.train(batch)
    batches = list(batches_of(folder, 1))
    ahead = loop.emb.read_ahead(batches[:4])
    loop.train(next(ahead))
    ahead.close()  # type: ignore[attr-defined]
    loop.train(batches[1])
    for batch in loop.emb.read_ahead(batches[2:]):
        loop.train(batch)
    assert_equal(loop.state(), wanted)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("device", ["cpu", "late:7"])
@pytest.mark.parametrize("settings", PLACEMENTS)
def test_evaluations_pauses_and_a_resumed_run_change_no_bit(
    folder: Path, wanted: dict[str, Any], settings: dict[str, Any], device: str
) -> None:
    loop = Loop(folder, device=device, **settings)
    valid = next(iter(ShardDataset(folder, split="test")))
    plain = iter(batches_of(folder, 0))
    # Two batches that nobody announced, then some of which those behind the third are planned in vain.
    for _ in range(2):
        loop.train(next(plain))
    ahead = loop.emb.read_ahead(plain)
    loop.train(next(ahead))
    loop.emb.eval()
    before = loop.emb(valid)
    loop.emb.train()
    loop.train(next(ahead))
    kept = loop.state()
    seen = evaluated(loop, valid)
    assert torch.equal(seen["C3"], kept["C3.weight"][valid["C3"]])
    assert not torch.equal(seen["C3"], before["C3"])
    # A batch without a step changes nothing, and neither does one that is not even looked up.
    next(ahead)
    loop.emb(next(ahead))
    assert all(torch.equal(found, seen[name]) for name, found in evaluated(loop, valid).items())
    ahead.close()  # type: ignore[attr-defined]
    assert_equal(loop.state(), kept)
    # Another placement goes on from there, with the optimizer as it was.
    other = Loop(folder, placement="lookahead", staging_bytes=2000)
    other.emb.load_state_dict({name: kept[name] for name in kept if name in other.emb.state_dict()})
    other.net, other.optimizer = loop.net, loop.optimizer
    for batches in (batches_of(folder, 0, first=4), batches_of(folder, 1)):
        for batch in other.emb.read_ahead(batches):
            other.train(batch)
    assert_equal(other.state(), wanted)


@pytest.mark.parametrize("settings", PLACEMENTS[3:6])
def test_tables_are_saved_with_their_newest_rows_after_any_batch(
    folder: Path, settings: dict[str, Any]
) -> None:
    """Between hot-only batches fae has the newest hot rows on the fast tier alone."""
    loop, yardstick = Loop(folder, **settings), Loop(folder, placement="all-fast")
    for batch in loop.emb.read_ahead(batches_of(folder, 0)):
        loop.train(batch)
        yardstick.train(batch)
        assert_equal(loop.state(), yardstick.state())


@pytest.mark.parametrize("settings", PLACEMENTS[3:6])
def test_batches_of_one_kind_may_come_one_by_one(folder: Path, settings: dict[str, Any]) -> None:
    """Each ends with all rows written back; the next one of the same kind begins anew."""
    tables = ShardSet.open(folder).tables
    batches = sorted(batches_of(folder, 0), key=lambda batch: read_lookups(tables, batch).is_hot_only)
    assert all(read_lookups(tables, batch).is_hot_only for batch in batches[-2:])
    loop, yardstick = Loop(folder, **settings), Loop(folder, placement="all-fast")
    for batch in batches:
        loop.train(batch)
        yardstick.train(batch)
        assert_equal(loop.state(), yardstick.state())


@torch.no_grad()
def evaluated(loop: Loop, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = loop.emb(batch)
    return found


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("settings", PLACEMENTS)
def test_a_loop_may_end_after_any_batch(
    folder: Path, wanted: dict[str, Any], settings: dict[str, Any]
) -> None:
    loop = Loop(folder, **settings)
    batches = [batch for epoch in range(2) for batch in batches_of(folder, epoch)]
    for position in range(len(batches)):
        ahead = loop.emb.read_ahead(batches[position:])
        loop.train(next(ahead))
        ahead.close()  # type: ignore[attr-defined]
    assert_equal(loop.state(), wanted)


def _load_rows(loop: Loop, batches: Sequence[dict[str, Any]]) -> None:
    loop.emb.load_state_dict(loop.emb.state_dict())


def _read_again(loop: Loop, batches: Sequence[dict[str, Any]]) -> None:
    assert len(list(loop.emb.read_ahead(batches))) == len(batches)


@pytest.mark.parametrize("settings", PLACEMENTS[:4] + PLACEMENTS[-1:])
@pytest.mark.parametrize("ends", [_load_rows, _read_again])
def test_a_loop_that_broke_off_and_is_kept_is_ended_by_the_next(
    folder: Path, wanted: dict[str, Any], settings: dict[str, Any], ends: Callable[..., None]
) -> None:
    """A notebook keeps the traceback of a cell that was interrupted, and so its iterator."""
    loop = Loop(folder, **settings)
    batches = [batch for epoch in range(2) for batch in batches_of(folder, epoch)]
    kept = loop.emb.read_ahead(batches)
    for position in range(len(batches)):
        loop.train(next(kept))
        ends(loop, batches)
        with pytest.raises(ConfigError, match="this loop over read_ahead is over"):
            next(kept)
        kept = loop.emb.read_ahead(batches[position + 1 :])
    assert_equal(loop.state(), wanted)


def test_embeddings_are_sums_of_rows_and_the_callers_to_keep(folder: Path) -> None:
    loop = Loop(folder, placement="lookahead", staging_bytes=1000)
    dataset = list(ShardDataset(folder))
    kept = [(batch, loop.emb(batch)) for batch in loop.emb.read_ahead(dataset)]
    rows = loop.emb.state_dict()
    for batch, vectors in kept:
        assert torch.equal(vectors["C1"], rows["C1.weight"][batch["C1"]])
        bags = torch.nn.functional.embedding_bag(
            batch["C2"].long(), rows["C2.weight"], batch["C2_offsets"], mode="sum", include_last_offset=True
        )
        torch.testing.assert_close(vectors["C2"], bags)
        # Ids of any type of integers, as an own order of samples may have them.
        other = {name: value.long() if name.startswith("C") else value for name, value in batch.items()}
        with torch.no_grad():
            assert torch.equal(loop.emb(other)["C3"], vectors["C3"])
    assert sum(parameter.numel() for parameter in loop.emb.parameters()) == 0


def test_what_cannot_be_done_is_refused_in_one_line(folder: Path) -> None:
    emb = hotset.nn.Embeddings(folder, placement="lookahead")
    batches = list(ShardDataset(folder))
    refused: list[tuple[str, Callable[[], object]]] = [
        ("comes after a batch was looked up", emb.step),
        ("there is no setting 'epochs'", lambda: hotset.nn.Embeddings(folder, epochs=3)),  # type: ignore[call-arg]
        ("the batch has no 'C1'; it has 'C9'", lambda: emb({"C9": [1]})),
    ]
    ahead = emb.read_ahead(batches)
    refuse(refused)
    first = next(ahead)
    vectors = emb(first)
    refuse(
        [
            ("comes after backward", emb.step),
            ("is not the one that read_ahead", lambda: emb(batches[5])),
        ]
    )
    vectors["C3"].sum().backward()
    emb.step()
    refuse([("is trained on once", lambda: emb(first))])
    ahead.close()  # type: ignore[attr-defined]
    whole = emb.state_dict()
    for changed, message in (
        ({"C1.weight": whole["C1.weight"][1:]}, r"C1.weight has the shape \(59, 4\), want \(60, 4\)"),
        ({"C7.weight": whole["C1.weight"]}, "Unexpected key"),
    ):
        with pytest.raises(RuntimeError, match=message):
            emb.load_state_dict(whole | changed)
    with pytest.raises(RuntimeError, match="Missing key"):
        emb.load_state_dict({})


def refuse(calls: list[tuple[str, Callable[[], object]]]) -> None:
    for message, call in calls:
        with pytest.raises(ConfigError, match=message):
            call()


@pytest.mark.parametrize("settings", PLACEMENTS[:4] + PLACEMENTS[-1:])
def test_batches_that_break_off_leave_the_rows_of_those_before(
    folder: Path, settings: dict[str, Any]
) -> None:
    """The loader fails, or hands out an id that no table has: the same rows as of a loop that ended there."""
    batches = list(ShardDataset(folder, seed=3))[:4]
    wanted = Loop(folder, placement="all-fast")
    for batch in batches[:2]:
        wanted.train(batch)
    stray = batches[2] | {"C3": batches[2]["C3"] + 10**6}

    def failing() -> Iterator[dict[str, Any]]:
        yield from batches[:2]
        raise OSError("the loader is gone")

    for broken, kind, message in (
        (failing(), OSError, "the loader is gone"),
        (iter([*batches[:2], stray]), ConfigError, "feature 'C3' has the id"),
    ):
        loop = Loop(folder, **settings)
        trained = 0
        with pytest.raises(kind, match=message):
            for batch in loop.emb.read_ahead(broken):
                loop.train(batch)
                trained += 1
        # An error of a batch that is read ahead may come before the batches in front of it.
        for batch in batches[trained:2]:
            loop.train(batch)
        assert_equal(loop.state(), wanted.state())
        # The next loop is none the worse.
        assert [batch is batches[3] for batch in loop.emb.read_ahead(batches[3:])] == [True]
        assert list(loop.emb.read_ahead([])) == []


def test_two_losses_of_one_batch_add_their_gradients(folder: Path) -> None:
    batch = next(iter(ShardDataset(folder)))
    found = []
    for weights in ((3.0,), (1.0, 2.0)):
        emb = hotset.nn.Embeddings(folder, placement="hybrid", **FIELDS)
        for weight in weights:
            (weight * emb(batch)["C1"].sum()).backward()
        emb.step()
        found.append(emb.state_dict())
        with pytest.raises(ConfigError, match="comes after a batch was looked up"):
            emb.step()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("settings", [each for each in PLACEMENTS if each["placement"] != "hybrid-uva"])
def test_gradients_of_several_batches_add_up(folder: Path, settings: dict[str, Any]) -> None:
    """As those of one batch with all their samples, with and without reading ahead."""
    batches = list(ShardDataset(folder, seed=3))[:7]
    groups = [batches[first : first + 3] for first in range(0, 7, 3)]
    wanted = hotset.nn.Embeddings(folder, placement="all-fast", threads=1, **FIELDS)
    for group in groups:
        weighted_sum(wanted(joined(group))).backward()  # type: ignore[no-untyped-call]
        wanted.step()
    alone = hotset.nn.Embeddings(folder, threads=1, **FIELDS, **settings)
    ahead = hotset.nn.Embeddings(folder, threads=1, **FIELDS, **settings)
    reading = ahead.read_ahead(batches, batches_per_step=3)
    for group in groups:
        for batch in group:
            weighted_sum(alone(batch)).backward()  # type: ignore[no-untyped-call]
            weighted_sum(ahead(next(reading))).backward()  # type: ignore[no-untyped-call]
        alone.step()
        ahead.step()
    assert next(reading, None) is None
    assert_equal(alone.state_dict(), wanted.state_dict())
    assert_equal(ahead.state_dict(), wanted.state_dict())


def test_steps_that_a_placement_has_no_room_for_are_refused(folder: Path) -> None:
    emb = hotset.nn.Embeddings(folder, placement="hybrid-uva", **FIELDS)
    batches = list(ShardDataset(folder))[:4]
    message = "room for steps of 20 samples, and this one has 40"
    refuse([(message, lambda: next(iter(emb.read_ahead(batches, batches_per_step=2))))])
    for batch in batches[:2]:
        weighted_sum(emb(batch)).backward()  # type: ignore[no-untyped-call]
    refuse([(message, emb.step), (message, lambda: emb(joined(batches[2:])))])


def test_gradients_wait_for_a_step_and_can_be_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = list(ShardDataset(folder))[:6]
    emb = hotset.nn.Embeddings(folder, placement="hybrid", **FIELDS)
    before = emb.state_dict()
    late = weighted_sum(emb(batches[0]))
    late.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    weighted_sum(emb(batches[1])).backward()  # type: ignore[no-untyped-call]
    emb.zero_grad()
    refuse([("comes after", emb.step)])
    assert_equal(emb.state_dict(), before)
    # The gradient of an earlier batch comes late, and counts; what was dropped does not come back.
    late.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    emb.step()
    wanted = hotset.nn.Embeddings(folder, placement="hybrid", **FIELDS)
    weighted_sum(wanted(batches[0])).backward()  # type: ignore[no-untyped-call]
    wanted.step()
    assert_equal(emb.state_dict(), wanted.state_dict())
    refuse([("comes after the step", late.backward)])
    # Whoever forgets the step is told once.
    monkeypatch.setattr(row_gradients, "_MANY_LOOKUPS", 2)
    with pytest.warns(UserWarning, match="2 batches wait") as told:
        for batch in batches[:4]:
            weighted_sum(emb(batch)).backward()  # type: ignore[no-untyped-call]
    assert len(told) == 1


def test_gradients_that_no_step_uses_end_a_loop_that_reads_ahead(folder: Path) -> None:
    batches = list(ShardDataset(folder))[:6]
    emb = hotset.nn.Embeddings(folder, placement="lookahead", staging_bytes="3kB", **FIELDS)
    ahead = emb.read_ahead(batches, batches_per_step=2)
    first = weighted_sum(emb(next(ahead)))
    first.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    refuse([("after the last of the batches_per_step", emb.step)])
    next(ahead)
    # A batch of the step that was not looked up has no gradient.
    emb.step()
    refuse([("comes after the step", first.backward)])
    left = weighted_sum(emb(next(ahead)))
    next(ahead)
    weighted_sum(emb(next(ahead))).backward()  # type: ignore[no-untyped-call]
    refuse([("comes after the step", left.backward)])
    next(ahead)
    refuse([("gradients that no step", lambda: next(ahead))])
    # Neither does the next loop begin with them: it would drop them.
    refuse([("gradients that no step", lambda: next(iter(emb.read_ahead(batches))))])
    emb.zero_grad()
    assert next(iter(emb.read_ahead(batches))) is batches[0]


def test_embeddings_that_nothing_is_trained_on_are_freed_at_once(folder: Path) -> None:
    emb = hotset.nn.Embeddings(folder, placement="hybrid", **FIELDS)
    batches = list(ShardDataset(folder))[:2]
    gc.disable()
    try:
        emb(batches[0])
        assert emb._current is not None
        kept = [weakref.ref(leaf) for leaf in emb._current.leaves[0].values()]
        emb(batches[1])
        assert [leaf() for leaf in kept] == [None] * len(kept)
    finally:
        gc.enable()


def test_rows_that_a_loss_does_not_depend_on_stay(folder: Path) -> None:
    """Neither the other tables, of this width or another, nor rows that the batch does not look up."""
    batch = next(iter(ShardDataset(folder)))
    emb = hotset.nn.Embeddings(folder, placement="lookahead", staging_bytes="3kB", **FIELDS)
    before = emb.state_dict()
    emb(batch)["C1"].square().sum().backward()
    emb.step()
    after = emb.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"C1.weight", "C1.state"}
    rows = (after["C1.weight"] != before["C1.weight"]).any(1).nonzero().squeeze(1).tolist()
    assert rows == sorted(set(batch["C1"].tolist()))


def test_decay_is_that_of_the_trainer(folder: Path) -> None:
    loop = Loop(folder, placement="lookahead", staging_bytes=3000, decay=0.01)
    for batch in batches_of(folder, 0):
        loop.train(batch)
    shards = ShardSet.open(folder)
    config = TrainConfig(placement="all-fast", model=name_of(loop.first), threads=1, **FIELDS)
    config = replace(config, recipe=replace(config.recipe, embedding_decay=0.01))
    trainer = build_trainer(shards, config, model_source=loop.first)
    run_steps(trainer, no_log)
    for number, table in enumerate(shards.tables):
        assert torch.equal(loop.emb.state_dict()[f"{table.name}.weight"], trainer.embeddings.table(number))


def test_rows_are_saved_and_loaded_as_a_part_of_a_larger_module(folder: Path) -> None:
    def model(**settings: Any) -> torch.nn.Module:
        emb = hotset.nn.Embeddings(folder, **(FIELDS | settings))
        return torch.nn.ModuleDict({"rows": emb, "top": LinearNet(emb.inputs)})

    batch = next(iter(ShardDataset(folder)))
    trained = model()
    trained["rows"](batch)["C2"].sum().backward()  # type: ignore[index]
    trained["rows"].step()  # type: ignore[index]
    saved = trained.state_dict()
    assert {"rows.C1.weight", "rows.C3.state", "top.layer.weight"} <= set(saved)
    other = model(seed=9, placement="hybrid")
    first = other.state_dict()
    # Half of the rows are no rows: nothing is loaded of what lacks a table or has one of another shape.
    for wrong in ({"rows.C2.weight": saved["rows.C2.weight"][:5]}, {"rows.C2.state": torch.zeros(3)}):
        with pytest.raises(RuntimeError, match=f"{next(iter(wrong))} has the shape"):
            other.load_state_dict(saved | wrong)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "rows\.C3\.state"'):
        other.load_state_dict({name: value for name, value in saved.items() if name != "rows.C3.state"})
    now = other.state_dict()
    rows = [name for name in first if name.startswith("rows.")]
    assert all(torch.equal(now[name], first[name]) for name in rows)
    # Names beside those of the rows are allowed where torch allows them; doubles are rounded to floats.
    doubled = {name: value.double() for name, value in saved.items()}
    assert other.load_state_dict(doubled | {"rows.more": torch.zeros(1)}, strict=False).missing_keys == []
    now = other.state_dict()
    assert all(torch.equal(now[name], saved[name]) for name in saved)


def test_settings_that_no_loop_has_are_refused_in_one_line(folder: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"device": "meta"}, "training runs on cpu or cuda, not on 'meta'"),
        ({"placement": "hot-only"}, "^placement must be one of all-fast, .*, got 'hot-only'$"),
        ({"cache_policy": "fifo"}, "^cache_policy must be one of lru, lfu, dataset, got 'fifo'$"),
        ({"staging_bytes": "lots"}, "not a size: 'lots'"),
        ({"decay": 1.0}, "embedding_decay must be from 0 to below 1, got 1.0"),
        ({"cache_batches": 0}, "cache_batches must be 1 or more, got 0"),
    ]
    for settings, message in refused:
        with pytest.raises(ConfigError, match=message):
            hotset.nn.Embeddings(folder, **settings)
    # Drawn lists are no samples more.
    emb = hotset.nn.Embeddings(folder, placement="all-fast")
    with pytest.raises(ConfigError, match="has 'C1_offsets', and feature 'C1' has one id per sample"):
        emb(next(iter(ShardDataset(folder, multi_hot=(2, 1, 2)))))
