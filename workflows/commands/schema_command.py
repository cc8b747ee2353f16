"""``hotset schema``: propose a schema for a log from its first rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ...pipeline.errors import require_at_least
from ...pipeline.preview.infer_schema import explain_built_in, propose_schema
from ..console import print_json, say
from ..options import parse_options


@dataclass(frozen=True, kw_only=True)
class SchemaCommand:
    """Options of ``hotset schema``."""

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """A log: CSV (plain, gzip or zstd) or Parquet."""

    samples: int = 10_000
    """Number of rows to read, from the beginning."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run ``hotset schema``."""
    options = parse_options(
        SchemaCommand,
        arguments,
        command=command,
        description="Print a schema for a log as TOML, for you to edit.",
    )
    require_at_least("samples", options.samples, 1)
    # The text has comments for the user to edit by; the object has the evidence instead.
    proposal = propose_schema(options.file, num_rows=options.samples)
    if options.json:
        columns = [asdict(column) for column in proposal.columns]
        print_json({"schema": asdict(proposal.schema), "rows": proposal.num_rows, "columns": columns})
    else:
        print(proposal.text, end="")
    # Last, and on stderr: the schema goes to a file, as a rule.
    built_in = explain_built_in(options.file)
    if built_in:
        say(built_in)
    return 0
