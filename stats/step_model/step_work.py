"""The work of a training step, and the measured constants that its seconds are told with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from ..batches.work_division import busiest_share, num_tiles_of
from .rate_curves import ProductCurve, RowCurve

_MOST_KEPT_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork:
    """What one step has to do, on one rank."""

    batch_size: int
    """Samples that this rank computes."""
    threads: int
    bottom: tuple[int, ...]
    """Widths of the bottom MLP, from its inputs to its outputs; empty without dense features."""
    top: tuple[int, ...]
    """Widths of the top MLP, from its inputs to the logit."""
    num_vectors: int
    """Vectors of a sample that interact."""
    embedding_dim: int
    num_bags: int
    """Embeddings of the batch: samples times features."""
    lookups: float
    """Lookups of the batch."""
    lookup_ranges: int
    """Ranges of its distinct rows that threads take: few lookups are one range, which has one thread."""
    update_ranges: int
    """The same where rows are updated."""
    distinct_rows: float
    """Distinct rows of the batch."""
    row_bytes: float
    """Bytes of a row with its optimizer state."""
    table_bytes: float
    """Bytes of all rows that are looked up."""
    input_bytes: float
    """Bytes of the batch as it is read."""
    staged_rows: float = 0.0
    """Distinct rows of the batch that a planner finds slots for."""
    cached_rows: float = 0.0
    """Those of them that a cache looks for, and for what to evict."""
    num_reads: int = 1
    """Times that the batch is read: twice where it is planned right before it runs."""
    moved_rows: float = 0.0
    """Rows that are loaded and written back beside the loop."""
    passed_rows: float = 0.0
    """Distinct rows of a batch that has more of them than there are slots: the loop itself loads them in
    passes, once to look them up and once to update them, and writes them back."""
    is_ahead: bool = True
    """Whether rows may be moved during the step before; if not, a step waits for its own moves."""
    is_read_ahead: bool = True
    """Whether the batch may be read during the step before, which needs an order that is known."""
    initialized_rows: float = 0.0
    """Rows that get their initial values in a slot."""
    in_place_vectors: float = 0.0
    """Vectors that the loop sends, and gradients that it receives: each once."""
    unset_bytes: float = 0.0
    """Bytes of vectors that the loop writes to memory that it has just been given."""
    num_ranks: int = 1
    """Ranks that share the batch."""
    exchanged_rows: float = 0.0
    """Vectors and gradients that this rank sends to others; it receives as many."""
    exchanged_bytes: float = 0.0
    """Bytes of these."""
    codec: str = "none"
    """Codec that they are sent in."""
    reduced_bytes: float = 0.0
    """Bytes that it sends to add up the gradients of the dense layers."""

    @property
    def num_tiles(self) -> int:
        """Tiles of the dense layers."""
        return num_tiles_of(self.batch_size)

    @property
    def tile_samples(self) -> float:
        """Samples of a tile, the mean."""
        return self.batch_size / self.num_tiles

    @property
    def num_weights(self) -> int:
        """Parameters of the dense layers."""
        return sum((a + 1) * b for widths in (self.bottom, self.top) for a, b in pairwise(widths))

    @property
    def is_pooled(self) -> bool:
        """Whether features are lists, whose vectors are added."""
        return self.lookups > self.num_bags

    @property
    def lookup_share(self) -> float:
        """Share of the lookups that the busiest thread has."""
        return busiest_share(self.lookup_ranges, self.threads)

    @property
    def update_share(self) -> float:
        """Share of the updates that the busiest thread has."""
        return busiest_share(self.update_ranges, self.threads)

    @property
    def lookup_room(self) -> float:
        """Share of the time of the lookups in which one thread works, and leaves its cores to the others."""
        return _room(self.lookup_share, self.threads)

    @property
    def update_room(self) -> float:
        """The same of the updates."""
        return _room(self.update_share, self.threads)

    @property
    def waste(self) -> float:
        """Time of threads without a tile over that of threads with one, while the last ones are computed."""
        return busiest_share(self.num_tiles, self.threads) * self.threads - 1


def _room(share: float, threads: int) -> float:
    """Return the share of a time that is free of all but one thread, whose share of the work this is."""
    return (threads * share - 1) / (threads - 1) / share if threads > 1 else 0.0


def fresh_bytes(num_bytes: float) -> float:
    """Return how much of an array's memory the system hands out anew whenever it is made, and clears first.

    Args:
        num_bytes: of the array.

    Source:
        malloc in glibc: arrays of 32 MiB or more are given back at once, smaller ones may be used again.
    """
    return num_bytes if num_bytes >= _MOST_KEPT_BYTES else 0.0


class CodecSeconds(NamedTuple):
    """Seconds of one thread to encode a row and to decode another one."""

    per_row: float
    per_byte: float
    """For each byte of the row in float32."""


@dataclass(frozen=True, slots=True)
class WorkConstants:
    """Measured constants that features are made of."""

    products: ProductCurve
    """Of one thread, in float32."""
    rows: RowCurve
    """Rows copied from random places, by one thread."""
    updates: RowCurve
    """Rows updated by their gradients, by one thread."""
    copy_bytes_per_second: float
    """Large copies, both ways counted once."""
    message_seconds: float
    """The smallest all-to-all between ranks."""
    message_bytes_per_second: float
    """Of one rank to all others together in a large all-to-all."""
    gather_seconds: float
    """The smallest all-gather."""
    gather_bytes_per_second: float
    """Of one rank to all others together in a large all-gather."""
    codecs: Mapping[str, CodecSeconds] = field(default_factory=dict)
    """What a row takes by codec; those that are not named take nothing."""
    link_bytes_per_second: float | None = None
    """Of a link between ranks that was named; None: messages take what was measured."""

    def with_link(self, bytes_per_second: float) -> WorkConstants:
        """Return the constants with another speed of the link between ranks; delays stay."""
        return replace(
            self,
            message_bytes_per_second=max(bytes_per_second, self.message_bytes_per_second),
            gather_bytes_per_second=max(bytes_per_second, self.gather_bytes_per_second),
            link_bytes_per_second=bytes_per_second,
        )

    def link_seconds(self, message_bytes: float, gather_bytes: float) -> float:
        """Return how much longer messages take on a slow link than those that were measured.

        This is not fitted: on a quick link the bytes hardly count beside what copies and sums them.
        """
        if self.link_bytes_per_second is None:
            return 0.0
        of_byte = 1 / self.link_bytes_per_second
        return message_bytes * max(of_byte - 1 / self.message_bytes_per_second, 0.0) + gather_bytes * max(
            of_byte - 1 / self.gather_bytes_per_second, 0.0
        )
