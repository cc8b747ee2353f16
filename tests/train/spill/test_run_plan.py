"""The fetches of a whole run: the same for any memory, and each where its row was written back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.tests.support.spilled_runs import plan_epochs
from hotset.train.spill import run_plan
from hotset.train.spill.run_plan import EpochPlans, RunFetches, find_fetches


def flat(fetches: RunFetches) -> list[int]:
    found: list[int] = []
    for epoch in fetches.epochs:
        for chunk in epoch.chunks:
            found += chunk.of_write_backs.tolist()
        found += epoch.of_residents.tolist()
    return found


def test_memory_does_not_change_what_is_found(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = plan_epochs(rng, 500, 60)
    whole = find_fetches(epochs, 500, tmp_path, 1 << 20)
    monkeypatch.setattr(run_plan, "_LEAST_ROWS", 1)
    for memory_bytes in (8 * 499, 8 * 100, 8):
        assert flat(find_fetches(epochs, 500, tmp_path, memory_bytes)) == flat(whole)


def test_a_row_is_fetched_next_where_it_was_written_for(rng: np.random.Generator, tmp_path: Path) -> None:
    epochs = plan_epochs(rng, 500, 60)
    fetches = find_fetches(epochs, 500, tmp_path, 1 << 20)
    rows = fetches.rows
    assert rows.size == fetches.fetches_of_items.sum() > 0
    for epoch, found in zip(epochs, fetches.epochs, strict=True):
        for chunk, chunk_found in zip(epoch.chunks, found.chunks, strict=True):
            numbers = chunk_found.of_write_backs
            wanted = numbers >= 0
            np.testing.assert_array_equal(rows[numbers[wanted]], chunk.write_back_rows[wanted])
    assert fetches.epochs[1].first_fetch == int(
        sum(np.count_nonzero(~chunk.fetch_is_first) for chunk in epochs[0].chunks)
    )
    # Rows of the first epoch's end are fetched in the second, those of the last are not.
    assert (fetches.epochs[0].of_residents >= fetches.epochs[1].first_fetch).any()
    assert (fetches.epochs[1].of_residents == -1).all()
    used = np.unique(np.concatenate([chunk.fetch_rows for epoch in epochs for chunk in epoch.chunks]))
    assert fetches.used.total == used.size


@pytest.mark.parametrize("epochs", [[], [EpochPlans((), np.empty(0, np.int64))]])
def test_nothing_to_fetch(epochs: list[EpochPlans], tmp_path: Path) -> None:
    fetches = find_fetches(epochs, 10, tmp_path, 0)
    assert fetches.rows.size == fetches.used.total == 0 and len(fetches.epochs) == len(epochs)


def test_restored_rows_are_written_back_too(rng: np.random.Generator, tmp_path: Path) -> None:
    epochs = plan_epochs(rng, 500, 60, num_epochs=1, num_steps=3)
    num_first = find_fetches(epochs, 500, tmp_path, 0).used.total
    restored = np.array([3, 499])
    assert find_fetches(epochs, 500, tmp_path, 0, restored).used.total == num_first + 2
