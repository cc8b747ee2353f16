"""Recipe files: options of `preprocess` and `train` in one TOML file.

    [preprocess]
    hot_bytes = "256MiB"
    [train]
    placement = "lookahead"
    bottom_mlp = [512, 256, 64]

Keys are the names of options, with underscores or dashes; values are what is typed on the command line, or
numbers, true, false and lists. A recipe becomes arguments in front of those that are typed, so that both are
parsed, checked and explained in one way, and what is typed wins.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..pipeline.errors import ByteSize, ConfigError, first_line, local_path
from ..pipeline.schema.schema import FeatureSettings
from .options import find_options, list_options, nearest_option, typed, values_of

TABLES = ("preprocess", "train")
"""Commands that a recipe has options of, each in a table of its name."""
_MOST_BYTES = 2**20


def read_recipe(path: Path) -> dict[str, dict[str, Any]]:
    """Read the tables of a recipe; their keys are not looked at.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or has another table.
    """
    # A name on the command line may be anything, a pipe or a huge file too.
    try:
        if not path.is_file():  # opening a pipe would wait forever
            raise ValueError("it is no plain file" if path.exists() else "there is no such file")
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has {path.stat().st_size:,} bytes")
        found = tomllib.loads(path.read_bytes().decode())
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise ConfigError(
            f"recipe {path} cannot be read: {reason}", hint="`hotset recipe` prints one to begin with"
        ) from error
    # An option outside of both tables would be without effect, which its writer did not mean.
    for name, table in found.items():
        if name not in TABLES:
            near = difflib.get_close_matches(name, TABLES, n=1) if isinstance(table, dict) else []
            raise ConfigError(
                f"recipe {path} has {name!r} outside of [preprocess] and [train]",
                hint=f"write [{near[0]}]" if near else "write options below [preprocess] or [train]",
            )
        if not isinstance(table, dict):
            raise ConfigError(f"{name} of recipe {path} is {table!r}, want a table of options")
    return found


def with_recipe(command: str, arguments: Sequence[str]) -> list[str]:
    """Insert the options of the recipe that ``--recipe`` names before the other arguments.

    Args:
        command: preprocess or train.
        arguments: what follows the command; of an option that is given twice, the last value counts.

    Raises:
        ConfigError: the recipe cannot be read, or sets something else.
    """
    found, others = find_options(arguments, "--recipe")
    if "--recipe" not in found:
        return others
    path = local_path(found["--recipe"])
    return arguments_of(path, command, read_recipe(path).get(command, {})) + others


def arguments_of(path: Path, command: str, table: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a table of a recipe; raises ConfigError for a wrong option or value."""
    # `train` starts sooner without the stages, and every command without what it does not need.
    if command == "preprocess":
        from ..pipeline.preprocess import PreprocessConfig

        options = list_options(PreprocessConfig)
    else:
        from ..train.config import TrainConfig

        options = list_options(TrainConfig)
    known = {option.name: option for option in options}
    found = []
    for key, value in table.items():
        # The option's own name or, for a switch that is on without it, that of its opposite.
        name = f"--{key.replace('_', '-')}"
        option = known.get(name) or known.get(f"--no-{name[2:]}")
        where = f"{key} in [{command}] of {path}"
        if option is None:
            raise ConfigError(
                f"[{command}] of recipe {path} has no option {key!r}",
                hint=nearest_option(name, command, known).removeprefix("--"),
            )
        if option.takes_value:
            values = value if option.is_many and isinstance(value, list) else [value]
            found += [f"{name}={_typed(where, each)}" for each in values]
        elif not isinstance(value, bool):
            raise ConfigError(f"{where} is {value!r}, want true or false")
        # A switch is typed to change what it is without it.
        elif value is (option.name == name):
            found.append(option.name)
    return found


def write_recipe(tables: Mapping[str, Any]) -> str:
    """Return a recipe with every option of each table's config written out, unset ones as comments."""
    parts = []
    for name, config in tables.items():
        lines = [f"[{name}]"]
        # Options that are not set are comments, so that the file names every option.
        for option in list_options(type(config), values_of(config)):
            value = option.default
            is_text_of_file = isinstance(value, str) and "\n" in value
            if value is None or is_text_of_file:
                why = "not set" if value is None else "in a file of your own: name it"
                lines.append(f"# {option.field} is {why}")
            else:
                lines.append(f"{option.field} = {_written(value)}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _written(value: Any) -> str:
    """A setting as TOML."""
    if isinstance(value, tuple | list) and not isinstance(value, FeatureSettings):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, int | float) and not isinstance(value, ByteSize):
        return json.dumps(value) if isinstance(value, bool) else repr(value)
    # JSON's strings are TOML's, but for the one control character that JSON leaves as it is.
    return json.dumps(typed(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _typed(where: str, value: Any) -> str:
    """A value of a recipe as it is typed."""
    words = value if isinstance(value, list) and value else [value]
    if any(isinstance(each, bool) or not isinstance(each, str | int | float) for each in words):
        raise ConfigError(f"{where} is {value!r}, want a text, a number or a list of these")
    return ",".join(map(str, words))
