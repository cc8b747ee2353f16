"""What a log's columns are: label, dense integers, sparse categories.

Both public Criteo logs have the same columns and differ in size, so their presets differ in the
recipe, not here.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ConfigError


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a log, in the order of its fields (label first where there is one)."""

    dense: tuple[str, ...]
    sparse: tuple[str, ...]

    def columns(self, *, has_label: bool) -> tuple[str, ...]:
        """Names of the fields of a line."""
        return (("label",) if has_label else ()) + self.dense + self.sparse


_CRITEO = Schema(
    dense=tuple(f"I{number}" for number in range(1, 14)),
    sparse=tuple(f"C{number}" for number in range(1, 27)),
)
SCHEMAS = {"criteo-kaggle": _CRITEO, "criteo-1tb": _CRITEO}


def schema_named(name: str) -> Schema:
    """The schema called ``name``; raises ConfigError naming those there are."""
    if name not in SCHEMAS:
        raise ConfigError(f"no schema {name!r}", hint=f"one of {', '.join(SCHEMAS)}")
    return SCHEMAS[name]
