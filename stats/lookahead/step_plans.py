"""The rows a planner reads and the step plans it returns.

Both are flat arrays for many steps. A planner manages one staging area: ``num_slots`` slots for rows of one
width. Rows are named by keys, integers in [0, num_rows) that the caller gives to the rows of the slow tier.
Step t is preceded by transfer item t: write rows back, then load rows into slots. Items run one after
another, in parallel with computations, by two rules:

1. item t starts once compute(``after[t]``) is done;
2. compute(t) starts once item t is done.

Steps are numbered from 0 in each epoch, and each epoch begins and ends with an empty staging area.

The stream has the distinct cold rows of each batch, from the ids of shards. Ids are ranks, so a cold row's
key is its id less the table's hot rows plus a base. Exact next uses of rows are found from the end of the
stream to its start.

The window is the number of batches known in advance. Belady's choice is exact once the window reaches the
nearest next use that is evicted. So it grows while most steps evict only rows without a known next use, and
settles at 1.5 times that reach. A window of a fixed length, or of a multiple of slots over loaded rows, is
too short on large logs.

The next load of every row that is written back, over all epochs of a run, is found from the run's end. Loads
are numbered from 0 in order, without first uses, whose rows are initialized and not loaded. So the number of
the next load says where a row has to be: consecutive numbers form a group of batches, and the rows of a group
are read together. The pass can be made for a range of rows at a time, 8 bytes per row of the range, because
there may be more rows than memory has room for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel

NEVER = (1 << 30) - 1
"""The next use of a row that is not used again, as far as is known; steps of an epoch are below it."""


class TooFewSlotsError(ValueError):
    """A batch has more distinct rows than there are slots."""

    def __init__(self, step: int, num_slots: int, num_needed: int) -> None:
        super().__init__(f"step {step} needs {num_needed} distinct rows in {num_slots} slots")
        self.step = step
        self.num_slots = num_slots
        self.num_needed = num_needed


LEAST_WINDOW = 64
"""Batches known ahead at least."""
WINDOW_BYTES = 1 << 30
"""Memory that the rows of batches known ahead may take, all table groups together."""
ENTRY_BYTES = 12
"""Bytes of a distinct cold row of a batch known ahead: the row, its lookups, its next use."""
_FIRST_FACTOR = 6
"""The first window is this multiple of the slots over the rows of a batch."""
_GROWTH = 1.5
_MARGIN = 1.5
_STEPS_SEEN = 16
"""Steps that evict rows, after which the window is chosen again."""
_ENOUGH = 0.8
"""Share of them that evict a row with a known next use, from which on the window is long enough."""


class Window:
    """The number of batches to hold back, from what the steps planned so far evicted.

    Args:
        num_slots: staging slots.
        num_bytes: memory that the batches held back may take.
        least: batches held back at least.
    """

    def __init__(self, num_slots: int, num_bytes: int = WINDOW_BYTES, least: int = LEAST_WINDOW) -> None:
        self.most_entries = num_bytes // ENTRY_BYTES
        """Distinct rows of batches that may be held back."""
        self.num_batches: int | None = None
        """Batches to hold back; None until enough of them are known to say."""
        self.is_capped = False
        """Whether memory has ever made the window shorter than it was to be."""
        self._num_slots = num_slots
        self._least = least
        self._reaches: list[int] = []

    def is_covered(self, num_held: int, num_entries: int) -> bool:
        """Return whether the first of ``num_held`` batches with ``num_entries`` rows may be planned."""
        if self.num_batches is None and num_held > self._least:
            batches_in_slots = -(-_FIRST_FACTOR * self._num_slots * num_held // max(num_entries, 1))
            self.num_batches = max(self._least, batches_in_slots)
        return self.num_batches is not None and num_held > self.num_batches

    def cap(self, num_held: int) -> None:
        """Note that no more than ``num_held`` batches fit in memory."""
        self.is_capped = True
        self.num_batches = max(num_held - 1, 0)

    def follow(self, reaches: Iterable[int]) -> None:
        """Choose the window again, at regular intervals of steps.

        Args:
            reaches: for each step planned, how far ahead the nearest known next use of an evicted row is; 0
                where it evicted only rows without one, and less where it evicted none.
        """
        for reach in reaches:
            if reach >= 0:
                self._reaches.append(reach)
            if len(self._reaches) < _STEPS_SEEN:
                continue
            assert self.num_batches is not None, "steps are planned with a window"
            known = sorted(reach for reach in self._reaches if reach)
            if len(known) < _ENOUGH * _STEPS_SEEN:
                self.num_batches = math.ceil(_GROWTH * max(self.num_batches, 1))
            else:
                self.num_batches = max(self._least, math.ceil(_MARGIN * known[len(known) // 2]))
            self._reaches.clear()


@dataclass(frozen=True, slots=True)
class RowStream:
    """The distinct rows of consecutive batches, in the order they are trained."""

    offsets: NDArray[np.int64]
    """(num_steps + 1,); where each batch's rows begin in ``rows``, from 0."""
    rows: NDArray[np.int64]
    """(num_entries,); keys, in each batch distinct; their order breaks ties between rows of a batch."""
    lookups: NDArray[np.int64] | None = None
    """(num_entries,); lookups of the row in its batch; None: one each."""
    next_uses: NDArray[np.int64] | None = None
    """(num_entries,); the next step that uses the row, NEVER where there is none."""

    @property
    def num_steps(self) -> int:
        return int(self.offsets.size) - 1

    @classmethod
    def of(
        cls, batches: Sequence[NDArray[np.int64]], lookups: Sequence[NDArray[np.int64]] | None = None
    ) -> RowStream:
        """Build a stream from one array of distinct rows per batch, and perhaps one of their lookups."""
        sizes = [batch.size for batch in batches]
        offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
        return cls(offsets, _flat(batches), None if lookups is None else _flat(lookups))


def _flat(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64, copy=False)


class StepPlans(NamedTuple):
    """Step plans of ``num_steps`` consecutive steps."""

    first_step: int
    """Number of the first of them in the epoch."""
    offsets: NDArray[np.int64]
    """(num_steps + 1,); where each step's rows begin in ``slots``."""
    slots: NDArray[np.int32]
    """(num_entries,); the staging slot of each distinct row of each batch, in the order it was given."""
    fetch_offsets: NDArray[np.int64]
    """(num_steps + 1,)."""
    fetch_rows: NDArray[np.int32]
    """(num_fetches,); rows that are loaded, none twice in a step."""
    fetch_slots: NDArray[np.int32]
    """(num_fetches,); the slot of each, none twice in a step."""
    fetch_is_first: NDArray[np.bool_]
    """(num_fetches,); the row has its initial values only: it may be initialized in its slot instead
    of loaded."""
    write_back_offsets: NDArray[np.int64]
    """(num_steps + 1,)."""
    write_back_rows: NDArray[np.int32]
    """(num_write_backs,); rows that are written back before the loads of the step."""
    write_back_slots: NDArray[np.int32]
    """(num_write_backs,); the slots they are in."""
    after: NDArray[np.int64]
    """(num_steps,); item t starts once compute(after) is done; -1: immediately."""
    is_shortened: NDArray[np.bool_]
    """(num_steps,); ``after`` is later than by the prefetch depth: too few rows could be evicted."""
    is_split: NDArray[np.bool_]
    """(num_steps,); the batch has more rows than slots and runs in passes, see below.

    Its item writes every resident back. Row i of the batch belongs to pass ``i // num_slots`` and goes to
    slot ``i % num_slots``. Each pass loads its rows and gathers their embeddings; after the one dense step
    each pass loads its rows again, updates them and writes them back, so that the staging area is empty
    after compute(t). ``fetch_*`` list the rows once; ``write_back_*`` only those that were resident before.
    """
    num_hits: NDArray[np.int64]
    """(num_steps,); lookups of rows that were in a slot already."""
    num_misses: NDArray[np.int64]
    """(num_steps,); lookups of rows loaded for this step. Both count rows where the stream has no lookups."""
    reach: NDArray[np.int64]
    """(num_steps,); how far ahead the nearest known next use of a row evicted by look-ahead is; 0 where none
    has one; -1 where no row was evicted."""

    @classmethod
    def unset(
        cls, first_step: int, num_steps: int, num_entries: int, num_fetches: int, num_write_backs: int
    ) -> StepPlans:
        """Return room for so many steps and entries of each list; offsets begin at 0."""
        sizes = _sizes(num_steps, num_entries, num_fetches, num_write_backs)
        arrays: list[NDArray[Any]] = [
            (np.zeros if of == "bounds" else np.empty)(sizes[of], dtype) for of, dtype in _ARRAYS.values()
        ]
        return cls(first_step, *arrays)

    def cut(self, num_steps: int, num_fetches: int, num_write_backs: int) -> StepPlans:
        """Return the plans of the first steps, with lists no longer than they are."""
        sizes = _sizes(num_steps, int(self.offsets[num_steps]), num_fetches, num_write_backs)
        arrays = {name: getattr(self, name)[: sizes[of]] for name, (of, _) in _ARRAYS.items()}
        # Lists of rows that move had room for many more, which is given back.
        for name in (name for name in arrays if name.startswith(("fetch_", "write_back_"))):
            arrays[name] = arrays[name].copy()
        return StepPlans(self.first_step, **arrays)

    @property
    def num_steps(self) -> int:
        return int(self.offsets.size) - 1

    def rows_to_fast(self, *, initializes_first_uses: bool) -> NDArray[np.int64]:
        """Return how many rows, (num_steps,), each step loads, without those initialized in place."""
        crosses = (
            ~self.fetch_is_first if initializes_first_uses else np.ones(self.fetch_is_first.size, np.bool_)
        )
        running = np.concatenate([[0], np.cumsum(crosses)])
        crossing: NDArray[np.int64] = running[self.fetch_offsets[1:]] - running[self.fetch_offsets[:-1]]
        return crossing * (1 + self.is_split)

    def rows_to_slow(self) -> NDArray[np.int64]:
        """Return how many rows, (num_steps,), each step writes back, without those left at the end."""
        return np.diff(self.write_back_offsets) + self.is_split * np.diff(self.offsets)


_ARRAYS: dict[str, tuple[str, type[np.generic]]] = {
    "offsets": ("bounds", np.int64),
    "slots": ("entries", np.int32),
    "fetch_offsets": ("bounds", np.int64),
    "fetch_rows": ("fetches", np.int32),
    "fetch_slots": ("fetches", np.int32),
    "fetch_is_first": ("fetches", np.bool_),
    "write_back_offsets": ("bounds", np.int64),
    "write_back_rows": ("write_backs", np.int32),
    "write_back_slots": ("write_backs", np.int32),
    "after": ("steps", np.int64),
    "is_shortened": ("steps", np.bool_),
    "is_split": ("steps", np.bool_),
    "num_hits": ("steps", np.int64),
    "num_misses": ("steps", np.int64),
    "reach": ("steps", np.int64),
}
"""What each array of step plans has one entry for, and its type."""


def _sizes(num_steps: int, num_entries: int, num_fetches: int, num_write_backs: int) -> dict[str, int]:
    lists = {"entries": num_entries, "fetches": num_fetches, "write_backs": num_write_backs}
    return {"bounds": num_steps + 1, "steps": num_steps, **lists}


@dataclass
class RowTraffic:
    """Sums over the step plans of an epoch."""

    rows_to_fast: int = 0
    """Rows loaded into slots."""
    rows_made: int = 0
    """Rows initialized in their slot at their first use."""
    rows_to_slow: int = 0
    """Rows written back, at the end of the epoch included."""
    shortened: int = 0
    """Steps whose transfer waits for a later step than by the prefetch depth."""
    split: int = 0
    """Steps that run in passes."""

    def add(self, chunks: Iterable[StepPlans]) -> None:
        """Count the rows of some steps."""
        for plans in chunks:
            to_fast = int(plans.rows_to_fast(initializes_first_uses=True).sum())
            self.rows_to_fast += to_fast
            self.rows_made += int(plans.rows_to_fast(initializes_first_uses=False).sum()) - to_fast
            self.rows_to_slow += int(plans.rows_to_slow().sum())
            self.shortened += int(np.count_nonzero(plans.is_shortened))
            self.split += int(np.count_nonzero(plans.is_split))


@dataclass(frozen=True, slots=True)
class Residents:
    """Rows in slots at the end of an epoch that have to be written back: a last item, after every step."""

    rows: NDArray[np.int32]
    """(num_residents,); keys, ascending slots."""
    slots: NDArray[np.int32]
    """(num_residents,)."""


def in_order(
    rows: NDArray[np.integer[Any]], lookups: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return distinct rows in ascending order, and the lookups of each.

    Args:
        rows: (num_rows,), keys in [0, 2**31).
        lookups: (num_rows,), in [0, 2**32).
    """
    # Sorted as one number each: several times faster than to sort positions and gather twice.
    pairs = (rows.astype(np.int64) << 32) | lookups.astype(np.int64)
    pairs.sort()
    return pairs >> 32, pairs & 0xFFFFFFFF


NO_FETCH = -1
"""The next load of a row that is not loaded again."""


@kernel
def find_next_fetches(
    plans: StepPlans,
    end: int,
    first_row: int,
    next_of_row: NDArray[np.int64],
    of_write_backs: NDArray[np.int64],
    of_splits: NDArray[np.int64],
) -> int:
    """Find the next load of the rows that some steps write back, backwards. Exact.

    Args:
        plans: the steps.
        end: number of the first load after them.
        first_row: rows from here to ``first_row + next_of_row.size`` are included.
        next_of_row: (rows of the range,), next load of each after these steps; that before them on return.
        of_write_backs: (num_write_backs,), written for rows of the range.
        of_splits: (num_fetches,), or 0 where no step is split; next load of the rows of split steps, which
            are written back after the step; written for rows of the range.

    Returns:
        The number of the first load of these steps.
    """
    number = end
    stop_row = first_row + next_of_row.size
    for step in range(plans.is_split.size - 1, -1, -1):
        first, stop = plans.fetch_offsets[step], plans.fetch_offsets[step + 1]
        # A split step writes all its rows back when it is over.
        if plans.is_split[step]:
            for i in range(first, stop):
                row = plans.fetch_rows[i]
                if first_row <= row < stop_row:
                    of_splits[i] = next_of_row[row - first_row]
        # An item writes back before it loads, so backward its loads are first.
        for i in range(stop - 1, first - 1, -1):
            row = plans.fetch_rows[i]
            number -= not plans.fetch_is_first[i]
            if first_row <= row < stop_row:
                next_of_row[row - first_row] = NO_FETCH if plans.fetch_is_first[i] else number
        for i in range(plans.write_back_offsets[step], plans.write_back_offsets[step + 1]):
            row = plans.write_back_rows[i]
            if first_row <= row < stop_row:
                of_write_backs[i] = next_of_row[row - first_row]
    return number


def cut_groups(fetches_of_items: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """Cut the loads of a run into groups of whole items with at most ``capacity`` loads.

    Args:
        fetches_of_items: (num_items,), loads of each transfer item, at most ``capacity``.
        capacity: loads of a group.

    Returns:
        (num_groups + 1,), the number of the first load of each group, and that after the last; at least one
        group.
    """
    ends = np.concatenate([[0], np.cumsum(fetches_of_items)])
    if fetches_of_items.max(initial=0) > capacity:
        raise ValueError(f"an item fetches {fetches_of_items.max()} rows, a group holds {capacity}")
    bounds = [0]
    while bounds[-1] < ends[-1]:
        bounds.append(int(ends[np.searchsorted(ends, bounds[-1] + capacity, side="right") - 1]))
    return np.array(bounds if len(bounds) > 1 else [0, 0], np.int64)


@kernel
def next_uses_backward(
    order: NDArray[np.int64],
    offsets: NDArray[np.int64],
    rows: NDArray[np.int32],
    next_step_of_row: NDArray[np.int32],
    next_uses: NDArray[np.int32],
) -> None:
    """Write each entry's next use. Arrays of entries are read and written a batch at a time. Exact.

    Args:
        order: (num_steps,), the batch of each step.
        offsets: (num_batches + 1,), where the rows of each batch begin.
        rows: (num_entries,), keys, in each batch distinct.
        next_step_of_row: (num_rows,), filled with NEVER; changed.
        next_uses: (num_entries,), written.
    """
    for step in range(order.size - 1, -1, -1):
        for i in range(offsets[order[step]], offsets[order[step] + 1]):
            next_uses[i] = next_step_of_row[rows[i]]
            next_step_of_row[rows[i]] = step


def next_uses(offsets: NDArray[np.int64], rows: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    """Return the next uses, (num_entries,), in a stream that fits in memory, NEVER after a row's last use."""
    found = np.empty(rows.size, np.int64)
    order = np.arange(offsets.size - 1)
    next_uses_backward(order, offsets, rows, np.full(num_rows, NEVER, np.int32), found)
    return found
