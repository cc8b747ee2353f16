"""Names of lines are placed where they touch nothing."""

from __future__ import annotations

from hotset.workflows.report.report_labels import Frame, place_labels


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
