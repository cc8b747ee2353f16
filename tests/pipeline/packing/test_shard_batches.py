"""Record batches of shards: columns, types and values from the rows of one file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.packing.row_layout import RowLayout
from hotset.pipeline.packing.shard_batches import ShardBatches


@dataclass(frozen=True)
class DrawnInputs:
    """As much of `PackInputs` as batches need: names, and where they stand in a row."""

    has_label: bool
    dense: tuple[str, ...]
    lists: tuple[str, ...]
    num_one_hot: int

    @property
    def layout(self) -> RowLayout:
        return RowLayout(len(self.dense), len(self.lists), self.num_one_hot)


@dataclass(frozen=True)
class DrawnFile:
    """The samples of a file, and the rows they were scattered to."""

    batches: ShardBatches
    label: NDArray[np.float32]
    is_hot: NDArray[np.int32]
    dense: NDArray[np.float32]
    ids: NDArray[np.int32]
    bags: list[list[list[int]]]
    """By sample, then table."""


def drawn_file(inputs: Any, num_rows: int, rng: np.random.Generator, *, is_tagged: bool = True) -> DrawnFile:
    layout = inputs.layout
    label = rng.integers(0, 2, num_rows).astype(np.float32)
    is_hot = rng.integers(0, 2, num_rows).astype(np.int32)
    dense = rng.standard_normal((num_rows, len(inputs.dense))).astype(np.float32)
    ids = rng.integers(0, 1000, (num_rows, inputs.num_one_hot)).astype(np.int32)
    bags = [[rng.integers(0, 99, rng.integers(0, 4)).tolist() for _ in inputs.lists] for _ in range(num_rows)]
    lengths = np.array([[len(bag) for bag in row] for row in bags], np.int32).reshape(num_rows, -1)
    rows = np.empty((num_rows, layout.width), np.int32)
    rows[:, 0] = is_hot
    rows[:, 1] = label.view(np.int32)
    rows[:, layout.dense] = dense.view(np.int32)
    rows[:, layout.lengths] = lengths
    rows[:, layout.ids] = ids
    starts = np.cumsum([0, *lengths.sum(axis=1)])[:-1] if inputs.lists else np.empty(0, np.int64)
    flat = np.array([one for row in bags for bag in row for one in bag], np.int32)
    batches = ShardBatches(inputs, rows, starts.astype(np.int64), flat, is_tagged)
    return DrawnFile(batches, label, is_hot, dense, ids, bags)


INPUTS = {
    "Criteo": DrawnInputs(True, ("I1", "I2"), (), 3),
    "lists": DrawnInputs(True, ("I1",), ("tags", "seen"), 2),
    "lists only": DrawnInputs(True, (), ("tags",), 0),
    "no label": DrawnInputs(False, ("I1", "I2", "I3"), ("tags",), 1),
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("num_samples", [0, 1, 7])
@pytest.mark.parametrize("is_tagged", [False, True])
def test_a_batch_holds_the_samples_in_the_order_asked_for(
    kind: str, num_samples: int, is_tagged: bool, rng: np.random.Generator
) -> None:
    inputs = INPUTS[kind]
    file = drawn_file(inputs, 9, rng, is_tagged=is_tagged)
    order = rng.permutation(9)[:num_samples].astype(np.int64)
    batch = file.batches.batch(order)
    batch.validate(full=True)
    assert batch.schema == file.batches.schema and batch.num_rows == num_samples
    wanted = ["dense", "ids", *inputs.lists]
    assert batch.schema.names == [*["label"] * inputs.has_label, *wanted, *["is_hot"] * is_tagged]
    found = batch.to_pydict()
    assert found["dense"] == file.dense[order].tolist() and found["ids"] == file.ids[order].tolist()
    for number, name in enumerate(inputs.lists):
        assert found[name] == [file.bags[row][number] for row in order]
    if inputs.has_label:
        assert found["label"] == file.label[order].tolist()
    if is_tagged:
        assert found["is_hot"] == file.is_hot[order].tolist()


def test_floats_keep_every_bit(rng: np.random.Generator) -> None:
    file = drawn_file(INPUTS["Criteo"], 4, rng)
    odd = np.array([-0.0, 1e-45, np.finfo(np.float32).max, 1 / 3], np.float32)
    file.batches.rows[:, file.batches.inputs.layout.dense.start] = odd.view(np.int32)
    batch = file.batches.batch(np.arange(4))
    found = batch.column("dense").values.to_numpy()[::2]
    np.testing.assert_array_equal(found.view(np.int32), odd.view(np.int32))


def test_a_batch_is_overwritten_by_the_next_one_of_its_thread_and_lists_are_not(
    rng: np.random.Generator,
) -> None:
    """The docstring warns of this: the file's writer takes each batch before it asks for the next."""
    file = drawn_file(INPUTS["lists"], 8, rng)
    first = file.batches.batch(np.arange(4))
    kept = first.column("tags").to_pylist()
    file.batches.batch(np.arange(4, 8))
    assert first.column("tags").to_pylist() == kept == [row[0] for row in file.bags[:4]]


def test_more_lookups_than_an_offset_can_say_are_refused(rng: np.random.Generator) -> None:
    file = drawn_file(INPUTS["lists only"], 3, rng)
    file.batches.rows[:, file.batches.inputs.layout.lengths] = 2**30
    with pytest.raises(ConfigError, match=r"2\*\*31 lookups in one table") as caught:
        file.batches.batch(np.arange(3))
    assert caught.value.hint == "lower --batch-size"
