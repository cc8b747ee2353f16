"""Files of pieces: the rows between the two phases of `pack`, see `stages.two_phases`.

A run is a file with the rows of consecutive parts, sorted by output file. The rows of one output file are a
piece, so the pieces of consecutive output files are next to each other, and one request reads them:

    keys | rows | ids of bags | first row of each piece | first id of each piece | checksum of each piece

The last three are the run's index. A record next to the file, ``RUN.json``, is written last: a run without
one is unfinished. It has the checksum of the index, so a run is checked by reading its index alone, and a
piece when it is read. Pieces are not synced: after a power cut the checksums decide.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ManifestError, format_byte_size
from .disk import existing_above, is_in_memory, make_folder, removed_on_failure, write_synced
from .manifest import JsonRecord, checksum_of

_CHECKSUM_BYTES = 16
_MOST_VIEWS = 1024
"""Pieces of a request: the system takes no more addresses at a time."""
_MOST_OF_MEMORY = 10
"""Pieces may take this part of a file system in memory."""
_BLOCK_BYTES = 4096
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Modes of fallocate(2)."""
_AGAIN = "run the same command again: it writes these pieces anew"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts(JsonRecord):
    """A finished run, as its record has it."""

    first_part: int
    stop_part: int
    num_files: int
    """Output files, each of which has a piece."""
    row_words: int
    """Words of a row, 4 bytes each."""
    num_rows: int
    num_lookups: int
    """Ids in the bags of all rows."""
    index_xxh3_128: str = ""


@dataclass(frozen=True, slots=True)
class PieceIndex:
    """Where the pieces of consecutive output files begin, and their checksums."""

    row_starts: NDArray[np.int64]
    """(num_pieces + 1,)."""
    lookup_starts: NDArray[np.int64]
    """(num_pieces + 1,)."""
    checksums: NDArray[np.uint8]
    """(num_pieces, 16), xxh3-128 of keys, rows and ids; the seed is the number of the output file."""


@dataclass(frozen=True, slots=True)
class PieceArrays:
    """The rows of a run, file by file; or those of one piece."""

    keys: NDArray[np.uint64]
    """(num_rows,)."""
    rows: NDArray[np.int32]
    """(num_rows, row_words)."""
    bags: NDArray[np.int32]
    """(num_lookups,)."""

    def checksum(self, file: int) -> NDArray[np.uint8]:
        """Return the checksum of the piece of output file ``file``: (16,)."""
        digest = xxhash.xxh3_128(seed=file)
        for array in (self.keys, self.rows, self.bags):
            digest.update(_bytes_of(array))
        return np.frombuffer(digest.digest(), np.uint8)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of parts on disk."""

    path: Path
    facts: RunFacts

    @property
    def parts(self) -> range:
        """Numbers of the parts whose rows it has."""
        return range(self.facts.first_part, self.facts.stop_part)

    @property
    def sections(self) -> list[int]:
        """Positions in the file of keys, rows, ids, first rows, first ids, checksums, and of its end."""
        facts = self.facts
        bags_at = (8 + 4 * facts.row_words) * facts.num_rows
        index_at = -(-(bags_at + 4 * facts.num_lookups) // 8) * 8
        starts = 8 * (facts.num_files + 1)
        ends = itertools.accumulate([starts, starts, _CHECKSUM_BYTES * facts.num_files], initial=index_at)
        return [0, 8 * facts.num_rows, bags_at, *ends]

    @contextmanager
    def open(self, *, is_written: bool = False) -> Iterator[RunReader]:
        """Open the run for reading; with ``is_written`` its pieces can be freed.

        Raises:
            ManifestError: it cannot be read, or a piece is damaged, which the next run writes anew.
        """
        try:
            mode = os.O_RDWR if is_written else os.O_RDONLY
            descriptor = os.open(self.path, mode | os.O_CLOEXEC)
            try:
                # Pieces of other files are not read ahead: they would be dropped before they are used.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                yield RunReader(self, descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ManifestError(f"{self.path} cannot be read: {error.strerror}", hint=_AGAIN) from error
        except _DamageError as error:
            self.remove()
            raise ManifestError(f"{self.path} is damaged: {error}", hint=_AGAIN) from error

    def remove(self) -> None:
        """Remove the run; its record goes first."""
        self.path.with_suffix(".json").unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


class _DamageError(Exception):
    """The bytes of a run are not those that were written."""


@dataclass(frozen=True, slots=True)
class RunReader:
    """An open run."""

    run: Run
    descriptor: int

    def index(self, files: range) -> PieceIndex:
        """Return the index of the pieces of ``files``, not checked."""
        *_, rows_at, lookups_at, checksums_at, _ = self.run.sections
        row_starts, lookup_starts = np.empty((2, len(files) + 1), np.int64)
        checksums = np.empty((len(files), _CHECKSUM_BYTES), np.uint8)
        self._read(rows_at + 8 * files.start, [row_starts])
        self._read(lookups_at + 8 * files.start, [lookup_starts])
        self._read(checksums_at + _CHECKSUM_BYTES * files.start, [checksums])
        return PieceIndex(row_starts, lookup_starts, checksums)

    def read(self, files: range, index: PieceIndex, targets: Sequence[PieceArrays]) -> None:
        """Read the pieces of ``files`` into ``targets``, arrays of their sizes, and check them."""
        keys_at, rows_at, bags_at, *_ = self.run.sections
        first_row, first_lookup = int(index.row_starts[0]), int(index.lookup_starts[0])
        self._read(keys_at + 8 * first_row, [piece.keys for piece in targets])
        self._read(rows_at + 4 * self.run.facts.row_words * first_row, [piece.rows for piece in targets])
        self._read(bags_at + 4 * first_lookup, [piece.bags for piece in targets])
        for file, piece, checksum in zip(files, targets, index.checksums, strict=True):
            if not np.array_equal(piece.checksum(file), checksum):
                raise _DamageError(f"the piece of output file {file} has another checksum")

    def check(self, is_whole: bool, fault: str) -> None:
        """Raise the error of a damaged run with ``fault`` unless ``is_whole``."""
        if not is_whole:
            raise _DamageError(fault)

    def forget(self, index: PieceIndex) -> None:
        """Let the page cache drop pieces that were read: nothing reads them again."""
        for position, num_bytes in self._ranges(index):
            os.posix_fadvise(self.descriptor, position, num_bytes, os.POSIX_FADV_DONTNEED)

    def free(self, index: PieceIndex) -> None:
        """Return the space of pieces to the file system, if it can: they are zeros from then on."""
        for position, num_bytes in self._ranges(index):
            _free_range(self.descriptor, position, num_bytes)

    def _ranges(self, index: PieceIndex) -> list[tuple[int, int]]:
        """Return position and length of keys, rows and ids of consecutive pieces, as far as there are any."""
        keys_at, rows_at, bags_at, *_ = self.run.sections
        rows, lookups = (starts[[0, -1]].tolist() for starts in (index.row_starts, index.lookup_starts))
        sections = ((keys_at, 8, rows), (rows_at, 4 * self.run.facts.row_words, rows), (bags_at, 4, lookups))
        return [
            (at + size * first, size * (stop - first)) for at, size, (first, stop) in sections if first < stop
        ]

    def _read(self, position: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Fill arrays with consecutive bytes of the file."""
        left = deque(view for array in arrays if (view := _bytes_of(array)).nbytes)
        while left:
            num_bytes = os.preadv(self.descriptor, [*itertools.islice(left, _MOST_VIEWS)], position)
            if num_bytes == 0:
                raise _DamageError("it is shorter than its record says")
            position += num_bytes
            # The system may give less than it is asked for.
            while left and num_bytes >= left[0].nbytes:
                num_bytes -= left.popleft().nbytes
            if num_bytes:
                left[0] = left[0][num_bytes:]


@dataclass(frozen=True, slots=True)
class RunWriter:
    """A run being written; threads write the pieces of different files."""

    run: Run
    descriptor: int
    arrays: PieceArrays
    index: PieceIndex

    def write(self, first: int, stop: int) -> None:
        """Write the pieces of output files, from ``first`` to before ``stop``, and note their checksums."""
        for file in range(first, stop):
            piece = self._pieces(file, file + 1)
            self.index.checksums[file] = piece.checksum(file)
        keys_at, rows_at, bags_at, *_ = self.run.sections
        pieces = self._pieces(first, stop)
        row, lookup = int(self.index.row_starts[first]), int(self.index.lookup_starts[first])
        self._write(keys_at + 8 * row, pieces.keys)
        self._write(rows_at + 4 * self.run.facts.row_words * row, pieces.rows)
        self._write(bags_at + 4 * lookup, pieces.bags)

    def write_index(self) -> str:
        """Write the index, when all pieces are written; return its checksum."""
        *_, index_at, lookups_at, checksums_at, _ = self.run.sections
        self._write(index_at, self.index.row_starts)
        self._write(lookups_at, self.index.lookup_starts)
        self._write(checksums_at, self.index.checksums)
        return _checksum_of_index(self.index)

    def _pieces(self, first: int, stop: int) -> PieceArrays:
        rows = slice(self.index.row_starts[first], self.index.row_starts[stop])
        lookups = slice(self.index.lookup_starts[first], self.index.lookup_starts[stop])
        return PieceArrays(self.arrays.keys[rows], self.arrays.rows[rows], self.arrays.bags[lookups])

    def _write(self, position: int, array: NDArray[Any]) -> None:
        left = _bytes_of(array)
        while left.nbytes:
            num_bytes = os.pwrite(self.descriptor, left, position)
            position += num_bytes
            left = left[num_bytes:]


def _bytes_of(array: NDArray[Any]) -> memoryview:
    """Return the bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def _free_range(descriptor: int, position: int, num_bytes: int) -> bool:
    """Return the blocks of a part of a file to the file system; return whether it can do that."""
    arguments = (_KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(position), ctypes.c_int64(num_bytes))
    return bool(ctypes.CDLL(None).fallocate(descriptor, *arguments) == 0)


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each piece begins, and the end of the last one."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _checksum_of_index(index: PieceIndex) -> str:
    digest = xxhash.xxh3_128()
    for array in (index.row_starts, index.lookup_starts, index.checksums):
        digest.update(_bytes_of(array))
    return digest.hexdigest()


class PieceFolders:
    """The finished runs of some folders.

    Args:
        folders: where earlier runs of the command wrote.
        num_files: output files.
        row_words: words of a row.
    """

    def __init__(self, folders: Sequence[Path], num_files: int, row_words: int) -> None:
        self._folders = [*folders]
        self._num_files = num_files
        self._row_words = row_words
        self.runs: list[Run] = []
        """Finished runs in the order of their parts, which are disjoint."""
        self.num_lookups = np.zeros(num_files, np.int64)
        """(num_files,), ids in the bags of each output file in all runs."""
        self.frees_space = False
        """Whether `free` returns space where runs are written to."""
        for folder in folders:
            self._find(folder)

    @property
    def target(self) -> Path:
        """The folder that runs are written to."""
        return self._folders[-1]

    def write_to(self, folder: Path) -> None:
        """Write the next runs to ``folder``, which is made if it is missing."""
        make_folder(folder)
        with _errors_explained(folder), tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_BLOCK_BYTES))
            file.flush()
            self.frees_space = _free_range(file.fileno(), 0, _BLOCK_BYTES)
        self._folders = [*(other for other in self._folders if other != folder), folder]

    def missing(self, num_parts: int) -> list[range]:
        """Return the parts that no run has, as ranges."""
        stops = [0, *(run.parts.stop for run in self.runs)]
        starts = [*(run.parts.start for run in self.runs), num_parts]
        return [range(*gap) for gap in zip(stops, starts, strict=True) if gap[0] < gap[1]]

    @contextmanager
    def writing(
        self,
        parts: range,
        arrays: PieceArrays,
        rows_of_files: NDArray[np.int64],
        lookups_of_files: NDArray[np.int64],
    ) -> Iterator[RunWriter]:
        """Yield a writer of the rows of ``parts``; on leaving, the run is finished and recorded.

        Args:
            arrays: the rows, file by file.
            rows_of_files: (num_files,).
            lookups_of_files: (num_files,).

        Raises:
            ManifestError: the device is full, or the file cannot be written for another such reason.
        """
        path = self.target / f"{parts.start:06}-{parts.stop:06}.pieces"
        facts = RunFacts(
            first_part=parts.start,
            stop_part=parts.stop,
            num_files=self._num_files,
            row_words=self._row_words,
            num_rows=arrays.keys.size,
            num_lookups=arrays.bags.size,
        )
        run = Run(path, facts)
        checksums = np.empty((self._num_files, _CHECKSUM_BYTES), np.uint8)
        index = PieceIndex(_starts(rows_of_files), _starts(lookups_of_files), checksums)
        aside = path.with_suffix(".tmp")
        with _errors_explained(self.target), removed_on_failure(aside):
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                # A full device refuses here, before any row is written.
                os.posix_fallocate(descriptor, 0, run.sections[-1])
                writer = RunWriter(run, descriptor, arrays, index)
                yield writer
                checksum = writer.write_index()
            finally:
                os.close(descriptor)
            os.replace(aside, path)
            # Renamed first, then recorded, as the files of a stage are.
            finished = Run(path, replace(facts, index_xxh3_128=checksum))
            record = finished.facts.to_json()
            text = json.dumps(record | {"checksum": checksum_of(record)})
            write_synced(path.with_suffix(".json"), text.encode(), sync=False)
        self._add(finished, index)

    def free(self, files: Sequence[range]) -> None:
        """Return the space of the pieces of output files that are written, where the file system can."""
        for run in self.runs:
            with run.open(is_written=True) as reader:
                for numbers in files:
                    reader.free(reader.index(numbers))

    def remove(self) -> None:
        """Remove all runs."""
        self.runs.clear()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _add(self, run: Run, index: PieceIndex) -> None:
        bisect.insort(self.runs, run, key=lambda one: one.facts.first_part)
        self.num_lookups += np.diff(index.lookup_starts)

    def _find(self, folder: Path) -> None:
        """Take the finished runs of a folder, and remove what else is in it."""
        kept = set()
        for record in sorted(folder.glob("*.json")):
            run = self._recorded(record)
            index = None if run is None else self._whole_index(run)
            if run is not None and index is not None:
                self._add(run, index)
                kept |= {record, run.path}
        for left in folder.iterdir():
            if left not in kept:
                left.unlink()

    def _recorded(self, record: Path) -> Run | None:
        """Return the run of a record; None if it is damaged, of other files, or has parts of another run."""
        try:
            parts = json.loads(record.read_bytes())
            if parts.pop("checksum") != checksum_of(parts):
                return None
            facts = RunFacts.from_json(parts)
        except (KeyError, TypeError, ValueError, AttributeError, OSError):
            return None
        run = Run(record.with_suffix(".pieces"), facts)
        is_new = all(
            run.parts.stop <= other.parts.start or other.parts.stop <= run.parts.start for other in self.runs
        )
        is_alike = (facts.num_files, facts.row_words) == (self._num_files, self._row_words)
        return run if is_new and is_alike else None

    def _whole_index(self, run: Run) -> PieceIndex | None:
        """Return the index of a run; None where it is not the one that was written."""
        try:
            if run.path.stat().st_size != run.sections[-1]:
                return None
            with run.open() as reader:
                index = reader.index(range(self._num_files))
        except (OSError, ManifestError):
            return None
        return index if _checksum_of_index(index) == run.facts.index_xxh3_128 else None


def lack_of_room(folder: Path, piece_bytes: int, out: Path, more_bytes: int) -> str | None:
    """Return why a folder is no place for pieces, in a sentence; None where it has room.

    Args:
        folder: where pieces would be written; it need not exist.
        piece_bytes: of pieces that are not there yet.
        out: where the output files are written.
        more_bytes: of output files that are not there yet.
    """
    place = existing_above(folder)
    usage = shutil.disk_usage(place)
    if is_in_memory(place) and piece_bytes > usage.total // _MOST_OF_MEMORY:
        return (
            f"{folder} is in memory, {format_byte_size(usage.total)}, "
            f"of which {format_byte_size(piece_bytes)} of pieces take more than a tenth"
        )
    # Both grow on the same device.
    is_shared = place.stat().st_dev == existing_above(out).stat().st_dev
    needed = piece_bytes + (more_bytes if is_shared else 0)
    if needed > usage.free:
        return f"{folder} has {format_byte_size(usage.free)} free, and pieces need {format_byte_size(needed)}"
    return None


@contextmanager
def _errors_explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ManifestError(
            f"{folder} cannot hold the pieces: {error.strerror or error}",
            hint="free disk space, or give another --scratch; the same command resumes the run",
        ) from error
