"""Text categories as numbers, against xxhash one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hotset.pipeline.raw.column_values import hash_text, plain, read_column


def test_hashes_are_those_of_each_text_alone(rng: np.random.Generator) -> None:
    texts = [rng.bytes(int(length)) for length in rng.integers(0, 300, 200)] * 2 + [b"", b"\0", b"a" * 5000]
    text = np.frombuffer(b"..".join(texts), np.uint8)
    stops = np.cumsum([len(each) + 2 for each in texts]) - 2
    starts = stops - np.array([len(each) for each in texts])
    assert hash_text(text, starts, stops)[0].tolist() == [xxhash.xxh3_64_intdigest(each) for each in texts]


def test_distinct_texts_are_counted() -> None:
    text = np.frombuffer(b"abaab", np.uint8)
    starts = np.array([0, 1, 2, 0, 3, 0])
    _, found = hash_text(text, starts, starts + np.array([1, 1, 1, 0, 2, 2]))
    assert found.texts.to_pylist() == [b"a", b"b", b"", b"ab"] and found.counts.tolist() == [2, 1, 1, 2]
    assert found.hashes.tolist() == [xxhash.xxh3_64_intdigest(each) for each in found.texts.to_pylist()]


def test_no_texts_give_no_hashes() -> None:
    none = np.zeros(0, np.int64)
    assert hash_text(np.zeros(0, np.uint8), none, none)[0].shape == (0,)


def test_the_hash_is_pinned() -> None:
    """Vocabularies are made of it."""
    found, _ = hash_text(np.frombuffer(b"hotset", np.uint8), np.zeros(1, np.int64), np.full(1, 6))
    assert found.tolist() == [xxhash.xxh3_64_intdigest(b"hotset", seed=0)]
    assert xxhash.xxh3_64_hexdigest(b"") == "2d06800538d394c2"


@given(
    st.lists(st.sampled_from(["", "7", "-2", "0a1b2c3d", "x" * 40, "é"]) | st.none(), min_size=1, max_size=6),
    st.lists(st.integers(0, 5) | st.none(), max_size=30),
    st.integers(0, 4),
)
def test_numbered_texts_are_read_as_their_texts_are(
    texts: list[str | None], numbers: list[int | None], skipped: int
) -> None:
    """Texts may occur twice among the distinct ones, be missing there, or be used by no row."""
    indices = pa.array([None if each is None else each % len(texts) for each in numbers], pa.int32())
    numbered = pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()))[skipped:]
    for kind in ("text", "integer", "hex8", "float"):
        found = read_column(plain(numbered), kind)
        wanted = read_column(plain(pa.array(numbered.to_pylist(), pa.string())), kind)
        assert found.values.tolist() == wanted.values.tolist()
        assert found.states.tolist() == wanted.states.tolist()
        if found.texts is not None and wanted.texts is not None:
            assert found.texts.texts.to_pylist() == wanted.texts.texts.to_pylist()
            assert found.texts.counts.tolist() == wanted.texts.counts.tolist()


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.bool_()])
def test_numbered_values_of_other_types_are_read_too(kind: pa.DataType) -> None:
    values = pa.array([1, 0, None, 1], pa.int64()).cast(kind)
    assert plain(values.dictionary_encode()).to_pylist() == values.to_pylist()
