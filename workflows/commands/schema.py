"""``hotset schema``: propose a schema for a log from its first rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from ...pipeline.errors import require_at_least
from ...pipeline.infer_schema import explain_built_in, propose_schema
from ..command_list import Command
from ..console import print_json, say
from ..options import Arg


@dataclass(frozen=True, kw_only=True)
class SchemaCommand(Command):
    """Print a schema for a log as TOML, for you to edit."""

    file: Annotated[Path, Arg("FILE", is_positional=True)]
    """A log: CSV (plain, gzip or zstd) or Parquet."""

    samples: int = 10_000
    """Number of rows to read, from the beginning."""

    json: bool = False
    """Print one JSON object on stdout."""

    def execute(self) -> int:
        """Run ``hotset schema``."""
        require_at_least("samples", self.samples, 1)
        # The text has comments for the user to edit by; the object has the evidence instead.
        proposal = propose_schema(self.file, num_rows=self.samples)
        if self.json:
            columns = [asdict(column) for column in proposal.columns]
            print_json({"schema": asdict(proposal.schema), "rows": proposal.num_rows, "columns": columns})
        else:
            print(proposal.text, end="")
        # Last, and on stderr: the schema goes to a file, as a rule.
        built_in = explain_built_in(self.file)
        if built_in:
            say(built_in)
        return 0


COMMANDS: dict[str, type[Command]] = {"schema": SchemaCommand}
