"""Tiles of a batch, sums of dense gradients, and the weights' layout.

Tile t of n has the samples i with ``floor(i * n / num_samples) == t``, and n is a power of two that follows
from the number of samples alone. Sums of tiles are added in adjacent pairs, then sums of pairs, and so on: a
binary tree over sample position. So the order of additions does not depend on threads, and half a batch, a
quarter and so on is a subtree: another rank that computes it adds the same numbers in the same order. The
tiles of a micro-batch are added first, then the micro-batches (`data.batch`).

All parameters are parts of one vector, because gradients of tiles are added and weights are rounded as
vectors. A weight is stored transposed, inputs by outputs: all three products of a layer then run at the peak
of the processor, where the usual layout costs 10 % of it (AVX-512, 512 samples). The number of inputs is
padded with zeros, because rows of 367 floats that are not aligned to cache lines cost 20 %; a small number of
inputs is not padded. The model's parameters are views of the same memory in the usual shape.

`auto` chooses the number type of the products by the CPU. With AMX, products in bfloat16 are six times as
fast as in float32. The gain of AVX512-BF16 alone depends on the vendor: AMD's processors multiply twice as
many numbers with such an instruction as with one of float32 (201 GF/s against 93 a core of an EPYC), Intel's
as many, and torch's products then run at half the speed of those in float32 (80 GF/s against 150 a core of a
Xeon). Without either, each number is converted separately, which makes a step eleven times as slow.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...pipeline.errors import ConfigError
from ...stats.batch_rows import num_tiles_of
from ...stats.kernel import kernel
from ..data.batch import MicroBatches
from ..threads import WorkThreads

_Summand = TypeVar("_Summand", float, torch.Tensor)

SUM_COLUMNS = 2048
"""Numbers of each tile that are added together; `add_tiles` keeps them in the first cache."""
_SUM_PIECE = 16 * SUM_COLUMNS
"""Columns of the gradient that a thread adds up at a time."""


def tiles_of_micro_batches(
    micro_batches: MicroBatches, num_samples: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the first and the last-plus-one sample of each tile, and the tiles of each share with samples.

    Args:
        micro_batches: of the batch.
        num_samples: those of this rank.
    """
    bounds: list[tuple[int, int]] = []
    counts: list[int] = []
    for start, stop in micro_batches.bounds(num_samples):
        of_share = tile_bounds(stop - start)
        bounds += [(start + first, start + last) for first, last in of_share]
        counts.append(len(of_share))
    return bounds, counts


class SumsOfRanks(Protocol):
    """Adds up what several ranks have found for their parts of a batch."""

    def add(self, gradient_N: torch.Tensor, loss: float) -> float:
        """Replace a gradient by its sum over all ranks; return that of the losses."""


BuildSums = Callable[[int], SumsOfRanks]
"""Makes the sums of gradients of so many floats."""


class TileGradients:
    """The gradient of each tile, kept from step to step.

    Args:
        num_columns: floats of a gradient.
        threads: add the gradients up.
        build_sums: of several ranks; None: there is one.
    """

    def __init__(self, num_columns: int, threads: WorkThreads, build_sums: BuildSums | None = None) -> None:
        self._threads = threads
        self._sums_of_ranks = build_sums(num_columns) if build_sums else None
        self.tiles_LN = torch.zeros(0, num_columns, dtype=torch.float32, device="cpu")
        """The gradient of each tile."""
        self.sums_N = torch.zeros(num_columns, dtype=torch.float32, device="cpu")
        """Their sum after `add`."""

    def make_room(self, num_tiles: int) -> bool:
        """Keep memory for so many tiles, zero at first; return whether it is new."""
        if self.tiles_LN.shape[0] >= num_tiles:
            return False
        self.tiles_LN = torch.zeros(num_tiles, self.sums_N.numel(), dtype=torch.float32, device="cpu")
        return True

    def add(self, counts: Sequence[int]) -> None:
        """Add the gradients of the first tiles by the binary tree, in parallel.

        Each thread adds a piece of the vector.

        Args:
            counts: tiles of each share, powers of two.
        """
        # Without a sample the sum is -0, which is no sum and changes none: zero would turn -0 into 0.
        if not counts:
            self.sums_N.fill_(-0.0)
            return
        # Shares of equally many tiles are subtrees of the tree over all of them.
        if len(set(counts)) == 1:
            self._add(self.tiles_LN[: sum(counts)], self.sums_N)
            return
        # Those of a short last batch are added one by one; each sum takes the place of its first tile.
        first = 0
        for share, count in enumerate(counts):
            self._add(self.tiles_LN[first : first + count], self.sums_N)
            self.tiles_LN[share].copy_(self.sums_N)
            first += count
        self._add(self.tiles_LN[: len(counts)], self.sums_N)

    def add_ranks(self, loss: float) -> float:
        """Add the sums of all ranks; return the sum of their losses."""
        return loss if self._sums_of_ranks is None else self._sums_of_ranks.add(self.sums_N, loss)

    def is_first_tile(self, counts: Sequence[int]) -> bool:
        """Return whether the first tile's gradient is the sum."""
        return self._sums_of_ranks is None and sum(counts) == 1

    def _add(self, tiles: torch.Tensor, sums: torch.Tensor) -> None:
        tiles_LN = tiles.numpy()
        sums_N = sums.numpy()
        num_tiles = tiles_LN.shape[0]

        def add_piece(piece: int, _: int) -> None:
            first = piece * _SUM_PIECE
            workspace = np.empty(((num_tiles + 1) // 2, SUM_COLUMNS), np.float32)
            add_tiles(tiles_LN, first, min(first + _SUM_PIECE, sums_N.size), workspace, sums_N)

        self._threads.run(add_piece, -(-sums_N.size // _SUM_PIECE))


def tile_bounds(num_samples: int) -> list[tuple[int, int]]:
    """Return each tile's first and last-plus-one sample; an empty batch has one."""
    num_tiles = num_tiles_of(num_samples)
    starts = [-(-tile * num_samples // num_tiles) for tile in range(num_tiles + 1)]
    return list(pairwise(starts))


@kernel
def add_tiles(
    tiles_LN: NDArray[np.float32],
    first: int,
    stop: int,
    workspace_LC: NDArray[np.float32],
    sums_N: NDArray[np.float32],
) -> None:
    """Add columns ``first`` up to ``stop`` of all tiles by the binary tree.

    Args:
        tiles_LN: (num_tiles, num_columns).
        first: column of the first sum.
        stop: column after the last sum.
        workspace_LC: (at least half of the tiles, rounded up; `SUM_COLUMNS`).
        sums_N: (num_columns,), written in that range.

    Error:
        ``ceil(log2(num_tiles)) * 2**-24`` of the sum of magnitudes. Of an odd number of sums the last is
        carried to the next level as it is.

    Source:
        Higham, Accuracy and Stability of Numerical Algorithms (2002), section 4.2.
    """
    num_tiles = tiles_LN.shape[0]
    for start in range(first, stop, workspace_LC.shape[1]):
        # Parts of columns that fit in a cache with all levels of the tree.
        width = min(workspace_LC.shape[1], stop - start)
        target_C = sums_N[start : start + width]
        # The tiles themselves are the leaves, read once; every other level is in the workspace.
        num_sums = (num_tiles + 1) // 2
        for pair in range(num_sums):
            left_C = tiles_LN[2 * pair, start : start + width]
            sum_C = workspace_LC[pair, :width]
            if 2 * pair + 1 < num_tiles:
                right_C = tiles_LN[2 * pair + 1, start : start + width]
                for column in range(width):
                    sum_C[column] = left_C[column] + right_C[column]
            else:
                for column in range(width):
                    sum_C[column] = left_C[column]
        # Each level takes half the room of the one below, in place: a sum never overtakes its terms.
        while num_sums > 1:
            num_pairs = num_sums // 2
            for pair in range(num_pairs):
                left_C = workspace_LC[2 * pair, :width]
                right_C = workspace_LC[2 * pair + 1, :width]
                sum_C = workspace_LC[pair, :width]
                for column in range(width):
                    sum_C[column] = left_C[column] + right_C[column]
            # The last one of an odd number has no partner, and moves to the next level as it is.
            if num_sums % 2:
                for column in range(width):
                    workspace_LC[num_pairs, column] = workspace_LC[num_sums - 1, column]
            num_sums = num_pairs + num_sums % 2
        # A loop compiles in a fifth of the time of an assignment of slices, which may raise an error.
        for column in range(width):
            target_C[column] = workspace_LC[0, column]


def add_losses(losses: Sequence[float], counts: Sequence[int]) -> float:
    """Add the losses of tiles by the tree, those of each share first."""
    rest = iter(losses)
    sums = [add_tree(list(islice(rest, count))) for count in counts]
    return add_tree(sums) if sums else 0.0


def add_tree(parts: list[_Summand]) -> _Summand:
    """Add numbers, or tensors, by the same tree: adjacent pairs first."""
    while len(parts) > 1:
        sums = [left + right for left, right in zip(parts[::2], parts[1::2], strict=False)]
        parts = sums + parts[2 * len(sums) :]
    return parts[0]


_ALIGNMENT = 16
"""Floats between the starts of parameters, a cache line."""
_INPUTS_ROUNDED_TO = 8
_FEW_INPUTS = 32
"""With fewer inputs than this, rounding up costs more than it saves."""


def stored_inputs(num_inputs: int) -> int:
    """Return the inputs that a layer is stored with; those beyond ``num_inputs`` are zero."""
    if num_inputs < _FEW_INPUTS:
        return num_inputs
    return -(-num_inputs // _INPUTS_ROUNDED_TO) * _INPUTS_ROUNDED_TO


@dataclass(frozen=True, slots=True)
class _Place:
    shape: torch.Size
    """Shape in the model."""
    stored: tuple[int, ...]
    """Shape in the vector."""
    start: int

    is_transposed: bool

    def in_model(self, stored: torch.Tensor) -> torch.Tensor:
        """Return the parameter in the model's shape, as a view."""
        return stored[: self.shape[1]].t() if self.is_transposed else stored


class ParameterViews(dict[str, torch.Tensor]):
    """Parts of one vector by parameter name, in their stored shape.

    NumPy arrays of them are made once: after a product, whose data fill the caches, the interpreter takes six
    microseconds to make one.

    Args:
        vector: contiguous.
        parts: name, first number and shape of each part.
    """

    def __init__(self, vector: torch.Tensor, parts: Iterable[tuple[str, int, Sequence[int]]]) -> None:
        for name, start, shape in parts:
            self[name] = vector[start : start + math.prod(shape)].view(*shape)
        self.arrays: dict[str, NDArray[np.float32]] = {}
        """The parts of a float32 vector as arrays of the same memory."""
        if vector.dtype == torch.float32:
            self.arrays = {name: part.numpy() for name, part in self.items()}


class FlatParameters:
    """The places of a model's parameters in one float32 vector.

    Args:
        model: a model on the host.
        is_moved: whether the parameters move to such a vector, matrices transposed; the model keeps using
            them there. Else only their gradients have places in one, in the model's shapes.
    """

    def __init__(self, model: nn.Module, *, is_moved: bool = True) -> None:
        self._parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._places: dict[str, _Place] = {}
        # Each parameter gets a separate aligned place, matrices with room for padded inputs.
        stop = 0
        for name, parameter in self._parameters.items():
            shape = parameter.shape
            is_transposed = is_moved and len(shape) == 2
            stored = (stored_inputs(shape[1]), shape[0]) if is_transposed else tuple(shape)
            self._places[name] = _Place(shape, stored, stop, is_transposed)
            stop += -(-torch.Size(stored).numel() // _ALIGNMENT) * _ALIGNMENT
        self.size = stop
        """Floats of the vector; those that are no parameter's are zero and stay so."""
        # From here on the model's parameters are views of the vector: whoever steps one steps the other.
        self.vector = torch.zeros(stop if is_moved else 0, dtype=torch.float32, device="cpu")
        views = self.views(self.vector) if is_moved else {}
        for name, parameter in self._parameters.items() if is_moved else ():
            view = self._places[name].in_model(views[name])
            view.copy_(parameter.detach())
            parameter.data = view
        self._gradients = ParameterViews(self.vector[:0], ())
        self._in_model: list[torch.Tensor] = []
        """The gradients last set, as they are stored and in the model's shapes."""

    def views(self, vector: torch.Tensor) -> ParameterViews:
        """Return the parts of ``vector`` by parameter name, in their stored shape."""
        return ParameterViews(
            vector, ((name, place.start, place.stored) for name, place in self._places.items())
        )

    def set_gradients(self, gradients: ParameterViews) -> None:
        """Give each parameter of the model its gradient, without a copy.

        Args:
            gradients: `views` of a vector of gradients.
        """
        # The memory of most steps is that of the step before.
        if gradients is not self._gradients:
            self._gradients = gradients
            self._in_model = [self._places[name].in_model(gradients[name]) for name in self._parameters]
        for parameter, gradient in zip(self._parameters.values(), self._in_model, strict=True):
            parameter.grad = gradient


DenseDtype = Literal["fp32", "bf16"]
_log = logging.getLogger(__name__)

_CPU_INFO = Path("/proc/cpuinfo")
_FLAGS = ("flags", "features")
"""Keys of the line with the names of instructions: of x86, and of Arm in lower case."""
_VENDOR = "vendor_id"
_QUICK = (frozenset({"amx_bf16"}), frozenset({"AuthenticAMD", "avx512_bf16"}))
"""The features of a CPU that is quick at bf16: all of one of these sets."""
_HAS_BF16 = ("avx512_bf16", "bf16", "amx_bf16")
_LIMIT = "ONEDNN_MAX_CPU_ISA"
"""Environment variable that holds oneDNN, which multiplies for torch in bf16, to older instructions."""
_WITHOUT_BF16 = frozenset({"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"})
"""Values of this variable under which it converts each number on its own."""


def cpu_features(path: Path = _CPU_INFO, environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return this CPU's vendor and instruction sets by Linux's names, else none.

    Instructions for bf16 are left out where torch's library is held to older ones by the environment.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return frozenset()
    found: dict[str, list[str]] = {}
    # The first core stands for all.
    for key, value in (line.split(":", 1) for line in lines if ":" in line):
        found.setdefault(key.strip().lower(), value.split())
    features = frozenset(name for key in (_VENDOR, *_FLAGS) for name in found.get(key, ()))
    is_held = environment.get(_LIMIT, "").upper() in _WITHOUT_BF16
    return features.difference(_HAS_BF16) if is_held else features


def has_bf16(features: frozenset[str]) -> bool:
    """Return whether a CPU with these `cpu_features` has instructions for bfloat16, quick or not."""
    return bool(features.intersection(_HAS_BF16))


def is_quick_at_bf16(features: frozenset[str]) -> bool:
    """Return whether a CPU with these `cpu_features` multiplies faster in bfloat16 than in float32."""
    return any(needed <= features for needed in _QUICK)


def choose_dense_dtype(wanted: str, device: str, features: frozenset[str]) -> DenseDtype:
    """Return the type that a run computes in.

    Args:
        wanted: ``fp32``, ``bf16`` or ``auto``.
        device: type of the device of the dense layers.
        features: `cpu_features` of this machine.

    Raises:
        ConfigError: bf16 on a CPU without instructions for it.
    """
    # ``auto`` takes the quick type only where it is quick.
    if wanted == "fp32" or (wanted == "auto" and device == "cpu" and not is_quick_at_bf16(features)):
        return "fp32"
    if device == "cpu" and not has_bf16(features):
        raise ConfigError(
            "this CPU has no instructions for bf16: a step would take about eleven times as long",
            hint="use --dense-dtype fp32 or auto",
        )
    return "bf16"


def warn_of_slow_bf16(dtype: DenseDtype, features: frozenset[str]) -> None:
    """Warn if a run uses bf16 on a CPU that is slow at it."""
    if dtype == "bf16" and not is_quick_at_bf16(features):
        _log.warning("this CPU has no AMX, nor AMD's AVX512-BF16: bf16 is about half as fast as fp32")
