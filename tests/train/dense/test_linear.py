"""Products of oneDNN are those of torch, and are chosen by the kind of the CPU alone."""

from __future__ import annotations

import platform
import subprocess
import sys
import textwrap

import pytest
import torch

from hotset.train.dense import linear
from hotset.train.dense.linear import choose_library, is_large, multiply

AMD = frozenset({"AuthenticAMD", "avx2", "avx512f", "avx512_bf16"})
SIZES = [(1, 128, 128), (7, 129, 200), (32, 368, 512), (512, 512, 256), (200, 64, 33)]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_onednn_is_chosen_on_amd_with_avx512_in_float32_alone() -> None:
    assert choose_library(AMD, "fp32") == "oneDNN"
    assert choose_library(AMD, "bf16") == "torch"
    assert choose_library(AMD - {"avx512f"}, "fp32") == "torch"
    assert choose_library(AMD - {"AuthenticAMD"} | {"GenuineIntel"}, "fp32") == "torch"
    assert choose_library(frozenset(), "fp32") == "torch"
    assert [is_large(*sizes) for sizes in ((256, 64), (64, 256), (64, 16))] == [True, True, False]


def test_torch_multiplies_where_the_operator_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_LINEAR", None)
    assert choose_library(AMD, "fp32") == "torch"


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("is_transposed", [(False, False), (True, False), (False, True)])
def test_a_product_of_onednn_is_that_of_torch(
    sizes: tuple[int, int, int], is_transposed: tuple[bool, bool]
) -> None:
    """Outputs, gradients of the weights (the left side transposed), and of the inputs (the right side)."""
    rows, terms, columns = sizes
    left = drawn(terms, rows).t() if is_transposed[0] else drawn(rows, terms)
    right = drawn(columns, terms).t() if is_transposed[1] else drawn(terms, columns)
    exact = left.double() @ right.double()
    bound = 2.0**-22 * terms * (left.abs() @ right.abs())
    for by_onednn in (False, True):
        out = torch.full((rows, columns), torch.nan)
        found = multiply(left, right, out, by_onednn=by_onednn)
        assert ((found - exact).abs() <= bound).all()
        assert (found is out) == (not by_onednn)
        out.copy_(found)
        assert multiply(left, right, out, by_onednn=by_onednn, is_added=True) is out
        assert ((out - 2 * exact).abs() <= 2 * bound).all()


def test_bits_of_onednn_depend_on_no_address() -> None:
    left, right = drawn(300, 368), drawn(368, 512)
    wanted = multiply(left, right, torch.empty(0), by_onednn=True)
    for floats in (0, 1, 4, 6, 8, 12):
        memory = torch.empty(left.numel() + 16)
        moved = memory[floats : floats + left.numel()].view(left.shape).copy_(left)
        assert torch.equal(multiply(moved, right, torch.empty(0), by_onednn=True), wanted)


def test_a_nan_stays_a_nan() -> None:
    left, right = drawn(9, 128), drawn(128, 130)
    left[3, 5] = torch.nan
    found = multiply(left, right, torch.empty(0), by_onednn=True)
    assert found[3].isnan().all() and found.isnan().sum() == 130


@pytest.mark.skipif(linear._LINEAR is None, reason="this torch has no such operator")
def test_torch_multiplies_what_has_gaps_between_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = torch.randn(4, 6), torch.randn(6, 8)
    monkeypatch.setattr(linear, "_LINEAR", lambda *_: pytest.fail("multiplied by oneDNN"))
    out = torch.empty(4, 5)
    for first, second in ((left, right[:, :5]), (left[:, :3], right[:3, :5].contiguous())):
        assert multiply(first, second, out, by_onednn=True) is out
        torch.testing.assert_close(out, first @ second)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep memory by other rules")
def test_products_reuse_memory() -> None:
    program = """
        import resource, torch
        from hotset.train.dense.linear import keep_freed_memory
        keep_freed_memory()
        def run(num_rounds):
            for _ in range(num_rounds):
                [torch.ones(size << 18) for size in (1, 2, 1, 3)]  # MiB, all freed after the round
        run(5)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        run(20)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    # In a process of its own: what other tests freed would hide a missing call.
    command = [sys.executable, "-c", textwrap.dedent(program)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(found.stdout) < 500  # 7 MiB a round are 1,792 pages
