"""The label of a log: by its name and its values, and the columns that know it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hotset.pipeline.infer_column import infer_column
from hotset.pipeline.infer_label import InferredLabel, follows_label, infer_label, is_positive
from hotset.tests.support.logs.text_spans import spans_of


def test_the_label_is_a_column_of_zeros_and_ones_without_gaps() -> None:
    columns: list[tuple[str, Any]] = [
        ("gaps", spans_of(["0", "1", ""])),
        ("three", spans_of(["0", "1", "2"])),
        ("flag", spans_of(["1", "0", "1"])),
        ("Click", pa.array([0, 1, 1], pa.int8())),
        ("lists", pa.array([[0], [1], [1]], pa.list_(pa.int64()))),
    ]
    names = [name for name, _ in columns]
    inferred = [infer_column(name, values, 3, names) for name, values in columns]
    found = infer_label(inferred, columns)
    assert (found.name, found.others, found.notes) == ("Click", ("flag",), ())
    # Without a telling name nothing is chosen, unless the log has no names at all.
    found = infer_label(inferred[:3], columns)
    assert found.name is None and "It could be 'flag'. Write label = ..." in found.notes[0]
    found = infer_label(inferred[:3], columns, has_names=False)
    assert found.name == "flag" and "a guess" in found.notes[0]
    found = infer_label(inferred[:2], columns)
    assert found.name is None and "No column of zeros and ones" in found.notes[0]


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["nonclk", "clk"], "clk"),
        (["conversion", "click"], "click"),
        (["is_like", "isClicked"], "isClicked"),
        (["purchase", "ctr_label"], "ctr_label"),
        (["gender", "is-buy"], "is-buy"),
        (["gender", "y"], "y"),
        (["pos.x", "pos.y"], None),
        (["user clicks ago", "clicked"], "clicked"),
        (["clickhouse", "newbuyer", "labels2"], None),
    ],
)
def test_the_label_is_known_by_a_word_of_its_name(names: list[str], label: str | None) -> None:
    columns = [(name, spans_of(["0", "1", "1"])) for name in names]
    inferred = [infer_column(name, values, 3, names) for name, values in columns]
    found = infer_label(inferred, columns)
    assert found.name == label
    assert found.others == tuple(name for name in names if name != label)


def found_in(columns: dict[str, Any], *, has_names: bool = True) -> InferredLabel:
    pairs = [(name, spans_of(each) if isinstance(each, list) else each) for name, each in columns.items()]
    inferred = [infer_column(name, values, 6, list(columns)) for name, values in pairs]
    return infer_label(inferred, pairs, has_names=has_names)


@pytest.mark.parametrize(
    ("name", "values", "above", "positive", "note"),
    [
        ("label", ["True", "False", "True"], None, (), ""),
        ("label", ["1.0e+00", "0.0e+00", "1.0e+00"], None, (), ""),
        ("label", ["-1", "1", "1"], 0.0, (), ""),
        ("y", ["1", "2", "2"], 1.5, (), ""),
        ("clicked", ["yes", "no", "yes"], None, ("yes",), ""),
        ("clicked", ["Y", "N", "Y"], None, ("Y",), ""),
        ("income", [" - 50000.", " - 50000.", " 50000+."], None, (" 50000+.",), "the rarer one of"),
        ("rating", ["1", "5", "4", "3", "2"], 3.0, (), "from 1 to 5 are 1 above 3"),
        ("rating:float", ["0.5", "5.0", "4.5", "3"], 3.0, (), "from 0.5 to 5 are 1 above 3"),
        ("stars", ["1", "10", "4", "8"], 6.0, (), "from 1 to 10 are 1 above 6"),
        ("clicks", ["0", "2", "1", "0"], 0.0, (), "from 0 to 2 are 1 above 0"),
        ("label", pa.array([1.0, -1.0, 1.0]), 0.0, (), ""),
        ("label", pa.array([True, False, None]), None, (), "1 rows have no label"),
        ("click", ["1", "", "0"], None, (), "1 rows have no click"),
    ],
)
def test_labels_of_other_forms_say_which_values_are_one(
    name: str, values: Any, above: float | None, positive: tuple[str, ...], note: str
) -> None:
    found = found_in({"other": ["a", "b", "a", "c", "d"][: len(values)], name: values})
    assert (found.name, found.above, found.positive) == (name, above, positive)
    assert note in " ".join(found.notes) and bool(note) == bool(found.notes)
    ones = is_positive(found, spans_of(values) if isinstance(values, list) else values)
    if note.startswith("from"):
        np.testing.assert_array_equal(ones, [float(value) > float(above or 0) for value in values])
    else:
        assert 0 < ones.sum() < len(values)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("label", ["a", "b", "c"]),
        ("clicked_shop", ["u", "v", "u"]),
        ("rating_of_app", ["1", "2", "3"]),
        ("score", [str(number) for number in range(30)]),
        ("label", ["-3", "1", "2"]),
        ("label", ["nan", "inf", "1e400"]),
        ("label", ["1", "inf"]),
        ("first_click", ["1", "", "0"]),
    ],
)
def test_values_that_no_label_has_make_none(name: str, values: list[str]) -> None:
    assert found_in({name: values}).name is None


def test_rivals_are_listed() -> None:
    flag, other = ["0", "1", "0"], ["1", "1", "0"]
    found = found_in({"is_like": flag, "click": other, "gender": flag})
    assert found.name == "click" and found.named == ("is_like",)
    assert found.notes == (
        "The label is 'click'. Called like labels as well, so left out: 'is_like'.",
        'To keep labels beside it, write labels = ["click", "is_like"] in place of label.',
    )
    found = found_in({"bought_before": flag, "gender": other})
    assert found.notes == ("The label is 'bought_before' by a word of its name. Or is it 'gender'?",)
    found = found_in({"a": flag, "b": ["yes", "no", "no"], "c": ["u", "v", "v"]})
    assert found.name is None and "It could be 'a', 'b', 'c'." in found.notes[0]
    found = found_in({"a": flag, "b": other}, has_names=False)
    assert found.notes == ("The label is a guess: a is the first column of zeros and ones; so are 'b'.",)
    found = found_in({"a": ["u", "v", "v"], "b": flag}, has_names=False)
    assert found.name == "b", "which of two words is 1 is not clear"


def test_a_label_that_cannot_be_one_or_says_nothing_is_remarked() -> None:
    found = found_in({"click": ["0", "1", "Total"], "user": ["7", "8", "9"]})
    assert (
        found.name is None and "'click' is called like a label, but has 3 distinct values" in found.notes[1]
    )
    found = found_in({"click": ["0", "0", "0"], "user": ["7", "8", "9"]})
    assert found.name == "click" and "All values of 'click' are the same" in found.notes[-1]


def test_a_column_that_knows_the_label_says_how() -> None:
    clicked = np.arange(300) % 2 == 0
    columns = {
        "twin": [str(int(not each)) for each in clicked],
        "later": [str(row % 4 // 2 * 0 + int(each and row % 3 > 0)) for row, each in enumerate(clicked)],
        "free": [str(row % 3) for row in range(300)],
        "word": ["a" if each else "b" for each in clicked],
    }
    reasons = {}
    for name, texts in columns.items():
        column = infer_column(name, spans_of(texts), 300, list(columns))
        reasons[name] = follows_label(column, spans_of(texts), "click", clicked)
    wanted = {"twin": "it is 1 - click in every row", "later": "it is 0 wherever click is 0"}
    assert reasons == wanted | {"free": None, "word": None}
