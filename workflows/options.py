"""Build options from dataclasses: one option for each field.

The field's docstring is the help. argparse separates options from values. The type of a field says how its
value is written, so sizes, intervals and lists are read alike by every command, and a wrong value ends in one
error line, a hint and exit status 2.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import functools
import inspect
import operator
import re
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ..pipeline.errors import (
    ByteSize,
    ConfigError,
    HotsetError,
    SizeOrAuto,
    exact_byte_size,
    local_path,
    parse_byte_size,
    parse_size_or_auto,
)
from ..pipeline.schema.schema import FeatureSettings, format_feature_settings, parse_feature_settings
from ..train.config_parts import parse_steps_or_time, parse_widths
from .console import as_sentences, say_error, set_verbosity

T = TypeVar("T")

HELP = "help"
"""Key of a field's metadata for help that differs from its docstring, as that of ``--no-X`` does."""
OFFERED = "offered"
"""Key of a field's metadata for names that completion offers, where other values are accepted, too."""
NO_OPTION = "no_option"
"""Key of a field's metadata for settings that only programs and tests choose."""
REPEATED = "repeated"
"""Key of a field's metadata for an option that is given once for each value, as the help names a value."""
COMMON = "every command"
"""Group of the options that every command has."""
HELP_COLUMN = 26
"""Column in which the help of an option begins."""


@dataclass(frozen=True, slots=True)
class Arg:
    """The form of a field on the command line; empty texts follow from its type and name."""

    metavar: str = ""
    name: str = ""
    is_positional: bool = False


Dir = Annotated[Path, Arg("DIR", is_positional=True)]
"""The folder of all stages, the first argument of most commands."""
RecipeFile = Annotated[Path | None, Arg("FILE", name="recipe")]
"""A recipe file, which `option_texts.with_recipe` takes out of the arguments before they are parsed."""


@dataclass(frozen=True, kw_only=True)
class _CommonOptions:
    quiet: bool = False
    """Leave out all messages except errors and warnings."""

    verbose: bool = False
    """Report details: what each stage finds and decides, and where in the code an error was raised."""


def _number(kind: Callable[[str], Any], noun: str, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a {noun}") from None


_KINDS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    int: ("INT", functools.partial(_number, int, "whole number")),
    float: ("FLOAT", functools.partial(_number, float, "number")),
    str: ("STR", str),
    Path: ("PATH", local_path),
    ByteSize: ("SIZE", parse_byte_size),
    SizeOrAuto: ("SIZE|auto", parse_size_or_auto),
    int | str: ("STEPS|TIME", parse_steps_or_time),
    FeatureSettings: ("FEATURE=N,...", parse_feature_settings),
    tuple[int, ...]: ("INT,...", parse_widths),
}
"""For each type that is written as one word, its name in the help, and its parser."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option, or one positional argument, of a command."""

    field: str
    """Name of the field that it sets."""
    owner: type
    """Dataclass that has the field."""
    name: str
    """The option as it is typed, ``--hot-bytes``; a positional argument's name in the help, ``DIR``."""
    kind: Any
    """Type of one value; bool for a switch."""
    metavar: str
    """Value as the help names it."""
    default: Any
    """Value without the option; `dataclasses.MISSING` where it must be given."""
    is_positional: bool
    is_many: bool
    """Whether several values may follow."""
    group: str
    """Name of the config inside the command that has the field; empty for the command's own."""
    metadata: Mapping[str, Any]

    @property
    def takes_value(self) -> bool:
        return self.kind is not bool

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it accepts, or names that completion offers; empty where there are none."""
        is_closed = get_origin(self.kind) is Literal
        return tuple(map(str, get_args(self.kind) if is_closed else self.metadata.get(OFFERED, ())))

    @property
    def text(self) -> str:
        """The docstring of the field as one line."""
        held = getattr(self.owner, "json_object", "") if self.field == "json" else ""
        if held:
            return f"Print {held} as one JSON object on stdout."
        return as_sentences(self.metadata.get(HELP) or field_docstrings(self.owner).get(self.field, ""))

    @property
    def summary(self) -> str:
        """First sentence of the text, without the full stop."""
        return self.text.split(". ")[0].removesuffix(".")

    @property
    def flags(self) -> tuple[str, ...]:
        """The names that argparse knows it by."""
        if self.is_positional:
            return (self.field,)
        return (f"-{self.field[0]}", self.name) if self.group == COMMON else (self.name,)

    @property
    def nargs(self) -> dict[str, Any]:
        """How many values argparse takes."""
        if not self.takes_value:
            return {"action": "store_true"}
        if self.is_many and REPEATED in self.metadata:
            return {"action": "append"}
        return {"nargs": "+"} if self.is_many else {}

    def parse(self, found: Any) -> Any:
        """Return the value of a word, of several or of a switch; raises ConfigError that names the option."""
        if not self.takes_value:
            return self.name.removeprefix("--no-") != self.field.replace("_", "-")
        return tuple(map(self._parse_word, found)) if self.is_many else self._parse_word(found)

    def _parse_word(self, text: str) -> Any:
        if get_origin(self.kind) is not Literal:
            try:
                return _KINDS[self.kind][1](text)
            except HotsetError as error:
                raise ConfigError(f"{self.name}: {error}", hint=error.hint) from error
        if text not in self.choices:
            near = difflib.get_close_matches(text, self.choices, n=1, cutoff=0.5)
            message = f"{self.name} must be one of {', '.join(self.choices)}, got {text!r}"
            raise ConfigError(message, hint=f"{self.name} {near[0]}" if near else None)
        return text


def list_options(kind: Any, defaults: Mapping[str, Any] | None = None, group: str = "") -> list[Option]:
    """Return the options of the dataclass ``kind`` and of the configs inside it.

    Args:
        defaults: values of some fields, in place of those that ``kind`` gives them.
        group: name of the config that ``kind`` is inside another.
    """
    hints = get_type_hints(kind, include_extras=True)
    found: list[Option] = []
    for field in fields(kind):
        inner, arg = _resolved(hints[field.name])
        default = _default_of(field, defaults or {})
        if is_dataclass(inner) and inner not in _KINDS:
            found += list_options(inner, values_of(default), field.name)
        elif NO_OPTION not in field.metadata:
            is_many = get_origin(inner) is tuple and inner not in _KINDS
            leaf = get_args(inner)[0] if is_many else inner
            metavar = _KINDS.get(leaf, ("{" + ",".join(map(str, get_args(leaf))) + "}",))[0]
            flag = arg.name or field.name.replace("_", "-")
            # A switch that is on by default is typed to turn it off, whatever a folder or a recipe has.
            dashed = f"--no-{flag}" if _default_of(field, {}) is True else f"--{flag}"
            found.append(
                Option(
                    field=field.name,
                    owner=kind,
                    name=arg.metavar if arg.is_positional else dashed,
                    kind=leaf,
                    metavar=(
                        field.metadata.get(REPEATED)
                        or arg.metavar
                        or (metavar if len(metavar) < HELP_COLUMN else "NAME")
                    ),
                    default=default,
                    is_positional=arg.is_positional,
                    is_many=is_many,
                    group=group,
                    metadata=field.metadata,
                )
            )
    # Positional ones are first, and what most commands inherit is last, below what each adds.
    return sorted(found, key=lambda option: (not option.is_positional, option.field == "json"))


def options_of(kind: Any, defaults: Mapping[str, Any] | None = None) -> list[Option]:
    """Return the options of a command, with those that every command has."""
    return list_options(kind, defaults) + list_options(_CommonOptions, group=COMMON)


def _resolved(hint: Any) -> tuple[Any, Arg]:
    """Return a type without its annotation and without None, and what the annotation says."""
    kind, arg = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, Arg())
    if get_origin(kind) in (Union, types.UnionType):
        members = [member for member in get_args(kind) if member is not types.NoneType]
        kind = functools.reduce(operator.or_, members)
    return kind, arg


def _default_of(field: dataclasses.Field[Any], defaults: Mapping[str, Any]) -> Any:
    if field.name in defaults:
        return defaults[field.name]
    return field.default_factory() if field.default_factory is not MISSING else field.default


def parse_options(
    kind: type[T], arguments: Sequence[str], *, command: str, defaults: Mapping[str, Any] | None = None
) -> T:
    """Parse command-line arguments into an instance of the dataclass ``kind``.

    Args:
        kind: one option for each field; its docstring describes the command.
        arguments: what follows the name of the command.
        command: the name, for help and messages.
        defaults: values of some fields, in place of those that ``kind`` gives them.

    Raises:
        SystemExit: 2 for an unknown option, a malformed value, or values that ``kind`` refuses.
    """
    options = options_of(kind, defaults)
    try:
        values = _typed_values(options, command, arguments)
        parsed = _build(kind, defaults or {}, values)
    except HotsetError as error:
        # Configs name their fields as Python does; the message names the option instead.
        first, space, rest = str(error).partition(" ")
        named = next((option.name for option in options if option.field == first), first)
        say_error(f"{named}{space}{rest}", error.hint or f"hotset {command} --help explains the options")
        raise SystemExit(2) from error
    set_verbosity(quiet=values.get("quiet", False), verbose=values.get("verbose", False))
    return cast(T, parsed)


def _typed_values(options: Sequence[Option], command: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values that are typed, by field; raises ConfigError for wrong usage."""
    named = {option.name: option for option in options if not option.is_positional}
    parser = _silent_parser()
    for option in named.values():
        parser.add_argument(*option.flags, dest=option.field, **option.nargs)
    # Only what precedes a bare -- can be an option, whose name may be written with underscores.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    typed = [re.sub("^--[^=]*", lambda name: name[0].replace("_", "-"), word) for word in arguments[:end]]
    try:
        known, others = parser.parse_known_args(typed)
    except argparse.ArgumentError as error:
        name = str(error.argument_name).split("/")[-1]
        if named[name].takes_value:
            raise ConfigError(f"{name} needs a value") from None
        given = next(word for word in typed if word.startswith(f"{name}="))
        raise ConfigError(f"{name} takes no value, got {given.partition('=')[2]!r}") from None
    # The typo is what has to be fixed, not the option that is missing because of it.
    unknown = [word for word in others if word.startswith("-") and len(word) > 1]
    if unknown:
        name = unknown[0].partition("=")[0]
        raise ConfigError(f"hotset {command} has no option {name}", hint=nearest_option(name, command, named))
    found = vars(known)
    words = [*others, *arguments[end + 1 :]]
    for option in options:
        if option.is_positional and words:
            found[option.field], words = (words, []) if option.is_many else (words[0], words[1:])
    if words:
        raise ConfigError(f"hotset {command} takes no argument {words[0]!r}", hint=synopsis(command, options))
    missing = [option.name for option in options if option.is_required and option.field not in found]
    if missing:
        listed = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
        raise ConfigError(
            f"{listed} {'is' if len(missing) == 1 else 'are'} missing",
            hint=f"{synopsis(command, options)} (hotset {command} --help explains the options)",
        )
    return {each.field: each.parse(found[each.field]) for each in options if each.field in found}


def nearest_option(typed: str, command: str, named: Mapping[str, Option]) -> str:
    """Return a hint for an unknown option: the most similar one, or where all are explained."""
    # Compared without the dashes, which all of them have in common.
    names = {name.lstrip("-"): option for name, option in named.items()}
    near = difflib.get_close_matches(typed.lstrip("-"), names, n=1)
    if not near:
        return f"hotset {command} --help explains the options"
    return f"{names[near[0]].name}: {names[near[0]].summary}"


def _build(kind: Any, defaults: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """Return an instance of ``kind``, and of the configs inside it, from the values of single options."""
    hints = get_type_hints(kind)
    built = {}
    for field in fields(kind):
        default = _default_of(field, defaults)
        if is_dataclass(hints[field.name]) and hints[field.name] not in _KINDS:
            built[field.name] = _build(hints[field.name], values_of(default), values)
        else:
            built[field.name] = values.get(field.name, default)
    return kind(**built)


def synopsis(command: str, options: Sequence[Option]) -> str:
    """Return what has to be typed at least: ``hotset train DIR --out OUT``."""
    required = [option for option in options if option.is_positional or option.is_required]
    words = []
    for option in required:
        if option.is_positional:
            name = option.name + "..." * option.is_many
            words.append(name if option.is_required else f"[{name}]")
        else:
            words.append(f"{option.name} {option.name.lstrip('-').upper()}")
    return " ".join([f"hotset {command}", *words])


def find_options(arguments: Sequence[str], *names: str) -> tuple[dict[str, str], list[str]]:
    """Extract the options of ``arguments`` that decide the defaults of the others.

    Returns:
        The values of those of ``names`` (``"--schema"``) that are given, and the arguments without them.
        If one lacks its value, all arguments are returned for `parse_options` to refuse.
    """
    parser = _silent_parser()
    for name in names:
        parser.add_argument(name, dest=name)
    try:
        found, others = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError:
        return {}, list(arguments)
    return vars(found), others


def _silent_parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=argparse.SUPPRESS
    )


def values_of(config: Any) -> dict[str, Any]:
    """Return the fields of a config by name; configs inside it stay as they are."""
    return {field.name: getattr(config, field.name) for field in fields(config)}


@functools.cache
def field_docstrings(kind: Any) -> Mapping[str, str]:
    """Return the string below each field of a dataclass, those it inherits too."""
    found: dict[str, str] = {}
    # From the oldest base on, so that a field that is declared again has its new docstring. Classes without
    # annotations, such as those built by `type`, have no fields and perhaps no source.
    for base in reversed(kind.__mro__):
        if vars(base).get("__annotations__"):
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            for field, below in pairwise(cast(ast.ClassDef, definition).body):
                if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                    found[ast.unparse(field.target)] = ast.literal_eval(below.value)
    return found


def typed(value: Any) -> str:
    """Return a value as it is typed, exactly."""
    if isinstance(value, ByteSize):
        return exact_byte_size(value)
    return format_feature_settings(value) if isinstance(value, FeatureSettings) else str(value)
