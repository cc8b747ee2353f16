"""The slow, obvious twin of every planner of staging slots, and a machine that runs plans in any order."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hotset.stats.lookahead.step_plans import Residents, StepPlans

NEVER = 10**9


@dataclass
class Item:
    """The rows that one step's item loads and writes back, slots aside."""

    fetches: dict[int, bool] = field(default_factory=dict)
    """Row, and whether it is its first use."""
    write_backs: set[int] = field(default_factory=set)
    after: int = -1
    is_shortened: bool = False
    reach: int = field(default=-1, compare=False)
    """How far ahead the nearest known next use of its victims is; 0: none has one; -1: no victims."""


@dataclass
class Resident:
    """A row in some slot."""

    last_use: int = -NEVER
    sequence: int = 0
    count: int = 0
    is_clean: bool = True
    is_pinned: bool = False


def next_use(batches: list[list[int]], row: int, step: int, last_known: int) -> int:
    later = (t for t in range(step + 1, min(last_known + 1, len(batches))) if row in batches[t])
    return next(later, NEVER)


def naive_items(
    policy: str,
    batches: list[list[int]],
    num_slots: int,
    prefetch: int,
    *,
    lookups: list[list[int]] | None = None,
    window: int | Callable[[list[Item]], int] = NEVER,
    group: int = 1,
    warm: list[int] | None = None,
    warm_counts: list[int] | None = None,
    used_before: set[int] | None = None,
) -> tuple[list[Item], set[int]]:
    """Plan an epoch: its items, and the rows to write back after it; ``used_before`` is updated.

    ``window`` may depend on the items before the present one.
    """
    used = set() if used_before is None else used_before
    residents: dict[int, Resident] = {}
    items = [Item(after=max(step - prefetch - 1, -1)) for step in range(len(batches))]
    sequence = 0
    step = 0
    while step < len(batches):
        ahead = window(items[:step]) if callable(window) else window
        pinned = {row for row, resident in residents.items() if resident.is_pinned}
        stop = step + 1
        while stop < min(step + group, len(batches)):
            if len(set().union(*batches[step : stop + 1]) - pinned) > num_slots - len(pinned):
                break
            stop += 1
        rows = list(dict.fromkeys(row for batch in batches[step:stop] for row in batch))
        assert len(rows) <= num_slots
        item = items[step]
        missing = [row for row in rows if row not in residents]

        # Wait for later steps until enough rows may be evicted.
        def evictable(after: int, rows: list[int] = rows) -> list[int]:
            idle = [row for row, resident in residents.items() if resident.last_use <= after]
            return [row for row in idle if row not in rows and not residents[row].is_pinned]

        need = len(missing) - (num_slots - len(residents))
        wanted = step - prefetch - 1
        after = wanted if wanted >= 0 else -NEVER // 2
        while len(evictable(after)) < need:
            after = max(after, -1) + 1
            assert after < step
            item.is_shortened = True
        item.after = max(after, -1)

        def keep(row: int, step: int = step, ahead: int = ahead) -> tuple[int, int]:
            resident = residents[row]
            if policy == "lookahead":
                return -next_use(batches, row, step, step + ahead), resident.sequence
            if policy == "lfu":
                return resident.count, resident.sequence
            if policy == "dataset":
                return -row, 0
            return resident.sequence, 0

        candidates = sorted(evictable(after), key=keep)
        victims = candidates if policy == "static" else candidates[: max(need, 0)]
        if victims:
            uses = [next_use(batches, row, step, step + ahead) for row in victims]
            item.reach = min((use - step for use in uses if use < NEVER), default=0)
        for row in victims:
            if not residents.pop(row).is_clean:
                item.write_backs.add(row)
        for row in missing:
            residents[row] = Resident(last_use=step)
            item.fetches[row] = row not in used
        for t in range(step, stop):
            for i, row in enumerate(batches[t]):
                sequence += 1
                used.add(row)
                resident = residents[row]
                resident.last_use = t
                resident.sequence = sequence
                resident.is_clean = False
                resident.count += lookups[t][i] if lookups else 1
            if t == 0:
                for rank, row in enumerate(warm or []):
                    if row not in residents and len(residents) < num_slots:
                        residents[row] = Resident(sequence=-1 - rank)
                        item.fetches[row] = row not in used
                    if row in residents:
                        residents[row].is_pinned = policy == "static"
                        residents[row].count += warm_counts[rank] if warm_counts else 0
        step = stop
    return items, {row for row, resident in residents.items() if not resident.is_clean}


@dataclass
class Parts:
    """One step of StepPlans in plain lists."""

    slots: list[int]
    fetches: list[tuple[int, int, bool]]
    write_backs: list[tuple[int, int]]
    after: int
    is_shortened: bool
    is_split: bool


def parts_of(plans: StepPlans) -> list[Parts]:
    parts = []
    for i in range(plans.num_steps):
        fetched = slice(*plans.fetch_offsets[i : i + 2].tolist())
        gone = slice(*plans.write_back_offsets[i : i + 2].tolist())
        parts.append(
            Parts(
                plans.slots[plans.offsets[i] : plans.offsets[i + 1]].tolist(),
                list(
                    zip(
                        plans.fetch_rows[fetched].tolist(),
                        plans.fetch_slots[fetched].tolist(),
                        plans.fetch_is_first[fetched].tolist(),
                        strict=True,
                    )
                ),
                list(
                    zip(
                        plans.write_back_rows[gone].tolist(),
                        plans.write_back_slots[gone].tolist(),
                        strict=True,
                    )
                ),
                int(plans.after[i]),
                bool(plans.is_shortened[i]),
                bool(plans.is_split[i]),
            )
        )
    return parts


def as_item(parts: Parts) -> Item:
    fetches = {row: is_first for row, _, is_first in parts.fetches}
    assert len(fetches) == len(parts.fetches), "a row is fetched twice"
    return Item(fetches, {row for row, _ in parts.write_backs}, parts.after, parts.is_shortened)


class WrongPlanError(AssertionError):
    """A plan read a stale row, or did what cannot be done."""


class PlanMachine:
    """Runs items and computations as concurrent events, in any order that the rules of the stream allow.

    Every copy is an event of its own: write-backs (out of a slot) and fetches (into a slot).
    A row's value is the number of updates it has seen, so that a stale read shows as a wrong number.
    """

    def __init__(self, batches: list[list[int]], plans: list[Parts], num_slots: int, seed: int) -> None:
        self.batches = batches
        self.plans = plans
        self.random = random.Random(seed)
        self.slow: dict[int, int] = {}
        self.slots: list[tuple[int, int] | None] = [None] * num_slots
        self.updates: dict[int, int] = {}
        self.outs = [list(plan.write_backs) for plan in plans]
        self.ins = [[] if plan.is_split else list(plan.fetches) for plan in plans]
        self.computed = -1

    def run(self, residents: Residents) -> None:
        """Run everything, then the last item; raises WrongPlanError."""
        while events := self.possible():
            self.do(*self.random.choice(events))
        if self.computed != len(self.plans) - 1:
            raise WrongPlanError(f"nothing can happen after compute({self.computed})")
        for row, slot in zip(residents.rows.tolist(), residents.slots.tolist(), strict=True):
            self.write_back(row, slot)
        if self.slow != self.updates:
            raise WrongPlanError("an update was never written back")

    def possible(self) -> list[tuple[str, int]]:
        events: list[tuple[str, int]] = []
        # Item t starts when all before it are done, and compute(after) is.
        for t, plan in enumerate(self.plans):
            if plan.after > self.computed:
                break
            if self.outs[t] or self.ins[t]:
                events.append(("out" if self.outs[t] else "in", t))
                break
        t = self.computed + 1
        if t < len(self.plans) and started_up_to(self, t):
            if not any(self.outs[i] or self.ins[i] for i in range(t + 1)):
                events.append(("compute", t))
        return events

    def do(self, what: str, t: int) -> None:
        if what == "out":
            moves = self.outs[t]
            self.write_back(*moves.pop(self.random.randrange(len(moves))))
        elif what == "in":
            fetches = self.ins[t]
            row, slot, is_first = fetches.pop(self.random.randrange(len(fetches)))
            if self.slots[slot] is not None:
                # A row that was never updated may be overwritten where it stands: it is not written back.
                held, version = self.slots[slot] or (0, 0)
                if version != self.slow.get(held, 0):
                    raise WrongPlanError(f"item {t} fetches {row} over {held}")
            if is_first and self.updates.get(row, 0):
                raise WrongPlanError(f"item {t} initializes {row}, which was updated before")
            self.slots[slot] = (row, self.slow.get(row, 0))
        else:
            self.compute(t)

    def write_back(self, row: int, slot: int) -> None:
        held = self.slots[slot]
        if held is None or held[0] != row:
            raise WrongPlanError(f"slot {slot} does not hold {row}")
        self.slow[row] = held[1]
        self.slots[slot] = None

    def compute_in_passes(self, t: int) -> None:
        if any(held and held[1] != self.slow.get(held[0], 0) for held in self.slots):
            raise WrongPlanError(f"slots are taken while step {t} runs in passes")
        self.slots = [None] * len(self.slots)
        for row, _, is_first in self.plans[t].fetches:
            if self.slow.get(row, 0) != self.updates.get(row, 0) or (is_first and row in self.updates):
                raise WrongPlanError(f"step {t} reads a stale {row}")
            self.updates[row] = self.slow[row] = self.updates.get(row, 0) + 1

    def compute(self, t: int) -> None:
        if self.plans[t].is_split:
            self.compute_in_passes(t)
            self.computed = t
            return
        if len(set(self.plans[t].slots)) != len(self.batches[t]):
            raise WrongPlanError(f"step {t} has two rows in a slot")
        for row, slot in zip(self.batches[t], self.plans[t].slots, strict=True):
            if self.slots[slot] != (row, self.updates.get(row, 0)):
                raise WrongPlanError(f"step {t} reads {self.slots[slot]} for {row}")
            self.updates[row] = self.updates.get(row, 0) + 1
            self.slots[slot] = (row, self.updates[row])
        self.computed = t


def started_up_to(machine: PlanMachine, t: int) -> bool:
    return all(plan.after <= machine.computed for plan in machine.plans[: t + 1])


def num_warm(num_slots: int, ratio: float) -> int:
    return math.ceil(num_slots * ratio)
