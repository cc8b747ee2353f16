"""The errors that a user can fix; any other exception is a bug.

    HotsetError            (a ValueError, so that library users may catch either)
    ├── ConfigError        an option or config field that makes no sense
    │   └── MemoryCapError a memory cap that a stage cannot keep
    ├── InputError         a raw log that cannot be read: which file, line, column
    │   └── FormatError    a raw log in another format than its schema names
    ├── ManifestError      a stage folder that is missing, unfinished, stale or damaged
    ├── ShardError         shards a trainer cannot use
    ├── EngineError        worker processes that cannot be started or do not stay alive
    ├── MissingExtraError  an optional package that is not installed
    ├── SaidElsewhereError what another process of the same run has said already
    └── SystemFaultError   memory, threads, open files or a device that the system does not give

Each has a message of one line and, if there is something to do, a hint. Hints print commands with the
folder's actual path, to be copied. Byte sizes are read and printed as people write them: ``256MiB``,
``1.5GB``, ``4096``.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import types
from collections.abc import Collection
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class HotsetError(ValueError):
    """An error that names what was found, where, and what was wanted; ``hint`` is what to do about it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        # Tracebacks show notes, so that programs which catch nothing show the hint, too.
        if hint:
            self.add_note(f"hint: {hint}")


class ConfigError(HotsetError):
    """An option or config field that makes no sense."""


class MemoryCapError(ConfigError):
    """A memory cap that a stage cannot keep."""

    least_bytes: int = 0
    """The smallest cap that would do."""


class InputError(HotsetError):
    """A raw log that cannot be read."""


class FormatError(InputError):
    """A raw log in another format than its schema names."""


class ManifestError(HotsetError):
    """A stage folder that is missing, unfinished, stale or damaged."""


class ShardError(HotsetError):
    """Shards a trainer cannot use."""


class EngineError(HotsetError):
    """Worker processes that cannot be started or do not stay alive."""


class MissingExtraError(HotsetError):
    """An optional package that is not installed."""


class SaidElsewhereError(HotsetError):
    """Another process of the same run reports what stops this one."""


class SystemFaultError(HotsetError):
    """Memory, threads, open files or a device that the system does not give; no file is damaged."""


_SIGNS_OF_NO_THREADS = ("Failed to launch worker thread", "can't start new thread")
_SIGNS_OF_NO_MEMORY = (
    "CUDA out of memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "failed to map segment from shared object",
    "std::bad_alloc",
    "malloc of size",
)
_OF_DEVICES = (
    errno.EACCES,
    errno.EDQUOT,
    errno.EIO,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.EPERM,
    errno.EROFS,
    errno.ESTALE,
)


def system_fault(subject: object, error: BaseException) -> SystemFaultError | None:
    """Return the error of the system during work on ``subject``; None if ``error`` is another kind.

    Libraries wrap system errors in exceptions that otherwise look like those of a damaged file.
    """
    if isinstance(error, HotsetError):
        return None
    text = first_line(error)
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, UnicodeEncodeError) and error.encoding.replace("-", "").lower() != "utf8":
        character = error.object[error.start]
        return SystemFaultError(
            f"{subject}: {character!a} cannot be written in the encoding {error.encoding}",
            hint="set PYTHONUTF8=1 and PYTHONIOENCODING=utf-8",
        )
    if isinstance(error, UnicodeEncodeError):
        return SystemFaultError(
            f"{str(subject)!a} has a name that is not UTF-8", hint="rename the file or its folder"
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return SystemFaultError(
            f"{subject}: too many open files",
            hint="raise the limit: `ulimit -n 4096`, or use fewer --workers",
        )
    if number == errno.EAGAIN or any(sign in text for sign in _SIGNS_OF_NO_THREADS):
        return SystemFaultError(
            f"{subject}: the system starts no more threads: {text}",
            hint="raise the limits `ulimit -u` and `ulimit -v`, or use fewer --workers",
        )
    if (
        isinstance(error, MemoryError)
        or number == errno.ENOMEM
        or any(sign in text for sign in _SIGNS_OF_NO_MEMORY)
    ):
        return SystemFaultError(
            f"{subject}: there is not enough memory: {text}",
            hint="free memory, use fewer --workers, or raise the limit `ulimit -v`",
        )
    if isinstance(error, OSError) and number in _OF_DEVICES:
        # The file at fault says more than the folder that was worked on.
        named = error.filename if isinstance(error.filename, str) else subject
        return SystemFaultError(f"{named}: {error.strerror}")
    return None


def raise_system_fault(subject: object, error: BaseException) -> None:
    """Raise SystemFaultError where ``error`` is one of the system, and not of what was read."""
    fault = system_fault(subject, error)
    if fault is not None:
        raise fault from error


class ByteSize(int):
    """A number of bytes; the command line takes it as ``256MiB``."""


def require_at_least(name: str, value: float | None, least: int) -> None:
    """Raise ConfigError where the option ``name`` is below ``least`` or no finite number; None is unset."""
    if value is not None and not least <= value < float("inf"):
        raise ConfigError(f"{name} must be {least} or more, got {value}")


def require_at_most(name: str, value: float | None, most: int) -> None:
    """Raise ConfigError where the option ``name`` is above ``most``; None is unset."""
    if value is not None and value > most:
        raise ConfigError(f"{name} must be at most {most}, got {value}")


def check_fields(config: object) -> None:
    """Replace NumPy scalars and sizes as text in ``config`` by plain values.

    Called by the configs themselves, so that commands and Python refuse the same values alike.

    Raises:
        ConfigError: a field has a value of another type, or none of those that its type names.
    """
    kind: Any = type(config)
    for name, kinds in _kinds_of(kind).items():
        value = getattr(config, name)
        found = plain_value(name, kinds, value)
        if found is not value:
            object.__setattr__(config, name, found)


def plain_value(name: str, kinds: tuple[Any, ...], value: Any) -> Any:
    """Return ``value`` as one of ``kinds``; raises ConfigError that begins with ``name``.

    Args:
        kinds: types such as int, `ByteSize`, a Literal and None, of which the value has one.
    """
    if value is None and type(None) in kinds:
        return None
    # A scalar of NumPy or torch has no dimensions.
    plain = value.item() if getattr(value, "ndim", None) == 0 else value
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if isinstance(plain, str) and plain in choices:
        return plain
    if choices and not set(kinds) & set(_NOUNS):
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {_short(plain)}")
    if ByteSize in kinds and isinstance(plain, str):
        try:
            return parse_byte_size(plain)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}", hint=error.hint) from error
    for kind in kinds:
        if get_origin(kind) is Literal:
            continue
        if get_origin(kind) is tuple:
            if isinstance(plain, list | tuple):
                return tuple(plain_value(name, get_args(kind)[:1], each) for each in plain)
            continue
        # True is no number, and a whole number is a float, too.
        own = (float, int) if kind is float else (int,) if kind is ByteSize else (kind,)
        if type(plain) in own or (isinstance(plain, own) and not isinstance(plain, bool)):
            return ByteSize(plain) if kind is ByteSize else plain
    # Those without a noun are configs inside a config.
    nouns: dict[Any, str] = {kind: f"a {kind.__name__}" for kind in kinds if isinstance(kind, type)} | _NOUNS
    nouns.pop(type(None), None)
    wanted = " or ".join(nouns[kind] for kind in kinds if kind in nouns)
    raise ConfigError(f"{name} must be {wanted}, got {_short(plain)}")


_NOUNS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    ByteSize: "a number of bytes or a text such as 64MiB",
    tuple[int, ...]: "a list of whole numbers",
    tuple[str, ...]: "a list of texts",
}
"""The types of fields that are checked, as messages name them."""


@cache
def _kinds_of(kind: Any) -> dict[str, tuple[Any, ...]]:
    """Return the types that each field of a config may have, for those whose values are checked."""
    found = {
        name: get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        for name, hint in get_type_hints(kind).items()
    }
    known = {*_NOUNS, type(None)}
    return {
        name: kinds
        for name, kinds in found.items()
        if all(kind in known or get_origin(kind) is Literal or is_dataclass(kind) for kind in kinds)
    }


def _short(value: Any) -> str:
    """Return a value as a message shows it; a frame or an array, which has many lines, by its type."""
    text = repr(value) if isinstance(value, str | int | float | list | tuple | None) else ""
    return text if 0 < len(text) <= 200 else f"a {type(value).__name__}"


_CHECKOUT = Path(__file__).resolve().parents[1]
"""The folder of hotset's source, where it runs from there."""


def install_hint(extra: str) -> str:
    """Return the command that installs an optional extra with the Python that runs now."""
    # hotset is on no package index, so the checkout is named; an editable install runs from there. A wheel
    # has none, but lists the packages of its extras.
    wanted = [f"{_CHECKOUT}[{extra}]"]
    if not (_CHECKOUT / "pyproject.toml").exists():
        import importlib.metadata  # which takes time that only this message may cost

        listed = (each.partition(";") for each in importlib.metadata.requires("hotset") or ())
        wanted = [name.strip() for name, _, marker in listed if f"'{extra}'" in marker.replace('"', "'")]
    return f"{shlex.quote(sys.executable or 'python3')} -m pip install {shlex.join(wanted)}"


def first_line(error: BaseException) -> str:
    """Return the message of ``error`` in one line, or its type if it has none."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


STAGE_OF = {
    "columns": "ingest",
    "counts": "count",
    "vocabulary": "rank",
    "samples": "encode",
    "plan": "split",
    "shards": "pack",
}
"""The stage that writes each folder inside DIR."""


def hint_to_write(folder: Path, present: Collection[str]) -> str:
    """Return what to do about a stage folder that is missing or unfinished.

    Args:
        present: names of the finished folders next to it.
    """
    if folder.name not in STAGE_OF:
        return "give the folder that preprocess wrote (its --out)"
    preprocess = f"hotset preprocess RAW --out {_quoted(folder.parent)}"
    # Then the user has run no stage yet, or has given another folder.
    if not present:
        return f"`{preprocess}` writes it from raw logs"
    names = list(STAGE_OF)
    before = [name for name in names[: names.index(folder.name)] if name in present]
    if names.index(folder.name) == (names.index(before[-1]) + 1 if before else 0):
        return f"`{_command(STAGE_OF[folder.name], folder)}` writes it"
    return f"`{preprocess}` goes on from what is there; give it the options that it had"


def hint_to_rewrite(folder: Path) -> str:
    """Return what to do about a stage folder that is damaged or was changed."""
    stage = STAGE_OF.get(folder.name)
    if stage is None:
        return "take the folder from a copy, or remove it and write it again"
    command = f"rm -r {_quoted(folder)} && {_command(stage, folder)}"
    return f"`{command}` writes it again; give it the options that it had"


def hint_to_verify(folder: Path) -> str:
    """Return what to do if stage folders of one DIR do not match; ``folder`` is any."""
    return f"`hotset verify {_quoted(folder.parent)}` reports which folder is at fault"


def _command(stage: str, folder: Path) -> str:
    directory = _quoted(folder.parent)
    return f"hotset ingest RAW --out {directory}" if stage == "ingest" else f"hotset {stage} {directory}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
KIB = 1024
MIB = 1024**2
GIB = 1024**3


_STORE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The beginning of an address; a `Path` has dropped the second slash."""


def local_path(given: str | os.PathLike[str]) -> Path:
    """Return what a user gave as a path.

    Raises:
        ConfigError: it is the address of a store, such as ``s3://bucket/data``; as a path it would be a
            folder of that name here. Or it is no path.
    """
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(f"want a path, got {_short(given)}")
    if _STORE.match(os.fspath(given)):
        raise ConfigError(
            f"{given} is in a store, want a path on this machine",
            hint="copy it here first, or mount the store",
        )
    return Path(given)


SizeOrAuto = ByteSize | Literal["auto"]
"""A number of bytes, or the word for one that follows from the log."""


def parse_byte_size(text: str) -> ByteSize:
    """Parse ``"256MiB"`` as 268435456. Raises ConfigError on anything that is not a size."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"not a size: {text!r}", hint="write bytes as 268435456, 256MiB or 1.5GB")
    return ByteSize(float(match[1]) * unit) if "." in match[1] else ByteSize(int(match[1]) * unit)


def parse_size_or_auto(text: str) -> SizeOrAuto:
    """Parse a size, or ``"auto"`` as it is. Raises ConfigError on anything else."""
    return "auto" if text == "auto" else parse_byte_size(text)


def format_byte_size(num_bytes: float) -> str:
    """Return 268435456 as ``"256 MiB"``: binary units, at most one decimal."""
    amount = float(num_bytes)
    units = ["TiB", "GiB", "MiB", "KiB", "B"]
    while abs(round(amount, 1)) >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop()
    return f"{amount:.1f}".removesuffix(".0") + f" {units[-1]}"


def exact_byte_size(num_bytes: int) -> str:
    """Return an exact size as the command line takes it: 268435456 as ``"256MiB"``, 1000 as ``"1000"``."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if num_bytes and num_bytes % unit == 0:
            return f"{num_bytes // unit}{name}"
    return str(num_bytes)
