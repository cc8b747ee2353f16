"""The number type of the products of the dense layers: which one a CPU is quick at.

With AMX, products in bfloat16 are six times as fast as in float32. What AVX512-BF16 alone brings depends on
the vendor: AMD's processors multiply twice as many numbers with such an instruction as with one of float32
(201 GF/s against 93 a core of an EPYC), Intel's as many, and torch's products then run at half the speed of
those in float32 (80 GF/s against 150 a core of a Xeon). Without either, each number is converted on its own,
which makes a step eleven times as slow.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ...pipeline.errors import ConfigError

DenseDtype = Literal["fp32", "bf16"]
_log = logging.getLogger(__name__)

_CPU_INFO = Path("/proc/cpuinfo")
_FLAGS = ("flags", "features")
"""Keys of the line with the names of instructions: of x86, and of Arm in lower case."""
_VENDOR = "vendor_id"
_QUICK = (frozenset({"amx_bf16"}), frozenset({"AuthenticAMD", "avx512_bf16"}))
"""The features of a CPU that is quick at bf16: all of one of these sets."""
_HAS_BF16 = ("avx512_bf16", "bf16", "amx_bf16")
_LIMIT = "ONEDNN_MAX_CPU_ISA"
"""Environment variable that holds oneDNN, which multiplies for torch in bf16, to older instructions."""
_WITHOUT_BF16 = frozenset({"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"})
"""Values of this variable under which it converts each number on its own."""


def cpu_features(path: Path = _CPU_INFO, environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the names of this CPU's vendor and instruction sets, as Linux gives them, else none.

    Instructions for bf16 are left out where torch's library is held to older ones by the environment.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return frozenset()
    found: dict[str, list[str]] = {}
    # The first core stands for all.
    for key, value in (line.split(":", 1) for line in lines if ":" in line):
        found.setdefault(key.strip().lower(), value.split())
    features = frozenset(name for key in (_VENDOR, *_FLAGS) for name in found.get(key, ()))
    is_held = environment.get(_LIMIT, "").upper() in _WITHOUT_BF16
    return features.difference(_HAS_BF16) if is_held else features


def has_bf16(features: frozenset[str]) -> bool:
    """Return whether a CPU with these `cpu_features` has instructions for bfloat16, quick or not."""
    return bool(features.intersection(_HAS_BF16))


def is_quick_at_bf16(features: frozenset[str]) -> bool:
    """Return whether a CPU with these `cpu_features` multiplies faster in bfloat16 than in float32."""
    return any(needed <= features for needed in _QUICK)


def choose_dense_dtype(wanted: str, device: str, features: frozenset[str]) -> DenseDtype:
    """Return the type that a run computes in.

    Args:
        wanted: ``fp32``, ``bf16`` or ``auto``.
        device: type of the device of the dense layers.
        features: `cpu_features` of this machine.

    Raises:
        ConfigError: bf16 on a CPU without instructions for it.
    """
    # ``auto`` takes the quick type only where it is quick.
    if wanted == "fp32" or (wanted == "auto" and device == "cpu" and not is_quick_at_bf16(features)):
        return "fp32"
    if device == "cpu" and not has_bf16(features):
        raise ConfigError(
            "this CPU has no instructions for bf16: a step would take about eleven times as long",
            hint="use --dense-dtype fp32 or auto",
        )
    return "bf16"


def warn_of_slow_bf16(dtype: DenseDtype, features: frozenset[str]) -> None:
    """Warn where a run computes in bf16 on a CPU that is slow at it."""
    if dtype == "bf16" and not is_quick_at_bf16(features):
        _log.warning("this CPU has no AMX, nor AMD's AVX512-BF16: bf16 is about half as fast as fp32")
