"""Measure samples per second of every placement on the device.

Speeds are by batch size, at one embedding dimension. Placements are measured in groups that take turns, each
with all-fast among them. A group has as many runs at a time as memory allows: a slow tier has
all rows on the host, 17 GB at dim 128.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from ....pipeline.errors import ByteSize
from ....pipeline.runtime.memory import available_bytes
from ....stats.ranking.row_bytes import row_bytes
from ....train.config import TrainConfig
from ....train.data.shards import Shards
from ..kaggle_shards import KaggleSamples, draw_kaggle, write_kaggle_shards
from .part_settings import PartSettings
from .records import Records
from .turns import REFERENCE, Contestant, Turns, measure_in_turns

BATCH_SIZES = (65_536, 16_384, 2_048)
"""The largest first: its figures are the most important."""
_SMALL_BATCH_SIZES = (64,)
_FIRST = ("lookahead", "hybrid", "fae")
"""Placements that are measured first at the largest batch size, with all-fast."""
_FIRST_AT_OTHER_SIZES = ("lookahead", "hot-only")
"""Placements that are measured at the smaller ones before the others are."""
SAMPLES = 2_500_000
SMALL_SAMPLES = 6_000
SMALL_SCALE = 1000.0
HOT_SHARE = 0.0075
"""Share of all rows that is hot; as many slots stage the others: 1.5 % of the rows are on the device."""
_SHARE_OF_HOST = 0.6
"""Share of the host's available memory that the rows of a group may take."""
_SHARE_OF_DEVICE = 0.9
_LAYER_NUMBERS = 6_000
"""Numbers of a sample in the dense layers, about: activations and their gradients."""


def measure_speed(settings: PartSettings, records: Records, embedding_dim: int) -> None:
    """Train under all placements, those of a group in turns; rows are written as soon as one is measured."""
    samples = drawn_samples(settings)
    num_rows = sum(samples.num_rows)
    # Staging gets as many slots as there are hot rows.
    half = ByteSize(int(HOT_SHARE * num_rows) * row_bytes(embedding_dim, "sgd"))
    configs = {name: (config, is_hot_only) for name, config, is_hot_only in _contestants(settings, half)}
    free = free_memory(settings.torch_device)
    on_host = settings.torch_device.type == "cpu"
    groups: dict[str, tuple[list[str], int]] = {}
    for names, batch_size in _in_order(list(configs), _batch_sizes(settings)):
        needs = {name: _needs(name, num_rows, embedding_dim, batch_size, on_host=on_host) for name in names}
        for fitting in _fitting(needs, free):
            groups[f"speeds at {batch_size}: {', '.join(fitting)}"] = fitting, batch_size

    @cache
    def shards_of(batch_size: int) -> Shards:
        return packed_shards(settings, samples, batch_size, embedding_dim)

    for piece in records.pieces(list(groups)):
        names, batch_size = groups[piece]
        facts = {"embedding_dim": embedding_dim, "batch_size": batch_size, "num_rows": num_rows}
        with records.catching(piece):
            shards = shards_of(batch_size)
            contestants = [
                Contestant(
                    name=name,
                    check=f"speed of {name} at {batch_size}",
                    shards=shards,
                    config=configs[name][0],
                    is_hot_only=configs[name][1],
                    facts={"placement": name, **facts},
                )
                for name in names
            ]
            turns = Turns.of(batch_size, is_small=settings.is_small)
            measure_in_turns(piece, contestants, turns, records)


def _batch_sizes(settings: PartSettings) -> tuple[int, ...]:
    return _SMALL_BATCH_SIZES if settings.is_small else BATCH_SIZES


def _in_order(names: Sequence[str], batch_sizes: Sequence[int]) -> list[tuple[list[str], int]]:
    """Return the groups with their batch sizes, the most important first."""
    largest, *others = batch_sizes
    first = [([name for name in names if name in _FIRST], largest)]
    first += [([name for name in names if name in _FIRST_AT_OTHER_SIZES], size) for size in others]
    # Then the others at each size.
    rest = [([name for name in names if name not in chosen], size) for chosen, size in first]
    # The reference is in all of them.
    return [
        ([REFERENCE, *(name for name in group if name != REFERENCE)], size) for group, size in first + rest
    ]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the host and on the device; where the device computes on the host all are the host's."""

    host: float
    device: float

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.host + other.host, self.device + other.device)

    def holds(self, other: Memory) -> bool:
        """Return whether there is room for other bytes."""
        return other.host <= self.host and other.device <= self.device


def free_memory(device: torch.device) -> Memory:
    """Return the memory that runs of a group may take."""
    available = available_bytes()
    host = float("inf") if available is None else _SHARE_OF_HOST * available
    if device.type != "cuda":
        return Memory(host, float("inf"))
    return Memory(host, _SHARE_OF_DEVICE * torch.cuda.mem_get_info(device)[0])


def _needs(name: str, num_rows: int, embedding_dim: int, batch_size: int, *, on_host: bool) -> Memory:
    """Return what a run takes, about: its rows, and what its steps write."""
    rows = num_rows * row_bytes(embedding_dim, "sgd")
    near = 2 * HOT_SHARE * rows
    # Vectors of the lookups with their gradients, and the numbers of the dense layers.
    near += 4 * batch_size * (2 * 27 * embedding_dim + _LAYER_NUMBERS)
    need = Memory(0.0, near + rows) if name == REFERENCE else Memory(rows, near)
    return Memory(need.host + need.device, 0.0) if on_host else need


def _fitting(needs: dict[str, Memory], free: Memory) -> list[list[str]]:
    """Divide the contestants of a group, the first of which is the reference, into groups that memory holds,
    each with the reference; two are a group in any case."""
    reference, *others = needs
    groups = [[reference]]
    held = needs[reference]
    for name in others:
        if len(groups[-1]) > 1 and not free.holds(held + needs[name]):
            groups.append([reference])
            held = needs[reference]
        groups[-1].append(name)
        held += needs[name]
    return groups


def drawn_samples(settings: PartSettings) -> KaggleSamples:
    """The samples that speeds are measured with."""
    if settings.is_small:
        return draw_kaggle(SMALL_SAMPLES, SMALL_SCALE)
    return draw_kaggle(SAMPLES)


def _contestants(settings: PartSettings, half: ByteSize) -> Iterable[tuple[str, TrainConfig, bool]]:
    """Name, settings, and whether only hot-only batches are trained on."""
    base = TrainConfig(
        placement="all-fast",
        device=settings.device,
        kernels=settings.step_kernels,
        dense_dtype="auto",
        staging_bytes=half,
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
    )
    yield "all-fast", base, False
    yield "lookahead", replace(base, placement="lookahead"), False
    yield "hybrid", replace(base, placement="hybrid"), False
    yield "fae", replace(base, placement="fae", fae_variant="code"), False
    # Hot-only batches move no rows, so this is the speed of look-ahead without its transfers.
    yield "hot-only", replace(base, placement="lookahead"), True
    yield "hybrid-uva", replace(base, placement="hybrid-uva"), False
    yield "cache", replace(base, placement="cache"), False
    yield "hybrid-dedup", replace(base, placement="hybrid-dedup"), False


def packed_shards(
    settings: PartSettings, samples: KaggleSamples, batch_size: int, embedding_dim: int
) -> Shards:
    folder = settings.scratch / f"speed-{embedding_dim}-{batch_size}" / "shards"
    write_kaggle_shards(
        samples, folder, batch_size=batch_size, embedding_dim=embedding_dim, hot_share=HOT_SHARE
    )
    return Shards.open(folder)
