"""bfloat16 is chosen where it is quick, and refused where it would crawl.

Parameters moved into one vector stay the parameters of their model.

Tiles cover a batch, and their sums are added by one binary tree.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.pipeline.errors import ConfigError
from hotset.stats.batch_rows import MOST_TILE_SAMPLES
from hotset.train.model.dlrm import Dlrm
from hotset.train.model.gradients import (
    SUM_COLUMNS,
    FlatParameters,
    add_tiles,
    add_tree,
    choose_dense_dtype,
    cpu_features,
    has_bf16,
    is_quick_at_bf16,
    stored_inputs,
    tile_bounds,
    warn_of_slow_bf16,
)
from hotset.train.model.shapes import dlrm_shape

AMX = frozenset({"avx512_bf16", "amx_bf16", "amx_tile"})
AVX512 = frozenset({"GenuineIntel", "avx512f", "avx512_bf16"})
AMD = frozenset({"AuthenticAMD", "avx512f", "avx512_bf16"})
OLD = frozenset({"AuthenticAMD", "avx2"})


@pytest.mark.parametrize("features", [AMX, AVX512, AMD, OLD])
def test_auto_takes_bf16_on_the_host_with_amx_and_with_the_instructions_of_amd(
    features: frozenset[str],
) -> None:
    is_quick = features in (AMX, AMD)
    assert is_quick_at_bf16(features) == is_quick and has_bf16(features) == (features != OLD)
    assert choose_dense_dtype("auto", "cpu", features) == ("bf16" if is_quick else "fp32")
    # A GPU is quick whatever the CPU, and fp32 is taken everywhere.
    assert choose_dense_dtype("bf16", "cuda", features) == "bf16"
    assert choose_dense_dtype("auto", "cuda", features) == "bf16"
    assert {choose_dense_dtype("fp32", device, features) for device in ("cpu", "cuda")} == {"fp32"}


def test_slow_bf16_is_warned_of_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_dense_dtype("bf16", "cpu", AMX) == choose_dense_dtype("bf16", "cpu", AVX512) == "bf16"
    warn_of_slow_bf16("bf16", AMX)
    warn_of_slow_bf16("bf16", AMD)
    warn_of_slow_bf16("fp32", AVX512)
    assert caplog.text == ""
    warn_of_slow_bf16("bf16", AVX512)
    assert "no AMX" in caplog.text


def test_bf16_without_instructions_is_refused() -> None:
    with pytest.raises(ConfigError, match="no instructions for bf16"):
        choose_dense_dtype("bf16", "cpu", OLD)


@pytest.mark.parametrize("key", ["flags\t\t", "Features\t"])
def test_instructions_are_those_of_the_first_core(key: str, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"model name\t: X: Y\n{key}: fp amx_bf16 bf16\nbugs\t: none\n\n{key}: other\n")
    assert cpu_features(info) == {"fp", "amx_bf16", "bf16"}
    info.write_text(f"vendor_id\t: AuthenticAMD\n{key}: fp\n\nvendor_id\t: Other\n{key}: avx\n")
    assert cpu_features(info) == {"AuthenticAMD", "fp"}
    assert cpu_features(tmp_path / "none") == frozenset()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert cpu_features(tmp_path / "binary") == frozenset()


def test_instructions_that_torchs_library_must_not_use_do_not_count(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("vendor_id\t: AuthenticAMD\nflags\t\t: avx2 avx512f avx512_bf16 amx_bf16\n")
    held = cpu_features(info, {"ONEDNN_MAX_CPU_ISA": "avx2"})
    assert held == {"AuthenticAMD", "avx2", "avx512f"} and choose_dense_dtype("auto", "cpu", held) == "fp32"
    assert has_bf16(cpu_features(info, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}))
    assert has_bf16(cpu_features(info, {"ONEDNN_MAX_CPU_ISA": ""}))


SHAPE = dlrm_shape("small", 3, 9, 4, [2, 4, 4, 4, 4, 4, 4, 4, 2])


def test_a_model_computes_the_same_before_and_after() -> None:
    model, moved = Dlrm(SHAPE, 0), Dlrm(SHAPE, 0)
    FlatParameters(moved)
    for name, tensor in model.state_dict().items():
        assert torch.equal(moved.state_dict()[name], tensor), name
    inputs = torch.randn(5, 3), torch.randn(5, 9, 4)
    torch.testing.assert_close(moved(*inputs), model(*inputs))


def test_loaded_weights_arrive_in_the_vector_and_padding_stays_zero() -> None:
    model = Dlrm(SHAPE, 0)
    parameters = FlatParameters(model)
    other = Dlrm(SHAPE, 1).state_dict()
    model.load_state_dict(other)
    views = parameters.views(parameters.vector)
    torch.testing.assert_close(views["top.0.weight"][: SHAPE.top_inputs].t(), other["top.0.weight"])
    assert views["top.0.weight"].shape == (stored_inputs(SHAPE.top_inputs), 64)
    assert not views["top.0.weight"][SHAPE.top_inputs :].any()
    num_weights = sum(tensor.numel() for tensor in other.values())
    assert torch.count_nonzero(parameters.vector) <= num_weights < parameters.size


def test_arrays_are_the_memory_of_the_vector() -> None:
    parameters = FlatParameters(Dlrm(SHAPE, 0))
    views = parameters.views(torch.zeros(parameters.size))
    views.arrays["top.0.bias"][:] = 1.0
    assert (views["top.0.bias"] == 1.0).all() and not views["top.0.weight"].any()
    assert not parameters.views(torch.zeros(parameters.size, dtype=torch.bfloat16)).arrays


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam])
def test_an_optimizer_of_the_model_updates_the_vector(optimizer: type[torch.optim.Optimizer]) -> None:
    model = Dlrm(SHAPE, 0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = FlatParameters(model)
    steps = optimizer(model.parameters(), lr=0.5)  # type: ignore[call-arg]
    gradient = torch.randn(parameters.size)
    views = parameters.views(gradient)
    parameters.set_gradients(views)
    steps.step()
    # The same step on parameters of their own, in the usual layout.
    twin = Dlrm(SHAPE, 0)
    for (_, own), parameter in zip(twin.named_parameters(), model.parameters(), strict=True):
        assert parameter.grad is not None
        own.grad = parameter.grad.clone(memory_format=torch.contiguous_format)
    optimizer(twin.parameters(), lr=0.5).step()  # type: ignore[call-arg]
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, twin.state_dict()[name], rtol=1e-6, atol=1e-7)
        assert not torch.equal(tensor, before[name]), name
    assert not parameters.views(parameters.vector)["top.0.weight"][SHAPE.top_inputs :].any()


def test_few_inputs_are_stored_as_they_are_and_many_rounded_up() -> None:
    assert [stored_inputs(number) for number in (1, 13, 31, 32, 33, 367, 368)] == [
        1,
        13,
        31,
        32,
        40,
        368,
        368,
    ]


def naive_tree(tiles: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Adjacent pairs, the odd one carried."""
    while len(tiles) > 1:
        sums = [a + b for a, b in zip(tiles[::2], tiles[1::2], strict=False)]
        tiles = sums + tiles[2 * len(sums) :]
    return tiles[0]


def summed(tiles_LN: NDArray[np.float32], first: int = 0, stop: int | None = None) -> NDArray[np.float32]:
    sums = np.full(tiles_LN.shape[1], np.float32(9))
    workspace = np.empty(((tiles_LN.shape[0] + 1) // 2, SUM_COLUMNS), np.float32)
    add_tiles(tiles_LN, first, tiles_LN.shape[1] if stop is None else stop, workspace, sums)
    return sums


@pytest.mark.parametrize("num_samples", [0, 1, 511, 513, 1000, 1024, 2047, 2048, 16384, 65_537])
def test_tiles_are_a_power_of_two_and_cover_each_sample_once(num_samples: int) -> None:
    bounds = tile_bounds(num_samples)
    sizes = [stop - first for first, stop in bounds]
    assert len(bounds) & (len(bounds) - 1) == 0
    assert bounds[0][0] == 0 and bounds[-1][1] == num_samples
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert max(sizes) <= MOST_TILE_SAMPLES and max(sizes) - min(sizes) <= 1


def test_small_batches_are_cut_for_a_few_threads() -> None:
    sizes = (128, 511, 512, 1023, 1024, 2048, 4096, 16384)
    assert [len(tile_bounds(size)) for size in sizes] == [1, 1, 2, 2, 4, 4, 8, 32]


@pytest.mark.parametrize("num_samples", [1000, 2048, 5555])
def test_the_half_of_a_batch_is_a_half_of_the_tiles(num_samples: int) -> None:
    """Sample i belongs to half ``2 * i // num_samples``: what several processes would share."""
    bounds = tile_bounds(num_samples)
    middle = bounds[len(bounds) // 2][0]
    assert 2 * (middle - 1) // num_samples == 0 and 2 * middle // num_samples == 1


@pytest.mark.parametrize("num_tiles", [1, 2, 3, 4, 5, 7, 8, 32])
def test_tiles_are_added_by_the_tree(num_tiles: int, rng: np.random.Generator) -> None:
    tiles = rng.standard_normal((num_tiles, 2 * SUM_COLUMNS + 3)).astype(np.float32)
    np.testing.assert_array_equal(summed(tiles), naive_tree(list(tiles)))
    if num_tiles > 3:
        serial = np.add.accumulate(tiles)[-1]
        assert not np.array_equal(summed(tiles), serial)


def test_a_piece_of_the_columns_leaves_the_others(rng: np.random.Generator) -> None:
    tiles = rng.standard_normal((3, 50)).astype(np.float32)
    found = summed(tiles, 7, 20)
    np.testing.assert_array_equal(found[7:20], naive_tree(list(tiles))[7:20])
    assert (found[:7] == 9).all() and (found[20:] == 9).all()


def test_the_sum_of_halves_is_the_sum_of_all(rng: np.random.Generator) -> None:
    tiles = rng.standard_normal((8, 100)).astype(np.float32)
    np.testing.assert_array_equal(summed(tiles[:4]) + summed(tiles[4:]), summed(tiles))


def test_losses_are_added_by_the_same_tree() -> None:
    losses = [0.1, 0.2, 0.3, 1e9, 7.0]
    assert add_tree(losses) == ((0.1 + 0.2) + (0.3 + 1e9)) + 7.0
    assert add_tree([0.5]) == 0.5
