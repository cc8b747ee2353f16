"""The options of a command as plain records, read from its dataclass without parsing anything.

Messages about a wrong option and shell completion both need to know which options there are; neither needs
the parser.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from .option_help import HELP, as_sentences, field_docstrings, without_none

OFFERED = "offered"
"""Key of a field's metadata for names that completion offers, where other values are accepted, too."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option, or one positional argument, of a command."""

    name: str
    """The option as it is typed, ``--hot-bytes``; a positional argument's name in the help, ``DIR``."""

    summary: str
    """First sentence of its help, without the full stop."""

    takes_value: bool
    """Whether a value follows; always of a positional argument."""

    is_required: bool
    """Whether the command refuses to run without it."""

    is_path: bool
    """Whether its value is a file or a folder."""

    choices: tuple[str, ...]
    """The values it accepts, or the names among them that completion offers; empty where there are none."""

    @property
    def is_positional(self) -> bool:
        """Whether it is typed without a name."""
        return not self.name.startswith("-")


def list_options(kind: type, default: Any = None) -> list[Option]:
    """Return the options of the dataclass ``kind``, those of configs inside it too, positional ones first.

    Args:
        default: an instance whose values are the defaults; None takes those of ``kind``.
    """
    docstrings = field_docstrings(kind)
    hints = get_type_hints(kind, include_extras=True)
    found: list[Option] = []
    for field in dataclasses.fields(kind):
        value = _default_of(field, default)
        inner, is_positional, metavar = _unwrap(hints[field.name])
        # A config inside the command has options of its own, in the place of the field.
        if dataclasses.is_dataclass(inner):
            found += list_options(_class_of(inner), value)
            continue
        flag = _name_given(hints[field.name]) or field.name.replace("_", "-")
        is_switch = inner is bool
        # A switch that is on by default is typed to turn it off.
        dashed = f"--no-{flag}" if is_switch and value is True else f"--{flag}"
        text = as_sentences(field.metadata.get(HELP) or docstrings.get(field.name, ""))
        leaf = _leaf(inner)
        offered: tuple[str, ...] = tuple(field.metadata.get(OFFERED, ()))
        found.append(
            Option(
                name=(metavar or flag.upper()) if is_positional else dashed,
                summary=text.split(". ")[0].removesuffix("."),
                takes_value=not is_switch,
                is_required=value is dataclasses.MISSING or value is tyro.MISSING,
                is_path=leaf is Path,
                choices=tuple(map(str, get_args(leaf))) if get_origin(leaf) is Literal else offered,
            )
        )
    return sorted(found, key=lambda option: not option.is_positional)


def synopsis(command: str, options: Sequence[Option]) -> str:
    """Return what has to be typed at least: ``hotset train DIR --out OUT``."""
    words = [f"hotset {command}"]
    for option in options:
        if option.is_positional:
            words.append(option.name)
        elif option.is_required:
            words.append(f"{option.name} {option.name.lstrip('-').upper()}")
    return " ".join(words)


def _default_of(field: dataclasses.Field[Any], parent: Any) -> Any:
    if parent is not None:
        return getattr(parent, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _unwrap(kind: Any) -> tuple[Any, bool, str | None]:
    """Return the type without its annotations, whether it is positional, and its name in the help."""
    is_positional = False
    metavar: str | None = None
    while get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        is_positional |= any(note is _POSITIONAL for note in notes)
        metavar = next((note.metavar for note in notes if getattr(note, "metavar", None)), metavar)
    return kind, is_positional, metavar


def _name_given(kind: Any) -> str | None:
    """Return the name that an annotation gives to an option; None where it is that of the field."""
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((note.name for note in notes if getattr(note, "name", None)), None)


def _class_of(kind: Any) -> type:
    assert isinstance(kind, type)
    return kind


def _leaf(kind: Any) -> Any:
    """Return X for ``X | None`` and ``tuple[X, ...]``."""
    inner = without_none(_unwrap(kind)[0])
    return _leaf(get_args(inner)[0]) if get_origin(inner) is tuple else _unwrap(inner)[0]


_POSITIONAL = get_args(tyro.conf.Positional[int])[1]
