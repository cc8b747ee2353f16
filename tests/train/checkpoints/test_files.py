"""Parts of rows and dense layers: written, read back, merged, and refused when damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from hotset.pipeline.errors import HotsetError
from hotset.pipeline.folders.manifest import hash_file
from hotset.train.checkpoints import files as merging
from hotset.train.checkpoints.files import (
    FileRecord,
    TableSizes,
    dense_state,
    is_worth_merging,
    merge_parts,
    read_part,
    read_tensors,
    restore_dense,
    write_part,
)
from hotset.train.rows.embeddings import RowsPart
from hotset.train.run_folder.weights import write_tensors

SIZES = TableSizes([6, 30, 9], [(2, 1), (2, 1), (3, 0)])


def test_each_row_has_the_value_of_the_last_file_that_has_it(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: object
) -> None:
    merging._PART_BYTES, before = 200, merging._PART_BYTES
    wanted: dict[tuple[int, int], list[float]] = {}
    files = []
    for number in range(9):
        tables = [[0, 1], [2]][number % 3 == 2]
        table = rng.choice(tables, 12)
        pairs = sorted({(int(each), int(rng.integers(SIZES.num_rows[each]))) for each in table})
        dim, width = SIZES.widths[tables[0]]
        values = rng.random((len(pairs), dim + width), np.float32)
        part = RowsPart(
            np.array([pair[0] for pair in pairs], np.int32),
            np.array([pair[1] for pair in pairs], np.int32),
            values[:, :dim].copy(),
            values[:, dim:].copy(),
        )
        name = f"rows-000000001-{number:05}.safetensors"
        num_bytes, checksum = write_part(tmp_path / name, part)
        files.append(FileRecord(path=name, bytes=num_bytes, xxh3_128=checksum, rows=len(pairs)))
        wanted |= {pair: value for pair, value in zip(pairs, values.tolist(), strict=True)}

    try:
        parts = list(merge_parts(tmp_path, files, SIZES))
    finally:
        merging._PART_BYTES = before
    found = {}
    for part in parts:
        values = np.concatenate([part.weights_ND, part.state_NW], axis=1).tolist()
        for table_id, value in zip(
            zip(part.tables_N.tolist(), part.ids_N.tolist(), strict=True), values, strict=True
        ):
            assert table_id not in found
            found[table_id] = value
    assert found == wanted and len(parts) > 2


def test_files_are_merged_once_most_of_their_rows_are_old() -> None:
    files = [
        FileRecord(path=f"rows-000000001-{n}.safetensors", bytes=1, xxh3_128="", rows=10) for n in range(3)
    ]
    assert not is_worth_merging(files[:1], 1) and not is_worth_merging(files, 15)
    assert is_worth_merging(files, 14)


def model_of(seed: int, width: int = 3) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1)
    )


def optimizers_of(model: torch.nn.Module, kind: Any, parts: int) -> tuple[torch.optim.Optimizer, ...]:
    parameters = list(model.parameters())
    return tuple(kind(parameters[part::parts], lr=0.01) for part in range(parts))


def step(model: torch.nn.Module, optimizers: tuple[torch.optim.Optimizer, ...], seed: int) -> None:
    torch.manual_seed(seed)
    model.zero_grad()
    model(torch.randn(8, 4)).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam])
def test_a_restored_model_goes_on_with_the_same_bits(kind: Any) -> None:
    model = model_of(0)
    optimizers = optimizers_of(model, kind, 1)
    for seed in range(3):
        step(model, optimizers, seed)
    saved = dense_state(model, optimizers)
    assert all(tensor.device.type == "cpu" for tensor in saved.values())

    other = model_of(1)
    others = optimizers_of(other, kind, 3)
    restore_dense(other, others, saved, "the checkpoint")
    for seed in range(3, 6):
        step(model, optimizers, seed)
        step(other, others, seed)
    first, second = dense_state(model, optimizers), dense_state(other, others)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_the_state_is_a_copy() -> None:
    model = model_of(0)
    optimizers = optimizers_of(model, torch.optim.Adam, 1)
    step(model, optimizers, 0)
    saved = dense_state(model, optimizers)
    before = {name: tensor.clone() for name, tensor in saved.items()}
    step(model, optimizers, 1)
    assert all(torch.equal(saved[name], before[name]) for name in saved)


def test_another_model_or_damage_is_refused() -> None:
    model = model_of(0)
    optimizers = optimizers_of(model, torch.optim.Adam, 1)
    step(model, optimizers, 0)
    saved = dense_state(model, optimizers)

    def refused(tensors: dict[str, torch.Tensor], message: str, width: int = 3) -> None:
        other = model_of(1, width)
        with pytest.raises(HotsetError, match=message):
            restore_dense(other, optimizers_of(other, torch.optim.Adam, 1), tensors, "it")

    refused(
        saved, r"the model of it is another: dense layer 0.bias is \(3,\) of float32, want \(5,\)", width=5
    )
    refused({name: saved[name] for name in saved if name != "model.0.bias"}, "0.bias is missing")
    refused(saved | {"model.9.bias": torch.zeros(1)}, "dense layer 9.bias is .* want missing")
    refused(saved | {"model.0.bias": torch.full((3,), torch.inf)}, "not finite")
    refused(saved | {"optimizer.0.bias exp_avg": torch.zeros(7)}, r"optimizer.0.bias exp_avg of shape \(7,\)")
    refused(saved | {"optimizer.9.bias exp_avg": torch.zeros(3)}, "is not of its model")


SIZES_OF_PART = TableSizes([5, 300, 40], [(4, 4), (4, 4), (2, 0)])


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
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    assert write_tensors(tmp_path / "file", tensors) == hash_file(tmp_path / "file")
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
    found = read_part(tmp_path / "part", SIZES_OF_PART)
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
        read_part(tmp_path / "part", SIZES_OF_PART)


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
        read_part(path, SIZES_OF_PART)
    if damage != "another":
        with pytest.raises(HotsetError, match=r"part is damaged: "):
            read_tensors(path)
