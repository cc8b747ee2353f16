"""Codes rows and gradients that cross between ranks, with error feedback for hot rows.

Vectors are rounded to nearest, so a row has the same values at all ranks of a step. Gradients are summed over
the micro-batches of a rank first, and then rounded stochastically, once: the sum that an owner adds up is
unbiased, and its random bits follow from the seed, the step, the rank and the row, so a run can be repeated.
Sums are always in float32. Evaluation reads rows uncoded. Bytes and times are counted.

Error feedback adds what coding lost of a hot row's gradient to its next one. A rank keeps for each hot row of
the shards the error of the last gradient that it sent, ``e = v - v'``, where ``v`` is the gradient plus the
error before it and ``v'`` what the owner decodes. So the sum of all that an owner receives is the sum of the
gradients but for the last error, whatever the codec. Cold rows come too rarely for an error to be of use, and
have none. The errors take 4 bytes per number of each hot row, on every rank.

Source:
    Seide et al., 1-bit stochastic gradient descent, Interspeech 2014; Karimireddy et al., Error feedback
    fixes SignSGD, ICML 2019, arXiv 1901.09847.

Shapes: N rows of a message, H hot rows, F tables of a table group.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from ...stats.codecs import EARLY_SHARE, BoundedCodec, RowCodec, bound_factor, codec_of
from ...stats.published_bounds import BASE, bound_by_size
from ..config import AUTO, ChosenExchange, CodecChoice, ExchangeOptions, ExchangePrediction, parse_codec
from ..data.batch import EmbeddingTable
from ..model.shapes import tables_by_dim

_EXACT = "none"
_DENSE_CODECS = (_EXACT, "fp16", "bf16")
_BACK_OF_BOUNDED = "int8"
"""Gradients of rows differ in size by decades, so one range for a table would erase those of rare rows."""
_MOST_BOUND = 0.49


def chosen_by(options: ExchangeOptions, num_steps: int) -> ChosenExchange:
    """Return the codecs that options name; none yet for ``auto``.

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


def codec_for(text: str, tables: Sequence[EmbeddingTable]) -> RowCodec:
    """Return the codec of the rows of some tables.

    Args:
        text: the codec's name.
        tables: of one group.

    Raises:
        ConfigError: no such codec.
    """
    choice = parse_codec("exchange", text)
    return _bounds_of(choice, tables) if choice.kind == "bounded" else codec_of(choice.kind)


def loosened(codec: RowCodec, factor: float) -> RowCodec:
    """Return a codec with its bounds, if it has any, multiplied by ``factor``."""
    if factor == 1 or not isinstance(codec, BoundedCodec):
        return codec
    # The codec takes bounds below 1/2, and the factor of early steps may lead beyond.
    of_tables = {table: min(bound * factor, _MOST_BOUND) for table, bound in codec.of_tables.items()}
    return BoundedCodec(min(codec.bound * factor, _MOST_BOUND), of_tables)


def check_tables_of_bounds(chosen: ChosenExchange, tables: Sequence[EmbeddingTable]) -> None:
    """Raise ConfigError where a bound is of a table that is not there."""
    names = [table.name for table in tables]
    for name, _ in parse_codec("exchange", chosen.vectors).of_tables:
        if name not in names:
            raise ConfigError(f"exchange: there is no table {name!r}", hint=f"tables are {', '.join(names)}")


def _bounds_of(choice: CodecChoice, tables: Sequence[EmbeddingTable]) -> BoundedCodec:
    # A table's own bound comes first, then the one for all, then that of its size.
    bounds = dict(enumerate(choice.bound or bound_by_size(table.num_rows) for table in tables))
    of_names = dict(choice.of_tables)
    bounds |= {n: of_names[table.name] for n, table in enumerate(tables) if table.name in of_names}
    return BoundedCodec(choice.bound or BASE, bounds)


class GroupErrors:
    """The errors of the hot rows of one table group that a rank has sent.

    Args:
        tables: of the group, as the shards have them.
    """

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        self._first_key_F1 = np.cumsum([0, *(table.num_rows for table in tables)])
        self._num_hot_F = np.array([table.num_hot for table in tables])
        self._first_hot_F1 = np.cumsum([0, *self._num_hot_F])
        dim = tables[0].embedding_dim if tables else 0
        self.errors_HD = np.zeros((int(self._first_hot_F1[-1]), dim), np.float32)
        """Zeros take no memory until they are written, so rows that live here take none."""

    def added(self, rows_ND: NDArray[np.float32], keys_N: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return gradients with the errors of those before them; keys are distinct."""
        hot, numbers = self._hot(keys_N)
        found = rows_ND.copy()
        found[hot] += self.errors_HD[numbers]
        return found

    def keep(
        self, sent_ND: NDArray[np.float32], arrived_ND: NDArray[np.float32], keys_N: NDArray[np.int32]
    ) -> None:
        """Keep the errors of gradients, given as sent and as decoded."""
        hot, numbers = self._hot(keys_N)
        self.errors_HD[numbers] = sent_ND[hot] - arrived_ND[hot]

    def _hot(self, keys_N: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which rows are hot, and their numbers among all hot rows."""
        tables_N = np.searchsorted(self._first_key_F1, keys_N, side="right") - 1
        ids_N = keys_N - self._first_key_F1[tables_N]
        hot = np.flatnonzero(ids_N < self._num_hot_F[tables_N])
        return hot, self._first_hot_F1[tables_N[hot]] + ids_N[hot]


Kind = Literal["vectors", "gradients", "dense"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Coding(NamedTuple):
    """How rows cross one way in a step."""

    codecs: Sequence[RowCodec]
    """Codec of each table group."""
    streams: Sequence[int | None]
    """Seed of the stochastic rounding of each table group; None rounds to nearest."""
    errors: Sequence[GroupErrors] | None = None
    """Errors of earlier steps, which rows of this rank are sent with; None: there are none."""

    @property
    def is_exact(self) -> bool:
        """Return whether the rows cross as they are."""
        return all(codec.is_exact for codec in self.codecs)

    def codec(self, group: int) -> RowCodec:
        """Return the codec of the rows of a table group."""
        return self.codecs[group] if self.codecs else codec_of(_EXACT)


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


class CodedExchange:
    """The exchange of a run, seen from one rank.

    Args:
        rank: this one.
        seed: of the run.
        groups: tables of each group.
        step: steps of the run that are done.
    """

    def __init__(
        self, rank: int, seed: int, groups: Sequence[Sequence[EmbeddingTable]] = (), step: int = 0
    ) -> None:
        self.step = step
        """Steps that are done."""
        self.counts = ExchangeCounts()
        self.prediction: ExchangePrediction | None = None
        """By which the codecs were chosen; None where they were named."""
        self._rank = rank
        self._seed = seed
        self._groups = groups
        self.use(ChosenExchange())

    def use(self, chosen: ChosenExchange) -> None:
        """Send by these codecs from now on."""
        self.chosen = chosen
        self._vectors = [codec_for(chosen.vectors, tables) for tables in self._groups]
        self._gradients = [codec_for(chosen.gradients, tables) for tables in self._groups]
        self._dense = codec_of(chosen.dense)
        self.errors = [GroupErrors(tables) for tables in self._groups] if chosen.feedback else None

    def vectors(self) -> Coding:
        """The coding of the vectors of this step."""
        return Coding(self._loosened(self._vectors), [None] * len(self._groups))

    def gradients(self) -> Coding:
        """The coding of the gradients of this step."""
        streams = [self._stream("gradients", group) for group in range(len(self._groups))]
        return Coding(self._loosened(self._gradients), streams, self.errors)

    def _loosened(self, codecs: Sequence[RowCodec]) -> list[RowCodec]:
        factor = bound_factor(self.step, self.chosen.early_steps)
        return [loosened(codec, factor) for codec in codecs]

    def dense(self, half: Literal["partials", "sums"]) -> tuple[RowCodec, int]:
        """Return the codec and the rounding seed of this step's dense gradient.

        They are for one half of its sum.
        """
        return self._dense, self._stream(half, 0)

    def note_sent(self, kind: Kind, num_bytes: int, num_saturated: int) -> None:
        """Count bytes that this rank has sent, and numbers beyond their code's range."""
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

    def _stream(self, name: str, group: int) -> int:
        # A digest, since Python's own hash of a text differs from process to process.
        text = f"{self._seed} {self.step} {self._rank} {name} {group}"
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
    check_tables_of_bounds(chosen, tables)
    groups = tables_by_dim([table.embedding_dim for table in tables]).values()
    coded = CodedExchange(rank, seed, [[tables[n] for n in of_group] for of_group in groups], num_done)
    coded.use(chosen)
    return coded
