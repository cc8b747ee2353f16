"""Fields of text against naive twins, numbers against Python's, elements of lists against str.split.

Tests `column_values`, too.

Lists in text against Python's own readers: between separators, in brackets, with weights.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.pipeline.raw.column_values import read_column, read_values
from hotset.pipeline.raw.text_fields import (
    BAD,
    GOOD,
    MISSING,
    ListForm,
    TextLists,
    arrays_of,
    elements_of,
    parse_hex8,
    parse_integers,
)
from hotset.tests.fuzz.fuzz_text import GuardedText, check_fields
from hotset.tests.support.logs.text_columns import texts_of
from hotset.tests.support.naive.naive_fields import Marks, naive_integer


@pytest.mark.parametrize("separator", [b",", b"\t"])
@pytest.mark.parametrize(
    ("alphabet", "most"), [(b'ab"\r', 9), (b"/09:@AFG`afg", 8)], ids=["quotes", "hex digits"]
)
def test_fields_are_those_of_the_naive_twins(
    alphabet: bytes, most: int, separator: bytes, rng: np.random.Generator
) -> None:
    letters = np.frombuffer(alphabet + (separator if b'"' in alphabet else b""), np.uint8)
    lines = [
        rng.choice(letters, most if b"/" in alphabet else rng.integers(most)).tobytes() for _ in range(5000)
    ]
    lines += [b'"a""b"%c"c"' % separator[0], b'""', b'"', b"", b"\r", b'"a"\r']
    lines += [b"%08x" % value for value in (0, 1, 2**31, 2**32 - 1)]
    lines += [b"0", b"000000000", b"0x000000", b"ABCDEFab", b"0123456 ", b"-1234567"]
    found: Counter[str] = Counter()
    memory = GuardedText()
    for first in range(0, len(lines), 10):
        text = b"".join(line + b"\n" for line in lines[first : first + 10])
        found += check_fields(text, Marks(separator=separator), memory)
    assert found["good record"] and found["hex: good"] and found["hex: bad"]
    assert b"/" in alphabet or (found["unclosed quote"] and found["trailing quote"])


@pytest.mark.parametrize("are_codes", [False, True])
@pytest.mark.parametrize(("below", "above"), [(0, 1), (2**31, 2**31 - 1), (2**63, 2**63 - 1), (0, 2**64 - 1)])
def test_integers_are_those_of_python(
    below: int, above: int, are_codes: bool, rng: np.random.Generator
) -> None:
    near = [edge + step for edge in (0, -below, above, 10 * above, 2**64, 2**65) for step in range(-11, 12)]
    fields = [b"%d" % value for value in near]
    fields += [rng.choice(np.frombuffer(b"01.-9", np.uint8), rng.integers(6)).tobytes() for _ in range(2000)]
    fields += [b"", b" 1", b"1 ", b"9" * 99, *b"- . -.0 +1 1e3 0x1 1.00 1.5 007".split()]
    wanted = [naive_integer(field, -below, above, are_codes=are_codes) for field in fields]
    # Those that are good are read in another way where no other is among them.
    good = [field for field, (_, state) in zip(fields, wanted, strict=True) if state != BAD]
    for each, pairs in ((fields, wanted), (good, [pair for pair in wanted if pair[1] != BAD])):
        for first in (0, 3):
            values, states = parse_integers(texts_of(each)[first:], below, above, are_codes, False)
            assert list(zip(values.tolist(), states.tolist(), strict=True)) == pairs[first:]


@pytest.mark.parametrize(("num_columns", "num_rows"), [(0, 3), (1, 0), (3, 1), (2, 700)])
def test_columns_are_the_fields_between_their_ends(
    num_columns: int, num_rows: int, rng: np.random.Generator
) -> None:
    text = rng.integers(0, 256, 900).astype(np.uint8)
    starts = rng.integers(0, 800, (num_columns, num_rows))
    stops = starts + rng.integers(0, 99, starts.shape)
    for own_starts, own_stops, found in zip(starts, stops, arrays_of(text, starts, stops), strict=True):
        found.validate(full=True)
        ends = zip(own_starts, own_stops, strict=True)
        assert found.to_pylist() == [text[start:stop].tobytes() for start, stop in ends]


@pytest.mark.parametrize("odd", ["        ", "12 45678", "1234567g", "é234567", "123456789", ""])
def test_other_texts_between_hex_digits_are_bad(odd: str) -> None:
    values, states = parse_hex8(texts_of(["deadBEEF", odd, "00000001", "", odd])[1:4])
    assert values.tolist() == [0, 1, 0] and states.tolist() == [BAD if odd else MISSING, GOOD, MISSING]
    values, states = parse_hex8(texts_of([odd, odd, "deadBEEF"]))
    assert values.tolist() == [0, 0, 0xDEADBEEF] and states.tolist()[2] == GOOD


_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def naive_float(text: bytes) -> tuple[float, int]:
    if not text:
        return 0.0, MISSING
    if text.lower() in (b"true", b"false"):
        return float(text.lower() == b"true"), GOOD
    if not _NUMBER.fullmatch(text) or abs(float(text)) == float("inf"):
        return 0.0, BAD
    return float(text), GOOD


def bits(values: NDArray[np.float64]) -> list[int]:
    return [int(value) for value in values.view(np.uint64)]


HARD_ONES = [
    *b"9007199254740993 0.1000000000000000055511151231257827021181583404541015625".split(),
    *b"2.2250738585072011e-308 4.9e-324 2e-324 1.7976931348623158e308 1.7976931348623159e308".split(),
    *b"8.5e22 1e23 123456789012345678901234567890 1e-100000000000000000000 0e100000000000000000000".split(),
    *(b"0." + b"0" * 400 + b"1", b"1" + b"0" * 400),
]
ODD_ONES = [b" 1", b"1 ", *b"- + . e5 1e 1e+ 1.2.3 0x10 1_0 nan inf 1,5".split()]


def check(texts: list[bytes]) -> None:
    values, states = read_values(texts_of(texts), "float")
    wanted = [naive_float(text) for text in texts]
    assert states.tolist() == [state for _, state in wanted]
    assert bits(values) == bits(np.array([value for value, _ in wanted], np.float64))


def test_hard_and_odd_numbers_are_read_as_python_reads_them() -> None:
    signed = [sign + text for text in HARD_ONES for sign in (b"", b"-", b"+")]
    check([*signed, *ODD_ONES, b"", b"0", b"-0", b"-0.0", b".5", b"5.", b"1E5", b"1e-5", b"00012.500"])
    check([])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
@settings(deadline=None, max_examples=60)
def test_every_float_is_read_from_its_shortest_text(values: list[float]) -> None:
    check([repr(value).encode() for value in values] + [b"%.3f" % value for value in values])


@given(
    st.lists(st.from_regex(_NUMBER, fullmatch=True), max_size=8), st.lists(st.binary(max_size=6), max_size=8)
)
@example([b"9007199254740992", b"-9007199254740993e-22"], [b"1e", b"tRue", b"false", b"false "])
@settings(deadline=None, max_examples=60)
def test_any_text_is_read_or_refused_as_the_grammar_says(numbers: list[bytes], others: list[bytes]) -> None:
    check(numbers + others)


def test_what_a_float32_cannot_hold_is_bad_where_it_must() -> None:
    largest = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
    texts = [repr(largest).encode(), b"3.4028235677973366e38", b"3.4028235677973362e38", b"-1e39", b"1e-50"]
    values, states = read_values(texts_of(texts), "float32")
    assert states.tolist() == [GOOD, BAD, GOOD, BAD, GOOD]
    assert values[[0, 4]].tolist() == [largest, 1e-50] and values[1] == 0


BRACKETS = ListForm(",", has_brackets=True)
JSON_TEXTS = st.lists(st.text(max_size=5), max_size=5)


def elements(fields: list[str], form: ListForm) -> list[list[str]]:
    found, offsets, is_refused = elements_of(TextLists(texts_of(fields), form))
    assert not is_refused.any()
    texts = [text.decode() for text in found.to_pylist()]
    return [texts[a:b] for a, b in pairwise(offsets)]


@given(st.lists(st.text("ab|,", max_size=8), max_size=12), st.sampled_from(["|", ",", "||", "a|", "ba,|"]))
@settings(deadline=None, max_examples=60)
def test_elements_are_those_of_split(fields: list[str], separator: str) -> None:
    assert elements(fields, ListForm(separator)) == [field.split(separator) for field in fields]


@pytest.mark.parametrize("num_fields", [0, 1, 1000])
def test_elements_of_many_fields(num_fields: int, rng: np.random.Generator) -> None:
    fields = ["|".join(["x"] * int(n)) for n in rng.integers(0, 20, num_fields)]
    assert list(map(len, elements(fields, ListForm("|")))) == [field.count("|") + 1 for field in fields]


@given(st.lists(JSON_TEXTS, max_size=4), st.booleans(), st.sampled_from([",", ", ", " , ", ",\n  "]))
@settings(deadline=None, max_examples=60)
def test_elements_of_json_are_its_texts(lists: list[list[str]], is_ascii: bool, between: str) -> None:
    fields = [json.dumps(each, ensure_ascii=is_ascii, separators=(between, ":")) for each in lists]
    assert elements(fields, BRACKETS) == lists


@given(st.lists(JSON_TEXTS, max_size=4), st.sampled_from([list, tuple, set]))
@settings(deadline=None, max_examples=60)
def test_elements_of_python_are_its_texts(lists: list[list[str]], kind: type) -> None:
    values = [kind(each) or [] for each in lists]
    assert elements([str(each) for each in values], BRACKETS) == [list(each) for each in values]


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ("[16, 3]", ["16", "3"]),
        ("[]", []),
        (" [ ] ", []),
        ("", [""]),
        ("  ", [""]),
        ("{a,NULL,\"x,y\",'n'}", ["a", "", "x,y", "n"]),
        ("[1, None, nan, 'None']", ["1", "", "", "None"]),
        ("[1,2,]", ["1", "2"]),
        ("[1,,2]", ["1", "", "2"]),
        ("a, b", ["a", "b"]),
        ("(1,)", ["1"]),
        (r'{"a\"b",c\d}', ['a"b', r"c\d"]),
        ("['90s, rock]", ["'90s", "rock"]),
        ('["a"b, c]', ['"a"b', "c"]),
        ("Toy Story (1995)", ["Toy Story (1995)"]),
    ],
)
def test_brackets_and_quotes_are_left_out(field: str, wanted: list[str]) -> None:
    assert elements([field], BRACKETS) == [wanted]


def test_blanks_between_elements_count_once_in_brackets() -> None:
    numbers = np.arange(300) * 7
    with np.printoptions(threshold=1000):
        fields = [str(numbers), "[ 1  2 ]", "[]", "1 2", "", "  "]
    wanted = [[str(number) for number in numbers], ["1", "2"], [], ["1", "2"], [""], [""]]
    assert elements(fields, ListForm(" ", has_brackets=True)) == wanted


def test_plain_lists_keep_blanks_and_what_follows_a_last_separator() -> None:
    assert elements(["1| 2 |"], ListForm("|")) == [["1", " 2 ", ""]]
    assert elements(["1| 2 |"], ListForm("|", trims=True)) == [["1", "2", ""]]
    assert elements(["1| 2 |"], ListForm("|", has_brackets=True)) == [["1", "2"]]
    assert elements(["a | b|c"], ListForm(" | ")) == [["a", "b|c"]]
    assert elements(["é→b"], ListForm("→")) == [["é", "b"]]


@pytest.mark.parametrize("field", ["[[1], [2]]", "[1, 2", "[(1, 2), 3]", "{1, {2}}", '[{"a": 1}]'])
def test_a_list_in_a_list_is_refused(field: str) -> None:
    for kind in ("text", "integer"):
        found = read_column(TextLists(texts_of(["[1]", field]), BRACKETS), kind)
        assert found.is_row(BAD).tolist() == [False, True]


def test_weights_are_checked_and_left_out() -> None:
    form = ListForm("|", weight_separator=":")
    fields = ["3:0.3|4:1e-2", "", "a:b:7", "3", "3:x", "3:", "3:1|", "3:nan"]
    found = read_column(TextLists(texts_of(fields), form), "text")
    assert found.is_row(BAD).tolist() == [False, False, False, True, True, True, False, True]
    wanted = read_column(TextLists(texts_of(["3|4", "", "a:b", "", "", "", "3|"]), ListForm("|")), "text")
    assert found.values[:4].tolist() == wanted.values[:4].tolist()
    mapping = ListForm(",", has_brackets=True, weight_separator=":")
    assert elements(['{"a": 0.3, "b:c": 1}', "{'x' : -2}", "{}"], mapping) == [["a", "b:c"], ["x"], []]
