"""How often something happens: every so many steps, or every so many seconds. Imports little."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from ...pipeline.errors import ConfigError

_SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}
_HINT = "write steps as 500, a time as 30s, 10min or 2h, or off"


@dataclass(frozen=True, slots=True)
class Interval:
    """Every so many steps, every so many seconds, or never."""

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        if self.steps is not None:
            return str(self.steps)
        if self.seconds is None:
            return "off"
        for unit, seconds in (("h", 3600.0), ("min", 60.0)):
            if self.seconds % seconds == 0:
                return f"{self.seconds / seconds:g}{unit}"
        return f"{self.seconds:g}s"

    @property
    def is_off(self) -> bool:
        return self.steps is None and self.seconds is None

    def is_due(self, steps: int, seconds: float) -> bool:
        """Whether it is over, so many steps and seconds after the last time."""
        if self.steps is not None:
            return steps >= self.steps
        return self.seconds is not None and seconds >= self.seconds and steps > 0


def parse_interval(text: str) -> Interval:
    """Parse ``"500"`` as 500 steps and ``"10min"`` as 600 seconds; ``"off"`` is never.

    Raises:
        ConfigError: it is anything else, or not above 0.
    """
    # A number is of steps, a number with a unit of time.
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text)
    if text.strip() == "off":
        return Interval()
    if match is None or (match[2] and match[2] not in _SECONDS) or (not match[2] and "." in match[1]):
        raise ConfigError(f"not a number of steps or a time: {text!r}", hint=_HINT)
    # Never is said by a word, so a 0 is a slip.
    if float(match[1]) == 0:
        raise ConfigError(f"{text!r} must be above 0", hint=_HINT)
    if match[2]:
        return Interval(seconds=float(match[1]) * _SECONDS[match[2]])
    return Interval(steps=int(match[1]))


def is_time(text: str) -> bool:
    """Return whether ``text`` is a time above 0, and not a number of steps."""
    with suppress(ConfigError):
        return parse_interval(text).seconds is not None
    return False
