"""Options of commands as other texts: the help of a command, and recipe files.

The help has what the command does, two examples, its name in Python, and its options. A recipe has options of
`preprocess` and `train` in one TOML file:

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

import argparse
import difflib
import functools
import json
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..pipeline.errors import ByteSize, ConfigError, first_line, format_byte_size, local_path
from ..pipeline.schema.schema import FeatureSettings
from .console import as_sentences, wrapped
from .options import (
    COMMON,
    HELP_COLUMN,
    Option,
    find_options,
    list_options,
    nearest_option,
    synopsis,
    typed,
    values_of,
)

EXAMPLES = {
    "demo": ("hotset demo", "hotset demo --data train.txt.gz --hot-bytes 64MiB"),
    "generate": ("hotset generate --out log.tsv.gz", "hotset generate --out log.tsv --samples 1000000"),
    "schema": ("hotset schema clicks.parquet > clicks.toml", "hotset schema clicks.csv --samples 100000"),
    "preprocess": (
        "hotset preprocess train.txt.gz --out DIR --hot-bytes 64MiB",
        "hotset preprocess day_*.gz --out DIR --schema criteo-1tb",
    ),
    "ingest": (
        "hotset ingest train.txt.gz --out DIR",
        "hotset ingest day_*.gz --out DIR --schema criteo-1tb",
    ),
    "count": ("hotset count DIR", "hotset count DIR --eval-fraction 0.2 --redo"),
    "rank": ("hotset rank DIR", "hotset rank DIR --min-count 4 --redo"),
    "encode": ("hotset encode DIR", "hotset encode DIR --workers 4"),
    "split": ("hotset split DIR --hot-bytes 64MiB", "hotset split DIR --embedding-dim 32 --redo"),
    "pack": ("hotset pack DIR --batch-size 4096", "hotset pack DIR --order original --redo"),
    "export-shards": (
        "hotset export-shards DIR --to parquet --out files",
        "hotset export-shards DIR --to fuxictr --out files",
    ),
    "recipe": ("hotset recipe > recipe.toml", "hotset recipe DIR RUN > recipe.toml"),
    "stats": ("hotset stats DIR", "hotset stats DIR --html report.html"),
    "advise": ("hotset advise DIR", "hotset advise DIR --speeds machine.json"),
    "characterise": (
        "hotset characterise --out machine.json",
        "hotset characterise --out machine.json --html page.html",
    ),
    "verify": ("hotset verify DIR", "hotset verify RUN --shards DIR"),
    "train": (
        "hotset train DIR --out RUN --epochs 2",
        "hotset train DIR --out RUN --placement cache --threads 4",
    ),
    "evaluate": ("hotset evaluate RUN DIR", "hotset evaluate RUN DIR --slow-bytes 8GiB"),
    "predict": (
        "hotset predict RUN LOG --out scores.parquet",
        "hotset predict RUN LOG --out scores.parquet --no-label",
    ),
    "export": (
        "hotset export RUN --out exported --row-type int8",
        "hotset export RUN --out changes --since OLD_RUN",
    ),
    "apply": (
        "hotset apply changes --to exported --out updated",
        "hotset apply changes --to exported --out updated --json",
    ),
    "runs": ("hotset runs RUNS --compare", "hotset runs RUNS --html runs.html"),
    "completion": ("hotset completion bash", "hotset completion fish > hotset.fish"),
}
"""For each command, what its help shows as examples."""
IN_PYTHON = {
    "stats": "statistics",
    "train": "fit",
} | {name: name for name in ("preprocess", "evaluate", "predict", "export", "apply")}
"""For each command that is a function in Python too, the name of the function."""


def help_of(kind: Any, command: str, options: Sequence[Option], *, is_full: bool) -> str:
    """Return the help of a command: the options that most people set, or with ``is_full`` all of them."""
    width = shutil.get_terminal_size().columns - 2
    main = {name: title for title, names in getattr(kind, "main_options", {}).items() for name in names}
    titles = ("required", *main.values(), COMMON)
    groups: dict[str, list[Option]] = {title: [] for title in titles[:-1]}
    for option in options:
        title = main.get(option.field) or option.group or ("more options" if main else "options")
        is_first = option.is_required
        groups.setdefault("required" if is_first else title, []).append(option)
    is_whole = is_full or not main
    what = as_sentences(kind.__doc__)
    what += f" In Python: hotset.{IN_PYTHON[command]}." if command in IN_PYTHON else ""
    examples = EXAMPLES.get(command, ())
    parser = argparse.ArgumentParser(
        usage=f"{synopsis(command, options)} [OPTIONS]",
        description="\n".join([wrapped(what, width), "", "examples:", *(f"  {each}" for each in examples)]),
        formatter_class=functools.partial(
            argparse.RawTextHelpFormatter, max_help_position=HELP_COLUMN, width=width
        ),
        add_help=False,
    )
    # argparse would break words such as --hot-bytes at a hyphen, and reads % as a value to put in.
    room = max(width - HELP_COLUMN, 20)
    for title, members in groups.items():
        if not is_whole and title not in titles:
            continue
        group = parser.add_argument_group(title)
        for option in members:
            how = option.nargs | ({"metavar": option.metavar} if option.takes_value else {})
            text = wrapped(explained(option, is_full=is_whole), room).replace("%", "%%")
            group.add_argument(*option.flags, help=text, **how)
    group.add_argument(
        "-h", "--help", action="store_true", help=f"Show the {'usual ' if main else ''}options."
    )
    if main:
        group.add_argument("--help-all", action="store_true", help="Show all options.")
    return parser.format_help()


def explained(option: Option, *, is_full: bool) -> str:
    """Return an option's text and default; unless ``is_full``, its first sentence and that on a default."""
    sentences = re.split(r"(?<=\.) ", option.text)
    kept = [each for each in sentences if is_full or each is sentences[0] or "efault" in each]
    is_listed = all(choice in kept[0] for choice in option.choices)
    notes = [] if is_listed or option.metavar != "NAME" else [f"one of {', '.join(option.choices)}"]
    shown = "" if option.is_required else _shown(option.default)
    notes += [f"default: {shown}"] if shown else []
    return " ".join([*kept, f"({'; '.join(notes)})"] if notes else kept)


def _shown(default: Any) -> str:
    """Return a default as it is typed, rounded; nothing where it would say nothing."""
    if default is None or isinstance(default, bool) or default in ("", ()) or "\n" in str(default):
        return ""
    if isinstance(default, ByteSize):
        return format_byte_size(default).replace(" ", "")
    if isinstance(default, tuple) and not isinstance(default, FeatureSettings):
        return " ".join(map(_shown, default))
    return f"{default:.4g}" if isinstance(default, float) else typed(default)


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
