"""Memory of queued steps on a device: the batches that are there, and what the kernels of a step work on."""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..device.verbs import Device, Event, Graph
from ..gpu_kernels.batch_lists import BatchLists, BatchRoom, DecodedBatch, RowMoves
from .packed_batch import PackedRoom


@dataclass(slots=True)
class StepInputs:
    """A packed batch on the device."""

    packed: torch.Tensor
    label_B: torch.Tensor
    dense_BK: torch.Tensor
    dense_rates_2: torch.Tensor
    lists: list[BatchLists]
    """The lookups of each width."""
    rates: list[torch.Tensor]
    """Numbers of the row optimizer of each width."""
    moves: list[list[RowMoves]]
    """The rows to move, of each width and list of `packed_batch.MOVES`."""
    copied: Event
    """When the batch has arrived."""
    read: Event | None = None
    """When the step that reads it is done."""
    graphs: dict[str, Graph] = field(default_factory=dict)
    """Recorded work by its name."""

    @classmethod
    def of(cls, room: PackedRoom, device: Device) -> StepInputs:
        """Allocate the memory of a batch."""
        # Every list is a view of the one range that the copy fills.
        packed = device.allocate([room.num_bytes], torch.uint8)
        return cls(
            packed,
            room.sections["label"].of(packed),
            room.sections["dense"].of(packed).view(room.num_samples, room.num_dense),
            room.sections["dense_rates"].of(packed),
            [room.lists_on(packed, width) for width in range(len(room.widths))],
            [room.sections[f"rates{width}"].of(packed) for width in range(len(room.widths))],
            room.moves_on(packed),
            device.record("copies"),
        )


@dataclass(frozen=True, slots=True)
class WidthWork:
    """Memory of a step for one row width."""

    decoded: DecodedBatch
    vectors_BFD: torch.Tensor
    """Rows of all lookups; empty where kernels gather them as they go."""
    grad_BFD: torch.Tensor
    partials_LKD: torch.Tensor

    @classmethod
    def of(cls, room: BatchRoom, embedding_dim: int, device: Device, *, has_vectors: bool) -> WidthWork:
        """Allocate the memory of a step on batches that fit in ``room``."""
        shape = [room.num_samples, room.num_tables, embedding_dim]
        return cls(
            room.new_decoded(device.torch_device),
            device.allocate(shape if has_vectors else [0], torch.float32),
            device.allocate(shape, torch.float32),
            room.new_partials(embedding_dim, device.torch_device),
        )


@dataclass(frozen=True, slots=True)
class SentRows:
    """Memory for the distinct rows of a batch that stay on the host, of one row width."""

    on_host_UD: torch.Tensor
    """Pinned; the rows, then the sums of their gradients."""
    near_UD: torch.Tensor
    """The rows on the device, a small table of their own in which lookups are made."""
    sums_UD: torch.Tensor
    """The sums on the device."""

    @classmethod
    def of(cls, room: BatchRoom, embedding_dim: int, device: Device) -> SentRows:
        """Allocate the memory for batches that fit in ``room``."""
        shape = [room.num_rows, embedding_dim]
        return cls(
            device.allocate_pinned(shape, torch.float32),
            device.allocate(shape, torch.float32),
            device.allocate(shape, torch.float32),
        )
