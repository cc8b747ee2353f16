"""Options from dataclasses: one option a field, its docstring the help, its default the default.

tyro does the work; this module settles how sizes are written, that nothing is prefixed, and which
exit status a wrong option gets (2, from tyro itself).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar, cast

import tyro

from ..pipeline.schema.feature_settings import (
    FeatureSettings,
    format_feature_settings,
    parse_feature_settings,
)
from ..pipeline.sizes import ByteSize, format_byte_size, parse_byte_size

T = TypeVar("T")

_MARKERS = (
    tyro.conf.OmitArgPrefixes,
    tyro.conf.OmitSubcommandPrefixes,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.HelptextFromCommentsOff,
)
_registry = tyro.constructors.ConstructorRegistry()
_NO_HINT = tyro.conf.arg(help_behavior_hint="")
Flag = Annotated[bool, _NO_HINT]
"""An option without a value; that it is off by default goes without saying."""
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
"""A path that need not be given."""
OptionalSize = Annotated[ByteSize | None, tyro.conf.arg(metavar="SIZE", help_behavior_hint="")]
"""A size that need not be given; the help says what is taken then."""


@_registry.primitive_rule
def _byte_size_rule(
    type_info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[ByteSize] | None:
    if type_info.type is not ByteSize:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="SIZE",
        instance_from_str=lambda words: parse_byte_size(words[0]),
        is_instance=lambda instance: isinstance(instance, ByteSize),
        str_from_instance=lambda instance: [format_byte_size(instance).replace(" ", "")],
    )


@_registry.primitive_rule
def _feature_settings_rule(
    type_info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[FeatureSettings] | None:
    if type_info.type is not FeatureSettings:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="FEATURE=N,...",
        instance_from_str=lambda words: parse_feature_settings(words[0]),
        is_instance=lambda instance: isinstance(instance, FeatureSettings),
        str_from_instance=lambda instance: [format_feature_settings(instance)],
    )


def parse_options(
    kind: type[T], words: Sequence[str], *, command: str, description: str, default: T | None = None
) -> T:
    """``words`` as an instance of the dataclass ``kind``.

    Raises:
        SystemExit: 0 after ``--help``, 2 for a word that is no option or no fitting value.
        ConfigError: options that fit one by one but make no sense, from the dataclass itself.
    """
    with _registry:
        parsed = tyro.cli(
            kind,
            prog=f"hotset {command}",
            description=description,
            args=list(words),
            default=default,
            config=_MARKERS,
            console_outputs=True,
        )
    return cast(T, parsed)


def option_value(words: Sequence[str], name: str) -> str | None:
    """The value given for one option, looked for before the others are parsed."""
    for position, word in enumerate(words):
        if word == name and position + 1 < len(words):
            return words[position + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None
