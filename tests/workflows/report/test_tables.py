"""Tables of a log in the terminal and in the report.

Series as tables of text: heat maps (the browser tests of `test_report` read the others).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotset.workflows.cli import main
from hotset.workflows.report import tables
from hotset.workflows.report.tables import drift_matrix


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-2.5, "-2.5"),
        (999, "999"),
        (1000, "1 k"),
        (18_812.4, "18.8 k"),
        (1.694e6, "1.69 M"),
        (3.4e38, "3.4e+38"),
        (0.00012345, "0.000123"),
        (999_999, "1 M"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert tables.short_number(value) == text


def test_a_category_is_one_line_of_a_bounded_length() -> None:
    assert tables.shown("a\nb\x1b[1m") == "a b [1m" and len(tables.shown("x" * 300)) == 32


def test_only_the_first_categories_of_each_table_are_shown() -> None:
    row = {"num_lookups": 5, "lookup_share": 0.5, "label_rate": None, "is_hot": True}
    rows: Any = [row | {"table": table, "category": f"{n}"} for table in "ab" for n in range(8)]
    cells = tables.text_table("categories", rows).rows
    assert [line[:2] for line in cells] == [
        [table if n == 0 else "", f"{n}"] for table in "ab" for n in range(5)
    ]


def test_the_new_series_are_printed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["stats", str(data), "--series", "log", "hot_tables", "categories", "default_runs"]) == 0
    shown = capsys.readouterr().out
    for title in (
        "Labels",
        "Labels by part of the log",
        "Missing values",
        "Dense features",
        "Hot rows by table",
    ):
        assert f"{title} " in shown or f"{title}\n" in shown
    assert "hybrid-dedup" in shown and "epoch 0 of hotset train without options" in shown


def test_a_matrix_shades_equal_shares_equally() -> None:
    shares = {
        ("a", "a"): 0.9,
        ("a", "b"): 0.5,
        ("b", "a"): 0.7,
        ("b", "b"): 0.95,
        ("a", "c"): None,
        ("b", "c"): 0.5,
    }
    drift: Any = {
        "parts": [{"name": name} for name in "abc"],
        "pairs": [
            {"chosen_on": on, "serves": part, "common_rows_share": share}
            for (on, part), share in shares.items()
        ],
    }
    table = drift_matrix(drift, "common_rows_share", "t")
    assert table.columns == ["chosen on", "a", "b", "c"]
    assert table.rows == [["a", "90.0%", "50.0%", ""], ["b", "70.0%", "95.0%", "50.0%"]]
    assert [[round(shade, 3) for shade in row] for row in table.shades] == [
        [0, 0.906, 0.15, 0],
        [0, 0.528, 1, 0.15],
    ]


def test_a_part_without_any_share_has_no_column() -> None:
    pairs = [{"chosen_on": "a", "serves": part, "common_rows_share": 1.0} for part in "a"]
    pairs.append({"chosen_on": "a", "serves": "evaluation", "common_rows_share": None})
    drift: Any = {"parts": [{"name": "a"}, {"name": "evaluation"}], "pairs": pairs}
    assert drift_matrix(drift, "common_rows_share", "t").columns == ["chosen on", "a"]


@pytest.mark.parametrize(("other", "shade"), [(0.91, 0.235), (0.95, 0.575)])
def test_small_differences_are_shaded_lightly(other: float, shade: float) -> None:
    drift: Any = {
        "parts": [{"name": "a"}, {"name": "b"}],
        "pairs": [
            {"chosen_on": "a", "serves": "a", "common_rows_share": 0.9},
            {"chosen_on": "a", "serves": "b", "common_rows_share": other},
        ],
    }
    (shades,) = drift_matrix(drift, "common_rows_share", "t").shades
    assert shades == pytest.approx([0, 0.15, shade])
