"""A terminal for tests: a program runs in one, and what a user then sees on it comes back as lines."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path

import hotset

_PACKAGES = Path(hotset.__file__).parents[1]
"""The folder that hotset is imported from, as programs import it too."""
_MOST_SECONDS = 60.0
"""Time without a change of the screen after which a program is killed."""
_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b.|[\s\S]")


class Screen:
    """The lines of a terminal, with as much of its control sequences as rich uses."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.has_color = False
        self._rows: list[list[str]] = [[]]
        self._row = 0
        self._column = 0

    @property
    def lines(self) -> list[str]:
        """Return the visible lines, without blanks at their ends."""
        return ["".join(row).rstrip() for row in self._rows]

    def write(self, text: str) -> None:
        """Show what a program wrote."""
        for token in _TOKEN.finditer(text):
            if token[2]:
                self._control(token[1], token[2])
            elif token[0] == "\r":
                self._column = 0
            elif token[0] == "\n":
                self._move_down()
            elif token[0] >= " ":
                self._put(token[0])

    def _control(self, numbers: str, letter: str) -> None:
        amount = int(numbers) if numbers.isdecimal() else 1
        if letter == "A":
            self._row = max(0, self._row - amount)
        elif letter == "K":
            kept = self._rows[self._row][: 0 if numbers == "2" else self._column]
            self._rows[self._row] = kept
        elif letter == "m":
            # Bold and dim are no colours; 30 to 37, 90 to 97 and 38 are.
            self.has_color |= any(
                3 <= int(code) // 10 <= 4 or int(code) >= 90 for code in re.findall(r"\d+", numbers)
            )

    def _put(self, character: str) -> None:
        if self._column == self.columns:
            self._column = 0
            self._move_down()
        row = self._rows[self._row]
        row.extend(" " * (self._column + 1 - len(row)))
        row[self._column] = character
        self._column += 1

    def _move_down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append([])


def run_in_terminal(
    arguments: Sequence[str],
    columns: int,
    *,
    color: bool = True,
    cwd: Path | None = None,
    until: Callable[[list[str]], bool] | None = None,
) -> tuple[int, Screen]:
    """Run Python with ``arguments`` in a terminal of this width; return its exit status and the screen.

    Args:
        until: says of the lines of the screen whether they are those waited for. The program waits for a line
            of input and gets it then, and the screen of that moment is returned. A program that never shows
            them is killed after a minute without a change of its screen.
    """
    master, slave = _open_terminal(columns)
    unset = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"TERM": "xterm-256color", "PYTHONPATH": str(_PACKAGES)}
    if not color:
        environment["NO_COLOR"] = "1"
    process = subprocess.Popen(
        [sys.executable, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=cwd
    )
    os.close(slave)
    written = b""
    waited_for: Screen | None = None
    while piece := _read(master, process):
        written += piece
        if until is not None and waited_for is None:
            screen = _screen_of(written, columns)
            if until(screen.lines):
                waited_for = screen
                os.write(master, b"\n")
    os.close(master)
    return process.wait(), waited_for or _screen_of(written, columns)


def _open_terminal(columns: int) -> tuple[int, int]:
    """Return both ends of a terminal that shows nothing of what is typed."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    modes = termios.tcgetattr(slave)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    return master, slave


def _read(master: int, process: subprocess.Popen[bytes]) -> bytes:
    """Return what the program wrote meanwhile; nothing once it has closed the terminal."""
    if not select.select([master], [], [], _MOST_SECONDS)[0]:
        process.kill()
    try:
        return os.read(master, 1 << 16)
    except OSError as error:
        # Linux ends the reading side so when the program has closed the terminal.
        if error.errno != errno.EIO:
            raise
        return b""


def _screen_of(written: bytes, columns: int) -> Screen:
    """Return the screen after a program wrote this, perhaps a part of its last character only."""
    screen = Screen(columns)
    screen.write(written.decode(errors="ignore"))
    return screen
