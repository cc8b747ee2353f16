"""Options of what crosses between ranks in fewer bytes. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from ...pipeline.errors import ConfigError
from ...stats.published_bounds import BASE, PUBLISHED_LISTS, published_bounds

FIXED_CODECS = ("none", "fp16", "bf16", "int8")
"""Codecs without a setting."""
AUTO = "auto"
"""Name of the choice that is left to a measurement."""
BY_SIZE = "sizes"
"""Bounds by the size of a table."""
LEAST_BOUND = 2.0**-16
_BELOW_BOUND = 0.5


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """A codec as an option names it."""

    kind: str
    """One of `FIXED_CODECS`, ``bounded``, or ``auto``."""
    bound: float | None = None
    """Bound of all tables that have none of their own; None: by their sizes."""
    of_tables: tuple[tuple[str, float], ...] = ()
    """Bounds of some tables, by name."""


def parse_codec(option: str, text: str) -> CodecChoice:
    """Read a codec, such as ``int8`` or ``bounded:0.03,C3=0.01``.

    Args:
        option: the name of the setting, for errors.
        text: its value.

    Raises:
        ConfigError: no such codec, or a bound that is none.
    """
    kind, colon, setting = text.partition(":")
    if not colon and kind in (*FIXED_CODECS, AUTO):
        return CodecChoice(kind)
    if kind != "bounded" or not setting:
        names = ", ".join(FIXED_CODECS)
        raise ConfigError(f"{option} must be {names}, auto or bounded:E, got {text!r}")
    # The bound of all tables, then those of single ones; of the published ones each table has its own.
    first, *others = setting.split(",")
    of_tables: list[tuple[str, float]] = []
    if first in PUBLISHED_LISTS:
        bound: float | None = BASE
        of_tables += published_bounds(first).items()
    else:
        bound = None if first == BY_SIZE else _parse_bound(option, first)
    for each in others:
        name, equals, number = each.partition("=")
        if not equals:
            raise ConfigError(f"{option}: want TABLE=BOUND, got {each!r}")
        of_tables.append((name, _parse_bound(option, number)))
    return CodecChoice("bounded", bound, tuple(of_tables))


def _parse_bound(option: str, text: str) -> float:
    try:
        bound = float(text)
    except ValueError:
        bound = float("nan")
    if not LEAST_BOUND <= bound < _BELOW_BOUND:
        raise ConfigError(f"{option}: a bound is a number from 2**-16 to below {_BELOW_BOUND}, got {text!r}")
    return bound


@dataclass(frozen=True, kw_only=True)
class ExchangeOptions:
    """Codecs of what crosses between ranks. Weights depend on all but ``none``, and then on the number of
    ranks."""

    exchange: str = "none"
    """Codec of embedding rows and gradients between ranks: none, fp16, bf16 or int8; bounded:0.03, whose
    error is at most that share of the range of a table, with bounds of single tables behind it
    (bounded:0.03,C3=0.01), by their sizes (bounded:sizes: 0.01 above 400,000 rows, 0.05 below 1,000), or as
    published for Criteo's logs (bounded:kaggle, bounded:terabyte); auto measures the link, and may choose
    none. Bounds fall from twice their value over the first fifth of the steps. Gradients of rows are int8
    where vectors are bounded; those of dense layers are fp16 for fp16, and bf16 for the others."""

    exchange_feedback: bool = False
    """Keep the error of each coded gradient of a hot row, and add it to the row's next one. Takes 4 bytes a
    number of the hot rows on each rank."""

    def __post_init__(self) -> None:
        parse_codec("exchange", self.exchange)
        if self.exchange_feedback and self.exchange == "none":
            raise ConfigError(
                "exchange_feedback keeps the errors of gradients, which have none here: "
                "give --exchange int8, too"
            )

    @property
    def names_codecs(self) -> bool:
        """Whether anything is asked to cross in fewer bytes."""
        return self.exchange != "none"
