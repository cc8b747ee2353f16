"""The description of its model in an exported folder, from which with the tensors it can be made again."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ...pipeline.errors import HotsetError, first_line
from ...pipeline.folders.manifest import RecordError
from ...pipeline.schema.schema import Schema
from ...pipeline.schema.schema_file import schema_of
from ..options.export_config import ROW_TYPES, RowType
from ..run_config import RunConfig
from .run_tables import RunTables

MODEL = "model.json"


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """The model of an exported folder."""

    config: RunConfig
    """That of the run; its tables say which of them are multi-hot."""
    schema_text: str
    """Schema of the log, as a setting."""
    row_type: RowType

    @classmethod
    def of(cls, found: RunTables, row_type: RowType) -> Self:
        """Describe the model of a run."""
        pairs = zip(found.config.tables, found.tables, strict=True)
        tables = tuple(replace(own, is_multi_hot=table.is_multi_hot) for own, table in pairs)
        return cls(replace(found.config, tables=tables), found.schema_text, row_type)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file of an exported folder.

        Raises:
            HotsetError: it is missing or damaged.
        """
        path = folder / MODEL
        try:
            found = json.loads(path.read_bytes())
            row_type = found["row_type"]
            text = found["schema"]
            if row_type not in ROW_TYPES or not isinstance(text, str):
                raise ValueError(f"row_type is {row_type!r}")
            config = found["config"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError, RecordError) as error:
            raise HotsetError(f"{path} cannot be read: {first_line(error)}") from error
        return cls(RunConfig.read(config, str(path)), text, row_type)

    @property
    def schema(self) -> Schema:
        """The schema of the log."""
        return schema_of(self.schema_text)

    def to_json(self) -> dict[str, Any]:
        """Return the contents of the file."""
        return {"row_type": self.row_type, "schema": self.schema_text, "config": self.config.to_json()}
