"""Files of tensors: read back as written, readable by others, refused when damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from hotset.pipeline.errors import HotsetError
from hotset.pipeline.folders.checksum import hash_file
from hotset.train.checkpoints.tensor_file import (
    read_part,
    read_tensors,
    write_arrays,
    write_part,
    write_tensors,
)
from hotset.train.execution.row_parts import RowsPart

NUM_ROWS = [5, 300, 40]
WIDTHS = [(4, 4), (4, 4), (2, 0)]


def part_of(**changes: Any) -> RowsPart:
    arrays: dict[str, Any] = {
        "tables_N": np.array([0, 1, 1], np.int32),
        "ids_N": np.array([4, 0, 299], np.int32),
        "weights_ND": np.arange(12, dtype=np.float32).reshape(3, 4),
        "state_NW": np.ones((3, 4), np.float32),
    }
    return RowsPart(**arrays | changes)


def test_arrays_are_what_the_safetensors_library_reads(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
        "ids": np.array([1, 2], np.int32),
        "none": np.empty((0, 3), np.float32),
        "one": np.array(1.5),
    }
    assert write_arrays(tmp_path / "file", arrays) == hash_file(tmp_path / "file")
    found = load_file(tmp_path / "file")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def test_tensors_of_all_types_are_read_back(tmp_path: Path) -> None:
    tensors = {
        "step": torch.tensor(3.0),
        "count": torch.tensor(7),
        "is": torch.tensor([True]),
        "half": torch.ones(2, dtype=torch.float16),
    }
    write_tensors(tmp_path / "file", tensors)
    found = read_tensors(tmp_path / "file")
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype
        for name, tensor in tensors.items()
    )


def test_a_part_is_read_back(tmp_path: Path) -> None:
    part = part_of()
    write_part(tmp_path / "part", part)
    found = read_part(tmp_path / "part", NUM_ROWS, WIDTHS)
    for name in ("tables_N", "ids_N", "weights_ND", "state_NW"):
        np.testing.assert_array_equal(getattr(found, name), getattr(part, name))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids_N": np.array([5, 0, 299], np.int32)}, "id 5 in table 0 of 5 rows"),
        ({"ids_N": np.array([-1, 0, 299], np.int32)}, "id -1 in table 0"),
        ({"tables_N": np.array([0, 1, 3], np.int32)}, "a row of table 3, there are 3"),
        ({"tables_N": np.array([-1, 1, 1], np.int32)}, "a row of table -1"),
        ({"tables_N": np.array([1, 1, 2], np.int32), "ids_N": np.zeros(3, np.int32)}, "several widths"),
        ({"ids_N": np.array([4, 7, 7], np.int32)}, "a row twice"),
        ({"ids_N": np.array([4, 0], np.int32)}, "have the shapes"),
        ({"weights_ND": np.zeros((3, 5), np.float32)}, "want 3 of 4 and 4 floats"),
        ({"state_NW": np.zeros((2, 4), np.float32)}, "want 3 of 4 and 4 floats"),
        ({"state_NW": np.full((3, 4), np.nan, np.float32)}, "not finite"),
        ({"ids_N": np.array([4, 0, 299], np.int64)}, "it holds"),
    ],
)
def test_a_part_that_indexes_what_is_not_there_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    # Its checksum would be right: no index of a file is trusted because of that.
    write_part(tmp_path / "part", part_of(**changes))
    with pytest.raises(HotsetError, match=message):
        read_part(tmp_path / "part", NUM_ROWS, WIDTHS)


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "another"])
def test_what_is_no_such_file_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "part"
    write_part(path, part_of())
    if damage == "another":
        save_file({"weights": np.zeros(3, np.float32)}, path)
    else:
        path.write_bytes(
            {"empty": b"", "cut": path.read_bytes()[:-3], "text": b"not a file of tensors"}[damage]
        )
    with pytest.raises(HotsetError, match=r"part is damaged: "):
        read_part(path, NUM_ROWS, WIDTHS)
    if damage != "another":
        with pytest.raises(HotsetError, match=r"part is damaged: "):
            read_tensors(path)
