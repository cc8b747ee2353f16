"""The metrics of a run as a file that TensorBoard reads.

Written here rather than by TensorBoard's own writer, which needs protobuf and a second to import for what is
a few bytes a line. A resumed run writes its file again from the metrics of its checkpoint, so that every line
is there once.

Source:
    TensorFlow: ``event.proto`` and ``record_writer.h`` in ``core``; TensorBoard: ``summary.proto``;
    Castagnoli et al., IEEE Transactions on Communications 41 (1993), for the CRC-32C of records.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .run_files import explained, make_folder

EVENTS = "events.out.tfevents.0.hotset"
_VERSION = "brain.Event:2"
_POLYNOMIAL = 0x82F63B78
"""Polynomial of CRC-32C, its bits in reverse order."""
_MASK = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""How the value of a protobuf field is written."""


class TensorboardEvents:
    """The event file of one run, in a folder of its own.

    Args:
        folder: created; a file that an earlier process of the run wrote there is written again.
        metrics: lines logged so far.

    Raises:
        HotsetError: it cannot be written.
    """

    def __init__(self, folder: Path, metrics: Iterable[str]) -> None:
        # The first record names the version of the format, as readers expect it.
        make_folder(folder)
        self._path = folder / EVENTS
        with explained(self._path):
            self._path.write_bytes(_record(_now() + _field(3, _BYTES, _VERSION.encode())))
        for line in metrics:
            self.add(json.loads(line))

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add the numbers of one line of metrics, at its step."""
        # One event for each line: the time, the step, and a summary with a value for each tag.
        values = b"".join(
            _field(1, _BYTES, _field(1, _BYTES, tag.encode()) + _field(2, _FIXED32, struct.pack("<f", value)))
            for tag, value in _numbers(entry)
        )
        event = _now() + _field(2, _VARINT, _varint(entry["step"])) + _field(5, _BYTES, values)
        with explained(self._path), open(self._path, "ab") as file:
            file.write(_record(event))


def _numbers(entry: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a line by tags such as ``train/loss`` and ``validation/hot/auc``."""
    for name, value in entry.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name not in ("step", "samples", "num_samples"):
            yield f"{prefix or 'train/'}{name}", float(value)


def _now() -> bytes:
    """The field of the time, seconds since 1970."""
    return _field(1, _FIXED64, struct.pack("<d", time.time()))


def _field(number: int, kind: int, value: bytes) -> bytes:
    """One field of a protobuf message."""
    length = _varint(len(value)) if kind == _BYTES else b""
    return _varint(number << 3 | kind) + length + value


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _record(message: bytes) -> bytes:
    """A message with its length, and a checksum of each."""
    length = struct.pack("<Q", len(message))
    return length + _masked_checksum(length) + message + _masked_checksum(message)


def _masked_checksum(data: bytes) -> bytes:
    rest = crc32c(data)
    # A checksum of data that hold checksums says little: TensorFlow turns its bits and adds a constant.
    masked = ((rest >> 15 | rest << 17) + _MASK) & 0xFFFFFFFF
    return struct.pack("<I", masked)


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of a few bytes."""
    rest = 0xFFFFFFFF
    for byte in data:
        rest = _TABLE[(rest ^ byte) & 0xFF] ^ rest >> 8
    return rest ^ 0xFFFFFFFF


def _table() -> list[int]:
    """The rest of each byte."""
    table = []
    for rest in range(256):
        for _ in range(8):
            rest = rest >> 1 ^ (_POLYNOMIAL if rest & 1 else 0)
        table.append(rest)
    return table


_TABLE = _table()
