"""The chart of README has the figures of its result."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from hotset.workflows.bench.bytes_chart import CHART, RESULT, bytes_per_sample, draw


def test_the_committed_chart_is_the_one_that_is_drawn() -> None:
    moved = bytes_per_sample(json.loads(RESULT.read_text()))
    assert CHART.read_text() == draw(moved)
    assert list(moved.values()) == sorted(moved.values(), reverse=True)


def test_the_lengths_of_bars_are_in_proportion() -> None:
    root = ElementTree.fromstring(draw({"hybrid": 400.0, "lookahead": 100.0}))
    long, short = (float(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect"))
    assert long == 4 * short
