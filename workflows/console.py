"""Output of the command line: data, messages and progress.

Data go to stdout, messages and progress to stderr. Progress bars redraw themselves at the cursor, so whatever
else is printed on the same terminal has to know of them: messages go through the one console of stderr, and
data is printed while no bar is shown.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..pipeline.runtime.progress import Bars, Progress

_WIDE = 200
_TOGETHER = re.compile(r"\d (?:[KMGT]iB|B|M samples/s|samples/s|ms|µs|s)\b|[Dd]efault: [^ ]+")
"""What stays on one line: a number and its unit, or a default and its word."""
_COMMAND = re.compile("(?:^|(?<=`)|(?<=&& ))hotset(?= )")
"""The name of the program in a hint: at its beginning, after a quote, or after another command."""
_JOINED = "\ue000"
"""A blank at which no line may end; no text contains it."""


@functools.cache
def stderr_console() -> Console:
    """Return the one console for messages and progress, which keeps them from writing over each other."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def stdout_console() -> Console:
    """Return a console for data. Lines wrap at the width of a terminal; a pipe gets wide ones."""
    width = None if sys.stdout.isatty() else _WIDE
    return Console(highlight=False, emoji=False, width=width)


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of cells ready to print."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    shades: Sequence[Sequence[float]] = ()
    """Shade of each cell in [0, 1], where the table is a heat map too; empty where it is none."""
    num_texts: int = 1
    """First columns that are text, at the left of their room; numbers are at the right."""


def print_table(console: Console, table: TextTable, *, num_keys: int = 1) -> None:
    """Print a table without lines; split one wider than the terminal, so that no number is cut.

    Args:
        num_keys: columns at the left that identify the rows; each of the tables repeats them.
    """
    # rich puts a blank at each side of a cell.
    widths = [2 + max(map(cell_len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    room = console.width - sum(widths[:num_keys])
    groups: list[list[int]] = [[]]
    # Columns fill one table after another; those that name a row are repeated in each.
    for number in range(num_keys, len(widths)):
        if groups[-1] and sum(widths[other] for other in groups[-1]) + widths[number] > room:
            groups.append([])
        groups[-1].append(number)
    # A separate title wraps at the width of the terminal, not at that of a narrow table.
    if table.title:
        console.print(Text(table.title), style="bold")
    for group in groups:
        part = Table(box=None, pad_edge=False)
        numbers = (*range(num_keys), *group)
        for number in numbers:
            part.add_column(
                Text(table.columns[number]), justify="left" if number < table.num_texts else "right"
            )
        for row in table.rows:
            part.add_row(*(Text(row[number]) for number in numbers))
        if console.is_terminal:
            console.print(part, "")
            continue
        # rich fills rows with blanks up to the last column.
        with console.capture() as drawn:
            console.print(part)
        lines = [line.rstrip() for line in drawn.get().splitlines()]
        console.print(Text("\n".join([*lines, ""])), soft_wrap=True)


def print_line(console: Console, text: str, *, style: str | None = None) -> None:
    """Print a sentence as data: wrapped between words on a terminal, in one line anywhere else."""
    if console.is_terminal:
        text = wrapped(text, console.width)
    console.print(Text(text), style=style, soft_wrap=True)


def print_command(console: Console, command: str) -> None:
    """Print a command to paste, indented.

    Where it is wider than the terminal, the terminal itself continues it in the next row and copies one line.
    """
    console.print(Text(f"  {command}"), soft_wrap=True)


def as_sentences(docstring: str) -> str:
    """Return a docstring as one line without markup: `name` in quotes, ``value`` as it is."""
    return " ".join(docstring.split()).replace("``", "").replace("`", "'")


def wrapped(text: str, width: int) -> str:
    """Return a sentence in lines of at most ``width`` characters, a number and its unit in the same one."""
    joined = _TOGETHER.sub(lambda found: found[0].replace(" ", _JOINED), text)
    lines = (textwrap.fill(line, width, break_on_hyphens=False) for line in joined.splitlines())
    return "\n".join(lines).replace(_JOINED, " ")


def describe_rate(samples_per_second: float) -> str:
    """Return a rate for people: in millions where that has two digits, else in samples."""
    if samples_per_second >= 1e5:
        return f"{samples_per_second / 1e6:.2f} M samples/s"
    # Three digits; of a log of a few lines those before the point.
    digits = -2 if samples_per_second >= 1e4 else -1 if samples_per_second >= 1e3 else 0
    return f"{round(samples_per_second, digits):,.0f} samples/s"


def set_verbosity(*, quiet: bool = False, verbose: bool = False) -> None:
    """Choose what appears on stderr besides errors: with ``quiet`` warnings alone, with ``verbose`` details.

    Modules below report through the logger ``hotset``, so that programs which import them decide themselves.
    """
    _Messages.are_quiet = quiet
    logger = logging.getLogger("hotset")
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
    if not any(isinstance(handler, _ConsoleHandler) for handler in logger.handlers):
        logger.addHandler(_ConsoleHandler())


def say(message: str) -> None:
    """Print a message on stderr, unless ``--quiet`` was given; wrapped only where that is a terminal."""
    if not _Messages.are_quiet:
        _print(Text(message))


def say_next(arguments: str) -> None:
    """Print the command to type next where messages go to a terminal; in one line, to be copied."""
    if not _Messages.are_quiet and sys.stderr.isatty():
        _print(Text(f"next: {command_prefix()} {arguments}"), soft_wrap=True)


def message_width() -> int | None:
    """Return the columns of the terminal that shows messages; None where they go to no terminal."""
    return stderr_console().width if sys.stderr.isatty() else None


def say_error(message: str, hint: str | None = None, *, kind: str = "error") -> None:
    """Print what went wrong and what to do about it, each after its word, whatever the verbosity.

    Args:
        kind: the word of the first line.
    """
    _print(Text.assemble((f"{kind}:", "bold yellow" if kind == "warning" else "bold red"), f" {message}"))
    if hint:
        # A command that is broken into lines could not be copied, so a hint that has one is not wrapped. Nor
        # would a command be found that is not on the PATH of the shell.
        has_command = "`" in hint or hint.startswith("hotset ")
        typed = _COMMAND.sub(lambda _: command_prefix(), hint) if _is_called_by_path() else hint
        _print(Text.assemble(("hint:", "bold cyan"), f" {typed}"), soft_wrap=has_command)


def _print(text: Text, *, soft_wrap: bool = False) -> None:
    if _Messages.bars is not None:
        _Messages.bars.drop_full()
    stderr_console().print(text, soft_wrap=soft_wrap or not sys.stderr.isatty())


class _Messages:
    """The verbosity of each command, and the bars that a message must not overwrite."""

    are_quiet = False
    bars: Bars | None = None
    """The bars on the terminal now."""


class _ConsoleHandler(logging.Handler):
    """Prints log records where messages go, so that they do not write over a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record: a warning as such, others by the name of their module."""
        if record.levelno >= logging.WARNING:
            say_error(record.getMessage(), kind="warning")
        else:
            module = record.name.removeprefix("hotset.")
            _print(Text.assemble((f"{module}: ", "dim"), self.format(record)))


def command_prefix() -> str:
    """Return how a user types ``hotset`` in this shell: by its path where it is not on PATH."""
    script = Path(sys.argv[0])
    if not _is_called_by_path():
        # Started by another name, by `python -m` or a test, the file of sys.argv is no command.
        return (
            "hotset" if shutil.which("hotset") else f"{shlex.quote(sys.executable)} -m hotset.workflows.cli"
        )
    script = script.absolute()
    near = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return shlex.quote(str(near))


def _is_called_by_path() -> bool:
    """Return whether the command of this process was typed with a path, and would not be found without."""
    return Path(sys.argv[0]).name == "hotset" and shutil.which("hotset") is None


def print_json(result: Mapping[str, object]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(result, indent=1, default=str))


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yield what shows the stage that runs: a bar on a terminal, and elsewhere a line every half minute."""
    from ..pipeline.runtime.progress import Bars, Lines, no_progress

    if _Messages.are_quiet or not sys.stderr.isatty():
        yield no_progress if _Messages.are_quiet else Lines(say)
        return
    with Bars(stderr_console()) as bars:
        _Messages.bars = bars
        # Until the first stage reports: checksums and compiling take seconds.
        bars("starting", 0, 0)
        try:
            yield bars
        finally:
            _Messages.bars = None


def load_torch(progress: Progress) -> None:
    """Import torch, which takes a second and more, and show that next to the bar."""
    progress("loading torch", 0, 0)
    import torch  # noqa: F401

    progress("starting", 0, 0)


def show_compiling(name: str) -> None:
    """Show next to the bar, which stands still meanwhile, that a kernel is being compiled."""
    if _Messages.bars is not None:
        _Messages.bars.show_note(f"compiling {name} (once)")


@contextmanager
def bars_hidden() -> Iterator[None]:
    """Hide the bars while something is printed on stdout, perhaps the same terminal."""
    bars = _Messages.bars
    if bars is None:
        yield
        return
    # Full bars stay as lines; the others are drawn again afterwards.
    bars.drop_full()
    bars.stop()
    try:
        yield
    finally:
        bars.start()
