"""Options of what crosses between ranks in fewer bytes. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...pipeline.errors import ConfigError, require_at_least, require_choices
from ...pipeline.sizes import ByteSize, parse_byte_size
from ...stats.codecs.published_bounds import BASE, PUBLISHED_LISTS, published_bounds

FIXED_CODECS = ("none", "fp16", "bf16", "int8", "int4", "fp8")
"""Codecs without a setting."""
AUTO = "auto"
"""Name of the choice that is left to a measurement."""
BY_SIZE = "sizes"
"""Bounds by the size of a table."""
_BUDGET = "budget"
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
    budget: float | None = None
    """Most bytes of a message, from which its bounds follow: below 1 a share of those as float32."""


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
    if first.startswith(f"{_BUDGET}="):
        return CodecChoice("bounded", budget=_parse_budget(option, first.removeprefix(f"{_BUDGET}="), others))
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


def _parse_budget(option: str, text: str, others: list[str]) -> float:
    if others:
        raise ConfigError(f"{option}: the bounds of a budget follow from its bytes, got {others[0]!r} too")
    try:
        share = float(text)
    except ValueError:
        share = 1.0
    # A number below 1 is a share, everything else a size.
    if share < 1:
        if not share > 0:
            raise ConfigError(f"{option}: a budget is a share above 0 or a size, got {text!r}")
        return share
    try:
        size = parse_byte_size(text)
    except ConfigError:
        size = ByteSize(0)
    if size < 1:
        raise ConfigError(f"{option}: a budget is a share such as 0.2 or a size such as 64KiB, got {text!r}")
    return size


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
    """Codec of embedding rows between ranks: none, fp16, bf16, fp8, int8 or int4; bounded:0.03, whose error
    is at most that share of the range of a table, with bounds of single tables behind it
    (bounded:0.03,C3=0.01), by their sizes (bounded:sizes: 0.01 above 400,000 rows, 0.05 below 1,000), as
    published for Criteo's logs (bounded:kaggle, bounded:terabyte), or as small as a share of the bytes or a
    size allows in each message (bounded:budget=0.15, bounded:budget=64KiB); auto measures the link, and may
    choose none."""

    exchange_back: str | None = None
    """Codec of the gradients of those rows; by default that of --exchange, and int8 for a bounded one."""

    exchange_dense: str | None = None
    """Codec of the gradients of the dense layers; by default none, and bf16 where --exchange auto finds it
    quicker."""

    exchange_decay: Literal["none", "constant", "linear", "log", "step"] = "none"
    """How a bound falls to its value from twice that over the first steps: not at all, at their end
    (constant), or gradually."""

    exchange_early: float = 0.2
    """Share of the run's steps in which the bound is looser; 1 or more: their number."""

    exchange_feedback: bool = False
    """Keep the error of each coded gradient of a hot row, and add it to the row's next one. Takes 4 bytes a
    number of the hot rows on each rank."""

    sync_rows: int | None = None
    """Number of rows, those used most often, of which every rank holds a copy and updates it by its own
    samples; the copies are synchronised every --sync-every steps. Weights depend on both. By default none."""

    sync_every: int | None = None
    """Number of steps from one synchronisation of the copies of --sync-rows to the next; 2 or more."""

    def __post_init__(self) -> None:
        require_choices(self)
        self._check_copies()
        chosen = {
            "exchange": self.exchange,
            "exchange_back": self.exchange_back,
            "exchange_dense": self.exchange_dense,
        }
        for name, text in chosen.items():
            if text is None:
                continue
            choice = parse_codec(name, text)
            kind = choice.kind
            if choice.budget is not None and self.exchange_decay != "none":
                raise ConfigError(
                    f"exchange_decay loosens bounds, and those of {name} {text} follow from bytes: "
                    "leave one of them out"
                )
            if kind == AUTO and name != "exchange":
                raise ConfigError(
                    f"{name} cannot be auto: --exchange auto chooses every codec that is not given"
                )
            # A gradient of the dense layers has no tables.
            if name == "exchange_dense" and kind == "bounded":
                raise ConfigError(f"{name} must be one of {', '.join(FIXED_CODECS)}, got {text!r}")
        back = self.exchange_back or self.exchange
        if self.exchange_feedback and back == "none":
            raise ConfigError(
                "exchange_feedback keeps the errors of gradients, which have none here: "
                "give --exchange int8, too"
            )
        if not 0 < self.exchange_early <= 2**40:
            raise ConfigError(f"exchange_early must be above 0, got {self.exchange_early:g}")

    def _check_copies(self) -> None:
        if (self.sync_rows is None) != (self.sync_every is None):
            given, missing = ("rows", "every") if self.sync_every is None else ("every", "rows")
            raise ConfigError(
                f"--sync-{given} is given without --sync-{missing}",
                hint="give both, such as --sync-rows 10000 --sync-every 16",
            )
        require_at_least("sync_rows", self.sync_rows, 1)
        # Every step, copies send more than rows at one home do.
        require_at_least("sync_every", self.sync_every, 2)

    @property
    def names_codecs(self) -> bool:
        """Whether anything is asked to cross in fewer bytes, or in fewer steps."""
        return self.sync_rows is not None or any(
            text not in (None, "none") for text in (self.exchange, self.exchange_back, self.exchange_dense)
        )
