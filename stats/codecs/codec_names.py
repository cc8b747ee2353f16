"""Codecs by the names that options take."""

from __future__ import annotations

from .bounded_codec import BoundedCodec
from .float_codecs import Bfloat16Codec, Float16Codec, Float32Codec
from .row_codec import RowCodec
from .scaled_codecs import Int8Codec

_FIXED: tuple[RowCodec, ...] = (
    Float32Codec(),
    Float16Codec(),
    Bfloat16Codec(),
    Int8Codec(),
)
CODEC_NAMES = tuple(codec.name for codec in _FIXED)
"""Names of the codecs without a setting; ``bounded:E`` has a bound."""


def codec_of(name: str) -> RowCodec:
    """Return the codec of a name, such as int8 or bounded:0.03.

    Raises:
        ValueError: there is none, or its bound is no number in range.
    """
    for codec in _FIXED:
        if codec.name == name:
            return codec
    kind, _, bound = name.partition(":")
    if kind != "bounded":
        raise ValueError(f"no codec {name!r}: want {', '.join(CODEC_NAMES)} or bounded:E")
    try:
        return BoundedCodec(float(bound))
    except ValueError as error:
        raise ValueError(f"codec {name!r}: {error}") from None
