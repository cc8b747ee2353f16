"""One batch as one range of bytes that a step needs from the host.

A batch goes to the device in a single copy. It holds labels (1 byte), dense values (float32), the lookups by
row, the rows to move, and the learning rates: 140 to 195 bytes per sample of the Criteo model. All but the
rows to move have fixed places, so that a recorded step finds them. These come last, so that the copy ends
where they end; a fixed place says where each of their lists begins. The learning rates are known when the
step is queued, so the loop writes them.

Batches are packed into slots of pinned memory. The thread that reads ahead fills a slot; the thread that
queues steps sends it and releases it once the copy is done, in order, so in practice it never waits. Files
are not read straight into pinned memory: of the 303 bytes of a sample that are read, ids are not sent, labels
change their type, and nothing is sent before it was checked against the ids. Of 299 ns of CPU time per sample
(batches of 65,536, two busy cores) that takes 168, and reading 70, into new memory or used. The copies into
the slot take 11, which is all that could be saved.

Every tensor on the device has room for the largest batch, so that addresses and shapes are the same in all
steps; what follows the end of a batch is arbitrary and never used. The ends are numbers on the device, so
that no step waits for one. B samples, F tables, N lookups (one of each table in a sample), U distinct rows, L
rows with a long list, C distinct rows that do not live on the fast tier, S slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.batch_rows import LONG_LOOKUPS, LookupsByRow, PackedLookups, pack_lookups
from ..device import Device, Event
from ..rows.backends import RowOptimizer
from ..rows.kernels import BLOCK_SAMPLES
from ..rows.table_group import TableGroup
from ..rows.tiers import FileTier, InitialValues, Layout
from ..step import StepRates

# ruff: noqa: N815  (tensors carry shape suffixes)


class BatchLists(NamedTuple):
    """The lookups of a batch by row, one feature a table.

    Lists of all tables are concatenated, and offsets say where those of a table begin.
    """

    num_samples_1: torch.Tensor
    """int32; samples of this batch, at most B."""
    order_N: torch.Tensor
    """uint16 or int32; sample of each lookup, ascending in a row."""
    order_offsets_F1: torch.Tensor
    """int32; ``num_samples`` times the number of the table."""
    rows_U: torch.Tensor
    """int32; ids of the distinct rows, ascending in a table."""
    row_offsets_F1: torch.Tensor
    """int32; of ``rows`` and ``starts``."""
    starts_U: torch.Tensor
    """uint16 or int32; where the lookups of each row begin among those of its table."""
    long_rows_L: torch.Tensor
    """int32; positions among the rows of a table of those with more than `LONG_LOOKUPS` lookups."""
    long_offsets_F1: torch.Tensor
    """int32."""
    staged_C: torch.Tensor
    """int32; slot of each distinct row that does not live on the fast tier, in the order of ``rows``; -1
    where it has none, and no kernel touches it."""
    staged_offsets_F1: torch.Tensor
    """int32; such rows are the last ones of their table, because ids are ranks."""


class SlotLayout(NamedTuple):
    """Where the rows are that live on the fast tier: `Layout` on the device."""

    first_F: torch.Tensor
    """int32; first id of each table that lives there."""
    base_F: torch.Tensor
    """int32; slot of that id."""

    @classmethod
    def of(cls, layout: Layout, device: torch.device) -> SlotLayout:
        """Copy a layout to the device.

        Raises:
            ValueError: slots beyond 32 bits.
        """
        # Kernels take slots and ids of 32 bits, which halves what they read.
        if layout.num_own_slots >= 1 << 31:
            raise ValueError(f"{layout.num_own_slots} slots, want less than {1 << 31}")
        return cls(
            torch.from_numpy(layout.first_F).to(torch.int32).to(device),
            torch.from_numpy(layout.base_F).to(torch.int32).to(device),
        )


class DecodedBatch(NamedTuple):
    """The lists that `decode_batch` writes, and the other kernels read."""

    slots_BF: torch.Tensor
    """int32; slot of each lookup, -1 where its row has none."""
    slots_U: torch.Tensor
    """int32; slot of each distinct row, likewise."""
    starts_U1: torch.Tensor
    """int32; where the lookups of each row begin in ``order``, and the end of the last."""
    long_rows_L: torch.Tensor
    """int32; positions among all distinct rows of those with a long list."""


@dataclass(frozen=True, slots=True)
class BatchRoom:
    """The largest batch that kernels have room for."""

    num_samples: int
    num_tables: int
    num_rows: int
    """Distinct rows."""
    num_long: int
    """Rows with more than `LONG_LOOKUPS` lookups."""
    num_staged: int
    """Distinct rows that do not live on the fast tier."""

    def __post_init__(self) -> None:
        if self.num_lookups >= 1 << 31:
            raise ValueError(
                f"{self.num_samples} samples of {self.num_tables} tables, want less than {1 << 31}"
            )

    @property
    def num_lookups(self) -> int:
        """One of each table in a sample."""
        return self.num_samples * self.num_tables

    @property
    def number_dtype(self) -> torch.dtype:
        """Type of numbers within a table, as they are stored."""
        return torch.uint16 if self.num_samples <= 1 << 16 else torch.int32

    def new_lists(self, device: torch.device) -> BatchLists:
        """Allocate lists."""
        # Zeros: lists of no lookups, until a batch is copied over them.
        offsets = self.num_tables + 1
        numbers = self.number_dtype
        return BatchLists(
            num_samples_1=_integers(1, device),
            order_N=torch.zeros(self.num_lookups, dtype=numbers, device=device),
            order_offsets_F1=_integers(offsets, device),
            rows_U=_integers(self.num_rows, device),
            row_offsets_F1=_integers(offsets, device),
            starts_U=torch.zeros(self.num_rows, dtype=numbers, device=device),
            long_rows_L=_integers(self.num_long, device),
            long_offsets_F1=_integers(offsets, device),
            staged_C=_integers(self.num_staged, device),
            staged_offsets_F1=_integers(offsets, device),
        )

    def new_decoded(self, device: torch.device) -> DecodedBatch:
        """Allocate what is decoded from lists."""
        # One more start than there are rows, for the end of the last row's lookups.
        return DecodedBatch(
            slots_BF=_integers(self.num_samples * self.num_tables, device).view(self.num_samples, -1),
            slots_U=_integers(self.num_rows, device),
            starts_U1=_integers(self.num_rows + 1, device),
            long_rows_L=_integers(self.num_long, device),
        )

    def new_partials(self, embedding_dim: int, device: torch.device) -> torch.Tensor:
        """Allocate (L, K, D) float32: sums of long-list rows in K blocks."""
        num_blocks = -(-self.num_samples // BLOCK_SAMPLES)
        return torch.empty(self.num_long, num_blocks, embedding_dim, device=device, dtype=torch.float32)


class RowTensors(NamedTuple):
    """Rows with their optimizer state; on the device, or on the host in pinned memory."""

    weights_SD: torch.Tensor
    """float32."""
    state_SW: torch.Tensor
    """float32; W is 0 where the optimizer keeps none."""


class RowMoves(NamedTuple):
    """Rows that are copied between places; entries past the end are ignored.

    Where the lists begin is read on the device, so that lists of any step may use the same memory, and their
    moves can be recorded.
    """

    place_3: torch.Tensor
    """int32; how many, and where they begin in ``sources`` and in ``targets``."""
    sources_N: torch.Tensor
    """int32; rows of the source."""
    targets_N: torch.Tensor
    """int32; rows of the target, none twice."""


class SeedTables(NamedTuple):
    """The sources of initial values: `InitialValues` and the layout of their tier."""

    first_F: torch.Tensor
    """int32; first id of each table on the tier."""
    base_F: torch.Tensor
    """int32; slot of that id."""
    streams_F: torch.Tensor
    """int64, the bits of uint64; hash of (seed, table)."""
    bounds_F: torch.Tensor
    """float32; values of the table are in (-bound, bound)."""

    @classmethod
    def of(cls, layout: Layout, initial: InitialValues, device: torch.device) -> SeedTables:
        """Copy both to the device.

        Raises:
            ValueError: slots beyond 32 bits.
        """
        slots = SlotLayout.of(layout, device)
        streams_F = torch.from_numpy(initial.streams_F.view(np.int64)).to(device)
        return cls(*slots, streams_F, torch.from_numpy(initial.bounds_F).to(device))


class StepNumbers(NamedTuple):
    """The numbers of one step of rows, on the device."""

    rates_T: torch.Tensor
    """float32; `RowOptimizer.step_rates`."""
    root_scales_T: torch.Tensor
    """float32; `RowOptimizer.root_scales`."""


def _integers(count: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)


_ALIGNMENT = 64
"""Bytes; what the widest loads of kernels and the engines of copies like."""
_SPARE_SHARE = 0.25
"""Room beyond the largest batch so far, so that few batches need more again."""
_PLACE_NUMBERS = 4
"""Numbers of the place of a list of rows to move, of which the last is of no use: 16 bytes, because Triton
compiles a kernel once for such addresses, and anew for each mixture with others."""
MOVES = ("write_back", "fetch", "initialize")
"""Lists of rows to move, in the order of their work."""
_NUMPY = {
    torch.uint8: np.uint8,
    torch.uint16: np.uint16,
    torch.int32: np.int32,
    torch.float32: np.float32,
}


@dataclass(frozen=True, slots=True)
class Section:
    """A list within the range of bytes."""

    first_byte: int
    count: int
    dtype: torch.dtype

    @property
    def stop_byte(self) -> int:
        return self.first_byte + self.count * self.dtype.itemsize

    def of(self, packed: torch.Tensor) -> torch.Tensor:
        """The list as a view of the bytes."""
        return packed[self.first_byte : self.stop_byte].view(self.dtype)


@dataclass(frozen=True)
class PackedRoom:
    """The largest batch that has room, and the places of its lists."""

    num_samples: int
    num_dense: int
    groups: tuple[BatchRoom, ...]
    """The lookups of each table group."""
    num_rates: tuple[int, ...]
    """Numbers of the row optimizer of each table group."""
    num_moves: int
    """Rows to move, of all table groups and both ways."""

    @cached_property
    def sections(self) -> Mapping[str, Section]:
        """All lists by name, in the order of their bytes."""
        # Each list begins at the next multiple of the alignment.
        sections: dict[str, Section] = {}
        next_byte = 0
        for name, count, dtype in self._lists():
            sections[name] = Section(next_byte, count, dtype)
            next_byte = _aligned(sections[name].stop_byte)
        return sections

    @property
    def num_bytes(self) -> int:
        return self.sections["moves"].stop_byte

    @property
    def rate_places(self) -> list[slice]:
        """The places of the dense layers and of each table group among the ``rates``.

        Each begins at a multiple of the alignment, and the host writes all of them in one copy.
        """
        places = []
        start = 0
        for count in (2, *self.num_rates):
            places.append(slice(start, start + count))
            start += _aligned(count * torch.float32.itemsize) // torch.float32.itemsize
        return places

    def _lists(self) -> Iterator[tuple[str, int, torch.dtype]]:
        yield "label", self.num_samples, torch.uint8
        yield "dense", self.num_samples * self.num_dense, torch.float32
        yield "rates", self.rate_places[-1].stop, torch.float32
        for group, room in enumerate(self.groups):
            # Tensors without memory, for their sizes and types.
            lists = room.new_lists(torch.device("meta"))
            for name, tensor in lists._asdict().items():
                yield f"{name}{group}", tensor.numel(), tensor.dtype
        yield "move_places", _PLACE_NUMBERS * len(MOVES) * len(self.groups), torch.int32
        yield "moves", 2 * self.num_moves, torch.int32

    def with_room_for(self, groups: Sequence[HostLists], num_moves: int) -> PackedRoom:
        """This room, or more where a batch does not fit."""
        # Only what depends on the lookups grows; samples and tables are fixed for a run.
        rooms = []
        for room, lists in zip(self.groups, groups, strict=True):
            rooms.append(
                replace(
                    room,
                    num_rows=_grown(room.num_rows, lists.lookups.num_rows),
                    num_long=_grown(room.num_long, lists.num_long),
                    num_staged=_grown(room.num_staged, lists.staged_C.size),
                )
            )
        grown = replace(self, groups=tuple(rooms), num_moves=_grown(self.num_moves, num_moves))
        # The same object where nothing grew: steps compare by identity, and record again where it changed.
        return self if grown == self else grown

    def lists_on(self, packed: torch.Tensor, group: int) -> BatchLists:
        """The lookups of a table group as views of a packed batch."""
        return BatchLists(*(self.sections[f"{name}{group}"].of(packed) for name in BatchLists._fields))

    def moves_on(self, packed: torch.Tensor) -> list[list[RowMoves]]:
        """Return the rows to move of each table group and list of `MOVES`.

        They are views of a packed batch: the same memory in all batches of this room.
        """
        places = self.sections["move_places"].of(packed).view(len(self.groups), len(MOVES), -1)
        numbers = self.sections["moves"].of(packed)
        return [[RowMoves(place[:3], numbers, numbers) for place in of_width] for of_width in places]


@dataclass(frozen=True, slots=True)
class HostLists:
    """The lookups of a batch in one table group, one lookup a table."""

    lookups: LookupsByRow
    layout: Layout
    """Layout of the rows that live on the fast tier."""
    staged_C: NDArray[np.int64]
    """Slot of each other row, in order."""

    @property
    def num_long(self) -> int:
        """Rows with a long list."""
        return int(np.count_nonzero(self.lookups.counts_U > LONG_LOOKUPS))


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch in a range of bytes.

    Everything that the loop needs of it is made by the thread that packs: a view costs the loop as much as
    queueing a kernel.
    """

    room: PackedRoom
    source: torch.Tensor
    """The bytes that are sent, up to the end of the rows to move; in pinned memory."""
    num_samples: int
    rates: NDArray[np.float32]
    """The place of the numbers of the step, which are written last; see `PackedRoom.rate_places`."""
    target: torch.Tensor | None = None
    """Where these bytes go on the device, once there is memory for such batches."""
    sent_rows: tuple[NDArray[np.int64], ...] = ()
    """Slots on the slow tier of the distinct rows of each table group, where these are sent with the step."""

    @property
    def num_bytes(self) -> int:
        return self.source.numel()


def pack(
    room: PackedRoom,
    slot: torch.Tensor,
    label_B: NDArray[np.float32],
    dense_BK: NDArray[np.float32],
    groups: Sequence[HostLists],
    moves: Sequence[Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]],
) -> PackedBatch:
    """Write a batch, which has room, to a range of bytes.

    Args:
        room: where everything goes.
        slot: (at least ``room.num_bytes``,) uint8 of the host, written.
        label_B: each 0 or 1.
        dense_BK: of the samples.
        groups: lookups of each table group.
        moves: of each table group and list of `MOVES` the rows that are read, and where they are written.
    """

    packed = slot.numpy()

    def place_of(name: str) -> NDArray[Any]:
        section = room.sections[name]
        return packed[section.first_byte : section.stop_byte].view(_NUMPY[section.dtype])

    def put(name: str, values: NDArray[np.generic]) -> None:
        place_of(name)[: values.size] = values.reshape(-1)

    # Everything of fixed places first.
    num_samples = label_B.size
    put("label", label_B)
    put("dense", dense_BK)
    # Dense layers take as many samples of every batch, so a short one is padded with zeros.
    place_of("dense")[dense_BK.size :] = 0
    for group, lists in enumerate(groups):
        lookups, layout = lists.lookups, lists.layout
        put(f"num_samples_1{group}", np.array([num_samples]))
        put(f"order_offsets_F1{group}", np.arange(layout.num_tables + 1) * num_samples)
        put(f"rows_U{group}", lookups.rows_U)
        put(f"row_offsets_F1{group}", lookups.first_F1)
        put(f"staged_C{group}", lists.staged_C)
        # Numbers within each table; the device adds the offsets itself.
        places = PackedLookups(*(place_of(f"{name}{group}") for name in PackedLookups._fields))
        pack_lookups(lookups, num_samples, layout.first_F, layout.last_F, places)
        assert places.staged_offsets_F1[layout.num_tables] == lists.staged_C.size, (
            "the plan lists too few rows"
        )
    # Kernels read where the lists of rows to move begin from a fixed place.
    move_places = place_of("move_places").reshape(len(groups), len(MOVES), _PLACE_NUMBERS)
    numbers = place_of("moves")
    first = 0
    for of_width, places_of_width in zip(moves, move_places, strict=True):
        for (sources_N, targets_N), place in zip(of_width, places_of_width, strict=True):
            middle, stop = first + sources_N.size, first + 2 * sources_N.size
            place[:] = sources_N.size, first, middle, 0
            numbers[first:middle] = sources_N
            numbers[middle:stop] = targets_N
            first = stop
    # The rows to move are last, so that the copy ends with what this step has.
    num_bytes = room.sections["moves"].first_byte + first * torch.int32.itemsize
    return PackedBatch(room, slot[:num_bytes], num_samples, place_of("rates"))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _grown(room: int, needed: int) -> int:
    return room if needed <= room else int(needed * (1 + _SPARE_SHARE))


_COPIES_BEHIND = 2
"""Copies that may be under way when the host continues."""


class InputRing:
    """Slots of pinned memory.

    Args:
        device: whose copies read them.
        num_ahead: batches that wait between the two threads, at most.
    """

    def __init__(self, device: Device, num_ahead: int) -> None:
        self._device = device
        # Besides those ahead, one that is being filled and one that is being sent.
        num_slots = num_ahead + 2 + _COPIES_BEHIND
        self._slots = [device.allocate_pinned([0], torch.uint8)] * num_slots
        self._num_filled = 0
        self._num_free = num_slots
        self._copies: deque[Event] = deque()

    def take(self, num_bytes: int) -> torch.Tensor:
        """Return the next slot to fill; slots are sent in that order."""
        # Whoever reads ahead is held up before it takes a slot too many, so this is a bug.
        assert self._num_filled < self._num_free, "a slot of the ring would be filled before it is free"
        number = self._num_filled % len(self._slots)
        self._num_filled += 1
        if self._slots[number].numel() < num_bytes:
            self._slots[number] = self._device.allocate_pinned([num_bytes], torch.uint8)
        return self._slots[number]

    def sent(self, copied: Event) -> None:
        """Note when the copy of the next slot ends, and release earlier slots."""
        self._copies.append(copied)
        while len(self._copies) > _COPIES_BEHIND:
            self._device.wait_on_host(self._copies.popleft())
            self._num_free += 1


class SentRates:
    """The numbers of the steps of a run, in their order.

    Args:
        room: where the numbers are in a batch, the same in larger rooms.
        optimizers: of the rows of each table group.
        next_dense: the (2,) float32 numbers of the dense layers' next step, by its learning rate; None: no
            kernel takes it.
    """

    def __init__(
        self,
        room: PackedRoom,
        optimizers: Sequence[RowOptimizer],
        next_dense: Callable[[float], NDArray[np.float32]] | None,
    ) -> None:
        self._numbers_R = np.zeros(room.sections["rates"].count, np.float32)
        self._dense_2, *self._rows = (self._numbers_R[place] for place in room.rate_places)
        self._optimizers = optimizers
        self._next_dense = next_dense
        self._last: StepRates | None = None

    def of(self, rates: StepRates) -> NDArray[np.float32]:
        """Return the numbers of the step that is queued next.

        They are placed as by `PackedRoom.rate_places`; the next step reuses the memory.
        """
        # A schedule returns the same object for as long as its rates stay.
        if rates is not self._last:
            self._last = rates
            for numbers_T, optimizer in zip(self._rows, self._optimizers, strict=True):
                numbers_T[:] = optimizer.step_rates(rates.rows)
        # The dense optimizer counts its steps.
        if self._next_dense is not None:
            self._dense_2[:] = self._next_dense(rates.dense)
        return self._numbers_R


@dataclass(frozen=True, slots=True)
class GroupTensors:
    """The tensors of one table group."""

    rows: TableGroup
    fast: RowTensors
    slow: RowTensors
    layout: SlotLayout
    seeds: SeedTables
    root_scales_T: torch.Tensor
    is_frozen_F: torch.Tensor | None
    """bool; tables whose rows no step changes. None: there are none."""

    @classmethod
    def of(cls, group: TableGroup, device: Device) -> GroupTensors:
        """Take the tensors of both tiers, and copy the kernels' other inputs."""
        fast, slow = group.fast, group.slow
        is_frozen_F = np.isin(np.arange(len(group.tables)), group.frozen)
        return cls(
            group,
            RowTensors(fast.weights_SD, fast.state_SW),
            RowTensors(slow.weights_SD, slow.state_SW),
            SlotLayout.of(fast.layout, device.torch_device),
            SeedTables.of(slow.layout, group.initial, device.torch_device),
            torch.from_numpy(group.optimizer.root_scales).to(device.torch_device),
            torch.from_numpy(is_frozen_F).to(device.torch_device) if group.frozen else None,
        )

    @property
    def dim(self) -> int:
        """Floats of a row."""
        return self.fast.weights_SD.shape[1]

    @property
    def has_file(self) -> bool:
        """Return whether the slow tier is a file, whose rows the host moves."""
        return isinstance(self.rows.slow, FileTier)

    @property
    def has_staging(self) -> bool:
        """Return whether rows move between the tiers."""
        fast, slow = self.rows.fast, self.rows.slow
        return fast.num_slots > fast.layout.num_own_slots and slow.layout.num_own_slots > 0

    def pin_slow(self, device: Device) -> bool:
        """Let kernels access the slow tier; return whether they can."""
        return all(map(device.pin, self.slow))
