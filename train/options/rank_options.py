"""Whether this process is one of several ranks, and how long it waits for them. Imports nothing heavy."""

from __future__ import annotations

import os

from ...pipeline.errors import ConfigError

TIMEOUT_VARIABLE = "HOTSET_RANK_TIMEOUT"
MOST_SECONDS = 86_400


def rank_timeout() -> float:
    """Return the seconds that a rank waits for another before it stops the run.

    Raises:
        ConfigError: the environment variable that sets them is no such number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE) or "60"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST_SECONDS:
        raise ConfigError(
            f"the environment variable {TIMEOUT_VARIABLE} is {text!r}, want seconds, at most {MOST_SECONDS}"
        )
    return seconds


def is_launched() -> bool:
    """Whether this process was started as one of several ranks.

    Raises:
        ConfigError: the launcher's number of ranks is none.
    """
    number = os.environ.get("WORLD_SIZE") or "1"
    if not number.isdecimal():
        raise ConfigError(f"the environment variable WORLD_SIZE is {number!r}, want the number of ranks")
    return int(number) > 1


def is_first() -> bool:
    """Whether this process speaks for the run: it is alone, or rank 0."""
    return not is_launched() or os.environ.get("RANK") == "0"
