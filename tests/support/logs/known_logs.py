"""Files in the form of each known log, all of whose values are made up."""

from __future__ import annotations

import random
from collections.abc import Callable

from hotset.pipeline.schema.schema_file import KnownLog, schema_named

NUM_ROWS = 60
_VALUES: dict[str, Callable[[random.Random], str]] = {
    "label": lambda drawn: str(drawn.randrange(2)),
    "integer": lambda drawn: str(drawn.randrange(1, 500)),
    "hex8": lambda drawn: f"{drawn.randrange(1 << 32) | 0xA0000000:08x}",
    "float": lambda drawn: f"{drawn.random():.6f}",
    "dense": lambda drawn: drawn.choice(["", "0", "7", "1234"]),
    "text": lambda drawn: drawn.choice(["place_1", "place_2"]),
    "list": lambda drawn: "|".join(str(drawn.randrange(9)) for _ in range(drawn.randrange(2, 5))),
    "time": lambda drawn: str(1_500_000_000 + drawn.randrange(10_000_000)),
    "rating": lambda drawn: str(drawn.randrange(1, 6)),
    "watch_ratio": lambda drawn: f"{drawn.random() * 4:.4f}",
    "behavior": lambda drawn: drawn.choice(["pv", "pv", "cart", "fav", "buy"]),
}


def lines_of(
    name: str, *, seed: int = 0, num_rows: int = NUM_ROWS, header: bool = True, without: str | None = None
) -> str:
    """Return lines of a known log, in the form in which it was published, ``without`` a column of it."""
    schema, known, drawn = schema_named(name), KnownLog.read(name), random.Random(seed)
    kinds = dict.fromkeys(known.header, "integer") | dict.fromkeys(schema.dense, "dense")
    kinds |= dict.fromkeys(schema.floats, "float")
    for feature, kind in schema.kind_of.items():
        kinds[schema.column_of[feature]] = "time" if kind in ("hour", "weekday") else kind
    kinds |= {column: "list" for column, _ in schema.lists}
    label = str(schema.label)
    kinds[label] = label if label in _VALUES else "label"
    fields = schema.fields or known.header or schema.columns(has_label=True)
    fields = tuple(field for field in fields if field != without)
    separator = "\t" if schema.format == "criteo" else schema.separator
    rows = [[_VALUES[kinds[field]](drawn) for field in fields] for _ in range(num_rows)]
    has_names = header and schema.format == "csv" and not schema.fields
    return "".join(separator.join(row) + "\n" for row in ([list(fields)] if has_names else []) + rows)
