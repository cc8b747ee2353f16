"""Sends rows, their gradients and dense gradients between ranks, coded or as they are.

The rows for a rank are one message, uncoded or in the codes of the step; the owner of a row adds its
gradients over ranks. Vectors are rounded to nearest, so a row has the same values at all ranks of a step.
Gradients are summed over the micro-batches of a rank first, and then rounded stochastically, once: the sum
that an owner adds up is unbiased, and its random bits follow from the seed, the step, the rank and the row.
So a run can be repeated. Sums are always in float32. Evaluation reads rows uncoded.

Error feedback adds what coding lost of a hot row's gradient to its next one. A rank keeps for each hot row of
the shards the error of the last gradient that it sent, ``e = v - v'``, where ``v`` is the gradient plus the
error before it and ``v'`` what the owner decodes. So the sum of all that an owner receives is the sum of the
gradients but for the last error, whatever the codec. Cold rows come too rarely for an error to be of use, and
have none. The errors take 4 bytes per number of each hot row, on every rank.

Dense gradients are added in the order of one process. Each rank owns an equal slice of the numbers. It
receives that slice from every rank, adds the W of them by the binary tree over rank numbers, and sends the
sum to all. So the bytes are those of a ring, 2 (W - 1) / W of the gradient each way, and the order of
additions depends on neither the back end nor the network. With a codec, each slice is rounded once before it
is sent, and the sum once more before it returns; all ranks, the owner too, use the rounded sum, so that their
dense layers stay equal.

Source:
    Seide et al., 1-bit stochastic gradient descent, Interspeech 2014; Karimireddy et al., Error feedback
    fixes SignSGD, ICML 2019, arXiv 1901.09847.

Shapes: N rows of a message, H hot rows, F tables of a table group.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from ...stats.codecs import (
    EARLY_SHARE,
    BoundedCodec,
    MessageShape,
    NotFiniteError,
    RowCodec,
    RowMessage,
    bound_factor,
    codec_of,
)
from ...stats.kernel import kernel
from ..config_parts import (
    AUTO,
    BASE,
    EXACT_CODEC,
    ChosenExchange,
    CodecChoice,
    ExchangeOptions,
    ExchangePrediction,
    bound_by_size,
    parse_codec,
)
from ..data.batch import EmbeddingTable
from ..model.gradients import SUM_COLUMNS, add_tiles, add_tree
from ..model.shapes import tables_by_dim
from ..rows.kernels import num_levels
from .ranks import Message, NotFiniteRowError, Ranks

_DENSE_CODECS = (EXACT_CODEC, "fp16", "bf16")
_BACK_OF_BOUNDED = "int8"
"""Gradients of rows differ in size by decades, so one range for a table would erase those of rare rows."""
_MOST_BOUND = 0.49


def chosen_by(options: ExchangeOptions, num_steps: int) -> ChosenExchange:
    """Return the codecs that options name; none yet for ``auto``.

    Gradients take the codec of the vectors, or int8 where that is bounded; those of the dense layers the same
    16-bit type, or bf16.
    """
    vectors = EXACT_CODEC if options.exchange == AUTO else options.exchange
    is_bounded = parse_codec(vectors).kind == "bounded"
    return ChosenExchange(
        vectors=vectors,
        gradients=_BACK_OF_BOUNDED if is_bounded else vectors,
        dense=vectors if vectors in _DENSE_CODECS else "bf16",
        early_steps=int(EARLY_SHARE * num_steps) if is_bounded else 0,
        feedback=options.exchange_feedback,
    )


def codec_for(text: str, tables: Sequence[EmbeddingTable]) -> RowCodec:
    """Return the codec of the rows of some tables.

    Raises:
        ConfigError: no such codec.
    """
    choice = parse_codec(text)
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
    for name, _ in parse_codec(chosen.vectors).of_tables:
        if name not in names:
            raise ConfigError(f"exchange: there is no table {name!r}", hint=f"tables are {', '.join(names)}")


def _bounds_of(choice: CodecChoice, tables: Sequence[EmbeddingTable]) -> BoundedCodec:
    # A table's own bound comes first, then the one for all, then that of its size.
    bounds = dict(enumerate(choice.bound or bound_by_size(table.num_rows) for table in tables))
    of_names = dict(choice.of_tables)
    bounds |= {n: of_names[table.name] for n, table in enumerate(tables) if table.name in of_names}
    return BoundedCodec(choice.bound or BASE, bounds)


class GroupErrors:
    """The errors of the hot rows of one table group that a rank has sent."""

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
        return self.codecs[group] if self.codecs else codec_of(EXACT_CODEC)


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
    """The exchange of a run, seen from one rank."""

    def __init__(self, rank: int, seed: int, tables: Sequence[EmbeddingTable] = (), step: int = 0) -> None:
        self.step = step
        """Steps that are done."""
        self.counts = ExchangeCounts()
        self.prediction: ExchangePrediction | None = None
        """By which the codecs were chosen; None where they were named."""
        self._rank = rank
        self._seed = seed
        self._tables = tables
        groups = tables_by_dim([table.embedding_dim for table in tables]).values()
        self._groups = [[tables[number] for number in group] for group in groups]
        self.use(ChosenExchange())

    def use(self, chosen: ChosenExchange) -> None:
        """Send by these codecs from now on; raises ConfigError for a bound of a table that is not there."""
        check_tables_of_bounds(chosen, self._tables)
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
        """Return codec and rounding seed of one half of the dense sum."""
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


_PART_BYTES = 4
"""The codes of a table group begin at a multiple of this, where numbers of 4 bytes may lie."""


class Crossing(NamedTuple):
    """Rows of one table group that cross one way, in rank order."""

    counts: tuple[int, ...]
    """Rows to or from each rank."""
    keys_N: NDArray[np.int32]
    """Ascending for each rank."""
    places_N: NDArray[np.int32]
    """Where each is among the rows that this rank serves or looks up."""

    def parts(self) -> Iterator[slice]:
        """The rows of each rank."""
        first = 0
        for count in self.counts:
            yield slice(first, first + count)
            first += count


class GroupLayout(NamedTuple):
    """The tables of a group, as a codec and an error need them."""

    embedding_dim: int
    first_key_F1: NDArray[np.int64]
    names: tuple[str, ...]
    """Names of the tables."""

    def shape(self, keys_N: NDArray[np.int32]) -> MessageShape:
        """Return the shape of a message of rows, ascending."""
        return MessageShape(np.searchsorted(keys_N, self.first_key_F1), self.embedding_dim)

    def name_of(self, key: int) -> str:
        """Return the table and the id of a row."""
        table = int(np.searchsorted(self.first_key_F1, key, side="right")) - 1
        return f"row {key - int(self.first_key_F1[table])} of table {self.names[table]}"


class RowMessages:
    """Sends rows of known numbers to every rank, and receives theirs."""

    def __init__(self, ranks: Ranks, layout: Sequence[GroupLayout]) -> None:
        self._ranks = ranks
        self._layout = tuple(layout)
        self.sent_bytes = 0
        """Bytes of the last exchange."""
        self.num_saturated = 0
        """Numbers of the last exchange that were too large for their code."""

    def send(
        self,
        rows: Sequence[NDArray[np.float32]],
        sent: Sequence[Crossing],
        received: Sequence[Crossing],
        coding: Coding,
    ) -> Callable[[], list[NDArray[np.float32]]]:
        """Start an exchange; return what waits for the rows of each group.

        Args:
            rows: of each table group, in the order of the ranks they go to.
            sent: which rows these are.
            received: the rows that come from each rank.
            coding: of both.

        Raises:
            NotFiniteRowError: a row that is to be coded has an infinity or a NaN.
        """
        self.num_saturated = 0
        data = self._coded(rows, sent, coding)
        message = Message(torch.from_numpy(data), self._sizes(sent, coding))
        arriving = Message.unset(self._sizes(received, coding))
        self.sent_bytes = message.data.numel()
        wait = self._ranks.exchange(message, arriving)
        # What goes out is kept until all is there.
        return lambda: self._received(wait, message, arriving, received, coding)

    def _received(
        self,
        wait: Callable[[], None],
        _sent: Message,
        arriving: Message,
        rows: Sequence[Crossing],
        coding: Coding,
    ) -> list[NDArray[np.float32]]:
        wait()
        data = arriving.data.numpy()
        found = [
            np.empty((of_group.keys_N.size, layout.embedding_dim), np.float32)
            for of_group, layout in zip(rows, self._layout, strict=True)
        ]
        first = 0
        # Both sides know the rows of each part, and with them where it ends.
        for _, group, part in _parts(rows):
            shape = self._layout[group].shape(rows[group].keys_N[part])
            codec = coding.codec(group)
            num_bytes = codec.num_bytes(shape)
            codec.decode(data[first : first + num_bytes], shape, found[group][part])
            first += _padded(num_bytes)
        return found

    def _sizes(self, rows: Sequence[Crossing], coding: Coding) -> tuple[int, ...]:
        sizes = [0] * self._ranks.num_ranks
        for rank, group, part in _parts(rows):
            shape = self._layout[group].shape(rows[group].keys_N[part])
            sizes[rank] += _padded(coding.codec(group).num_bytes(shape))
        return tuple(sizes)

    def _coded(
        self, rows: Sequence[NDArray[np.float32]], sent: Sequence[Crossing], coding: Coding
    ) -> NDArray[np.uint8]:
        errors = None if coding.is_exact else coding.errors
        streams = coding.streams or [None] * len(rows)
        # Zeros pad the codes of a table group.
        data = np.zeros(sum(self._sizes(sent, coding)), np.uint8)
        first = 0
        for rank, group, part in _parts(sent):
            keys_N = sent[group].keys_N[part]
            layout = self._layout[group]
            shape = layout.shape(keys_N)
            codec = coding.codec(group)
            num_bytes = codec.num_bytes(shape)
            rows_ND = np.ascontiguousarray(rows[group][part])
            if errors is not None:
                rows_ND = errors[group].added(rows_ND, keys_N)
            message = RowMessage(rows_ND, shape.starts_T1, keys_N.astype(np.int64), streams[group])
            try:
                self.num_saturated += codec.encode(message, data[first : first + num_bytes])
            except NotFiniteError as error:
                name = layout.name_of(int(keys_N[error.args[0]]))
                raise NotFiniteRowError(f"{name}, sent to rank {rank}, is not finite") from None
            # What the receiver will decode is decoded here too, to know its errors.
            if errors is not None:
                arrived_ND = np.empty_like(rows_ND)
                codec.decode(data[first : first + num_bytes], shape, arrived_ND)
                errors[group].keep(rows_ND, arrived_ND, keys_N)
            first += _padded(num_bytes)
        return data


def _parts(rows: Sequence[Crossing]) -> Iterator[tuple[int, int, slice]]:
    """Yield rank, group and rows of a message's non-empty parts, in order."""
    for rank, of_rank in enumerate(zip(*(each.parts() for each in rows), strict=True)):
        for group, part in enumerate(of_rank):
            if part.start < part.stop:
                yield rank, group, part


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _PART_BYTES) * _PART_BYTES


def sum_over_ranks(places_SW: NDArray[np.int32], partials_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sum of each row over ranks, (num_served, embedding_dim); as `sum_partials`."""
    levels = num_levels(places_SW.shape[1])
    sums_SD = np.empty((places_SW.shape[0], partials_ND.shape[1]), np.float32)
    stack_LD = np.empty((levels, partials_ND.shape[1]), np.float32)
    sum_partials(places_SW, partials_ND, sums_SD, stack_LD, np.empty(levels, np.int64))
    return sums_SD


@kernel
def sum_partials(
    places_SW: NDArray[np.int32],
    partials_ND: NDArray[np.float32],
    sums_SD: NDArray[np.float32],
    stack_LD: NDArray[np.float32],
    ranks_L: NDArray[np.int64],
) -> None:
    """Add the gradients of each row by the binary tree over ranks.

    Ranks without one are skipped, and a row without any gets zeros.

    Args:
        places_SW: (num_served, num_ranks); where the gradient of each rank is, -1 where it has none.
        partials_ND: (num_partials, embedding_dim).
        sums_SD: (num_served, embedding_dim), written.
        stack_LD: (2 + log2(num_ranks), embedding_dim), workspace: sums of subtrees.
        ranks_L: (as many,), workspace: a rank of each.

    Error:
        ``ceil(log2(num_ranks)) * 2**-24`` of the sum of magnitudes.

    Source:
        Higham, Accuracy and Stability of Numerical Algorithms (2002), section 4.2.
    """
    dim = sums_SD.shape[1]
    for row in range(places_SW.shape[0]):
        depth = 0
        for rank in range(places_SW.shape[1]):
            place = places_SW[row, rank]
            if place < 0:
                continue
            # Of two subtrees that are nearer to each other than to this rank, none grows any more.
            while depth > 1 and ranks_L[depth - 2] ^ ranks_L[depth - 1] < ranks_L[depth - 1] ^ rank:
                depth -= 1
                for column in range(dim):
                    stack_LD[depth - 1, column] += stack_LD[depth, column]
            # The gradient of this rank is a whole subtree, on top of the stack.
            for column in range(dim):
                stack_LD[depth, column] = partials_ND[place, column]
            ranks_L[depth] = rank
            depth += 1
        # No rank follows: the subtrees that are left are joined from the last to the first.
        while depth > 1:
            depth -= 1
            for column in range(dim):
                stack_LD[depth - 1, column] += stack_LD[depth, column]
        for column in range(dim):
            sums_SD[row, column] = stack_LD[0, column] if depth else np.float32(0)


_LOSS_BYTES = 8
_BLOCK = 128
"""Numbers that share a scale where a gradient is coded."""


class DenseSums:
    """Sums gradients of one size over all ranks."""

    def __init__(self, ranks: Ranks, coded: CodedExchange, num_numbers: int) -> None:
        self._ranks = ranks
        self._coded = coded
        self._num_numbers = num_numbers
        num_ranks = ranks.num_ranks
        # Equal slices of whole blocks, the last filled up with zeros that nobody reads.
        self._slice = -(-num_numbers // (num_ranks * _BLOCK)) * _BLOCK
        self._own_WN = torch.zeros(num_ranks, self._slice, dtype=torch.float32, device="cpu")
        self._slices_WN = torch.zeros(num_ranks, self._slice, dtype=torch.float32, device="cpu")
        """The slice of this rank, from every rank."""
        self._workspace_LC = torch.empty(
            max((num_ranks + 1) // 2, 1), SUM_COLUMNS, dtype=torch.float32, device="cpu"
        ).numpy()
        self._sums_N = torch.empty(self._slice, dtype=torch.float32, device="cpu")

    def add(self, gradient_N: torch.Tensor, loss: float) -> float:
        """Replace a gradient by its sum over all ranks; return the losses' sum.

        The gradient is (num_numbers,) float32. The gradient of a rank without samples is -0, which changes no
        number that it is added to.

        Raises:
            NotFiniteRowError: a gradient that is to be coded has an infinity or a NaN.
        """
        # A lone rank has nothing to add, and rounds nothing.
        if self._ranks.num_ranks == 1:
            return loss
        # Each rank gets its slice of all gradients, and adds it up.
        self._own_WN.view(-1)[: self._num_numbers] = gradient_N
        with self._coded.clocked("dense"):
            self._exchange_slices()
        slices_WN = self._slices_WN.numpy()
        add_tiles(slices_WN, 0, self._slice, self._workspace_LC, self._sums_N.numpy())
        # The losses travel along, each as the bits of a float64.
        own_loss = torch.tensor([loss], dtype=torch.float64, device="cpu").view(torch.uint8)
        codec, stream = self._coded.dense("sums")
        with self._coded.clocked("dense"):
            sums = torch.from_numpy(self._encoded(self._sums_N.numpy(), 0, codec, stream))
            found = self._ranks.gather(torch.cat([sums, own_loss]))
            self._coded.counts.sent_bytes["dense"] += (sums.numel() + _LOSS_BYTES) * (
                self._ranks.num_ranks - 1
            )
            # The owner decodes its own sum too, so that all ranks have the same numbers.
            whole_WN = torch.empty_like(self._own_WN)
            for part, sums_N in zip(found, whole_WN, strict=True):
                self._decode(part[:-_LOSS_BYTES].numpy(), codec, sums_N.numpy())
        gradient_N[:] = whole_WN.view(-1)[: self._num_numbers]
        return add_tree([part[-_LOSS_BYTES:].clone().view(torch.float64).item() for part in found])

    def _exchange_slices(self) -> None:
        """Send every rank its slice of the gradient, and receive this rank's slices."""
        ranks = self._ranks
        codec, stream = self._coded.dense("partials")
        # Messages have no part for the rank itself, whose slice stays as it is.
        others = [rank for rank in range(ranks.num_ranks) if rank != ranks.rank]
        own_WN = self._own_WN.numpy()
        # Blocks are numbered over the whole gradient, so slices do not share random bits.
        first_blocks = [rank * (self._slice // _BLOCK) for rank in range(ranks.num_ranks)]
        parts = [self._encoded(own_WN[rank], first_blocks[rank], codec, stream) for rank in others]
        sizes = [codec.num_bytes(self._shape()) * (rank != ranks.rank) for rank in range(ranks.num_ranks)]
        received = Message.unset(sizes)
        sent = Message(torch.from_numpy(np.concatenate(parts)), tuple(sizes))
        ranks.exchange(sent, received)()
        self._coded.counts.sent_bytes["dense"] += sent.data.numel()
        arrived = received.parts()
        for rank in others:
            self._decode(arrived[rank].numpy(), codec, self._slices_WN[rank].numpy())
        self._slices_WN[ranks.rank] = self._own_WN[ranks.rank]

    def _shape(self) -> MessageShape:
        return MessageShape(np.array([0, self._slice // _BLOCK]), _BLOCK)

    def _encoded(
        self, numbers: NDArray[np.float32], first_block: int, codec: RowCodec, stream: int
    ) -> NDArray[np.uint8]:
        if codec.is_exact:
            return numbers.view(np.uint8)
        # To a codec the blocks of a slice are the rows of one table.
        shape = self._shape()
        keys = np.arange(first_block, first_block + shape.num_rows)
        message = RowMessage(numbers.reshape(-1, _BLOCK), shape.starts_T1, keys, stream)
        data = np.empty(codec.num_bytes(shape), np.uint8)
        try:
            self._coded.counts.num_saturated += codec.encode(message, data)
        except NotFiniteError:
            step = self._coded.step + 1
            raise NotFiniteRowError(
                f"the gradient of the dense layers is not finite at step {step}"
            ) from None
        return data

    def _decode(self, data: NDArray[np.uint8], codec: RowCodec, numbers: NDArray[np.float32]) -> None:
        if codec.is_exact:
            numbers[:] = data.view(np.float32)
        else:
            codec.decode(data, self._shape(), numbers.reshape(-1, _BLOCK))
