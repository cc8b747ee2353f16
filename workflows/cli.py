"""The ``hotset`` command: run a subcommand and report errors.

An error that a user can fix becomes one line. Commands that train import torch; the others must not, so each
is imported when it is called.
"""

from __future__ import annotations

import difflib
import errno
import io
import logging
import os
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from ..pipeline.errors import HotsetError, MissingExtraError, SaidElsewhereError, install_hint, system_fault
from ..stats.compile_notice import call_when_compiling
from .command_list import COMMANDS, GROUPS, HELP_FLAGS, REMOVED, REMOVED_OPTIONS, command_class
from .console import say_error, set_verbosity, show_compiling

_LEAST_COLUMNS = 20
"""Least width of help: narrower terminals have no room for a word next to its options."""

_MAPS = Path("/proc/self/maps")
_SHOW_CURSOR = "\x1b[?25h"
_bus_handlers: list[Any] = []
"""Handlers that are installed; the C library holds their addresses alone."""
_CACHE_HINT = "set NUMBA_CACHE_DIR to a folder that can be written, with room for 50 MB"


def usage() -> str:
    """Return the text of ``hotset --help``."""
    width = shutil.get_terminal_size().columns
    paragraphs = (
        "Preprocess click logs, and train recommendation models whose embedding tables do not fit on the "
        "GPU.",
        "hotset COMMAND --help explains the usual options of a command, --help-all all of them; hotset -V "
        "(--version) prints the version. "
        "Every command takes -q (--quiet), which leaves out all messages except errors and warnings, and "
        "-v (--verbose), which reports details.",
        "Exit status: 0 success, 1 an error that you can fix, 2 wrong usage, 130 interrupted (Ctrl-C, "
        "SIGTERM).",
    )
    what, how, status = (textwrap.fill(paragraph, width) for paragraph in paragraphs)
    indent = 4 + max(map(len, COMMANDS))
    groups = [
        "\n".join(
            textwrap.fill(line, width, subsequent_indent=" " * indent, break_on_hyphens=False)
            for line in (f"{title}:", *(f"  {name:<{indent - 2}}{COMMANDS[name][1]}" for name in names))
        )
        for title, names in GROUPS.items()
    ]
    return "\n\n".join(["usage: hotset COMMAND [OPTIONS]", what, *groups, how, status])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 for an error a user can fix, 2 for wrong usage.

    Ctrl-C and SIGTERM end a command alike, with 130: it removes what it has begun and not finished.
    """
    _open_closed_streams()
    _widen_tiny_terminal()
    return _main(arguments)


def _open_closed_streams() -> None:
    """Open the null device in place of stdin, stdout and stderr that the caller closed (``>&-``)."""
    # A file takes the lowest free number: the first that a stage opened would get what is printed.
    descriptor = 0
    while descriptor < 3:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor < 3:
            os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    # Names of files need not be UTF-8, and are then printed as the bytes that they are.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape")


def _widen_tiny_terminal() -> None:
    """Treat a terminal of few or zero columns as a narrow one."""
    columns = shutil.get_terminal_size().columns
    # A width of 0 means that it is unknown, but the libraries of tables and messages use it literally.
    given = os.environ.get("COLUMNS", "")
    if columns < _LEAST_COLUMNS or (given.isdecimal() and int(given) < _LEAST_COLUMNS):
        os.environ["COLUMNS"] = str(max(columns, _LEAST_COLUMNS))


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """End the block with KeyboardInterrupt after Ctrl-C, and after SIGTERM, whatever it is doing."""
    came: list[int] = []

    def interrupt(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    ours = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    # A program that ignores or handles a signal itself goes on doing so; other threads get none.
    is_main = threading.current_thread() is threading.main_thread()
    before = {each: usual for each, usual in ours.items() if is_main and signal.getsignal(each) is usual}
    for each in before:
        signal.signal(each, interrupt)
    try:
        yield
    except Exception as error:
        # A module that is interrupted while it is imported may end with another error.
        if not came:
            raise
        raise KeyboardInterrupt from error
    finally:
        for each, usual in before.items():
            signal.signal(each, usual)


@contextmanager
def _next_ends_at_once() -> Iterator[None]:
    """Let a second Ctrl-C end the process without a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _main(arguments: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    set_verbosity()
    # Options of every command may precede its name, too.
    while arguments[1:] and arguments[0] in ("-q", "--quiet", "-v", "--verbose"):
        arguments = [*arguments[1:], arguments[0]]
    command = arguments[0] if arguments else ""
    try:
        with _signals_interrupt():
            return _answer(arguments)
    except HotsetError as error:
        # With --verbose the place in the code is shown too.
        logging.getLogger("hotset.cli").debug("the error was raised here:", exc_info=error)
        if not isinstance(error, SaidElsewhereError):
            say_error(str(error), error.hint)
        return 1
    except KeyboardInterrupt as error:
        if isinstance(error.__cause__, OSError):
            _drop_stdout()  # what could not be flushed would fail again at exit
        with _next_ends_at_once():
            _say_interrupted(command, arguments, error)
        return 130
    except BrokenPipeError:  # the reader of stdout has ended: nothing may be flushed to it at exit
        _drop_stdout()
        return 1
    except (OSError, MemoryError, RuntimeError, ImportError, UnicodeEncodeError, SystemError) as error:
        # Errors of stdout are the only ones of a device that reach this line without a name.
        is_stdout = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT)
        unnamed = "stdout cannot be written" if is_stdout else f"hotset {command}".rstrip()
        if isinstance(error, UnicodeEncodeError) and error.encoding == sys.stdout.encoding != "utf-8":
            unnamed = "stdout"
        if isinstance(error, FileNotFoundError) and error.filename is None and _is_here_gone():
            say_error("the current folder was removed", "cd to a folder that is there")
            return 1
        fault = system_fault(getattr(error, "filename", None) or unnamed, error)
        from ..pipeline.runtime.limits import lost_library

        # Under a limit of addresses libraries fail in ways that name neither the limit nor memory.
        fault = fault or lost_library(f"hotset {command}", error)
        if fault is None:
            raise
        if is_stdout:
            _drop_stdout()  # what is left in it would fail again at exit
        say_error(str(fault), fault.hint)
        return 1


def _is_here_gone() -> bool:
    """Return whether the folder was removed in which the command was started."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _say_interrupted(command: str, arguments: Sequence[str], error: KeyboardInterrupt) -> None:
    """Print what remains of an interrupted command and how it continues, on the first rank."""
    left = command_class(command).after_interrupt(arguments[1:], error) if command in COMMANDS else None
    if left is not None:
        say_error(left[0], left[1], kind="interrupted")


def _answer(arguments: Sequence[str]) -> int:
    """Print the help or version, or run the command; flush stdout, so that errors are seen."""
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(usage())
            return 0 if arguments else 2
        if arguments[0] in ("-V", "--version"):
            print(f"hotset {__version__}")
            return 0
        if arguments[0] not in COMMANDS:
            # Words that have little in common would only mislead.
            nearest = difflib.get_close_matches(arguments[0], COMMANDS, n=1, cutoff=0.7)
            hint = f"hotset {nearest[0]}" if nearest else "hotset --help lists the commands"
            hint = REMOVED.get(arguments[0], hint)
            say_error(f"there is no command {arguments[0]!r}", hint)
            return 2
        for option in (word.partition("=")[0] for word in arguments[1:]):
            if f"{arguments[0]} {option}" in REMOVED_OPTIONS:
                instead = REMOVED_OPTIONS[f"{arguments[0]} {option}"]
                say_error(f"hotset {arguments[0]} has no option {option}", instead)
                return 2
        # Files without a name and /proc are Linux's, and are used everywhere.
        if sys.platform != "linux":
            say_error(f"hotset runs on Linux, and this is {sys.platform}", "use Docker, with its Dockerfile")
            return 1
        status = _run(arguments[0], arguments[1:])
        _note_slow_start()
        return status
    finally:
        # Also where the parser of options ends the program after --help.
        sys.stdout.flush()


def _drop_stdout() -> None:
    """Discard all further output to stdout, even at exit."""
    with suppress(OSError, AttributeError):  # it is no file, or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _note_slow_start() -> None:
    """Print once why each command compiles its kernels again, if it does."""
    # Importing Numba takes a second, which a command without kernels is not to wait for.
    kernels = sys.modules.get(resolve_name("..stats.kernel", __package__))
    fault = kernels.cache_fault() if kernels is not None else None
    if fault is not None:
        message = f"compiled code is not kept, so each command starts slowly: {fault}"
        say_error(message, _CACHE_HINT, kind="note")


def _run(command: str, arguments: Sequence[str]) -> int:
    # Imported here, so that the help of all commands does not need them.
    from ..pipeline.runtime.limits import TORCH_BYTES, check_addresses

    _explain_bus_errors()
    call_when_compiling(show_compiling)
    # Modules are imported when called, so that only the commands that train import torch.
    try:
        kind = command_class(command)
        if HELP_FLAGS.isdisjoint(arguments):
            check_addresses(f"hotset {command}", TORCH_BYTES if kind.needs_torch else 0)
        status: int = kind.parse(command, arguments).execute()
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise MissingExtraError(f"hotset {command} needs {error.name}", hint=install_hint("train")) from error
    return status


def _explain_bus_errors() -> None:
    """Let SIGBUS end this process with an error line; does nothing on systems without Linux's ``/proc``.

    Stages map the files they read: their pages are the page cache's, so they take none of ``--memory``, and
    columns that a stage does not need are never read. Linux ends a process by SIGBUS where it reads a page
    that the file has lost since it was mapped. Nothing can be computed from then on, and nothing has to be: a
    run that ends at any moment resumes to the same bytes. So the handler names the file and ends the process.
    """
    import ctypes  # here, so that help starts without it

    if _bus_handlers or not _MAPS.exists():
        return
    # Python's own handlers run between two instructions of the interpreter, which are never reached here.
    library = ctypes.CDLL(None)
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_end_of_mapped_file)
    library.signal.argtypes = [ctypes.c_int, type(handler)]
    library.signal.restype = ctypes.c_void_p
    _bus_handlers.append(handler)
    library.signal(signal.SIGBUS, handler)


def _end_of_mapped_file(_: int) -> None:
    """Print which file was cut short, and end the process."""
    try:
        found = _cut_files()
        what = f"{found[0]} was cut short by another program" if found else "a mapped file cannot be read"
        lines = (
            f"error: {what} while it was in use",
            "hint: leave the folder alone while a command works on it; `hotset verify` finds what is damaged",
        )
        text = "".join(f"{line}\n" for line in lines)
        with suppress(OSError):
            end_of_bar = f"{_SHOW_CURSOR}\n" if os.isatty(2) else ""
            os.write(2, (end_of_bar + text).encode(errors="backslashreplace"))
    finally:
        # Nothing may run any more, also no other thread: it would read the same page.
        os._exit(1)


def _cut_files() -> list[Path]:
    """Return the mapped files of this process that are shorter than what is mapped of them."""
    found = []
    for line in _MAPS.read_bytes().splitlines():
        addresses, _, offset, _, inode, *name = line.split(maxsplit=5)
        if inode == b"0" or not name:
            continue
        first, stop = (int(address, 16) for address in addresses.split(b"-"))
        path = Path(os.fsdecode(name[0]))
        with suppress(OSError):  # deleted, which leaves its pages as they are
            # The last page of a map may reach beyond the end of its file.
            num_bytes = int(offset, 16) + stop - first
            if path.stat().st_size <= num_bytes - os.sysconf("SC_PAGE_SIZE"):
                found.append(path)
    return found


def leave(status: int) -> NoReturn:
    """End the process with an exit status; a rank immediately, after its output is flushed.

    A rank has left its group by then. Nevertheless about one in sixty keeps a thread of torch, which aborts
    the process at a normal exit, and a launcher would treat a finished run as a failed one.
    """
    if (os.environ.get("WORLD_SIZE") or "1") != "1":
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    leave(main())
