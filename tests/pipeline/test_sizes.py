"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.sizes import ByteSize, format_byte_size, parse_byte_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("256MiB", 256 * 2**20),
        ("256 mib", 256 * 2**20),
        (" 1KiB ", 1024),
        ("1.5GB", 1_500_000_000),
        ("0.5KiB", 512),
        ("2TiB", 2**41),
        ("7b", 7),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_a_size_is_read(text: str, num_bytes: int) -> None:
    found = parse_byte_size(text)
    assert found == num_bytes and isinstance(found, ByteSize)


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "1 000", "256M", "1.MiB", ".5GB", "0x10", "1\n2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a size") as caught:
        parse_byte_size(text)
    assert repr(text) in str(caught.value) and caught.value.hint


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (268435456, "256 MiB"),
        (2**40 - 1, "1 TiB"),
        (3 * 2**40, "3 TiB"),
        (-2048, "-2 KiB"),
    ],
)
def test_a_size_is_written(num_bytes: int, text: str) -> None:
    assert format_byte_size(num_bytes) == text


@given(num_bytes=st.integers(0, 2**45))
def test_what_is_written_is_near_what_is_meant_and_can_be_read(num_bytes: int) -> None:
    read = parse_byte_size(format_byte_size(num_bytes))
    assert abs(read - num_bytes) <= max(num_bytes, 1024) * 0.05
    assert len(format_byte_size(num_bytes)) <= len("1023.9 GiB")
