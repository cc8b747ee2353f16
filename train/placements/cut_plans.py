"""Step plans of an epoch from a later step on, for a run that is resumed there with nothing staged.

What would be in slots at that step is loaded by its transfer, which writes nothing back; everything else
stays as it was planned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.staging.step_plans import Residents, StepPlans

_LISTS = {
    "slots": "offsets",
    "fetch_rows": "fetch_offsets",
    "fetch_slots": "fetch_offsets",
    "fetch_is_first": "fetch_offsets",
    "write_back_rows": "write_back_offsets",
    "write_back_slots": "write_back_offsets",
}
"""Arrays with several entries a step, and the one that says where those of each step begin."""
NO_RESIDENTS = Residents(np.empty(0, np.int32), np.empty(0, np.int32))


def steps_of(plans: StepPlans, first: int, stop: int) -> StepPlans:
    """Return the plans of steps ``first`` to ``stop - 1`` of ``plans``, by their positions in it."""
    parts: dict[str, Any] = {"first_step": plans.first_step + first}
    for field in fields(StepPlans):
        name = field.name
        if name == "first_step":
            continue
        # Three kinds of arrays: lists of all steps, the offsets that cut them, and one value for each step.
        values = getattr(plans, name)
        if name in _LISTS:
            offsets = getattr(plans, _LISTS[name])
            parts[name] = values[offsets[first] : offsets[stop]]
        elif name in _LISTS.values():
            parts[name] = values[first : stop + 1] - values[first]
        else:
            parts[name] = values[first:stop]
    return StepPlans(**parts)


def renumbered(plans: StepPlans, first_step: int) -> StepPlans:
    """Return plans whose steps are numbered from the step ``first_step``, which becomes step 0."""
    return replace(
        plans,
        first_step=plans.first_step - first_step,
        after=np.maximum(plans.after - first_step, -1),
        waits_for=np.maximum(plans.waits_for - first_step, -1),
    )


def with_residents(plans: StepPlans, residents: Residents) -> StepPlans:
    """Let the first step of ``plans`` load what was in slots before it, rather than write it back.

    Args:
        plans: those of one step at least, the first of an epoch that is run from here on.
        residents: rows in slots before it, and not on the slow tier alone.
    """
    # What would be written back and is there anyway needs neither.
    written_N = plans.write_back_slots[: plans.write_back_offsets[1]]
    is_kept_N = ~np.isin(residents.slots, written_N)
    rows_N, slots_N = residents.rows[is_kept_N], residents.slots[is_kept_N]
    # Nothing stays in its slot where the step runs in passes, so nothing is added to what it loads there.
    end = int(plans.fetch_offsets[1])

    def joined(own: NDArray[Any], more: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([own[:end], more.astype(own.dtype), own[end:]])

    fetch_offsets = plans.fetch_offsets.copy()
    fetch_offsets[1:] += rows_N.size
    write_back_offsets = plans.write_back_offsets - written_N.size
    write_back_offsets[0] = 0
    return replace(
        plans,
        fetch_offsets=fetch_offsets,
        fetch_rows=joined(plans.fetch_rows, rows_N),
        fetch_slots=joined(plans.fetch_slots, slots_N),
        fetch_is_first=joined(plans.fetch_is_first, np.zeros(rows_N.size, np.bool_)),
        write_back_offsets=write_back_offsets,
        write_back_rows=plans.write_back_rows[written_N.size :],
        write_back_slots=plans.write_back_slots[written_N.size :],
    )


def from_step(chunks: Iterable[StepPlans], first_step: int) -> list[StepPlans]:
    """Return the plans of an epoch from a step on, which becomes step 0, in chunks as they were."""
    left = []
    for plans in chunks:
        num_done = min(max(first_step - plans.first_step, 0), plans.num_steps)
        if num_done < plans.num_steps:
            left.append(renumbered(steps_of(plans, num_done, plans.num_steps), first_step))
    return left


def up_to_step(chunks: Iterable[StepPlans], stop: int) -> list[StepPlans]:
    """Return the plans of an epoch before a step."""
    counts = ((plans, min(max(stop - plans.first_step, 0), plans.num_steps)) for plans in chunks)
    return [steps_of(plans, 0, count) for plans, count in counts if count]
