"""A codec is used where it saves time, and refused where the link is quicker than the codec."""

from __future__ import annotations

import pytest

from hotset.stats.prediction.codec_times import CodecCost, break_even_bandwidth, worthwhile_codec

HUFFMAN = (10.0, 60.0, 40.0)
VECTOR_LZ = (40.0, 45.0, 290.0)
"""Ratio, and GB/s to encode and to decode, as the authors of both give them."""


def costs(ratio: float, encoded: float, decoded: float) -> dict[str, CodecCost]:
    """Those of a gigabyte."""
    return {"none": CodecCost(1, 0), "coded": CodecCost(1 / ratio, 1 / encoded + 1 / decoded)}


@pytest.mark.parametrize(("codec", "published"), [(HUFFMAN, 21.6), (VECTOR_LZ, 38.0)])
def test_published_codecs_do_not_pay_on_a_fast_network(
    codec: tuple[float, float, float], published: float
) -> None:
    assert break_even_bandwidth(*codec) == pytest.approx(published, rel=0.003)
    assert worthwhile_codec(costs(*codec), 4) == "coded"
    assert worthwhile_codec(costs(*codec), 50) == "none"


def test_a_codec_that_saves_little_is_left_out() -> None:
    almost = {"none": CodecCost(100, 0), "bf16": CodecCost(50, 46.0), "int8": CodecCost(25, 80.0)}
    assert worthwhile_codec(almost, 1) == "none"
    assert worthwhile_codec(almost | {"bf16": CodecCost(50, 45.0)}, 1) == "bf16"
    # What is taken is never slower than the quickest by more than a twentieth.
    assert worthwhile_codec(almost | {"bf16": CodecCost(50, 45.2)}, 1) == "bf16"
    assert worthwhile_codec(almost | {"bf16": CodecCost(50, 45.3)}, 1) == "none"
    # The slower the link, the more bytes count.
    assert worthwhile_codec(almost, 0.1) == "int8"
