"""Lists in text against Python's own readers: between separators, in brackets, with weights."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.raw.column_values import read_column
from hotset.pipeline.raw.text_fields import BAD
from hotset.pipeline.raw.text_lists import ListForm, ListSpans, elements_of
from hotset.tests.support.logs.text_spans import spans_of

BRACKETS = ListForm(",", has_brackets=True)
JSON_TEXTS = st.lists(st.text(max_size=5), max_size=5)


def elements(fields: list[str], form: ListForm) -> list[list[str]]:
    found, offsets, is_refused = elements_of(ListSpans(spans_of(fields), form))
    assert not is_refused.any()
    texts = [bytes(found.text[a:b]).decode() for a, b in zip(found.starts, found.stops, strict=True)]
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
        found = read_column(ListSpans(spans_of(["[1]", field]), BRACKETS), kind)
        assert found.is_row(BAD).tolist() == [False, True]


def test_weights_are_checked_and_left_out() -> None:
    form = ListForm("|", weight_separator=":")
    fields = ["3:0.3|4:1e-2", "", "a:b:7", "3", "3:x", "3:", "3:1|", "3:nan"]
    found = read_column(ListSpans(spans_of(fields), form), "text")
    assert found.is_row(BAD).tolist() == [False, False, False, True, True, True, False, True]
    wanted = read_column(ListSpans(spans_of(["3|4", "", "a:b", "", "", "", "3|"]), ListForm("|")), "text")
    assert found.values[:4].tolist() == wanted.values[:4].tolist()
    mapping = ListForm(",", has_brackets=True, weight_separator=":")
    assert elements(['{"a": 0.3, "b:c": 1}', "{'x' : -2}", "{}"], mapping) == [["a", "b:c"], ["x"], []]
