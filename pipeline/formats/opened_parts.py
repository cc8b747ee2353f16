"""Parts of the log that stay mapped while a stage reads them again and again.

A log that is larger than the memory is packed in several passes over the same parts, and peeling reads them
once for each table. To open a part of 69,000 samples, which is to map it, parse it and check it, takes
0.2 ms, and its pages are found again for each map; here each part is opened once.
"""

from __future__ import annotations

from typing import Any

from ..folders.manifest import FileEntry, Manifest
from .arrow_files import read_batch

_MOST_FILES = 2048
"""Files kept open, of about 6 MiB each: their page tables take 24 MiB, which are the system's."""


class OpenedParts:
    """Record batches of parts, each opened by the first pass that needs it; for any number of threads."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, str], Any] = {}

    def read(self, folder: Manifest, entry: FileEntry) -> Any:
        """Return the record batch of one part, checked when it was opened.

        Raises:
            ManifestError: it cannot be read, or is damaged.
        """
        key = (folder.fingerprint, entry.path)
        batch = self._batches.get(key)
        if batch is None:
            batch = read_batch(folder, entry)
            # The first parts are kept, not the latest: passes read parts in order, so the latest are the ones
            # that are needed last.
            if len(self._batches) < _MOST_FILES:
                self._batches[key] = batch
        return batch
