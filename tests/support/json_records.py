"""Records for manifests that no stage writes."""

from __future__ import annotations

from typing import Any

from hotset.pipeline.folders.manifest import JsonRecord


class AnyRecord(JsonRecord):
    """A record of any keys, written as they are given."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def to_json(self) -> dict[str, Any]:
        return self.values
