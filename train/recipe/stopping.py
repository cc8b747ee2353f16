"""When a run stops, and which of its evaluations is the best one.

Decided by evaluations of the validation part alone, never by the test part. Its state is plain JSON and part
of a checkpoint (see `checkpoints.run_state.Resumable`), so a resumed run stops where the unbroken one does;
only a limit of time depends on the machine, and does not count the time between two processes of a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ..metrics.scores import Scores
from ..options.interval import parse_interval
from ..options.recipe_options import RecipeOptions


class Stopping:
    """Watches the steps and evaluations of a run.

    Args:
        options: limits, patience and target.
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, options: RecipeOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._start = clock()
        self._most_seconds = None if options.max_time is None else parse_interval(options.max_time).seconds
        self.best_score: float | None = None
        """The best score so far: AUC, or log loss with its sign turned."""
        self.best_step: int | None = None
        """Steps before the evaluation that had it."""
        self.num_without_progress = 0
        """Evaluations since."""
        self.num_reductions = 0
        """How often the schedule plateau has lowered the learning rates."""
        self.reason: str | None = None
        """Why training stops before its last step; None while it continues."""

    @property
    def seconds(self) -> float:
        """Seconds of the run so far, evaluations and earlier processes included."""
        return self._clock() - self._start

    @property
    def is_time_over(self) -> bool:
        """Whether the limit of time has passed, by the clock of this process."""
        return self._most_seconds is not None and self.seconds >= self._most_seconds

    def note_step(self, step: int, *, is_time_over: bool) -> None:
        """Take note of a step, with the number of those so far, and of the limit of time."""
        if self._options.max_steps is not None and step >= self._options.max_steps:
            self.reason = self.reason or f"--max-steps {self._options.max_steps}"
        if is_time_over:
            self.reason = self.reason or f"--max-time {self._options.max_time}"

    def note_evaluation(self, step: int, scores: Scores) -> bool:
        """Take note of an evaluation of the validation part; return whether it is the best so far."""
        options = self._options
        score = scores.auc if options.best_by == "auc" else scores.log_loss
        # Without a score, as where all labels are equal, nothing is decided.
        if score is None:
            return False
        score = score if options.best_by == "auc" else -score
        is_best = self.best_score is None or score > self.best_score
        if is_best:
            self.best_score = score
            self.best_step = step
            self.num_without_progress = 0
        else:
            self.num_without_progress += 1
            self.num_reductions += self.num_without_progress % options.plateau_patience == 0
        # The first reason found is kept: an evaluation may give several.
        if options.stop_at_auc is not None and scores.auc is not None and scores.auc >= options.stop_at_auc:
            reached = f"AUC {scores.auc:.6f} has reached --stop-at-auc {options.stop_at_auc}"
            self.reason = self.reason or reached
        if options.patience is not None and self.num_without_progress >= options.patience:
            self.reason = self.reason or (
                f"{self.num_without_progress} evaluations without progress (--patience {options.patience})"
            )
        return is_best

    def state(self) -> Mapping[str, Any]:
        """Return what `restore` takes."""
        return {
            "best_score": self.best_score,
            "best_step": self.best_step,
            "num_without_progress": self.num_without_progress,
            "num_reductions": self.num_reductions,
            "reason": self.reason,
            "seconds": self.seconds,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; raises ValueError where it is none."""
        kinds = {
            "best_score": (float, type(None)),
            "best_step": (int, type(None)),
            "num_without_progress": (int,),
            "num_reductions": (int,),
            "reason": (str, type(None)),
        }
        # Types are checked before anything is set, so that a damaged state changes nothing.
        for name, allowed in (kinds | {"seconds": (float,)}).items():
            if type(state[name]) not in allowed:
                raise ValueError(f"{name} is {state[name]!r}")
        for name in kinds:
            setattr(self, name, state[name])
        self._start = self._clock() - state["seconds"]
