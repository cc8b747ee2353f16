"""The help of a command: what it does, two examples, its name in Python, and its options."""

from __future__ import annotations

import argparse
import functools
import re
import shutil
from collections.abc import Sequence
from typing import Any

from ..pipeline.errors import ByteSize, format_byte_size
from ..pipeline.schema.schema import FeatureSettings
from .console import as_sentences, wrapped
from .options import COMMON, HELP_COLUMN, Option, synopsis, typed

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
