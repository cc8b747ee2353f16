"""Labels, weights and groups go through words as they are, for every number and every gap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.pipeline.formats.sample_columns import clicks_and_gaps, column_of, num_words, type_of, write_words

LABELS = st.one_of(st.none(), st.integers(0, 1))
WEIGHTS = st.floats(0, width=32, allow_infinity=False, allow_nan=False)
GROUPS = st.one_of(st.none(), st.sampled_from([0, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
COLUMNS = {"label": (LABELS, pa.uint8()), "weight": (WEIGHTS, pa.float32()), "group": (GROUPS, pa.uint64())}


@pytest.mark.parametrize("name", COLUMNS)
@given(data=st.data())
def test_chosen_values_come_out_of_words_as_they_went_in(name: str, data: Any) -> None:
    values, kind = COLUMNS[name]
    column = data.draw(st.lists(values, min_size=1, max_size=20))
    chosen = data.draw(st.lists(st.integers(0, len(column) - 1), max_size=20))
    words = np.full((num_words(name), len(chosen)), 7, np.int32)
    write_words(name, pa.array(column, kind), np.array(chosen, np.int32), words)
    # Rows have other words beside them.
    rows = np.concatenate([np.full((len(chosen), 2), 9, np.int32), words.T], axis=1)
    found = column_of(name, rows[:, 2:])
    found.validate(full=True)
    assert found.type == type_of(name)
    assert found.to_pylist() == [column[place] for place in chosen]


@given(labels=st.lists(LABELS, max_size=20))
def test_clicks_and_gaps_are_those_of_the_labels(labels: list[int | None]) -> None:
    clicks, gaps = clicks_and_gaps(pa.array(labels, pa.uint8()))
    assert clicks.tolist() == [label == 1 for label in labels]
    assert gaps.tolist() == [label is None for label in labels]
