"""Names of lines are placed where they touch nothing."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.workflows.report.report_labels import CHARACTER_WIDTH, Frame, Label, place_labels


def test_labels_stay_inside_and_off_each_other() -> None:
    frame = Frame((1, 1000), (0, 1), 600, 300)
    lines = {f"line {n}": [(10**k, min(1.0, (k + n / 4) / 4)) for k in range(4)] for n in range(4)}
    labels = place_labels(lines, [*lines, "none"], frame)
    assert [label.name for label in labels] == list(lines)
    for label in labels:
        half = len(label.name) * 3.4
        assert half <= label.x <= 600 - half and 7 <= label.y <= 293
        for other in labels:
            apart = abs(label.x - other.x) > 2 * half or abs(label.y - other.y) >= 12
            assert other is label or apart


@pytest.mark.parametrize("width", [290, 820])
@pytest.mark.parametrize("most_bytes", [33.1, 34.0, 68.0, 240.0])
def test_each_name_is_near_its_own_line(most_bytes: float, width: int) -> None:
    """From five lines on one another, a few pixels wide, to lines as wide as the chart."""
    frame = Frame((33, 240), (0, 2.3), width, 300)
    tops = {"lookahead": 2.0, "cache": 1.98, "fae": 1.9, "hybrid-dedup": 1.5, "hybrid": 1.5}
    lines = {name: [(33.0, top), (most_bytes, top + 0.05)] for name, top in tops.items()}
    for label in place_labels(lines, list(lines), frame):
        first, last = (np.array(frame.to_pixels(*point)) for point in lines[label.name])
        gaps = [gap_of(label, *(first + share * (last - first))) for share in np.linspace(0, 1, 101)]
        assert min(gaps) <= 40, label


def gap_of(label: Label, x: float, y: float) -> float:
    """Pixels between the box of a name and a point."""
    across = abs(label.x - x) - len(label.name) * CHARACTER_WIDTH / 2
    return max(0.0, across, abs(label.y - y) - 7)
