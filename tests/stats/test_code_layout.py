"""The bytes of codes, written again number by number in plain Python; tests `plain_codecs`, too.

Other tests hold codecs to their promise, which a codec with another layout keeps as well. Here each byte is
the one that the layout says.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.codecs import BoundedCodec, codec_of
from hotset.stats.plain_codecs import MessageShape, RowCodec, RowMessage, shape_of

_64_BITS = 2**64 - 1


def encoded(codec: RowCodec, message: RowMessage) -> bytes:
    data = np.empty(codec.num_bytes(shape_of(message)), np.uint8)
    codec.encode(message, data)
    return data.tobytes()


def decoded(codec: RowCodec, data: bytes, shape: MessageShape) -> NDArray[np.float32]:
    rows = np.empty((shape.num_rows, shape.embedding_dim), np.float32)
    codec.decode(np.frombuffer(data, np.uint8).copy(), shape, rows)
    return rows


def naive_mix(bits: int) -> int:
    """SplitMix64 of integers without a width."""
    bits = (bits + 0x9E3779B97F4A7C15) & _64_BITS
    bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & _64_BITS
    bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & _64_BITS
    return bits ^ bits >> 31


def naive_random(stream: int, key: int, column: int) -> int:
    """The 16 random bits of one number: four columns share a hash, the first of them its lowest bits."""
    word = naive_mix(naive_mix(naive_mix(stream) ^ key) ^ (column - column % 4))
    return word >> 16 * (column % 4) & 0xFFFF


def naive_scale(row: NDArray[np.float32], largest: int) -> np.float32:
    """The largest magnitude over the largest code, rounded up to a number whose lower 16 bits are zeros."""
    quotient = np.abs(row).max() / np.float32(largest)
    bits = int(quotient.view(np.uint32))
    return np.uint32(bits + (-bits & 0xFFFF)).view(np.float32)


def naive_whole_numbers(message: RowMessage, largest: int) -> tuple[list[np.float32], list[list[int]]]:
    """The scale and the codes of each row of int8."""
    scales, codes = [], []
    for row, key in zip(message.rows_ND, message.keys_N.tolist(), strict=True):
        scale = naive_scale(row, largest)
        scales.append(scale)
        divisor = scale if scale else np.float32(1)
        of_row = []
        for column, number in enumerate(row):
            quotient = number / divisor
            if message.stream is None:
                code = int(np.rint(quotient))
            else:
                random = np.float32(naive_random(message.stream, key, column) + 0.5) / np.float32(2**16)
                code = math.floor(quotient + random)
            of_row.append(max(-largest, min(largest, code)))
        codes.append(of_row)
    return scales, codes


def uneven_rows(rng: np.random.Generator, num_rows: int, dim: int) -> NDArray[np.float32]:
    """Rows whose sizes differ by decades, with one of zeros."""
    rows = (rng.normal(size=(num_rows, dim)) * 10.0 ** rng.integers(-8, 8, (num_rows, 1))).astype(np.float32)
    rows[num_rows // 2] = 0
    return rows


@pytest.mark.parametrize("stream", [None, 2**63 + 5])
@pytest.mark.parametrize("dim", [1, 6, 9])
def test_whole_numbers_stand_behind_the_scales_of_all_rows(
    dim: int, stream: int | None, rng: np.random.Generator
) -> None:
    rows = uneven_rows(rng, 12, dim)
    message = RowMessage.of(rows, stream=stream)._replace(keys_N=rng.integers(0, 2**31, 12))
    scales, codes = naive_whole_numbers(message, 127)
    wanted = b"".join(int(scale.view(np.uint32) >> 16).to_bytes(2, "little") for scale in scales)
    wanted += b"".join(bytes(code & 255 for code in row) for row in codes)
    assert encoded(codec_of("int8"), message) == wanted
    back = np.array(codes, np.float32) * np.array(scales, np.float32)[:, None]
    assert decoded(codec_of("int8"), wanted, shape_of(message)).tolist() == back.tolist()


@pytest.mark.parametrize("stream", [None, 77])
def test_levels_stand_behind_the_ranges_of_all_tables(stream: int | None, rng: np.random.Generator) -> None:
    codec = BoundedCodec(0.03, {1: 0.1, 3: 0.004})
    num_levels = [18, 6, 18, 126]
    rows = rng.normal(size=(9, 5)).astype(np.float32)
    # The second table has no rows, and all numbers of the third are one.
    rows[4:6] = -2.5
    message = RowMessage.of(rows, starts=np.array([0, 4, 4, 6, 9]), stream=stream)
    ranges, packed = b"", b""
    back = np.empty_like(rows)
    for levels, (first, last) in zip(num_levels, pairwise(message.starts_T1.tolist()), strict=True):
        part = rows[first:last]
        low, high = (part.min(), part.max()) if part.size else (np.float32(0), np.float32(0))
        ranges += low.tobytes() + high.tobytes()
        per_level = (float(high) - float(low)) / (levels - 1)
        num_bits = (levels - 1).bit_length()
        for row in range(first, last):
            bits = 0
            for column in range(5):
                level = (float(rows[row, column]) - float(low)) / (per_level or 1)
                if stream is None:
                    code = round(level)
                else:
                    random = (naive_random(stream, row, column) + 0.5) / 2**16
                    code = min(math.floor(level + random), levels - 1)
                bits |= code << num_bits * column
                back[row, column] = float(low) + code * per_level
            packed += bits.to_bytes(-(-num_bits * 5 // 8), "little")
    assert encoded(codec, message) == ranges + packed
    assert decoded(codec, ranges + packed, shape_of(message)).tolist() == back.tolist()


def test_half_precisions_are_those_of_the_formats(rng: np.random.Generator) -> None:
    rows = uneven_rows(rng, 20, 7)
    # Halfway between two bfloat16, the lower one even or odd.
    rows[0] = (0x3F80_8000 + 2**16 * np.arange(7, dtype=np.uint32)).view(np.float32)
    message = RowMessage.of(rows)
    clipped = np.clip(message.rows_ND, -65_504, 65_504)
    assert encoded(codec_of("fp16"), message) == clipped.astype(np.float16).tobytes()
    numbers = np.frombuffer(encoded(codec_of("bf16"), message), np.uint16)
    for code, number in zip(numbers.tolist(), message.rows_ND.ravel(), strict=True):
        bits = int(number.view(np.uint32))
        kept, lost = divmod(bits, 2**16)
        assert code == kept + (lost > 2**15 or (lost == 2**15 and kept % 2 == 1))
    assert encoded(codec_of("none"), message) == message.rows_ND.tobytes()


@pytest.mark.parametrize(("name", "shift", "digits"), [("bf16", 0, 16), ("fp16", 3, 13)])
def test_half_precisions_carry_as_many_random_bits_as_digits_are_lost(
    name: str, shift: int, digits: int, rng: np.random.Generator
) -> None:
    rows = rng.uniform(0.5, 2, (8, 6)).astype(np.float32)
    message = RowMessage.of(rows, stream=9)
    found = decoded(codec_of(name), encoded(codec_of(name), message), shape_of(message))
    for row, column in np.ndindex(rows.shape):
        bits = int(rows[row, column].view(np.uint32)) + (naive_random(9, row, column) >> shift)
        assert int(found[row, column].view(np.uint32)) == bits >> digits << digits


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_numbers_beyond_a_format_are_counted_and_keep_their_sign(name: str) -> None:
    largest = 65_504.0 if name == "fp16" else (2 - 2.0**-7) * 2.0**127
    far = float(np.finfo(np.float32).max)
    message = RowMessage.of(np.array([[largest, -far, 1.0], [0.0, far, -largest]], np.float32))
    data = np.empty(12, np.uint8)
    for stream in (None, 4):
        # The largest numbers themselves are no longer counted.
        assert codec_of(name).encode(message._replace(stream=stream), data) == 2
        found = decoded(codec_of(name), data.tobytes(), shape_of(message))
        assert found.tolist() == [[largest, -largest, 1.0], [0.0, largest, -largest]]


def test_rows_of_zeros_and_of_the_largest_floats_come_back() -> None:
    far = float(np.finfo(np.float32).max)
    rows = np.array([[0, 0, 0], [far, -far, 0], [1e-45, 0, 0]], np.float32)
    for stream in (None, 1):
        message = RowMessage.of(rows, stream=stream)
        codec = codec_of("int8")
        found = decoded(codec, encoded(codec, message), shape_of(message))
        assert found[0].tolist() == [0, 0, 0] and np.isfinite(found).all()
        assert found[1].tolist() == pytest.approx([far, -far, 0], rel=0.3)
        # The smallest float has the smallest scale there is, never none.
        assert abs(float(found[2, 0])) < 2.0**-120
