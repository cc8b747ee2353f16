"""The parts of a packed row follow one another and leave no word out."""

from __future__ import annotations

import pytest

from hotset.pipeline.packing.row_layout import LABEL, TAG, RowLayout


@pytest.mark.parametrize("counts", [(13, 0, 26), (0, 2, 0), (3, 1, 4), (0, 0, 0)])
def test_the_parts_of_a_row_follow_one_another(counts: tuple[int, int, int]) -> None:
    layout = RowLayout(*counts)
    words = list(range(layout.width))
    parts = [words[part] for part in (layout.dense, layout.lengths, layout.ids)]
    assert [TAG, LABEL, *parts[0], *parts[1], *parts[2]] == words
    assert tuple(len(part) for part in parts) == counts
