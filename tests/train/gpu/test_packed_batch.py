"""A batch is packed into one range of bytes, and read from there as it was.

The numbers of each step, against those made anew, in the order of the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.stats.batch_rows import LONG_LOOKUPS, group_lookups, of_matrix
from hotset.train.config import Optimizers
from hotset.train.config_parts import RecipeOptions
from hotset.train.gpu.packed_batch import BatchLists, BatchRoom, HostLists, PackedRoom, SentRates, pack
from hotset.train.gpu.twins import DenseRule
from hotset.train.rows.backends import RowOptimizer
from hotset.train.rows.tiers import Layout
from hotset.train.step import LearningRates, StepRates

NUM_ROWS = np.array([5, 40, 3])
HOT = Layout.of([0, 0, 0], [2, 2, 2])


def host_lists(num_samples: int, rng: np.random.Generator) -> HostLists:
    ids_BF = rng.integers(0, NUM_ROWS, (num_samples, 3)).astype(np.int32)
    lookups = group_lookups(of_matrix(ids_BF.reshape(-1), NUM_ROWS))
    return HostLists(lookups, HOT, 100 + np.arange(np.count_nonzero(lookups.rows_U >= 2)))


def naive_lists(lists: HostLists) -> dict[str, list[int]]:
    lookups = lists.lookups
    found: dict[str, list[int]] = {name: [] for name in ("order_N", "rows_U", "starts_U", "long_rows_L")}
    offsets: dict[str, list[int]] = {name: [0] for name in ("row", "long", "staged")}
    for first, stop in itertools.pairwise(lookups.first_F1.tolist()):
        first_lookup = len(found["order_N"])
        num_staged = offsets["staged"][-1]
        for row in range(first, stop):
            found["starts_U"].append(len(found["order_N"]) - first_lookup)
            order = lookups.order_N[lookups.starts_U1[row] : lookups.starts_U1[row + 1]]
            found["order_N"] += [int(position) // 3 for position in order]
            found["rows_U"].append(int(lookups.rows_U[row]))
            if order.size > LONG_LOOKUPS:
                found["long_rows_L"].append(row - first)
            num_staged += int(lookups.rows_U[row] >= 2)
        offsets["row"].append(len(found["rows_U"]))
        offsets["long"].append(len(found["long_rows_L"]))
        offsets["staged"].append(num_staged)
    found["staged_C"] = lists.staged_C.tolist()
    return found | {f"{name}_offsets_F1": values for name, values in offsets.items()}


def room_for(num_samples: int) -> PackedRoom:
    return PackedRoom(num_samples, 2, (BatchRoom(num_samples, 3, 0, 0, 0),), (4,), 0)


@pytest.mark.parametrize("num_samples", [1, 7, 700])
def test_lists_come_back_as_they_were(num_samples: int, rng: np.random.Generator) -> None:
    lists = host_lists(num_samples, rng)
    moves = [
        [(np.arange(3), np.arange(3) + 7), (np.arange(0), np.arange(0)), (np.arange(1), np.arange(1) + 5)]
    ]
    room = room_for(num_samples).with_room_for([lists], 4)
    slot = torch.full([room.num_bytes + 9], 255, dtype=torch.uint8)
    label_B = rng.integers(0, 2, num_samples).astype(np.float32)
    dense_BK = rng.normal(size=(num_samples, 2)).astype(np.float32)
    packed = pack(room, slot, label_B, dense_BK, [lists], moves)
    dense, rows = room.rate_places
    packed.rates[dense], packed.rates[rows] = [7, 8], np.arange(4)
    sent = slot[: packed.num_bytes].clone()
    assert torch.equal(packed.source, sent)
    found = room.lists_on(torch.cat([sent, torch.zeros(room.num_bytes, dtype=torch.uint8)]), 0)
    assert found.num_samples_1.item() == num_samples
    for name, wanted in naive_lists(lists).items():
        np.testing.assert_array_equal(getattr(found, name).numpy()[: len(wanted)], wanted)
    assert found.order_offsets_F1.tolist() == [num_samples * table for table in range(4)]
    np.testing.assert_array_equal(room.sections["label"].of(slot), label_B)
    np.testing.assert_array_equal(room.sections["dense"].of(slot).view(-1, 2), dense_BK)
    rates_R = room.sections["rates"].of(slot)
    assert [rates_R[place].tolist() for place in room.rate_places] == [[7, 8], [0, 1, 2, 3]]
    there = sent.new_zeros(room.num_bytes).copy_(slot[: room.num_bytes])
    assert packed.target is None
    for (sources_N, targets_N), listed in zip(moves[0], room.moves_on(there)[0], strict=True):
        count, first_source, first_target = listed.place_3.tolist()
        assert count == sources_N.size
        assert listed.sources_N[first_source:][:count].tolist() == sources_N.tolist()
        assert listed.targets_N[first_target:][:count].tolist() == targets_N.tolist()
        # Addresses are the same for any batch of the room.
        assert (listed.place_3.data_ptr() - there.data_ptr()) % 16 == 0
        assert listed.sources_N.data_ptr() == room.sections["moves"].of(there).data_ptr()
    # The slot is written as far as the batch goes.
    assert slot[packed.num_bytes :].eq(255).all()


def test_room_grows_and_does_not_shrink(rng: np.random.Generator) -> None:
    small, large = host_lists(7, rng), host_lists(700, rng)
    room = room_for(700)
    grown = room.with_room_for([large], 10)
    assert grown.groups[0].num_rows >= large.lookups.num_rows and grown.num_bytes > room.num_bytes
    assert grown.with_room_for([small], 3) is grown
    assert grown.with_room_for([small], 1000) == replace(grown, num_moves=1250)


def test_every_list_of_the_kernels_has_a_place() -> None:
    lists = {f"{name}0" for name in BatchLists._fields}
    assert set(room_for(4).sections) == {"label", "dense", "rates", "move_places", "moves", *lists}


SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "warm-up": {"warmup_steps": 3},
    "cosine": {"warmup_steps": 2, "lr_schedule": "cosine"},
    "of the rows alone": {"lr_schedule": "linear", "lr_schedule_of": "rows"},
}
FULL = Optimizers(embedding_optimizer="sgd", embedding_lr=0.1, dense_optimizer="sgd", dense_lr=0.3)


def rates_room(optimizers: Sequence[RowOptimizer]) -> PackedRoom:
    sizes = tuple(optimizer.step_rates(0.0).size for optimizer in optimizers)
    return PackedRoom(8, 2, tuple(BatchRoom(8, 3, 0, 0, 0) for _ in optimizers), sizes, 0)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("names", [("sgd",), ("adam",), ("sgd", "adam", "adagrad")])
def test_numbers_are_those_made_anew_for_each_step(schedule: str, names: tuple[str, ...]) -> None:
    optimizers = [RowOptimizer(name, 0.1) for name in names]
    room = rates_room(optimizers)
    rule = DenseRule("adam")
    counted: list[int] = []

    def next_dense(rate: float) -> NDArray[np.float32]:
        counted.append(1)
        return rule.rates(rate, len(counted))

    sent = SentRates(room, optimizers, next_dense)
    rates = LearningRates(RecipeOptions(**SCHEDULES[schedule]), FULL, 9)
    for step in range(9):
        found_R = sent.of(rates.of_step(step))
        anew = LearningRates(RecipeOptions(**SCHEDULES[schedule]), FULL, 9).of_step(step)
        dense, *rows = room.rate_places
        np.testing.assert_array_equal(found_R[dense], rule.rates(anew.dense, step + 1))
        for place, optimizer in zip(rows, optimizers, strict=True):
            np.testing.assert_array_equal(found_R[place], optimizer.step_rates(anew.rows))


def test_the_numbers_of_each_optimizer_are_aligned() -> None:
    room = rates_room([RowOptimizer("adam", 0.1), RowOptimizer("sgd", 0.1)])
    assert [(place.start * 4 % 64, place.stop - place.start) for place in room.rate_places] == [
        (0, count) for count in (2, *room.num_rates)
    ]


def test_rows_follow_rates_of_equal_numbers_that_are_other_objects() -> None:
    """Rates may come from elsewhere than a schedule."""
    optimizers = [RowOptimizer("sgd", 0.1)]
    sent = SentRates(rates_room(optimizers), optimizers, None)
    (dense, rows) = rates_room(optimizers).rate_places
    for rate in (0.5, 0.25, 0.25, 0.5):
        found_R = sent.of(StepRates(9.0, rate))
        assert found_R[rows].tolist() == [rate] and not found_R[dense].any()
