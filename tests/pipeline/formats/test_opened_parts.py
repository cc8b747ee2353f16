"""Parts are opened once, by whichever pass is first, and no more of them are kept than the limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hotset.pipeline.formats import opened_parts
from hotset.pipeline.formats.opened_parts import OpenedParts


def test_each_part_is_opened_once_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, str]] = []

    def opening(folder: Any, entry: Any) -> object:
        opened.append((folder.fingerprint, entry.path))
        return opened[-1]

    monkeypatch.setattr(opened_parts, "read_batch", opening)
    monkeypatch.setattr(opened_parts, "_MOST_FILES", 3)
    parts: Any = OpenedParts()
    columns, samples = (SimpleNamespace(fingerprint=name) for name in ("columns", "samples"))
    first, second = (SimpleNamespace(path=path) for path in ("a.arrow", "b.arrow"))
    files = [(columns, first), (samples, first), (columns, second), (samples, second)]
    wanted = [(folder.fingerprint, entry.path) for folder, entry in files]
    for _ in range(3):
        assert [parts.read(*file) for file in files] == wanted
    # The last file is beyond the limit, and opened by each pass.
    assert opened == [*wanted, wanted[3], wanted[3]]
