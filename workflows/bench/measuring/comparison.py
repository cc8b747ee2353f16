"""A kernel beside its reference implementation and beside what bounds it, in CPU seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """A kernel and the reference implementation that it is compared with."""

    name: str
    about: str
    """Description of the reference."""
    kernel: Callable[[], object]
    num_lookups: int
    """Lookups that ``kernel`` processes."""
    reference: Callable[[], object]
    num_reference_lookups: int
    """Lookups that ``reference`` processes."""
    bound: Callable[[], object] | None = None
    """A part of what the kernel does that no kernel could do without, for as many lookups."""

    def seconds(self) -> tuple[float, float, float]:
        """Return the CPU seconds of the kernel, of the reference and of the bound, 0 where there is none."""
        bound = cpu_seconds(self.bound) if self.bound is not None else 0.0
        return cpu_seconds(self.kernel), cpu_seconds(self.reference), bound

    def describe(self, rounds: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
        """Return speeds by the least seconds of all rounds, since other work can only add time."""
        kernel, reference, bound = (min(seconds) for seconds in zip(*rounds, strict=True))
        kernel_speed = self.num_lookups / kernel
        reference_speed = self.num_reference_lookups / reference
        # "plain" is the reference; published result files have these keys.
        found = {
            "lookups_per_second": kernel_speed,
            "plain_lookups_per_second": reference_speed,
            "ratio": kernel_speed / reference_speed,
            "plain": self.about,
        }
        if self.bound is not None:
            found |= {"bound_lookups_per_second": self.num_lookups / bound, "times_bound": kernel / bound}
        return found


def cpu_seconds(function: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    before = time.process_time()
    function()
    return max(time.process_time() - before, 1e-9)
