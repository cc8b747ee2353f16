"""bfloat16 is chosen where it is quick, and refused where it would crawl."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.train.model.dense_dtype import (
    choose_dense_dtype,
    cpu_features,
    has_bf16,
    is_quick_at_bf16,
    warn_of_slow_bf16,
)

AMX = frozenset({"avx512_bf16", "amx_bf16", "amx_tile"})
AVX512 = frozenset({"GenuineIntel", "avx512f", "avx512_bf16"})
AMD = frozenset({"AuthenticAMD", "avx512f", "avx512_bf16"})
OLD = frozenset({"AuthenticAMD", "avx2"})


@pytest.mark.parametrize("features", [AMX, AVX512, AMD, OLD, frozenset()])
def test_fp32_is_taken_everywhere(features: frozenset[str]) -> None:
    assert choose_dense_dtype("fp32", "cpu", features) == "fp32"
    assert choose_dense_dtype("fp32", "cuda", features) == "fp32"


def test_auto_takes_bf16_on_the_host_with_amx_and_with_the_instructions_of_amd() -> None:
    assert [choose_dense_dtype("auto", "cpu", features) for features in (AMX, AMD)] == ["bf16", "bf16"]
    assert [choose_dense_dtype("auto", "cpu", features) for features in (AVX512, OLD)] == ["fp32", "fp32"]
    assert [is_quick_at_bf16(each) for each in (AMX, AMD, AVX512, OLD)] == [True, True, False, False]


def test_slow_bf16_is_warned_of_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_dense_dtype("bf16", "cpu", AMX) == choose_dense_dtype("bf16", "cpu", AVX512) == "bf16"
    warn_of_slow_bf16("bf16", AMX)
    warn_of_slow_bf16("bf16", AMD)
    warn_of_slow_bf16("fp32", AVX512)
    assert caplog.text == ""
    warn_of_slow_bf16("bf16", AVX512)
    assert "no AMX" in caplog.text


def test_bf16_instructions_are_those_of_any_kind() -> None:
    assert [has_bf16(features) for features in (AMX, AVX512, AMD, OLD)] == [True, True, True, False]


def test_bf16_without_instructions_is_refused() -> None:
    with pytest.raises(ConfigError, match="no instructions for bf16"):
        choose_dense_dtype("bf16", "cpu", OLD)


def test_a_gpu_is_quick_at_bf16_whatever_the_cpu() -> None:
    assert choose_dense_dtype("bf16", "cuda", OLD) == choose_dense_dtype("auto", "cuda", OLD) == "bf16"
    assert choose_dense_dtype("fp32", "cuda", AMX) == "fp32"


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
