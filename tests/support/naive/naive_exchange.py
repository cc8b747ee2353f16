"""The exchange between ranks as plain Python: sets of users."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray


@dataclass(frozen=True)
class DrawnSteps:
    """Steps of a small run: of each its rows, ascending, and the ranks that use them."""

    num_ranks: int
    num_rows: int
    steps: tuple[tuple[tuple[int, frozenset[int]], ...], ...]

    def rows(self, number: int) -> NDArray[np.int32]:
        return np.array([row for row, _ in self.steps[number]], np.int32)

    def masks(self, number: int) -> NDArray[np.uint8]:
        return np.array([sum(1 << rank for rank in users) for _, users in self.steps[number]], np.uint8)

    def uses_of(self, row: int) -> list[frozenset[int]]:
        """The users of each step that uses the row."""
        return [users for step in self.steps for found, users in step if found == row]


@st.composite
def drawn_steps(draw: st.DrawFn) -> DrawnSteps:
    num_ranks = draw(st.integers(1, 4))
    num_rows = draw(st.integers(1, 4))
    users = st.frozensets(st.integers(0, num_ranks - 1), min_size=1)
    step = st.dictionaries(st.integers(0, num_rows - 1), users).map(
        lambda found: tuple(sorted(found.items()))
    )
    return DrawnSteps(num_ranks, num_rows, tuple(draw(st.lists(step, max_size=6))))


def messages_of_owner(uses: Sequence[frozenset[int]], owner: int) -> int:
    """Vectors and gradients that cross for one row; its first use sends no vector."""
    crossing = [len(users - {owner}) for users in uses]
    return sum(crossing[1:]) + sum(crossing)


def least_messages(uses: Sequence[frozenset[int]]) -> int:
    """The messages that any exact scheme needs for one row."""
    total = sum(len(users) - 1 for users in uses)
    for before, users in itertools.pairwise(uses):
        total += len(users) - 1 + (not before & users)
    return total
