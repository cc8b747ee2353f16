"""The codecs of a run's exchange: what was chosen, and the codec of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ...pipeline.errors import ConfigError
from ...stats.codecs import EARLY_SHARE, BoundedCodec, bound_factor, codec_of
from ...stats.plain_codecs import RowCodec
from ...stats.published_bounds import BASE, bound_by_size
from ..data.batch import EmbeddingTable
from ..options.exchange_options import AUTO, CodecChoice, ExchangeOptions, parse_codec

_EXACT = "none"
_DENSE_CODECS = (_EXACT, "fp16", "bf16")
_BACK_OF_BOUNDED = "int8"
"""Gradients of rows differ in size by decades, so one range for a table would erase those of rare rows."""
_MOST_BOUND = 0.49


@dataclass(frozen=True, slots=True)
class ChosenExchange:
    """Codecs by the names that options take; none of them is left open."""

    vectors: str = _EXACT
    gradients: str = _EXACT
    dense: str = _EXACT
    early_steps: int = 0
    """Steps in which bounds are looser."""
    feedback: bool = False
    """Whether the error of a hot row's gradient is added to its next one."""

    @property
    def is_exact(self) -> bool:
        """Whether everything crosses as it is."""
        return self.vectors == self.gradients == self.dense == _EXACT

    def to_json(self) -> dict[str, Any]:
        """The choice as plain data."""
        return asdict(self)

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> ChosenExchange:
        """Read a recorded choice, which may stand among other settings."""
        return cls(**{field.name: found[field.name] for field in fields(cls)})


def chosen_by(options: ExchangeOptions, num_steps: int) -> ChosenExchange:
    """Return the codecs that options name; where ``--exchange auto`` leaves them open they are none so far.

    Gradients take the codec of the vectors, or int8 where that is bounded; those of the dense layers the same
    16-bit type, or bf16.

    Args:
        options: of the exchange.
        num_steps: of the run.
    """
    vectors = _EXACT if options.exchange == AUTO else options.exchange
    is_bounded = parse_codec("exchange", vectors).kind == "bounded"
    return ChosenExchange(
        vectors=vectors,
        gradients=_BACK_OF_BOUNDED if is_bounded else vectors,
        dense=vectors if vectors in _DENSE_CODECS else "bf16",
        early_steps=int(EARLY_SHARE * num_steps) if is_bounded else 0,
        feedback=options.exchange_feedback,
    )


class WidthCodec:
    """The codec of the rows of some tables, which may change from step to step.

    Args:
        option: the name of the setting, for errors.
        text: the codec's name.
        tables: of one width.

    Raises:
        ConfigError: no such codec.
    """

    def __init__(self, option: str, text: str, tables: Sequence[EmbeddingTable]) -> None:
        choice = parse_codec(option, text)
        self._bounded: BoundedCodec | None = None
        self._fixed: RowCodec = codec_of(_EXACT)
        if choice.kind == "bounded":
            self._bounded = _bounds_of(choice, tables)
        else:
            self._fixed = codec_of(choice.kind)

    def at(self, factor: float) -> RowCodec:
        """Return the codec of a step whose bounds are multiplied by ``factor``."""
        if self._bounded is None:
            return self._fixed
        if factor == 1:
            return self._bounded
        # The codec takes bounds below 1/2, and the factor of early steps may lead beyond.
        codec = self._bounded
        of_tables = {table: min(bound * factor, _MOST_BOUND) for table, bound in codec.of_tables.items()}
        return BoundedCodec(min(codec.bound * factor, _MOST_BOUND), of_tables)


def refuse_unknown_tables(chosen: ChosenExchange, tables: Sequence[EmbeddingTable]) -> None:
    """Raise ConfigError where a bound is of a table that is not there."""
    names = [table.name for table in tables]
    for name, _ in parse_codec("exchange", chosen.vectors).of_tables:
        if name not in names:
            raise ConfigError(f"exchange: there is no table {name!r}", hint=f"tables are {', '.join(names)}")


def factor_at(chosen: ChosenExchange, step: int) -> float:
    """Return the factor of all bounds in a step, counted from 0."""
    return bound_factor(step, chosen.early_steps)


def _bounds_of(choice: CodecChoice, tables: Sequence[EmbeddingTable]) -> BoundedCodec:
    # A table's own bound comes first, then the one for all, then that of its size.
    bounds = dict(enumerate(choice.bound or bound_by_size(table.num_rows) for table in tables))
    of_names = dict(choice.of_tables)
    bounds |= {n: of_names[table.name] for n, table in enumerate(tables) if table.name in of_names}
    return BoundedCodec(choice.bound or BASE, bounds)
