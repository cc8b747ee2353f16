"""``manifest.json``: the contents, settings and inputs of a finished stage folder.

A folder without a manifest is unfinished. The manifest lists every file with its samples, bytes and checksum,
the stage's config and version, and the fingerprints of the inputs. Its own checksum is the folder's
fingerprint, so a chain of folders is pinned from raw log to shards. It contains no time, host, worker count
or absolute path: the same inputs give the same bytes.

Its records are dataclasses that become JSON objects in the order of their fields, and are checked when read:
an error names the key. A field is left out while it has its default, so a manifest says nothing about what a
log does not have. Stages add facts to each file, which ``shards.facts_of(ShardFacts, entry)`` reads and
checks for a file of shards.

The checksum of a file, xxh3-128, is computed while a file is written, from bytes in the cache: reading them
back costs a fifth of writing. A process remembers the checksums of the files that it wrote or hashed, for as
long as the system says that they are unchanged, so that a file is hashed before its first use and not again.
"""

from __future__ import annotations

import io
import json
import math
import os
import stat
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import xxhash

from ..errors import STAGE_OF, ByteSize, ManifestError, first_line, hint_to_rewrite, hint_to_write

_KEY = "key"
_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", dict: "an object"}
_MOST = 2**63 - 1
"""The largest whole number: kernels and Arrow take 64 bits."""


def stored_as(key: str) -> Any:
    """A field that has no default and is called ``key`` in the JSON."""
    return field(metadata={_KEY: key})


R = TypeVar("R", bound="JsonRecord")


class RecordError(ValueError):
    """A JSON value that is not what a record wants; the message begins with its key."""


def require_range(key: str, value: int | None, least: int, most: int | None = None) -> None:
    """Raise RecordError where the value of ``key`` is below ``least`` or above ``most``; None is unset."""
    if value is None or (least <= value and (most is None or value <= most)):
        return
    is_open = most is None or (most == _MOST and value < least)
    wanted = f"{least} or more" if is_open else f"{least} to {most}"
    raise RecordError(f"{key} is {value}, want {wanted}")


class JsonRecord:
    """Base of the dataclasses that a manifest holds."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object."""
        assert is_dataclass(self)
        values = {own: getattr(self, own.name) for own in fields(self)}
        return {_key_of(own): _plain(value) for own, value in values.items() if value != _default_of(own)}

    def extended(self, kind: type[R], **more: Any) -> R:
        """Return a record of ``kind`` with the fields of this one and ``more``."""
        assert is_dataclass(self)
        return kind(**({own.name: getattr(self, own.name) for own in fields(self)} | more))

    def check_values(self, where: str) -> None:
        """Raise RecordError where a value is of the right type, but none that a stage writes.

        Args:
            where: the key of the record, and a point where it has one; messages begin with it.
        """

    @classmethod
    def from_json(cls, value: object, where: str = "") -> Self:
        """Read a JSON object; keys that are no fields are left alone.

        Args:
            where: the key of the object itself, for messages.

        Raises:
            RecordError: a key is missing, or its value is of another type or out of range.
        """
        if not isinstance(value, dict):
            raise RecordError(f"{where or 'it'} is {_shown(value)}, want an object")
        read: dict[str, Any] = {}
        record: type = cls
        # A key that is missing takes the field's default; other keys may come from a later version.
        for name, key, kind, default in _fields_of(record):
            path = f"{where}.{key}" if where else key
            if key in value:
                read[name] = read_value(value[key], kind, path)
            elif default is MISSING:
                raise RecordError(f"{path} is missing")
        found = cls(**read)
        found.check_values(f"{where}." if where else "")
        return found


@lru_cache
def _fields_of(cls: type) -> tuple[tuple[str, str, Any, Any], ...]:
    """Name, key, type and default of each field."""
    assert is_dataclass(cls)
    kinds = get_type_hints(cls)
    return tuple((own.name, _key_of(own), kinds[own.name], _default_of(own)) for own in fields(cls))


def _key_of(own: Field[Any]) -> str:
    return str(own.metadata.get(_KEY, own.name))


def _default_of(own: Field[Any]) -> Any:
    return own.default if own.default_factory is MISSING else own.default_factory()


def _plain(value: Any) -> Any:
    if isinstance(value, JsonRecord):
        return value.to_json()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def read_value(value: object, kind: Any, path: str) -> Any:
    """Return ``value`` as ``kind``, one of the types that records have; raise RecordError where it is none.

    Args:
        path: the key of the value, for messages.
    """
    origin = get_origin(kind)
    inner = get_args(kind)
    # Fields may be optional, and a number may be a text, too.
    if origin in (types.UnionType, Union):
        one = str if str in inner and isinstance(value, str) else inner[0]
        return None if value is None else read_value(value, one, path)
    if kind is ByteSize:
        return ByteSize(read_value(value, int, path))
    if origin is tuple:
        return _read_array(value, inner, path)
    if origin is dict:
        if not isinstance(value, dict):
            raise RecordError(f"{path} is {_shown(value)}, want an object")
        return {key: read_value(each, inner[1], f"{path}.{key}") for key, each in value.items()}
    if origin is Literal:
        if value not in inner:
            raise RecordError(f"{path} is {_shown(value)}, want one of {', '.join(map(str, inner))}")
        return value
    if issubclass(kind, JsonRecord):
        return kind.from_json(value, path)
    # JSON has no difference between 1 and 1.0, but true is no number.
    is_right = type(value) is kind or (kind is float and type(value) is int)
    if not is_right:
        raise RecordError(f"{path} is {_shown(value)}, want {_NAMES[kind]}")
    # All numbers in manifests are numbers of something: none is negative, none needs more than 64 bits.
    if type(value) is int:
        require_range(path, value, 0, _MOST)
    elif isinstance(value, float) and not math.isfinite(value):
        raise RecordError(f"{path} is {value}, want a finite number")
    return value


def _read_array(value: object, inner: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    """An array of any length where ``inner`` is ``(kind, ...)``, else of one value for each kind."""
    if not isinstance(value, list):
        raise RecordError(f"{path} is {_shown(value)}, want an array")
    # One kind for any number of values, or a kind for each.
    kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
    if len(value) != len(kinds):
        raise RecordError(f"{path} has {len(value)} values, want {len(kinds)}")
    return tuple(
        read_value(each, kind, f"{path}[{number}]")
        for number, (each, kind) in enumerate(zip(value, kinds, strict=True))
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


MANIFEST = "manifest.json"
TEXTS = "texts"
"""The fact that marks a file of texts: how many it has. Such a file has no samples."""
TABLE_FACT = "table_xxh3_128"
"""The fact that marks the file of checksums of batches: the checksum of its table. It has no samples."""
_FILE_KEYS = ("path", "samples", "bytes", "xxh3_128")
_KINDS = {"stage": str, "version": int, "config": dict, "inputs": list, "totals": dict}
_NOT_PLAIN = "put the file itself there: links, which may leave the folder, and pipes are not read"
_WRITTEN = "give the folder that preprocess wrote (its --out)"
Record = TypeVar("Record", bound=JsonRecord)
Setting = TypeVar("Setting")


REMOVED: dict[str, dict[str, Any]] = {
    "ingest": {"max_bad_fraction": 0.001},
    "rank": {"peel_floor": 4096},
    "pack": {"train_last": None},
}
"""The default of each removed option, by stage and field; configs of older folders still contain them.

An option at its default is dropped when a config is read, so the folder can be continued. Any other value
stays in the config, and `check_removed_options` names it if the stage would run again.
"""


def without_removed(stage: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the removed options that hold their defaults."""
    removed = REMOVED.get(stage, {})
    return {name: value for name, value in config.items() if name not in removed or value != removed[name]}


def check_removed_options(folder: Path, stage: str, config: Mapping[str, Any], hint: str) -> None:
    """Raise ManifestError if a folder was made with a removed option that does not hold its default."""
    for name in REMOVED.get(stage, {}):
        if name in config:
            option = f"--{name.replace('_', '-')}"
            raise ManifestError(
                f"{folder} was made with {option} {config[name]}, which no longer exists", hint=hint
            )


def config_of_record(
    folder: Path, stage: str, config: Mapping[str, Any], kind: Callable[..., Setting]
) -> Setting:
    """Return the config that ``folder`` records as ``kind``.

    Raises:
        ManifestError: the config lacks a setting, or has one that no stage writes (any more).
    """
    check_removed_options(folder, stage, config, hint_to_rewrite(folder))
    try:
        return kind(**config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(
            f"{folder / MANIFEST} is damaged: its config is not one of {stage!r}: {first_line(error)}",
            hint=hint_to_rewrite(folder),
        ) from error


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a stage folder."""

    path: str
    """Name inside the folder; never a path out of it."""
    num_samples: int
    num_bytes: int
    xxh3_128: str
    """Checksum of the bytes, hex."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts about the file that only its stage records."""

    @property
    def is_texts(self) -> bool:
        """Whether the file holds texts of categories, and so no samples."""
        return TEXTS in self.facts

    @property
    def is_checksums(self) -> bool:
        """Whether the file holds checksums of the batches in the others."""
        return TABLE_FACT in self.facts

    def to_json(self) -> dict[str, Any]:
        """Return the entry as the manifest has it."""
        own = (self.path, self.num_samples, self.num_bytes, self.xxh3_128)
        return dict(zip(_FILE_KEYS, own, strict=True)) | self.facts

    def read_facts(self, kind: type[Record]) -> Record:
        """Return the facts as ``kind``; raises ManifestError where they are not those of such a file."""
        try:
            return kind.from_json(self.facts, f"files.{self.path}")
        except RecordError as error:
            raise ManifestError(
                f"the record of {self.path} is damaged: {error}",
                hint="remove its folder and run its stage again",
            ) from error

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> FileEntry:
        """Raises KeyError, TypeError or ValueError on anything a stage would not have written."""
        # All other keys are facts of the stage, which reads them by its own types.
        facts = dict(entry)
        path, num_samples, num_bytes, checksum = map(facts.pop, _FILE_KEYS)
        if not isinstance(path, str) or not isinstance(checksum, str):
            raise TypeError("path and xxh3_128 must be strings")
        # A name with a separator would lead out of the folder.
        if "/" in path or path in ("", ".", ".."):
            raise ValueError(f"file name {path!r} leaves the folder")
        if type(num_samples) is not int or type(num_bytes) is not int or min(num_samples, num_bytes) < 0:
            raise TypeError(f"samples and bytes of {path} must be whole numbers")
        return cls(path, num_samples, num_bytes, checksum, facts)


@dataclass(frozen=True)
class Manifest:
    """A sealed stage folder."""

    folder: Path
    stage: str
    version: int
    config: dict[str, Any]
    inputs: list[dict[str, Any]]
    files: list[FileEntry]
    totals: dict[str, Any]
    fingerprint: str
    """The manifest's own checksum, hex: changes when any byte of the folder or its history does."""

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read ``folder/manifest.json`` and check its checksum, not those of the files.

        Raises:
            ManifestError: no such folder, unfinished, or damaged.
        """
        path = folder / MANIFEST
        try:
            # A link could point to the manifest of another folder, with other files.
            if not stat.S_ISREG(path.lstat().st_mode):
                raise ManifestError(f"{path} is not a plain file", hint=_NOT_PLAIN)
            text = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise _missing(folder) from None
        except OSError as error:
            raise ManifestError(f"{path} cannot be read: {error.strerror}") from error
        # The bytes may be anything: whatever the parser stumbles over is damage.
        try:
            return cls._parse(folder, text)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ManifestError(
                f"{path} is damaged: {first_line(error)}",
                hint=hint_to_rewrite(folder),
            ) from error

    @classmethod
    def read_sealed(cls, folder: Path) -> Manifest | None:
        """Read the manifest of a folder, None where it is not finished; raise ManifestError as `read`."""
        return cls.read(folder) if is_sealed(folder) else None

    @classmethod
    def _parse(cls, folder: Path, text: bytes) -> Manifest:
        parts = json.loads(text)
        # The checksum first: an error after it was written that way, and is no damage of the disk.
        checksum = parts.pop("checksum")
        if checksum != checksum_of(parts):
            raise ValueError(f"its checksum is {checksum!r}, want {checksum_of(parts)!r}")
        files = [FileEntry.from_json(entry) for entry in parts["files"]]
        for key, kind in _KINDS.items():
            if type(parts[key]) is not kind:
                raise TypeError(f"{key} is not of type {kind.__name__}")
        if len({entry.path for entry in files}) != len(files):
            raise ValueError("it lists a file twice")
        if not all(isinstance(made_from["name"], str) for made_from in parts["inputs"]):
            raise TypeError("an input's name is not a string")
        parts["config"] = without_removed(parts["stage"], parts["config"])
        return cls(folder, files=files, fingerprint=checksum, **{key: parts[key] for key in _KINDS})

    def __reduce__(self) -> Any:
        """Pickle a reference: the list of a log's thousands of files would go out with every task."""
        return read_referenced, (self.folder, self.fingerprint)

    @property
    def num_samples(self) -> int:
        """Samples in all files together."""
        return sum(entry.num_samples for entry in self.files)

    def read_config(self, kind: Callable[..., Setting], **changes: Any) -> Setting:
        """Return the config as ``kind``, with other values for some settings.

        Raises:
            ManifestError: the config lacks a setting, or has one that no stage writes (any more).
        """
        return config_of_record(self.folder, self.stage, self.config | changes, kind)

    def read_record(self, value: dict[str, Any], kind: type[Record], where: str) -> Record:
        """Return a part of the manifest as ``kind``; ManifestError names the key where it is none."""
        try:
            return kind.from_json(value, where)
        except RecordError as error:
            raise ManifestError(
                f"{self.folder / MANIFEST} is damaged: {error}", hint=hint_to_rewrite(self.folder)
            ) from error

    def facts_of(self, kind: type[Record], entry: FileEntry) -> Record:
        """Return the facts of a file as ``kind``; raise ManifestError where they are none."""
        return self.read_record(entry.facts, kind, f"files.{entry.path}")

    @cached_property
    def totals_read(self) -> dict[type[JsonRecord], JsonRecord]:
        """The totals as each kind of record that they were read as."""
        return {}

    def parts(self) -> Iterator[tuple[int, FileEntry]]:
        """Each part of a folder in log order, and the number of its first sample in the log."""
        first = 0
        for entry in self.files:
            if not (entry.is_texts or entry.is_checksums):
                yield first, entry
                first += entry.num_samples

    def parts_within(self, start: int, stop: int) -> Iterator[tuple[int, FileEntry, int, int]]:
        """Yield each part with samples of [start, stop): its first sample, itself, and their range in it."""
        for first, entry in self.parts():
            low = max(start - first, 0)
            high = min(stop - first, entry.num_samples)
            if low < high:
                yield first, entry, low, high

    @cached_property
    def entries(self) -> dict[str, FileEntry]:
        """Files by name, for direct access: a log has thousands of them."""
        return {entry.path: entry for entry in self.files}

    def entry(self, name: str) -> FileEntry:
        """Return the entry of a listed file; raise ManifestError if the manifest does not list it."""
        if name not in self.entries:
            raise ManifestError(f"{self.folder / MANIFEST} lists no file {name!r}")
        return self.entries[name]

    def checked_path(self, entry: FileEntry) -> Path:
        """The path of ``entry``; raises ManifestError as `checked_status`."""
        self.checked_status(entry)
        return self.folder / entry.path

    def checked_status(self, entry: FileEntry) -> os.stat_result:
        """Return the status of a file; raise ManifestError if it is missing, of another size, or a link."""
        path = f"{self.folder}/{entry.path}"
        # A link is refused: what it points to may change without the manifest knowing.
        try:
            status = os.lstat(path)
        except OSError as error:
            hint = hint_to_rewrite(self.folder)
            raise ManifestError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
        if not stat.S_ISREG(status.st_mode):
            raise ManifestError(f"{path} is not a plain file", hint=_NOT_PLAIN)
        # Sizes are quick to check, and reveal most files that were truncated or overwritten.
        if status.st_size != entry.num_bytes:
            hint = hint_to_rewrite(self.folder)
            raise ManifestError(f"{path} has {status.st_size} bytes, want {entry.num_bytes}", hint=hint)
        return status

    def hashed_path(self, entry: FileEntry) -> Path:
        """Return the path of ``entry`` once its bytes are known to be those that were sealed.

        A file is hashed at its first use in a process, and again when it was touched since.

        Raises:
            ManifestError: as by `checked_path`, or its checksum is another one.
        """
        path = self.checked_path(entry)
        # What was hashed while it was written, and not changed since, is not read again.
        try:
            found = known_checksum(path)
        except OSError as error:
            raise ManifestError(f"{path} cannot be read: {error.strerror}") from error
        if found != entry.xxh3_128:
            raise ManifestError(
                f"{path} is damaged: its checksum is {found}, want {entry.xxh3_128}",
                hint=hint_to_rewrite(self.folder),
            )
        return path


def shards_in(folder: Path) -> Manifest:
    """Return the manifest of the shards of DIR, or that of ``folder`` itself; raises as `Manifest.read`."""
    inner = folder / "shards"
    # A DIR has columns from its first stage on, also where it has no shards yet.
    return Manifest.read(inner if inner.is_dir() or (folder / "columns").is_dir() else folder)


def _missing(folder: Path) -> ManifestError:
    """Return what to raise for a folder without a manifest, or a path that is none."""
    file = next((path for path in (folder, folder.parent) if path.is_file()), None)
    if file is not None:
        return ManifestError(f"{file} is not a folder", hint=_WRITTEN)
    if folder.is_dir():
        found = f"{folder} is unfinished: it has no {MANIFEST}"
    elif (folder.parent / MANIFEST).exists():
        # A run, or the folder of one stage: no command writes stage folders into it.
        return ManifestError(f"{folder.parent} holds no {folder.name}/", hint=_WRITTEN)
    else:
        found = f"{folder} does not exist"
    # The hint names the command that would write the folder, which depends on the stages next to it.
    present = [name for name in STAGE_OF if (folder.parent / name / MANIFEST).exists()]
    return ManifestError(found, hint=hint_to_write(folder, present))


@lru_cache(maxsize=8)
def read_referenced(folder: Path, fingerprint: str) -> Manifest:
    """Read, in another process, the manifest that was pickled by reference; once for all its tasks.

    Raises:
        ManifestError: the folder here is not the one that was pickled.
    """
    manifest = Manifest.read(folder)
    if manifest.fingerprint != fingerprint:
        raise ManifestError(
            f"{folder} here is not the folder of the machine that started the run",
            hint="all machines must see the folders of a run at the same paths",
        )
    return manifest


def is_sealed(folder: Path) -> bool:
    """Return whether a stage has finished ``folder``."""
    return (folder / MANIFEST).exists()


def checksum_of(parts: Mapping[str, Any]) -> str:
    """xxh3-128 of the canonical JSON of ``parts``, hex."""
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return str(xxhash.xxh3_128_hexdigest(canonical.encode()))


_HASH_BLOCK_BYTES = 1 << 20
_MOST_KNOWN = 1 << 16
"""Checksums that are remembered: 20 MiB."""
FileState = tuple[str, int, int, int, int, int]
"""Path, device, inode, time of the last write, time of the last change of any kind, bytes."""
_written: dict[str, tuple[int, str]] = {}
"""Bytes and checksum of files that this process wrote, by path, until their first use."""
_known: dict[FileState, str] = {}
"""Checksums by the state of the file they were taken of."""


class HashedFile(io.RawIOBase):
    """A new file that is hashed while it is written, from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._digest = xxhash.xxh3_128()
        self._num_bytes = 0
        self._file = -1  # for `close`, which Python calls even if opening fails
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._num_bytes

    def write(self, data: Any) -> int:
        """Write and hash all of ``data``."""
        left = memoryview(data).cast("B")
        num_bytes = left.nbytes
        self._digest.update(left)
        self._num_bytes += num_bytes
        # The system may take less than it is given.
        while left.nbytes:
            left = left[os.write(self._file, left) :]
        return num_bytes

    def close(self) -> None:
        if not self.closed and self._file >= 0:
            super().close()
            os.close(self._file)
            _written[self._path] = self._num_bytes, str(self._digest.hexdigest())


def checksum_of_written(path: Path) -> tuple[int, str]:
    """Return bytes and xxh3-128 of a file just written: as noted by `HashedFile`, or else read again."""
    # A writer may have appended past `HashedFile`: a note of another size does not count.
    noted = _written.pop(str(path), None)
    return noted if noted is not None and noted[0] == path.stat().st_size else hash_file(path)


def hash_file(path: Path) -> tuple[int, str]:
    """Return bytes and xxh3-128 (hex) of a file, read through one reused block."""
    digest = xxhash.xxh3_128()
    block = bytearray(_HASH_BLOCK_BYTES)
    num_bytes = 0
    view = memoryview(block)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(view[:count])
            num_bytes += count
    return num_bytes, str(digest.hexdigest())


def note_checksum(path: Path, checksum: str) -> None:
    """Remember the checksum of a file as it is now."""
    _remember(state_of(path), checksum)


def _remember(state: FileState, checksum: str) -> None:
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[state] = checksum


def known_checksum(path: Path) -> str:
    """Return the xxh3-128 of a file; read it only if its state has changed."""
    # The state of before: a file that is written to meanwhile has another afterwards, and is read again.
    state = state_of(path)
    if state not in _known:
        _remember(state, hash_file(path)[1])
    return _known[state]


def states_in(folder: Path) -> list[FileState]:
    """Return the state of each file of a folder; none where there is no folder."""
    return [state_of(path) for path in folder.iterdir()] if folder.is_dir() else []


def overwritten_file(before: Iterable[FileState]) -> Path | None:
    """Return a file that was written in place since it had its state of ``before``, if any.

    Stages map files, so they would continue with other values. A file that was replaced or removed does not
    count: its map is unchanged.
    """
    for path, device, inode, written, _, num_bytes in before:
        with suppress(OSError):
            found = state_of(Path(path))
            is_same_file = found[1:3] == (device, inode)
            if is_same_file and (found[3], found[5]) != (written, num_bytes):
                return Path(path)
    return None


def state_of(path: Path) -> FileState:
    """Return the state of a file, which changes where it is written to or replaced."""
    status = path.stat()
    return (
        str(path),
        status.st_dev,
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size,
    )
