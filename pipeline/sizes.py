"""Byte sizes as people write them: ``256MiB``, ``1.5GB``, ``4096``."""

from __future__ import annotations

import re

from .errors import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
KIB, MIB, GIB = 1024, 1024**2, 1024**3


class ByteSize(int):
    """A number of bytes; on the command line ``256MiB`` is one."""


def parse_byte_size(text: str) -> ByteSize:
    """``"256MiB"`` -> 268435456. Raises ConfigError on anything that is not a size."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"not a size: {text!r}", hint="write bytes as 268435456, 256MiB or 1.5GB")
    return ByteSize(float(match[1]) * unit) if "." in match[1] else ByteSize(int(match[1]) * unit)


def format_byte_size(num_bytes: float) -> str:
    """268435456 -> ``"256 MiB"``; at most one decimal, binary units."""
    amount, units = float(num_bytes), ["TiB", "GiB", "MiB", "KiB", "B"]
    while abs(round(amount, 1)) >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop()
    return f"{amount:.1f}".removesuffix(".0") + f" {units[-1]}"
