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
KIB = 1024
MIB = 1024**2
GIB = 1024**3


class ByteSize(int):
    """A number of bytes; the command line takes it as ``256MiB``."""


def parse_byte_size(text: str) -> ByteSize:
    """Parse ``"256MiB"`` as 268435456. Raises ConfigError on anything that is not a size."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"not a size: {text!r}", hint="write bytes as 268435456, 256MiB or 1.5GB")
    return ByteSize(float(match[1]) * unit) if "." in match[1] else ByteSize(int(match[1]) * unit)


def format_byte_size(num_bytes: float) -> str:
    """Return 268435456 as ``"256 MiB"``: binary units, at most one decimal."""
    amount = float(num_bytes)
    units = ["TiB", "GiB", "MiB", "KiB", "B"]
    while abs(round(amount, 1)) >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop()
    return f"{amount:.1f}".removesuffix(".0") + f" {units[-1]}"


def exact_byte_size(num_bytes: int) -> str:
    """Return an exact size as the command line takes it: 268435456 as ``"256MiB"``, 1000 as ``"1000"``."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if num_bytes and num_bytes % unit == 0:
            return f"{num_bytes // unit}{name}"
    return str(num_bytes)
