"""Options from dataclasses: one option per field, with the field's docstring as help and its default.

tyro does the work; this module sets how sizes are written, that no option has a prefix, and that a wrong
option ends in exit status 2. How the help reads is in `option_help`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, cast

import tyro

from ..pipeline.errors import ConfigError, HotsetError
from ..pipeline.schema.feature_settings import (
    FeatureSettings,
    format_feature_settings,
    parse_feature_settings,
)
from ..pipeline.sizes import ByteSize, format_byte_size, parse_byte_size
from ..train.options.interval import Interval, parse_interval
from .console import say_error, set_verbosity
from .option_errors import UsageError, usage_errors
from .option_help import InvalidOptionsError, describe_dataclass, without_none
from .option_list import Option, list_options

T = TypeVar("T")

_MARKERS = (
    tyro.conf.OmitArgPrefixes,
    tyro.conf.OmitSubcommandPrefixes,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.HelptextFromCommentsOff,
)
_PARSERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    Path: Path,
    ByteSize: parse_byte_size,
    Interval: parse_interval,
}
_WIDTHS = tuple[int, ...]
"""Numbers in one word, ``512,256``, where an option may be left out; ``none`` for none."""
_registry = tyro.constructors.ConstructorRegistry()
_registry.struct_rule(describe_dataclass)

Dir = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
"""The folder of all stages, the first argument of most commands."""
RecipeFile = Annotated[
    Union[None, Path],  # noqa: RUF036, UP007  (as `option_help` has it, for a quick start)
    tyro.conf.arg(name="recipe", metavar="FILE", help_behavior_hint=""),
]
"""A recipe file, which `recipe_file.with_recipe` takes out of the arguments before they are parsed."""


@_registry.primitive_rule
def _byte_size_rule(
    type_info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[ByteSize] | None:
    if type_info.type is not ByteSize:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="SIZE",
        instance_from_str=lambda texts: parse_byte_size(texts[0]),
        is_instance=lambda instance: isinstance(instance, ByteSize),
        str_from_instance=lambda instance: [format_byte_size(instance).replace(" ", "")],
    )


@_registry.primitive_rule
def _interval_rule(
    type_info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Interval] | None:
    if type_info.type is not Interval:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="STEPS|TIME",
        instance_from_str=lambda texts: parse_interval(texts[0]),
        is_instance=lambda instance: isinstance(instance, Interval),
        str_from_instance=lambda instance: [str(instance)],
    )


@_registry.primitive_rule
def _optional_rule(
    type_info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    # tyro tries None first for ``X | None`` and reports both failures; a user never writes None.
    # An option that may be absent is parsed like the value that it has otherwise.
    inner = without_none(type_info.type)
    parse = _PARSERS.get(inner) if inner is not type_info.type else None
    if parse is None:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="VALUE",  # the field sets its own
        instance_from_str=lambda texts: parse(texts[0]),
        is_instance=lambda instance: instance is None or isinstance(instance, inner),
        str_from_instance=lambda instance: [str(instance)],
    )


@_registry.primitive_rule
def _optional_widths_rule(
    type_info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[tuple[int, ...] | None] | None:
    # Widths are one word on the command line, whereas tyro would take several.
    inner = without_none(type_info.type)
    if inner is type_info.type or inner != _WIDTHS:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT,...",
        instance_from_str=lambda texts: parse_widths(texts[0]),
        is_instance=lambda instance: instance is None or isinstance(instance, tuple),
        str_from_instance=lambda instance: [",".join(map(str, instance or ())) or "none"],
    )


def parse_widths(text: str) -> tuple[int, ...]:
    """Parse ``512,256``, ``none`` for no number; raises ConfigError on anything else."""
    words = [] if text == "none" else text.split(",")
    for word in words:
        if not (word.isascii() and word.isdigit()):
            raise ConfigError(
                f"found {text!r}, want whole numbers with commas between them",
                hint="write them like 512,256, or none for an empty list",
            )
    return tuple(map(int, words))


@_registry.primitive_rule
def _feature_settings_rule(
    type_info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[FeatureSettings] | None:
    if type_info.type is not FeatureSettings:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="FEATURE=N,...",
        instance_from_str=lambda texts: parse_feature_settings(texts[0]),
        is_instance=lambda instance: isinstance(instance, FeatureSettings),
        str_from_instance=lambda instance: [format_feature_settings(instance)],
    )


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options of every command."""

    quiet: Annotated[bool, tyro.conf.arg(aliases=["-q"], help_behavior_hint="")] = False
    """Show only errors and warnings."""

    verbose: Annotated[bool, tyro.conf.arg(aliases=["-v"], help_behavior_hint="")] = False
    """Report details: what each stage finds and decides, and where in the code an error was raised."""


def parse_options(
    kind: type[T], arguments: Sequence[str], *, command: str, description: str, default: T | None = None
) -> T:
    """Parse command-line arguments into an instance of the dataclass ``kind``.

    Args:
        kind: one option per field.
        arguments: what follows the name of the command.
        command: the name, for the help.
        description: what the command does, for the help.
        default: an instance whose values are the defaults; its fields may be ``tyro.MISSING``.

    Raises:
        SystemExit: 0 after ``--help``; 2 for an unknown option, a malformed value, or values that ``kind``
            refuses.
    """
    # Completion and recipes ask for the options themselves; nothing is parsed then.
    full = _with_common_options(kind)
    if _Asked.is_open:
        raise _Asked(list_options(full, full(**_values_of(default)) if default is not None else None))
    default = full(**_values_of(default)) if default is not None else None
    try:
        with _registry, usage_errors(command, lambda: list_options(full, default)):
            parsed = tyro.cli(
                full,
                prog=f"hotset {command}",
                description=description,
                args=list(arguments),
                default=default,
                config=_MARKERS,
                console_outputs=True,
            )
    # A value of the right type that the config refuses: the message names the option instead of the field.
    except InvalidOptionsError as error:
        cause = cast(HotsetError, error.__cause__)
        message = _with_option_name(str(cause), kind)
        say_error(message, cause.hint or f"hotset {command} --help explains the options")
        raise SystemExit(2) from error
    except UsageError as error:
        say_error(str(error), error.hint)
        raise SystemExit(2) from error
    set_verbosity(quiet=parsed.quiet, verbose=parsed.verbose)
    return cast(T, parsed)


def find_options(arguments: Sequence[str], *names: str) -> tuple[dict[str, str], list[str]]:
    """Take the options out of ``arguments`` that decide the defaults of the others.

    Returns:
        The values of those of ``names`` (``"--schema"``) that are given, and the arguments without them.
        Where one lacks its value, all arguments come back for `parse_options` to refuse.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in names:
        parser.add_argument(name, dest=name, default=argparse.SUPPRESS)
    try:
        found, others = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError:
        return {}, list(arguments)
    return vars(found), others


def command_options(config: type, more: type) -> type[Any]:
    """Return a dataclass with the fields of ``config`` first and those of ``more`` behind them."""
    name = config.__name__.removesuffix("Config") + "Command"
    return dataclass(frozen=True, kw_only=True)(type(name, (more, config), {"__doc__": more.__doc__}))


def config_of(kind: type[T], options: Any) -> T:
    """Return the config of type ``kind`` whose fields are among those of ``options``."""
    return kind(**{field.name: getattr(options, field.name) for field in fields(cast(Any, kind))})


class _Asked(BaseException):
    """Carries the options of a command to `options_of`, past whatever the command would do with them."""

    is_open = False

    def __init__(self, options: list[Option]) -> None:
        super().__init__()
        self.options = options


def options_of(run: Callable[[], object]) -> list[Option]:
    """Return the options of the command that ``run`` starts, which ends where it would parse them."""
    _Asked.is_open = True
    try:
        run()
    except _Asked as asked:
        return asked.options
    finally:
        _Asked.is_open = False
    return []


def _with_common_options(kind: type) -> type[Any]:
    """Return ``kind`` with the options of every command behind its own."""
    return dataclass(frozen=True, kw_only=True)(type(kind.__name__, (CommonOptions, kind), {}))


def _values_of(instance: Any) -> dict[str, Any]:
    return {field.name: getattr(instance, field.name) for field in fields(instance)}


def _with_option_name(message: str, kind: type) -> str:
    """Return a message that begins with a field's name with the name of its option instead."""
    # Configs name their fields as Python does; fields of nested configs are options without a prefix.
    first, space, rest = message.partition(" ")
    names = {field.name for field in fields(cast(Any, kind))}
    for field in fields(cast(Any, kind)):
        if is_dataclass(field.default_factory):
            names |= {inner.name for inner in fields(cast(Any, field.default_factory))}
    return f"--{first.replace('_', '-')}{space}{rest}" if first in names else message
