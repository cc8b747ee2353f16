"""Batches, their lookups and micro-batches as arrays of the host, and the order of training batches.

Shapes: B samples, F features of a model or of one table group, K dense features, N lookups, P = B * F bags. A
bag is the lookups of one feature in one sample; features with one lookup per sample need no list of bags.
Each element of a history is a separate bag, so F counts the elements of the longest one.

A batch may be cut into G equal micro-batches, each of which is summed separately. Sample i of a batch of
nominally B samples is in micro-batch ``i * G // B``, and rank r of W computes the micro-batches from ``r * G
/ W`` to before ``(r + 1) * G / W``. A batch with fewer samples leaves its last micro-batches short or empty,
and the last one of a batch with more samples has them all. Their sums are added by a binary tree over their
numbers: micro-batches 2s and 2s + 1 first, then the sums of such pairs, and so on; a micro-batch without
samples adds nothing. The micro-batches of a rank are a subtree, since G / W is a power of two: a rank adds up
its own, and the rest of the tree adds the sums of the ranks. So the number of ranks changes no bit; the
number of micro-batches does.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError, HotsetError, ShardError, first_line
from ...pipeline.folders.totals import TableFeature, by_feature, for_features
from ...stats.batch_rows import LookupsByRow, group_lookups, of_bags, of_matrix
from ...stats.shuffle import copy_bags, epoch_order

_CACHE_LINE = 64
"""Bytes."""


def at_cache_line(tensor: torch.Tensor) -> torch.Tensor:
    """Return a host tensor that begins at a cache line, copied if needed.

    The library that computes torch's products chooses other loops, and so other orders of additions, for
    matrices that begin elsewhere; which ones depends on the processor. What torch allocates begins at a cache
    line. What was read from a file begins anywhere, and a part of a batch begins at its first sample, so bits
    would depend on addresses and on how a batch is cut.
    """
    if tensor.data_ptr() % _CACHE_LINE == 0 or tensor.device.type != "cpu":
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """One embedding table of the shards."""

    name: str
    num_rows: int
    num_hot: int
    embedding_dim: int
    is_multi_hot: bool = False
    """Whether samples may look it up other than once."""
    histories: tuple[tuple[str, int], ...] = ()
    """Features, of any table, whose lists are histories, and the elements of the longest."""
    features: tuple[TableFeature, ...] = ()
    """Features that look up in it; empty where that is the one of its name alone."""
    is_frozen: bool = False
    """Whether no step changes its rows."""

    @property
    def history_length(self) -> int | None:
        """Most elements of a feature's history, of which each keeps its embedding; None: they are added."""
        return dict(self.histories).get(self.name) if self.is_multi_hot else None

    @property
    def num_embeddings_of_sample(self) -> int:
        """Embeddings that a sample has of a feature."""
        return self.history_length or 1


def with_histories(
    tables: Sequence[EmbeddingTable], histories: Mapping[str, int]
) -> tuple[EmbeddingTable, ...]:
    """Return tables whose lists of these features are histories of at most so many elements."""
    return tuple(replace(table, histories=tuple(histories.items())) for table in tables)


@dataclass(frozen=True, slots=True)
class FeatureBags:
    """The lookups of one multi-hot feature."""

    offsets_B1: NDArray[np.int32]
    """Position of each sample's first id, and the end of the last sample."""
    ids_N: NDArray[np.int32]

    def cut(self, first: int, stop: int) -> FeatureBags:
        """Return the bags of the samples from ``first`` to before ``stop``."""
        offsets = self.offsets_B1[first : stop + 1]
        return FeatureBags(offsets - offsets[0], self.ids_N[offsets[0] : offsets[-1]])


class Lookups(Protocol):
    """The lookups of some samples, with other columns or without."""

    @property
    def ids_BF(self) -> NDArray[np.int32]:  # noqa: N802
        """Ids of the one-hot features."""

    @property
    def bags(self) -> tuple[FeatureBags, ...]:
        """Lookups of the multi-hot features."""

    @property
    def num_samples(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LookupsOfBatch:
    """The lookups of a batch alone; the fields are those of `Batch`."""

    ids_BF: NDArray[np.int32]
    bags: tuple[FeatureBags, ...]
    is_hot_only: bool

    @property
    def num_samples(self) -> int:
        return int(self.ids_BF.shape[0])

    def cut(self, first: int, stop: int) -> LookupsOfBatch:
        """Return those of the samples from ``first`` to before ``stop``."""
        bags = tuple(bags.cut(first, stop) for bags in self.bags)
        return LookupsOfBatch(self.ids_BF[first:stop], bags, self.is_hot_only)

    def arrays(self) -> list[NDArray[Any]]:
        """Return all of it as arrays, for `of`."""
        bags = [array for each in self.bags for array in (each.offsets_B1, each.ids_N)]
        return [self.ids_BF, np.array([self.is_hot_only]), *bags]

    @classmethod
    def of(cls, arrays: Sequence[NDArray[Any]]) -> LookupsOfBatch:
        """Return what such arrays hold."""
        ids_BF, is_hot_only, *bags = arrays
        return cls(ids_BF, tuple(map(FeatureBags, bags[::2], bags[1::2])), bool(is_hot_only[0]))


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of samples."""

    label_B: torch.Tensor
    """Labels, float32, each 0 or 1; NaN where the log's ``labels`` lack one, which no trainer takes."""
    dense_BK: torch.Tensor
    """Dense features, float32."""
    ids_BF: NDArray[np.int32]
    """Ids of the one-hot features, in the order of `by_feature`."""
    is_hot_B: NDArray[np.uint8] | None
    """1 where all lookups of a sample are hot; evaluation batches only."""
    is_hot_only: bool
    """Whether every lookup is of a hot row; False for evaluation batches."""
    bags: tuple[FeatureBags, ...] = ()
    """Lookups of the multi-hot features, in the order of `by_feature`."""
    of_samples: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """(B,) each, where the log has it: other labels and weight, float32; group, uint64; has_group, bool."""

    @property
    def num_samples(self) -> int:
        return int(self.ids_BF.shape[0])

    def features(
        self, tables: Sequence[EmbeddingTable]
    ) -> Iterator[tuple[str, NDArray[np.int32], NDArray[np.int32] | None]]:
        """Yield name and ids of each feature, and of a multi-hot one the offsets of its bags."""
        # One-hot features are columns of one matrix, the others are bags, both in the same order.
        columns = iter(self.ids_BF.T)
        bags = iter(self.bags)
        for feature in by_feature(tables):
            if feature.is_multi_hot:
                own = next(bags)
                yield feature.name, own.ids_N, own.offsets_B1
            else:
                yield feature.name, next(columns), None

    def cut(self, first: int, stop: int) -> Batch:
        """Return the samples from ``first`` to before ``stop``."""
        # The whole batch is itself, without a copy.
        if (first, stop) == (0, self.num_samples):
            return self
        part = slice(first, stop)
        return replace(
            self,
            label_B=self.label_B[part],
            dense_BK=self.dense_BK[part],
            ids_BF=self.ids_BF[part],
            is_hot_B=None if self.is_hot_B is None else self.is_hot_B[part],
            bags=tuple(bags.cut(first, stop) for bags in self.bags),
            of_samples={name: values[part] for name, values in self.of_samples.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBatch(Batch):
    """A batch whose lookups are all there, and whose other columns are those of one rank's samples."""

    own: Batch
    """The samples of the rank."""
    part: tuple[int, int]
    """The first and the last-plus-one of them."""

    @classmethod
    def of(cls, own: Batch, lookups: LookupsOfBatch, part: tuple[int, int]) -> OwnBatch:
        """Put together what a rank has read of a batch."""
        return cls(
            label_B=own.label_B,
            dense_BK=own.dense_BK,
            ids_BF=lookups.ids_BF,
            is_hot_B=None,
            is_hot_only=lookups.is_hot_only,
            bags=lookups.bags,
            own=own,
            part=part,
        )

    def cut(self, first: int, stop: int) -> Batch:
        """Return the samples of the rank, which alone are there."""
        assert (first, stop) == self.part, "a rank has its own samples"
        return self.own


class UnfitBatchError(ShardError):
    """A whole batch that the model cannot take."""


@dataclass(frozen=True, slots=True)
class BatchIds:
    """The lookups of a batch in one table group, by sample, then feature."""

    ids_N: NDArray[np.int32]
    bags_N: NDArray[np.int64] | None
    """Bag ``sample * F + feature`` of each lookup, ascending; None where lookup i is bag i."""
    num_samples: int
    num_features: int
    """Bags of a sample, F: one for each feature, or one for each element of a history."""
    tables_F: NDArray[np.int64] | None = None
    """Table of each bag of a sample, by its position in the group; ascending. None: bag f is of table f."""

    @property
    def num_bags(self) -> int:
        return self.num_samples * self.num_features

    @property
    def bags_of_tables(self) -> NDArray[np.int64] | None:
        """Return each lookup's bag, (N,), by table and sample: the lookups of a sample in a table are one."""
        if self.bags_N is None or self.tables_F is None:
            return self.bags_N
        samples_N, positions_N = np.divmod(self.bags_N, self.num_features)
        num_tables = int(self.tables_F[-1]) + 1
        return samples_N * num_tables + self.tables_F[positions_N]

    def by_bag(self, lookups: LookupsByRow) -> LookupsByRow:
        """Name each lookup by its bag, whose gradient is its own."""
        if self.bags_N is None:
            return lookups
        return lookups._replace(order_N=self.bags_N[lookups.order_N].astype(np.int32))


class IdReader:
    """Reads the lookups of some tables out of batches.

    Args:
        tables: all tables of the shards.
        chosen: positions in ``tables`` of those wanted, ascending.
    """

    def __init__(self, tables: Sequence[EmbeddingTable], chosen: Sequence[int]) -> None:
        of_table = for_features(tables, range(len(tables)))
        is_multi_hot = [feature.is_multi_hot for feature in by_feature(tables)]
        # Whether each feature of the chosen tables is multi-hot, and its position among those of its kind: a
        # column of the ids, or one of the bags.
        self._positions = [
            (is_multi, is_multi_hot[:feature].count(is_multi))
            for feature, is_multi in enumerate(is_multi_hot)
            if of_table[feature] in chosen
        ]
        own = [tables[table] for table in chosen]
        self._chosen = by_feature(own)
        # Where the bags of each feature begin among those of a sample, and how many they are in all.
        counts_F = [feature.num_embeddings_of_sample for feature in self._chosen]
        *firsts, self.num_bags = np.cumsum([0, *counts_F]).tolist()
        self._first_bags_F = np.array(firsts, np.int64)
        self._longest_F = [feature.history_length for feature in self._chosen]
        tables_F = np.repeat(for_features(own, range(len(chosen))), counts_F)
        self._tables_F = None if np.array_equal(tables_F, np.arange(len(chosen))) else tables_F
        # A sample has one lookup in each table: what is read are rows of a matrix.
        self._is_one_hot = self._tables_F is None and not any(is_multi for is_multi, _ in self._positions)
        self._num_rows_F = np.array([tables[table].num_rows for table in chosen], np.int64)
        # All columns: their matrix is taken as it is, without a copy.
        self._takes_all = self._is_one_hot and len(self._positions) == is_multi_hot.count(False)

    def read(self, batch: Lookups) -> BatchIds:
        """The lookups of the chosen tables."""
        if not self._is_one_hot:
            return self._read_bags(batch)
        ids_BF = batch.ids_BF
        if not self._takes_all:
            ids_BF = ids_BF[:, [column for _, column in self._positions]]
        return BatchIds(np.ascontiguousarray(ids_BF).reshape(-1), None, *ids_BF.shape)

    def by_row(self, ids: BatchIds) -> LookupsByRow:
        """Return the lookups that ``read`` returned, by row; ids are within their tables."""
        if ids.bags_N is None:
            return group_lookups(of_matrix(ids.ids_N, self._num_rows_F))
        bags_N = ids.bags_of_tables
        assert bags_N is not None, "lookups with bags have them of tables"
        return group_lookups(of_bags(ids.ids_N, bags_N, self._num_rows_F))

    def _read_bags(self, batch: Lookups) -> BatchIds:
        num_samples = batch.num_samples
        num_features = len(self._positions)
        # The length of every bag, in sample order, then feature order; from it where each bag begins.
        lengths_BF = np.ones((num_samples, num_features), np.int64)
        for feature, (is_multi_hot, position) in enumerate(self._positions):
            if is_multi_hot:
                lengths_BF[:, feature] = np.diff(batch.bags[position].offsets_B1)
        lengths_P = lengths_BF.reshape(-1)
        starts_P = np.cumsum(lengths_P) - lengths_P
        # Then the ids of one feature after the other go to their bags.
        ids_N = np.empty(int(lengths_P.sum()), np.int32)
        for feature, (is_multi_hot, position) in enumerate(self._positions):
            if is_multi_hot:
                bags = batch.bags[position]
                lengths_B = np.diff(bags.offsets_B1)
                copy_bags(bags.ids_N, bags.offsets_B1[:-1], lengths_B, ids_N, starts_P[feature::num_features])
            else:
                ids_N[starts_P[feature::num_features]] = batch.ids_BF[:, position]
        bags_N = np.repeat(np.arange(lengths_P.size), lengths_P)
        if self._tables_F is None:
            return BatchIds(ids_N, bags_N, num_samples, num_features)
        first_bags_P = self._first_bags(lengths_BF).reshape(-1)
        # Elements of a history go to successive bags, those of other features to one.
        is_history_F = [longest is not None for longest in self._longest_F]
        is_history_N = np.tile(is_history_F, num_samples)[bags_N]
        elements_N = np.where(is_history_N, np.arange(ids_N.size) - starts_P[bags_N], 0)
        bags_N = first_bags_P[bags_N] + elements_N
        return BatchIds(ids_N, bags_N, num_samples, self.num_bags, self._tables_F)

    def _first_bags(self, lengths_BF: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bag of the first lookup of each feature, (B, F).

        A history ends with its last bag.

        Raises:
            UnfitBatchError: a history is longer than the model takes.
        """
        num_samples = lengths_BF.shape[0]
        samples_B1 = np.arange(num_samples, dtype=np.int64)[:, None]
        firsts_BF: NDArray[np.int64] = samples_B1 * self.num_bags + self._first_bags_F
        for number, most in enumerate(self._longest_F):
            if most is None:
                continue
            longest = int(lengths_BF[:, number].max(initial=0))
            if longest > most:
                raise UnfitBatchError(
                    f"a sample has {longest} elements in {self._chosen[number].name}, and the model takes "
                    f"{most} at most",
                    hint=f"give tbsm --model-args '{{\"history_length\": {longest - 1}}}', or a class of "
                    "your own longer histories, or shorten the lists of the log",
                )
            firsts_BF[:, number] += most - lengths_BF[:, number]
        return firsts_BF


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """The micro-batches that one rank computes.

    Raises:
        ConfigError: they cannot be divided among the ranks, or a batch among them.
    """

    batch_size: int
    """Samples of a whole batch, B."""
    num_micro_batches: int = 1
    """G."""
    rank: int = 0
    num_ranks: int = 1
    """W."""

    def __post_init__(self) -> None:
        # Each micro-batch of a whole batch has samples, so those of a short one are the first ones.
        if self.num_micro_batches > max(self.batch_size, 1):
            raise ConfigError(
                f"a batch of {self.batch_size} samples cannot be cut into {self.num_micro_batches} "
                "micro-batches",
                hint="preprocess with a larger --batch-size, or use fewer micro-batches or ranks",
            )
        per_rank, left = divmod(self.num_micro_batches, self.num_ranks)
        is_subtree = self.num_ranks == 1 or (per_rank and not per_rank & (per_rank - 1))
        if left or not is_subtree:
            raise ConfigError(
                f"{self.num_micro_batches} micro-batches cannot be divided among {self.num_ranks} ranks: "
                "each takes 1, 2, 4 or another power of two",
                hint=f"--micro-batches {self.num_ranks} gives each rank one",
            )

    @property
    def first_sample(self) -> int:
        """The first sample of this rank in a whole batch."""
        return self._start(self.rank * (self.num_micro_batches // self.num_ranks))

    def own_part(self, num_samples: int) -> tuple[int, int]:
        """Return the first and the last-plus-one sample of this rank in a batch."""
        if self.num_ranks == 1:
            return 0, num_samples
        per_rank = self.num_micro_batches // self.num_ranks
        first, stop = (self._start(micro_batch * per_rank) for micro_batch in (self.rank, self.rank + 1))
        is_last = self.rank == self.num_ranks - 1
        return min(first, num_samples), num_samples if is_last else min(stop, num_samples)

    def cut(self, batch: Batch) -> Batch:
        """Return the samples of this rank."""
        return batch.cut(*self.own_part(batch.num_samples))

    def bounds(self, num_samples: int) -> list[tuple[int, int]]:
        """Return the first and the last-plus-one sample of each micro-batch that is not empty.

        Args:
            num_samples: those of this rank, whose first one is sample 0 here.
        """
        if self.num_micro_batches == 1:
            return [(0, num_samples)]
        per_rank = self.num_micro_batches // self.num_ranks
        starts = [self._start(self.rank * per_rank + micro_batch) for micro_batch in range(per_rank + 1)]
        stops = [min(start - starts[0], num_samples) for start in starts[1:]]
        stops[-1] = num_samples
        return [(first, stop) for first, stop in zip([0, *stops], stops, strict=False) if first < stop]

    def _start(self, micro_batch: int) -> int:
        return -(-micro_batch * self.batch_size // self.num_micro_batches)


def join(parts: Sequence[Batch]) -> Batch:
    """Return the samples of one or more batches as one batch."""
    if len(parts) == 1:
        return parts[0]
    tags = [part.is_hot_B for part in parts if part.is_hot_B is not None]
    return Batch(
        torch.cat([part.label_B for part in parts]),
        torch.cat([part.dense_BK for part in parts]),
        np.concatenate([part.ids_BF for part in parts]),
        # Samples are tagged where those of all parts are.
        np.concatenate(tags) if len(tags) == len(parts) else None,
        all(part.is_hot_only for part in parts),
        tuple(_join_bags(bags) for bags in zip(*(part.bags for part in parts), strict=True)),
        {name: np.concatenate([part.of_samples[name] for part in parts]) for name in parts[0].of_samples},
    )


def join_lookups(parts: Sequence[LookupsOfBatch]) -> LookupsOfBatch:
    """Return the lookups of one or more batches as those of one."""
    if len(parts) == 1:
        return parts[0]
    bags = zip(*(part.bags for part in parts), strict=True)
    ids_BF = np.concatenate([part.ids_BF for part in parts])
    return LookupsOfBatch(ids_BF, tuple(map(_join_bags, bags)), all(part.is_hot_only for part in parts))


def _join_bags(parts: Sequence[FeatureBags]) -> FeatureBags:
    lengths_B = np.concatenate([np.diff(part.offsets_B1) for part in parts])
    offsets_B1 = np.concatenate([[0], np.cumsum(lengths_B)]).astype(np.int32)
    return FeatureBags(offsets_B1, np.concatenate([part.ids_N for part in parts]))


BATCH_ORDER = "batch_order.npy"
_HEADER_BYTES = 128
_INT32_BYTES = 4


class BatchOrder(ABC):
    """The batches of a run, in the order they are trained on."""

    is_known = True
    """Whether the order is known before training, so that batches may be read and planned ahead."""

    @property
    def test_losses(self) -> Sequence[float]:
        """Losses by which the order was decided so far, nats per sample; none where it is known."""
        return ()

    @abstractmethod
    def epochs(self) -> Iterator[Iterable[int]]:
        """Batch numbers, epoch by epoch."""


class SeededOrder(BatchOrder):
    """A permutation of batches by (seed, epoch); grouped hot-only ones spread evenly."""

    def __init__(
        self, is_hot_only: NDArray[np.bool_], seed: int, num_epochs: int, *, is_grouped: bool
    ) -> None:
        self._is_hot_only = is_hot_only
        self._seed = seed
        self._num_epochs = num_epochs
        self._is_grouped = is_grouped

    def epochs(self) -> Iterator[list[int]]:
        for epoch in range(self._num_epochs):
            yield epoch_order(self._is_hot_only, self._seed, epoch, spread=self._is_grouped).tolist()


class RecordedOrder(BatchOrder):
    """The order that another run recorded.

    Args:
        numbers: training batch of each step.
        num_epochs: epochs in them, all of the same length.
    """

    def __init__(self, numbers: NDArray[np.int32], num_epochs: int = 1) -> None:
        self._numbers = numbers
        self._num_epochs = num_epochs

    @classmethod
    def of_run(cls, run: Path, num_batches: int, num_epochs: int) -> RecordedOrder:
        """Read the order of ``run``; raises HotsetError where it does not fit these shards."""
        path = run / BATCH_ORDER
        numbers = read_batch_order(path)
        # Checked over all epochs together: each batch as often as there are epochs.
        wanted = np.repeat(np.arange(num_batches), num_epochs)
        if not np.array_equal(np.sort(numbers), wanted):
            raise HotsetError(f"{path} does not visit each of {num_batches} batches {num_epochs} times")
        return cls(numbers, num_epochs)

    def epochs(self) -> Iterator[list[int]]:
        for numbers in np.split(self._numbers, self._num_epochs):
            yield numbers.tolist()


class CutOrder(BatchOrder):
    """The first steps of an order that is known."""

    def __init__(self, order: BatchOrder, num_steps: int) -> None:
        assert order.is_known, "an order that is decided as it goes has no end to cut at"
        self._order = order
        self._num_steps = num_steps

    def epochs(self) -> Iterator[list[int]]:
        left = self._num_steps
        for numbers in self._order.epochs():
            if left <= 0:
                return
            kept = list(islice(numbers, left))
            left -= len(kept)
            yield kept


class ResumedOrder(BatchOrder):
    """The rest of an order after the steps of a checkpoint.

    Args:
        order: that of the run from its beginning.
        done: (num_steps,); the training batch of each step so far.
    """

    def __init__(self, order: BatchOrder, done: NDArray[np.int32]) -> None:
        self.is_known = order.is_known
        self._order = order
        self._done = done

    @property
    def test_losses(self) -> Sequence[float]:
        return self._order.test_losses

    def epochs(self) -> Iterator[Iterable[int]]:
        """Batch numbers not trained on yet, epoch by epoch.

        Raises:
            HotsetError: the steps so far were of other batches than the order has.
        """
        done = 0
        # The order is followed again from its beginning, because decisions in it may depend on those before.
        for numbers in self._order.epochs():
            left = iter(numbers)
            for number in islice(left, self._done.size - done):
                if number != self._done[done]:
                    raise HotsetError(
                        f"step {done + 1} of the checkpoint was of batch {self._done[done]}, want {number}",
                        hint="resume on the shards that the run was begun with",
                    )
                done += 1
            # An order that is decided as it goes may have a decision to make at the end of an epoch.
            if not self.is_known:
                yield left
            elif rest := list(left):
                yield rest
        # The order ended before all recorded steps were found: these are other shards or other settings.
        if done < self._done.size:
            raise HotsetError(
                f"the checkpoint has {self._done.size} steps, the run {done}",
                hint="resume on the shards that the run was begun with",
            )


def read_batch_order(path: Path) -> NDArray[np.int32]:
    """Read the training batch of each step, (num_steps,), as a run writes it.

    Raises:
        HotsetError: the file is missing, or anything else than such an array.
    """
    try:
        # Opening a pipe would wait forever.
        if not path.is_file():
            raise FileNotFoundError("there is no such plain file")
        # Only this one header is read, so that nothing of NumPy's parser of headers is trusted.
        whole = path.read_bytes()
        num_steps = (len(whole) - _HEADER_BYTES) // _INT32_BYTES
        header = io.BytesIO()
        described = {"descr": "<i4", "fortran_order": False, "shape": (num_steps,)}
        np.lib.format.write_array_header_1_0(header, described)
        if num_steps < 0 or whole[:_HEADER_BYTES] != header.getvalue():
            raise ValueError("it is no list of batches")
        if len(whole) != _HEADER_BYTES + _INT32_BYTES * num_steps:
            raise ValueError(f"it has {len(whole)} bytes")
    except (OSError, ValueError) as error:
        state = "is damaged" if isinstance(error, ValueError) else "cannot be read"
        raise HotsetError(
            f"{path} {state}: {first_line(error)}", hint="give the folder of a finished run"
        ) from error
    return np.frombuffer(whole, np.int32, offset=_HEADER_BYTES)
