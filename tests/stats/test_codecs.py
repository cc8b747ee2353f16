"""Bounds fall from twice their value to it, linearly.

Every codec keeps its promise on hostile rows, has the size it says, and refuses what is not finite.

The bytes of codes, written again number by number in plain Python; tests `codecs`, too.

Other tests hold codecs to their promise, which a codec with another layout keeps as well. Here each byte is
the one that the layout says.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.codecs import (
    CODEC_NAMES,
    BoundedCodec,
    MessageShape,
    NotFiniteError,
    RowCodec,
    RowMessage,
    bound_factor,
    codec_of,
    shape_of,
)
from hotset.tests.support.compiled import compiled_only


def test_factors_are_those_of_the_linear_schedule() -> None:
    found = [bound_factor(step, 100) for step in range(102)]
    assert found == pytest.approx([2 - step / 100 for step in range(100)] + [1, 1])
    assert [bound_factor(step, 0) for step in range(20)] == [1] * 20


NAMES = (*(*CODEC_NAMES, "bounded:0.01", "bounded:0.03", "bounded:0.05", "bounded:0.4", "bounded:2e-05"),)
ROUNDING = tuple(name for name in NAMES if name != "none")
"""Codecs with stochastic rounding, which is all that round at all."""


def coded(codec: RowCodec, message: RowMessage) -> tuple[NDArray[np.float32], int]:
    """The rows as they arrive, and how many numbers saturated."""
    shape = shape_of(message)
    data = np.full(codec.num_bytes(shape), 0xA5, np.uint8)
    saturated = codec.encode(message, data)
    rows = np.full(message.rows_ND.shape, np.nan, np.float32)
    codec.decode(data, shape, rows)
    return rows, saturated


def allowed(codec: RowCodec, message: RowMessage) -> NDArray[np.float64]:
    """The error that the codec promises to stay within, for each number."""
    # Rounding to one of two neighbours may take the farther one.
    return _nearest(codec, message) * (1 if message.stream is None else 2 * (1 + 2.0**-10))


def _nearest(codec: RowCodec, message: RowMessage) -> NDArray[np.float64]:
    x = np.abs(message.rows_ND.astype(np.float64))
    top: NDArray[np.float64] = x.max(axis=1, keepdims=True, initial=0)
    bounds: NDArray[np.float64] = np.zeros(x.shape)
    if isinstance(codec, BoundedCodec):
        for table, (first, last) in enumerate(pairwise(message.starts_T1)):
            bound = codec.of_tables.get(table, codec.bound)
            if first < last:
                rows = message.rows_ND[first:last].astype(np.float64)
                edge = np.abs(rows).max()
                bounds[first:last] = bound * (rows.max() - rows.min()) * (1 + 2.0**-20)
                # Half a unit in the last place of a float32: 24 digits, none below 2**-149.
                bounds[first:last] += 2.0 ** max(np.floor(np.log2(max(edge, 2.0**-149))) - 24, -150)
        return bounds
    smallest = 2.0**-133  # of bfloat16
    if codec.name == "int8":
        scale = (1 + 2.0**-7) * top / 127 + smallest * (top > 0)
        bounds += scale * (1 + 2.0**-16) * 0.5 + 2.0**-149
        return bounds
    if codec.name == "bf16":
        return np.where(x >= 2.0**-126, 2.0**-8 * x, 2.0**-134)
    if codec.name == "fp16":
        return np.where(x >= 2.0**-14, 2.0**-11 * x, 2.0**-25)
    return bounds


def hostile_rows(rng: np.random.Generator, num_rows: int, dim: int) -> NDArray[np.float32]:
    """Rows of very different sizes, with outliers, zeros, denormals, constants and the largest floats."""
    exponents = rng.integers(-148, 127, (num_rows, 1)) + rng.integers(-12, 1, (num_rows, dim))
    rows: NDArray[np.float32] = np.ldexp(rng.uniform(-1, 1, (num_rows, dim)), exponents).astype(np.float32)
    kind = rng.integers(0, 12, num_rows)
    rows[kind == 0] = 0
    rows[kind == 1] = rows[kind == 1, :1]
    rows[kind == 2, 0] = np.float32(3.4e38)
    rows[kind == 3] *= rng.integers(0, 2, (int((kind == 3).sum()), dim)).astype(np.float32)
    rows[kind == 4] = np.finfo(np.float32).max * rng.choice([-1, 1], (int((kind == 4).sum()), dim))
    rows[kind == 5] = np.float32(1) + rows[kind == 5] * np.float32(1e-30)
    return rows


def check_promise(name: str, num_rows: int, dims: tuple[int, ...], rng: np.random.Generator) -> None:
    """Code hostile rows of some widths, to nearest and stochastically, and compare errors and counts."""
    codec = codec_of(name)
    for dim in dims:
        rows = hostile_rows(rng, num_rows, dim)
        starts = np.sort(np.concatenate([[0, num_rows], rng.integers(0, num_rows, 40)]))
        for stream in (None, 7) if name in ROUNDING else (None,):
            message = RowMessage.of(rows, stream=stream)._replace(starts_T1=starts)
            found, saturated = coded(codec, message)
            wanted = rows.astype(np.float64)
            if name in ("fp16", "bf16"):
                largest = 65_504 if name == "fp16" else 2.0**128 - 2.0**119
                too_large = np.abs(wanted) > largest
                # A number that rounds to the largest one has not saturated.
                assert 0 < saturated <= too_large.sum()
                wanted = np.clip(wanted, -largest, largest)
            else:
                assert saturated == 0
            error = np.abs(found.astype(np.float64) - wanted)
            assert (error <= allowed(codec, message)).all()
            if codec.is_exact:
                assert found.tobytes() == rows.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_hostile_rows_stay_within_the_promise(name: str, rng: np.random.Generator) -> None:
    check_promise(name, 1_000, (1, 3, 16, 64), rng)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_million_hostile_rows_stay_within_the_promise(name: str, rng: np.random.Generator) -> None:
    check_promise(name, 1_000_000, (5,), rng)


@given(st.sampled_from(NAMES), st.integers(0, 4), st.integers(1, 70), st.data())
@settings(max_examples=50)
def test_bytes_follow_from_the_shape_and_all_are_written(
    name: str, num_rows: int, dim: int, data: st.DataObject
) -> None:
    codec = codec_of(name)
    rows = np.arange(num_rows * dim, dtype=np.float32).reshape(num_rows, dim) - 3
    middle = data.draw(st.integers(0, num_rows))
    message = RowMessage.of(rows)._replace(starts_T1=np.array([0, middle, num_rows]))
    shape = shape_of(message)
    sizes = {"none": 4 * dim, "fp16": 2 * dim, "bf16": 2 * dim, "int8": dim + 2}
    bits = {"bounded:0.01": 6, "bounded:0.03": 5, "bounded:0.05": 4, "bounded:0.4": 2, "bounded:2e-05": 15}
    if name in sizes:
        assert codec.num_bytes(shape) == num_rows * sizes[name]
    else:
        assert codec.num_bytes(shape) == num_rows * -(-bits[name] * dim // 8) + 16
    # What was in the buffer before changes nothing.
    written = []
    for filler in (0, 255):
        buffer = np.full(codec.num_bytes(shape), filler, np.uint8)
        codec.encode(message, buffer)
        written.append(buffer.tolist())
    assert written[0] == written[1]


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_rows_as_they_are_need_not_be_finite(number: float) -> None:
    rows = np.array([[1.0, number]], np.float32)
    np.testing.assert_array_equal(coded(codec_of("none"), RowMessage.of(rows))[0], rows)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_a_row_that_is_not_finite_is_refused_by_its_position(name: str, number: float) -> None:
    rows = np.ones((5, 4), np.float32)
    rows[3, 2] = number
    rows[4, 0] = number
    message = RowMessage.of(rows)
    with pytest.raises(NotFiniteError) as caught:
        codec_of(name).encode(message, np.empty(codec_of(name).num_bytes(shape_of(message)), np.uint8))
    assert caught.value.args == (3,)


@pytest.mark.parametrize("name", ROUNDING)
@compiled_only
def test_stochastic_rounding_has_no_bias(name: str, rng: np.random.Generator) -> None:
    row = rng.uniform(-1, 1, (1, 16)).astype(np.float32)
    # The extremes are known, and with them the scale; one number is denormal where there are such.
    row[0, :3] = 1, -1, 3e-6
    num_rows = 20_000
    message = RowMessage.of(np.repeat(row, num_rows, axis=0), stream=3)
    found, _ = coded(codec_of(name), message)
    # The mean of so many roundings is normal; the deviation of each is at most half of the largest error.
    error = np.abs(found.astype(np.float64).mean(axis=0) - row[0])
    assert (error <= 5 * 0.5 * allowed(codec_of(name), message)[0] / np.sqrt(num_rows) + 2.0**-26).all()
    assert (found[:, 2:].std(axis=0) > 0).sum() > 10


@pytest.mark.parametrize("name", ROUNDING)
def test_stochastic_rounding_depends_on_stream_and_key_alone(name: str, rng: np.random.Generator) -> None:
    rows = rng.normal(size=(200, 17)).astype(np.float32)
    message = RowMessage.of(rows, stream=11)
    first, _ = coded(codec_of(name), message)
    order = rng.permutation(200)
    moved, _ = coded(codec_of(name), message._replace(rows_ND=rows[order], keys_N=message.keys_N[order]))
    assert moved.tobytes() == first[order].tobytes()
    other, _ = coded(codec_of(name), message._replace(stream=12))
    assert (other != first).mean() > 0.1


def test_each_table_has_its_own_bound(rng: np.random.Generator) -> None:
    codec = BoundedCodec(0.03, {0: 0.01, 3: 0.2})
    message = RowMessage.of(rng.normal(size=(400, 7)).astype(np.float32))
    message = message._replace(starts_T1=np.array([0, 90, 90, 200, 400]))
    found, _ = coded(codec, message)
    error = np.abs(found.astype(np.float64) - message.rows_ND)
    assert (error <= allowed(codec, message)).all()
    # 6, 5 and 2 bits; a looser bound is used.
    assert codec.num_bytes(shape_of(message)) == 90 * 6 + 110 * 5 + 200 * 2 + 4 * 8
    assert error[200:].max() > 4 * error[90:200].max() > 8 * error[:90].max()


@pytest.mark.parametrize(
    "name", ["", "int7", "bounded", "bounded:", "bounded:x", "bounded:0.5", "bounded:0", "int4", "fp8"]
)
def test_names_that_mean_no_codec_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="codec"):
        codec_of(name)


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
    message = RowMessage.of(rows, stream=stream)._replace(starts_T1=np.array([0, 4, 4, 6, 9]))
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
    rows[1] = 1 + (2 * np.arange(7) + 1) / 2**11  # and two float16
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
