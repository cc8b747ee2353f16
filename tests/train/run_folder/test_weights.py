"""Weights written one tensor at a time are safetensors like any other.

Rows read from the weights of a run: only the parts of the file that hold wanted ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hotset.pipeline.errors import MIB, HotsetError
from hotset.train.data.batch import EmbeddingTable
from hotset.train.rows.tiers import Layout, Tier
from hotset.train.run_folder import weights as weights_module
from hotset.train.run_folder.weights import SavedTier, Weights, open_weights, write_weights

_TENSORS = {"C1": torch.arange(12.0).reshape(4, 3), "dense.a": torch.arange(5.0), "empty": torch.zeros(0, 4)}


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    tensors = {"b": torch.randn(3, 2), "dense.a": torch.randn(5), "C1": torch.randn(0, 4), "é": torch.ones(1)}
    write_weights(tmp_path / "w", Weights.of_run(tensors, {}))
    found = load_file(tmp_path / "w")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    with safe_open(tmp_path / "w", framework="pt") as file:
        assert file.metadata() is None


def test_one_tensor_at_a_time_is_made(tmp_path: Path) -> None:
    asked: list[str] = []

    def make(name: str) -> Iterator[torch.Tensor]:
        asked.append(name)
        yield torch.full((2, 2), float(len(asked)))

    write_weights(tmp_path / "w", Weights({"z": (2, 2), "a": (2, 2)}, make))
    assert asked == ["a", "z"]
    assert load_file(tmp_path / "w")["z"].eq(2).all()


def test_a_tensor_that_is_not_as_announced_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"C1 is torch.float64"):
        write_weights(tmp_path / "w", Weights.of_run({"C1": torch.zeros(2, dtype=torch.float64)}, {}))


def test_what_the_library_wrote_is_read(tmp_path: Path) -> None:
    save_file(_TENSORS, tmp_path / "w", metadata={"format": "pt"})
    found = open_weights(tmp_path / "w")
    assert found.shapes == {name: tuple(tensor.shape) for name, tensor in _TENSORS.items()}
    assert all(torch.equal(found[name], tensor) for name, tensor in _TENSORS.items())
    assert torch.equal(found.rows("C1", 1, 3), _TENSORS["C1"][1:3])
    assert torch.equal(found.rows("C1", 3, 99), _TENSORS["C1"][3:])
    assert found.rows("empty", 0, 2).shape == (0, 4)


def test_a_name_that_is_not_utf_8_is_read(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"run\xff")
    write_weights(path, Weights.of_run(_TENSORS, {}))
    assert torch.equal(open_weights(path)["C1"], _TENSORS["C1"])


def test_a_file_that_is_cut_short_while_it_is_open_is_refused(tmp_path: Path) -> None:
    write_weights(tmp_path / "w", Weights.of_run(_TENSORS, {}))
    found = open_weights(tmp_path / "w")
    left = (tmp_path / "w").stat().st_size - 4
    os.truncate(tmp_path / "w", left)
    with pytest.raises(HotsetError, match=rf"w cannot be read: it ends after {left} bytes"):
        found["dense.a"]


def _header(**changed: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changed}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (_header(dtype="BF16"), "a holds BF16, want one of F32, F64"),
        (_header(shape=[2, 3]), "another size than its shape"),
        (_header(shape=[-2, -2]), "does not describe a"),
        (_header(shape=[True, 4]), "does not describe a"),
        (_header(data_offsets=[16, 32]), "does not follow"),
        (_header(data_offsets=[0, 2**70]), "does not describe a"),
        (_header() | {"b": _header()["a"]}, "does not follow"),
        ({"a": {"dtype": "F32"}}, "does not describe a"),
        ({}, "16 bytes of tensors, its header says 0"),
        ([], "its header is no object"),
        ('{"a": 1, "a": 1}', "a key twice"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_a_header_that_does_not_describe_the_tensors_is_refused(
    tmp_path: Path, header: Any, message: str
) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    (tmp_path / "w").write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    with pytest.raises(HotsetError, match=message):
        open_weights(tmp_path / "w")


@pytest.mark.parametrize("content", [b"", b"\x01", (2**60).to_bytes(8, "little") + b"{}"])
def test_a_file_without_a_header_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(HotsetError, match="cannot be read"):
        open_weights(tmp_path / "w")


def test_buffers_of_dense_layers_may_be_of_other_types(tmp_path: Path) -> None:
    tensors = {
        "dense.steps": torch.tensor(2**40 + 1),
        "dense.mask": torch.tensor([True, False, True]),
        "dense.exact": torch.tensor([[1 / 3]], dtype=torch.float64),
        "dense.whole": torch.arange(4),
        "dense.bytes": torch.arange(3, dtype=torch.uint8),
        "C1": torch.randn(2, 3),
    }
    write_weights(tmp_path / "w", Weights.of_run(tensors, {}))
    for found in (load_file(tmp_path / "w"), open_weights(tmp_path / "w")):
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)
        assert all(found[name].dtype == tensors[name].dtype for name in tensors)
    assert open_weights(tmp_path / "w").rows("dense.bytes", 1, 3).tolist() == [1, 2]
    assert open_weights(tmp_path / "w").rows("dense.whole", 2, 4).tolist() == [2, 3]
    assert open_weights(tmp_path / "w").rows("dense.mask", 1, 3).tolist() == [False, True]


def test_a_buffer_of_a_type_that_is_not_stored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match=r"the buffer dense\.z is torch\.complex64, want one of float32,"):
        Weights.of_run({"dense.z": torch.zeros(1, dtype=torch.complex64)}, {})


def test_a_damaged_truth_value_is_refused(tmp_path: Path) -> None:
    write_weights(tmp_path / "w", Weights.of_run({"dense.mask": torch.tensor([True, False])}, {}))
    whole = (tmp_path / "w").read_bytes()
    (tmp_path / "w").write_bytes(whole[:-1] + b"\x07")
    with pytest.raises(HotsetError, match=r"dense\.mask holds a truth value of 7"):
        open_weights(tmp_path / "w")["dense.mask"]


def test_a_table_of_another_type_is_refused(tmp_path: Path) -> None:
    save_file({"C1": torch.zeros(2, 2, dtype=torch.float64)}, tmp_path / "w")
    with pytest.raises(HotsetError, match="C1 holds F64, want F32"):
        open_weights(tmp_path / "w")


TABLES = [EmbeddingTable("A", 50, 5, 2), EmbeddingTable("B", 70, 0, 2)]


@pytest.fixture
def weights() -> Weights:
    tensors = {name: torch.randn(count, 2) for name, count in (("A", 50), ("B", 70))}
    return Weights.of_run(tensors, {})


def read(tier: SavedTier, wanted: list[int]) -> torch.Tensor:
    fast = Tier(Layout.of([0, 0], [0, 0]), 2, 0)
    nothing = np.empty(0, np.int64)
    tier.read(np.array(wanted, np.int64), fast, nothing, nothing)
    return tier.weights_SD


@pytest.mark.parametrize("memory", [0, 200, 10 * MIB])
def test_wanted_rows_are_read(memory: int, weights: Weights) -> None:
    tier = SavedTier(TABLES, 2, weights, memory)
    whole = torch.cat([weights["A"], weights["B"]])
    for wanted in ([], [0], [119], [3, 49, 50, 90, 119], list(range(120))):
        assert torch.equal(read(tier, wanted), whole[wanted])
    read(tier, [3, 49, 50])
    assert tier.slots_of(np.array([50, 3])).tolist() == [2, 0]


def test_parts_without_a_wanted_row_are_left_out(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int]] = []
    rows = weights.rows

    def recorded(name: str, first: int, stop: int) -> torch.Tensor:
        asked.append((name, first, stop))
        return rows(name, first, stop)

    monkeypatch.setattr(weights, "rows", recorded)
    monkeypatch.setattr(weights_module, "_PART_BYTES", 80)  # ten rows
    read(SavedTier(TABLES, 2, weights, MIB), [12, 51, 119])
    assert asked == [("A", 10, 20), ("B", 0, 10), ("B", 60, 70)]


def test_memory_bounds_the_rows_of_a_group(weights: Weights) -> None:
    tier = SavedTier(TABLES, 2, weights, MIB)
    assert 0 < tier.most_read * (8 + 40) <= MIB * 7 // 8
