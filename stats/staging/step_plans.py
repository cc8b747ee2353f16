"""The stream of rows that a planner reads and the step plans it returns, as flat arrays for many steps.

A planner manages one staging area: ``num_slots`` slots for rows of one width. Rows are named by keys, whole
numbers in [0, num_rows) that the caller gives to the rows of the slow tier. Step t is preceded by transfer
item t: write rows back, then fetch rows into slots. The executor of plans keeps to three rules, and may
otherwise run items and computations at the same time:

1. items run in order, and item t starts once compute(``after[t]``) is done;
2. compute(t) starts once item t is done;
3. items overlap only so far that the fetches of item t start once all items up to ``waits_for[t]`` are done,
   and the write-backs of item t itself.

Steps are numbered from 0 in each epoch, and each epoch begins and ends with an empty staging area.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEVER = (1 << 30) - 1
"""The next use of a row that is not used again, as far as is known; steps of an epoch are below it."""


class TooFewSlotsError(ValueError):
    """A batch has more distinct rows than there are slots."""

    def __init__(self, step: int, num_slots: int, num_needed: int) -> None:
        super().__init__(f"step {step} needs {num_needed} distinct rows in {num_slots} slots")
        self.step = step
        self.num_slots = num_slots
        self.num_needed = num_needed


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


@dataclass(frozen=True, slots=True)
class StepPlans:
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
    of fetched."""
    write_back_offsets: NDArray[np.int64]
    """(num_steps + 1,)."""
    write_back_rows: NDArray[np.int32]
    """(num_write_backs,); rows that are written back before the fetches of the step."""
    write_back_slots: NDArray[np.int32]
    """(num_write_backs,); the slots they are in."""
    after: NDArray[np.int64]
    """(num_steps,); item t starts once compute(after) is done; -1: at once."""
    waits_for: NDArray[np.int64]
    """(num_steps,); the last earlier item that wrote back a row this one fetches, or emptied or filled a slot
    that it fills; -1: none."""
    is_shortened: NDArray[np.bool_]
    """(num_steps,); ``after`` is later than the prefetch depth asks for: too few rows could be evicted."""
    is_split: NDArray[np.bool_]
    """(num_steps,); the batch has more rows than slots and runs in passes, see below.

    Its item writes every resident back. Row i of the batch belongs to pass ``i // num_slots`` and goes to
    slot ``i % num_slots``. Each pass fetches its rows and gathers their embeddings; after the one dense step
    each pass fetches its rows again, updates them and writes them back, so that the staging area is empty
    after compute(t). ``fetch_*`` list the rows once; ``write_back_*`` only those that were resident before.
    """
    num_hits: NDArray[np.int64]
    """(num_steps,); lookups of rows that were in a slot already."""
    num_misses: NDArray[np.int64]
    """(num_steps,); lookups of rows loaded for this step. Both count rows where the stream has no lookups."""

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


_OFFSETS = ("offsets", "fetch_offsets", "write_back_offsets")


def joined(chunks: Sequence[StepPlans], first_step: int) -> StepPlans:
    """Return consecutive chunks of step plans, of which the first begins at ``first_step``, as one."""
    if len(chunks) == 1:
        return chunks[0]
    arrays: dict[str, NDArray[Any]] = {}
    for name in (field.name for field in fields(StepPlans) if field.name != "first_step"):
        parts = [getattr(chunk, name) for chunk in chunks]
        if name in _OFFSETS:
            # Offsets of a chunk begin where those of the chunk before end.
            ends = np.cumsum([0, *(int(part[-1]) for part in parts)])
            parts = [np.zeros(1, np.int64), *(part[1:] + end for part, end in zip(parts, ends, strict=False))]
        arrays[name] = np.concatenate(parts) if parts else np.empty(0, _DTYPES.get(name, np.int64))
    return StepPlans(first_step, **arrays)


_DTYPES = {
    "slots": np.int32,
    "fetch_rows": np.int32,
    "fetch_slots": np.int32,
    "fetch_is_first": np.bool_,
    "write_back_rows": np.int32,
    "write_back_slots": np.int32,
    "is_shortened": np.bool_,
    "is_split": np.bool_,
}
"""Types of the arrays that are not int64."""


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
    """Steps whose transfer waits for a later step than prefetch asks for."""
    split: int = 0
    """Steps that run in passes."""

    def add(self, plans: StepPlans) -> None:
        """Count the rows of some steps."""
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
