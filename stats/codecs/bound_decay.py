"""How bounds are looser at first: the factor by which the bound of `bounded` is multiplied in each step.

With ``u`` the share of the early steps that are done, from 0 to 1, the factor falls linearly, ``2 - u``, and
is 1 from the end of the early steps on.

Source:
    The linear schedule of Feng et al., SC'24, arXiv 2407.04272, with their constant of 2. Theirs ends after
    65,536 steps, of a run of 306,969.
"""

from __future__ import annotations

EARLY_SHARE = 0.2
"""Share of the steps of a run in which bounds are looser."""
_FACTOR = 2.0


def bound_factor(step: int, early_steps: int) -> float:
    """Return the factor of the bound in a step, counted from 0.

    Args:
        step: of the run.
        early_steps: steps in which the factor is above 1.
    """
    if step >= early_steps:
        return 1.0
    return _FACTOR - step / early_steps * (_FACTOR - 1)
