"""Series as tables of text: heat maps (the browser tests of `test_report` read the others)."""

from __future__ import annotations

from typing import Any

import pytest

from hotset.workflows.report.series_tables import drift_matrix


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
