"""The coding of what crosses between the ranks of a run: codecs, bytes so far, and the time it took.

Vectors are rounded to nearest, so a row has the same values at all ranks of a step. Gradients are summed over
the micro-batches of a rank first, and then rounded stochastically, once: the sum that an owner adds up is
unbiased, and its random bits follow from the seed, the step, the rank and the row, so a run can be repeated.
Sums are of float32 always. Evaluation reads rows as they are.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from ...stats.codecs import codec_of
from ...stats.plain_codecs import RowCodec
from ..data.batch import EmbeddingTable
from ..model.dlrm_shape import tables_by_width
from .chosen_exchange import ChosenExchange, WidthCodec, factor_at, refuse_unknown_tables
from .error_feedback import WidthErrors

Kind = Literal["vectors", "gradients", "dense"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Coding(NamedTuple):
    """How rows cross one way in a step."""

    codecs: Sequence[RowCodec]
    """Codec of each width."""
    streams: Sequence[int | None]
    """Seed of the stochastic rounding of each width; None rounds to nearest."""
    errors: Sequence[WidthErrors] | None = None
    """Errors of earlier steps, which rows of this rank are sent with; None: there are none."""

    @property
    def is_exact(self) -> bool:
        """Whether the rows cross as they are."""
        return all(codec.is_exact for codec in self.codecs)


@dataclass(slots=True)
class ExchangeCounts:
    """Counts of what one rank has sent."""

    sent_bytes: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    num_saturated: int = 0
    """Numbers that were too large for their code and became its largest."""
    num_steps: int = 0
    """Training steps in which that was."""
    seconds_of: dict[Kind, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    """Seconds of the training loop for coding and waiting."""

    @property
    def seconds(self) -> float:
        """Seconds of the training loop for coding and waiting, of all kinds."""
        return sum(self.seconds_of.values())


@dataclass(frozen=True, slots=True)
class ExchangePrediction:
    """The measurement by which codecs were chosen."""

    delay_seconds: float
    """Seconds of a small message."""
    bytes_per_second: float
    """Bandwidth of the link of the slowest rank, each way."""
    seconds_per_step: float
    """Seconds of a step for the exchange in the chosen codecs."""
    seconds_by_codec: Mapping[str, Mapping[str, float]]
    """Seconds of a step without the delay, of each kind in each codec that was tried."""


class CodedExchange:
    """The exchange of a run, seen from one rank.

    Args:
        rank: this one.
        seed: of the run.
        widths: tables of each width.
        step: steps of the run that are done.
    """

    def __init__(
        self, rank: int, seed: int, widths: Sequence[Sequence[EmbeddingTable]] = (), step: int = 0
    ) -> None:
        self.step = step
        """Steps that are done."""
        self.counts = ExchangeCounts()
        self.prediction: ExchangePrediction | None = None
        """By which the codecs were chosen; None where they were named."""
        self._rank = rank
        self._seed = seed
        self._widths = widths
        self.use(ChosenExchange())

    def use(self, chosen: ChosenExchange) -> None:
        """Send by these codecs from now on."""
        self.chosen = chosen
        self._vectors = [WidthCodec("exchange", chosen.vectors, tables) for tables in self._widths]
        self._gradients = [WidthCodec("exchange", chosen.gradients, tables) for tables in self._widths]
        self._dense = codec_of(chosen.dense)
        self.errors = [WidthErrors(tables) for tables in self._widths] if chosen.feedback else None

    def vectors(self) -> Coding:
        """The coding of the vectors of this step."""
        factor = factor_at(self.chosen, self.step)
        return Coding([codec.at(factor) for codec in self._vectors], [None] * len(self._widths))

    def gradients(self) -> Coding:
        """The coding of the gradients of this step."""
        factor = factor_at(self.chosen, self.step)
        streams = [self._stream("gradients", width) for width in range(len(self._widths))]
        return Coding([codec.at(factor) for codec in self._gradients], streams, self.errors)

    def dense(self, half: Literal["partials", "sums"]) -> tuple[RowCodec, int]:
        """The codec of the dense gradient of this step and the seed of its rounding, for one half of its
        sum."""
        return self._dense, self._stream(half, 0)

    def note_sent(self, kind: Kind, num_bytes: int, num_saturated: int) -> None:
        """Count bytes that this rank has sent, and numbers in them that were too large for their code."""
        self.counts.sent_bytes[kind] += num_bytes
        self.counts.num_saturated += num_saturated

    def note_step(self) -> None:
        """Go on to the next step."""
        self.step += 1
        self.counts.num_steps += 1

    @contextmanager
    def clocked(self, kind: Kind) -> Iterator[None]:
        """Add the seconds of the block to those of a kind."""
        begin = time.perf_counter()
        yield
        self.counts.seconds_of[kind] += time.perf_counter() - begin

    def _stream(self, name: str, width: int) -> int:
        # A digest, since Python's own hash of a text differs from process to process.
        text = f"{self._seed} {self.step} {self._rank} {name} {width}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


EXACT = Coding((), ())
"""Rows as they are."""


def build_coded_exchange(
    tables: Sequence[EmbeddingTable], seed: int, rank: int, chosen: ChosenExchange, num_done: int
) -> CodedExchange:
    """Build the codecs of what crosses between ranks.

    Args:
        tables: those of the shards.
        chosen: their names.
        num_done: steps of the run that are done.

    Raises:
        ConfigError: a bound of a table that is not there.
    """
    refuse_unknown_tables(chosen, tables)
    widths = tables_by_width([table.embedding_dim for table in tables]).values()
    coded = CodedExchange(rank, seed, [[tables[n] for n in of_width] for of_width in widths], num_done)
    coded.use(chosen)
    return coded
