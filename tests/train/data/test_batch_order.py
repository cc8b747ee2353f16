"""Orders of batches: from the seed, and recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import HotsetError
from hotset.stats.shuffle import epoch_order
from hotset.train.data.batch_order import BATCH_ORDER, CutOrder, RecordedOrder, SeededOrder, read_batch_order

KINDS = np.arange(12) < 8


def test_epochs_follow_one_another() -> None:
    order = list(SeededOrder(KINDS, 3, 2, is_grouped=True).epochs())
    assert order == [epoch_order(KINDS, 3, epoch, spread=True).tolist() for epoch in range(2)]


def write_order(folder: Path, numbers: list[int]) -> Path:
    np.save(folder / BATCH_ORDER, np.array(numbers, np.int32))
    return folder


def test_an_order_is_cut_anywhere() -> None:
    whole = RecordedOrder(np.array([2, 0, 1, 1, 0, 2], np.int32), 2)
    for num_steps, wanted in (
        (1, [[2]]),
        (3, [[2, 0, 1]]),
        (4, [[2, 0, 1], [1]]),
        (9, [[2, 0, 1], [1, 0, 2]]),
    ):
        assert list(CutOrder(whole, num_steps).epochs()) == wanted


def test_a_recorded_order_is_replayed(tmp_path: Path) -> None:
    run = write_order(tmp_path, [2, 0, 1, 1, 2, 0])
    assert list(RecordedOrder.of_run(run, 3, 2).epochs()) == [[2, 0, 1], [1, 2, 0]]


@pytest.mark.parametrize("numbers", [[], [0, 1], [0, 1, 1], [0, 1, 3], [0, 1, -1], [0, 1, 2, 2]])
def test_an_order_of_other_shards_is_refused(numbers: list[int], tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="each of 3 batches 1 times"):
        RecordedOrder.of_run(write_order(tmp_path, numbers), 3, 1)


def test_a_run_without_an_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="cannot be read"):
        RecordedOrder.of_run(tmp_path, 3, 1)


HEADERS = (
    b"",
    b"damaged",
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    b"{'descr': '<i4', 'fortran_order': True, 'shape': (3, 1), }",
    b"{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387904,), }",
    b"{'descr': '<i4', 'fortran_order': False, 'shape': (-1,), }",
    b"{'descr': '<i4', 'fortran_order': False, 'shape': (3,",
    b"{'descr': '<i4', 'fortran_order': False, 'shape': (3 + '",
)


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_a_file_that_is_no_order_is_refused(header: bytes, tmp_path: Path) -> None:
    values = np.arange(3, dtype=np.int32).tobytes()
    padded = b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117) + b"\n" if header else b""
    (tmp_path / BATCH_ORDER).write_bytes(padded + values)
    with pytest.raises(HotsetError, match=r"batch_order\.npy is damaged: it "):
        RecordedOrder.of_run(tmp_path, 3, 1)


@pytest.mark.parametrize("num_steps", [0, 1, 9, 10, 12345])
def test_an_order_of_any_length_is_read(num_steps: int, tmp_path: Path) -> None:
    numbers = np.arange(num_steps, dtype=np.int32)
    path = write_order(tmp_path, numbers.tolist()) / BATCH_ORDER
    np.testing.assert_array_equal(read_batch_order(path), numbers)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(HotsetError, match="it has "):
        read_batch_order(path)
