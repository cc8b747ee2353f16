"""Tables of a log in the terminal and in the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotset.workflows.cli import main
from hotset.workflows.report import log_tables


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
        (None, ""),
        (0.00012345, "0.000123"),
        (999_999, "1 M"),
    ],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert log_tables.short_number(value) == text


def test_a_category_is_one_line_of_a_bounded_length() -> None:
    assert log_tables.shown("a\nb\x1b[1m") == "a b [1m" and len(log_tables.shown("x" * 300)) == 32


def test_only_the_first_categories_of_each_table_are_shown() -> None:
    row = {"num_lookups": 5, "lookup_share": 0.5, "label_rate": None, "is_hot": True}
    rows: Any = [row | {"table": table, "category": f"{n}"} for table in "ab" for n in range(8)]
    cells = log_tables.categories(rows).rows
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
