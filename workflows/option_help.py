"""The help of options: a field's docstring, its type as one word, its default where that says something.

tyro would print docstrings with their line breaks and an option that may be left out as ``{None}|INT``. The
rule below describes a dataclass to tyro instead: sentences wrap at the width of the terminal, and an option
without a default names in its own sentence what happens then.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
import types
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import StructConstructorSpec, StructFieldSpec, StructTypeInfo

from ..pipeline.errors import HotsetError
from ..pipeline.sizes import ByteSize

HELP = "help"
"""Key of a field's metadata for help that differs from its docstring, as that of ``--no-X`` does."""

_METAVARS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH", ByteSize: "SIZE"}


class InvalidOptionsError(Exception):
    """Options that are well-formed one by one but make no sense; ``__cause__`` is the config's own error.

    Not a ValueError: tyro would print those itself, under the name of a class.
    """


def describe_dataclass(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Return the options of a dataclass for tyro; None for any other type."""
    if not dataclasses.is_dataclass(info.type):
        return None
    # Types as written, with their annotations: tyro chooses the parser by them.
    kinds = get_type_hints(info.type, include_extras=True)
    specs = []
    for field in dataclasses.fields(info.type):
        default = _default_of(field, info.default, info.type)
        specs.append(
            StructFieldSpec(
                name=field.name,
                type=_with_hint(kinds[field.name], default),
                default=default,
                # Docstrings come from the source, whose parsing takes longer than that of a command.
                helptext=functools.partial(_help_of, info.type, field),
            )
        )
    return StructConstructorSpec(instantiate=_builder(info.type), fields=tuple(specs))


def _help_of(kind: type, field: dataclasses.Field[Any]) -> str:
    return as_sentences(field.metadata.get(HELP) or field_docstrings(kind).get(field.name, ""))


def field_docstrings(kind: type) -> dict[str, str]:
    """Return the string below each field of a dataclass, those it inherits too."""
    found: dict[str, str] = {}
    # From the oldest base to the class itself, so that a field that is declared again has its new docstring.
    # Classes without annotations, such as those built by `type`, have no fields and perhaps no source.
    for base in reversed(kind.__mro__):
        if vars(base).get("__annotations__"):
            found |= _own_docstrings(base)
    return found


@functools.cache
def _own_docstrings(base: Any) -> dict[str, str]:
    """Return the docstrings of the fields that stand in the class itself."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    # A string below a field is its docstring, by the convention of this code.
    for statement, below in pairwise(definition.body):
        match statement, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = text
    return found


def as_sentences(docstring: str) -> str:
    """Return a docstring as one line without markup: `name` in quotes, ``value`` as it is."""
    return " ".join(docstring.split()).replace("``", "").replace("`", "'")


def _default_of(field: dataclasses.Field[Any], parent: Any, kind: type) -> Any:
    """Return the default of a field: the one of the instance that holds all defaults, or the field's own."""
    if isinstance(parent, kind):
        return getattr(parent, field.name)
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return tyro.MISSING


def _with_hint(kind: Any, default: Any) -> Any:
    """Return the type of a field with its metavariable and default as the help shows them."""
    if get_origin(kind) is Annotated:  # the field itself sets them
        return kind
    inner = without_none(kind)
    # A flag is off unless given; an empty value and the text of a schema file need no default shown.
    is_silent = default is None or isinstance(default, bool) or default in ("", ()) or "\n" in str(default)
    # ``X | None`` is written like X, and what happens without it is in the sentence.
    if inner is not kind:
        metavar = "INT,..." if inner == tuple[int, ...] else _metavar(inner)
        # tyro checks the default of an ``X | None`` by a package that takes 20 ms to import, and that of a
        # ``Union`` by itself, from left to right.
        kind = Union[types.NoneType, inner]  # noqa: UP007
        return Annotated[kind, tyro.conf.arg(metavar=metavar, help_behavior_hint="")]
    if is_silent:
        return Annotated[kind, tyro.conf.arg(help_behavior_hint="")]
    if isinstance(default, float):
        return Annotated[kind, tyro.conf.arg(help_behavior_hint=f"(default: {default:.4g})")]
    return kind


def without_none(kind: Any) -> Any:
    """Return X for ``X | None``, any other type as it is."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    others = [member for member in get_args(kind) if member is not types.NoneType]
    return others[0] if len(others) == 1 else kind


def _metavar(kind: Any) -> str:
    """Return how the help writes a value of type ``kind``."""
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    if get_origin(kind) is tuple:
        return f"{_metavar(get_args(kind)[0])} ..."
    return _METAVARS[kind]


def _builder(kind: type) -> Callable[..., Any]:
    """Return a function that builds ``kind`` and raises InvalidOptionsError where it refuses its values."""

    @functools.wraps(kind, updated=())
    def build(**values: Any) -> Any:
        try:
            return kind(**values)
        except HotsetError as error:
            raise InvalidOptionsError from error

    return build
