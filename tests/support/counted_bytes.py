"""The bytes that stages read of their inputs, counted where files are opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.folders.manifest import FileEntry, Manifest
from hotset.pipeline.folders.output import Output
from hotset.pipeline.formats import user_data
from hotset.pipeline.formats.arrow_files import OpenedParts, read_batch
from hotset.pipeline.raw.raw_file import ByteSource
from hotset.pipeline.stages import count_tasks, encode, rank, row_order, split

_ONCE = ("counts", "vocabulary")
"""Folders whose files are opened several times, for one column or to look at their types."""


class CountedBytes:
    """What was read and written, by the folder."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        self.temporary = 0
        self._seen: set[Path] = set()

    def add_read(self, folder: Manifest, entry: FileEntry) -> None:
        path = folder.folder / entry.path
        if folder.folder.name in _ONCE and path in self._seen:
            return
        self._seen.add(path)
        self.read[folder.folder.name] += entry.num_bytes


@contextmanager
def counted_bytes() -> Iterator[CountedBytes]:
    """Count the bytes of stages in the block: a part counts whole whenever its values are asked for."""
    counted = CountedBytes()

    def reading(folder: Manifest, entry: FileEntry) -> Any:
        counted.add_read(folder, entry)
        return read_batch(folder, entry)

    opened = OpenedParts.read

    def again(parts: OpenedParts, folder: Manifest, entry: FileEntry) -> Any:
        counted.add_read(folder, entry)
        return opened(parts, folder, entry)

    filled = ByteSource.fill

    def filling(source: ByteSource, into: Any) -> int:
        num_bytes = filled(source, into)
        counted.read["raw"] += num_bytes
        return num_bytes

    placed = Output._place

    def placing(output: Output, aside: Path, entry: FileEntry) -> None:
        counted.written[output.folder.name] += entry.num_bytes
        placed(output, aside, entry)

    def writing(write: Any) -> Any:
        def written(path: Path, arrays: Any, **ways: Any) -> None:
            before = path.stat().st_size if ways.get("appends") else 0
            write(path, arrays, **ways)
            counted.temporary += path.stat().st_size - before

        return written

    with pytest.MonkeyPatch.context() as patch:
        for module in (user_data, count_tasks, encode, rank, row_order, split):
            patch.setattr(module, "read_batch", reading)
        patch.setattr(OpenedParts, "read", again)
        patch.setattr(ByteSource, "fill", filling)
        patch.setattr(Output, "_place", placing)
        for module in (count_tasks, encode):
            patch.setattr(module, "write_arrays", writing(module.write_arrays))
        yield counted
