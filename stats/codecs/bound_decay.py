"""How bounds are looser at first: the factor by which the bound of `bounded` is multiplied in each step.

With ``u`` the share of the early steps that are done, from 0 to 1, the factor falls from 2 to 1:

    constant   2
    linear     2 - u
    log        2 - ln(1 + u (e - 1))
    step       2 - floor(10 u) / 10

and is 1 from the end of the early steps on.

Source:
    The four schedules of Feng et al., SC'24, arXiv 2407.04272, with their constant of 2. Theirs end after
    65,536 steps, of a run of 306,969.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

BoundDecay = Literal["none", "constant", "linear", "log", "step"]
BOUND_DECAYS: tuple[str, ...] = get_args(BoundDecay)
_FACTOR = 2.0


def bound_factor(decay: BoundDecay, step: int, early_steps: int) -> float:
    """Return the factor of the bound in a step, counted from 0.

    Args:
        decay: one of `BOUND_DECAYS`; none is 1 throughout.
        step: of the run.
        early_steps: steps in which the factor is above 1.
    """
    if decay == "none" or step >= early_steps:
        return 1.0
    done = step / early_steps
    if decay == "linear":
        return _FACTOR - done * (_FACTOR - 1)
    if decay == "log":
        return 1 + (_FACTOR - 1) * (1 - math.log(1 + done * (math.e - 1)))
    if decay == "step":
        # Tenths of the early steps are counted in whole numbers, so rounding moves no step.
        return _FACTOR - 10 * step // early_steps * (_FACTOR - 1) / 10
    return _FACTOR
