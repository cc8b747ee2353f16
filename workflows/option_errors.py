"""Wrong usage as one ``error:`` line and one ``hint:`` line, instead of the boxes that tyro draws.

tyro tells what was wrong through a hook that is not part of its stable interface (`tyro._errors`,
constraints.txt names the version that is tested). Where another version lacks the hook or what is read from
it here, tyro's own boxes appear: uglier, but with the same exit status 2.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..pipeline.errors import HotsetError
from .option_list import Option, synopsis

_NUMBERS = {
    "invalid literal for int()": "is not a whole number",
    "could not convert string to float": "is not a number",
}
"""How Python reports a text that is no number, and how it is said to a user."""


class UsageError(Exception):
    """A command line that cannot be parsed. Not a ValueError: tyro would catch it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@contextmanager
def usage_errors(command: str, list_options: Callable[[], Sequence[Option]]) -> Iterator[None]:
    """Raise UsageError in this block where tyro would print a box and exit.

    Args:
        list_options: returns the options of the command; asked for an error only.
    """
    try:
        from tyro import _errors as tyro_errors
    except ImportError:
        yield
        return

    def explain(event: object) -> None:
        # An event that has changed its shape is left to tyro.
        with suppress(AttributeError, IndexError, TypeError):
            error = _explain(type(event).__name__, event, command, list_options())
            if error is not None:
                raise error

    with tyro_errors.on_parse_error(explain):
        yield


def _explain(kind: str, event: Any, command: str, options: Sequence[Option]) -> UsageError | None:
    """Return the error for an event of tyro; None for one that is not known here."""
    if kind == "UnrecognizedArgs":
        return _unknown(event.tokens, command, options)
    # A mistyped option is what the user has to fix where a required one seems to be missing because of it.
    if kind == "MissingArgs" and any(token.startswith("-") for token in event.unrecognized_tokens):
        return _unknown(event.unrecognized_tokens, command, options)
    if kind == "MissingArgs":
        names = [_name_of(entry.arg) for entry in event.missing_arguments]
        missing = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        verb = "is" if len(event.missing_arguments) == 1 else "are"
        return UsageError(f"{missing} {verb} missing", f"{synopsis(command, options)} ({_help(command)})")
    if kind == "InvalidChoice":
        name = _name_of(event.argument)
        # An option that may be left out has None among its choices, which is no word for a command line.
        choices = ", ".join(choice for choice in event.choices if choice != "None")
        message = f"{name} must be one of {choices}, got {event.value!r}"
        near = difflib.get_close_matches(event.value, event.choices, n=1, cutoff=0.5)
        typed = f"hotset {command}" if event.argument.is_positional() else name
        return UsageError(message, f"{typed} {near[0]}" if near else _help(command))
    if kind == "BadValue":
        name = _name_of(event.argument)
        found = f"{name} takes no value, got {event.offending_value!r}"
        return UsageError(found if event.offending_value else f"{name} needs a value", _help(command))
    if kind == "InstantiationFailure" and event.argument is not None:
        # tyro calls the hook while it handles the error of the value, which may carry a hint of its own.
        cause = getattr(sys.exception(), "__context__", None)
        hint = cause.hint if isinstance(cause, HotsetError) else None
        return UsageError(f"{_name_of(event.argument)}: {_plain(str(event.message))}", hint or _help(command))
    return None


def _unknown(tokens: Sequence[str], command: str, options: Sequence[Option]) -> UsageError:
    """Return the error for arguments that the command does not have, with the option that is most like it."""
    dashed = [token.partition("=")[0] for token in tokens if token.startswith("-")]
    if not dashed:
        return UsageError(f"hotset {command} takes no argument {tokens[0]!r}", synopsis(command, options))
    # Compared without the dashes, which all of them have in common.
    named = {option.name.lstrip("-"): option for option in options if not option.is_positional}
    near = difflib.get_close_matches(dashed[0].lstrip("-").replace("_", "-"), named, n=1)
    message = f"hotset {command} has no option {dashed[0]}"
    if not near:
        return UsageError(message, _help(command))
    option = named[near[0]]
    return UsageError(message, f"{option.name}: {option.summary}" if option.summary else option.name)


def _name_of(argument: Any) -> str:
    """Return an argument as it is typed, a positional one by its name in the help."""
    names = argument.lowered.name_or_flags
    is_positional = argument.is_positional() or not names[-1].startswith("-")
    return str(argument.lowered.metavar if is_positional else names[-1])


def _plain(message: str) -> str:
    """Return Python's message about a number in a user's words, any other as it is."""
    for sign, words in _NUMBERS.items():
        if message.startswith(sign):
            return f"{message.split(': ', 1)[-1]} {words}"
    return message


def _help(command: str) -> str:
    return f"hotset {command} --help explains the options"
