"""The order in which cells run, and run again: which one is next follows from what ran before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from .cells import Cell
from .run_cell import CellRecord
from .typical_runs import is_disturbed, usual_probe_seconds


class RunOrder:
    """The cells of a sweep, and their runs so far.

    Args:
        every: cells, none twice.
        most: how often each of them runs.
    """

    def __init__(self, every: Sequence[Cell], most: int) -> None:
        self._every = every
        self._most = most
        self._runs: defaultdict[str, list[CellRecord]] = defaultdict(list)
        self._seconds: dict[str, float] = {}

    def add(self, record: CellRecord, seconds: float = 0.0) -> None:
        """Add a run.

        Args:
            record: what it measured.
            seconds: that it took, preparations included; 0 where that is not known.
        """
        self._runs[record.cell.key].append(record)
        self._seconds[record.cell.key] = seconds

    def following(self, *, begins_new: bool) -> tuple[int, Cell] | None:
        """Return the cell that is to run next with its position, None where all ran as often as they may.

        Cells that did not run yet come first, in their order. Then those that were disturbed whenever they
        ran, in turns, so that the runs of one lie apart; of equally many runs the quicker cell first, since a
        large one takes the time of twenty others. Where none is left, all cells in turns.

        Args:
            begins_new: whether new cells come before disturbed ones, or behind them.
        """
        new = next((place for place, cell in enumerate(self._every) if not self._runs[cell.key]), None)
        if new is not None and begins_new:
            return new, self._every[new]
        disturbed = self._again(is_disturbed_alone=True)
        if disturbed:
            place = min(disturbed, key=lambda place: (self._count(place), self._seconds_of(place), place))
            return place, self._every[place]
        if new is not None:
            return new, self._every[new]
        others = self._again(is_disturbed_alone=False)
        place = min(others, key=lambda place: (self._count(place), place), default=-1)
        return None if place < 0 else (place, self._every[place])

    def has_run(self, cell: Cell) -> bool:
        """Whether a cell ran at least once."""
        return bool(self._runs[cell.key])

    def _again(self, *, is_disturbed_alone: bool) -> list[int]:
        """Return the positions of cells that ran, and may run again."""
        usual = usual_probe_seconds(record for own in self._runs.values() for record in own)
        found = []
        for place, cell in enumerate(self._every):
            own = self._runs[cell.key]
            is_wanted = not is_disturbed_alone or all(is_disturbed(record, usual) for record in own)
            if 0 < len(own) < self._most and is_wanted:
                found.append(place)
        return found

    def _count(self, place: int) -> int:
        return len(self._runs[self._every[place].key])

    def _seconds_of(self, place: int) -> float:
        return self._seconds[self._every[place].key]
