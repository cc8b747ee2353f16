"""``hotset schema``: a schema for a log, proposed from a look at it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ...pipeline.errors import ConfigError
from ...pipeline.preview.infer_schema import propose_schema
from ..console import print_json
from ..options import parse_options


@dataclass(frozen=True, kw_only=True)
class SchemaCommand:
    """What to look at."""

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """A log: CSV (plain, gzip or zstd) or Parquet."""

    samples: int = 10_000
    """Rows to look at, from the beginning."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, words: list[str]) -> int:
    """Run ``hotset schema``."""
    options = parse_options(
        SchemaCommand,
        words,
        command=command,
        description="Propose a schema for a log: TOML on stdout, to be edited and given to --schema.",
    )
    if options.samples < 1:
        raise ConfigError(f"samples must be 1 or more, got {options.samples}")
    proposal = propose_schema(options.file, num_rows=options.samples)
    if options.json:
        columns = [asdict(look) for look in proposal.columns]
        print_json({"schema": asdict(proposal.schema), "rows": proposal.num_rows, "columns": columns})
    else:
        print(proposal.text, end="")
    return 0
