"""Plans of what crosses between ranks as Arrow files: the homes of all rows, and the steps of each rank.

A file of homes has one row for each key; a file of steps one row for each step of one rank, with its rows as
lists. Offsets of lists are 64 bits wide, as in `RankSteps`, whose arrays are read as they lie in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.exchange.rank_masks import Masks, mask_type
from ...stats.exchange.rank_step_checks import KINDS, count_rank_messages, first_faulty_step
from ...stats.exchange.rank_steps import RankSteps
from ..errors import ManifestError
from ..folders.manifest import FileEntry, Manifest
from ..formats.arrow_files import damage_named, fixed_lists, open_hashed, open_writer, values_of
from ..stage_commands import hint_to_rewrite

_COUNTS = ("vectors_sent", "vectors_received", "gradients_sent", "gradients_received")
_LISTS = {
    "rows": ("starts_S1", "keys_N", np.int32),
    "users": ("starts_S1", "masks_N", None),
    "before": ("starts_S1", "before_N", np.uint8),
    "after": ("starts_S1", "after_N", np.uint8),
    "is_early": ("starts_S1", "is_early_N", np.uint8),
    "passed_rows": ("passed_starts_S1", "passed_keys_P", np.int32),
    "passed_homes": ("passed_starts_S1", "passed_homes_P", np.uint8),
}
"""Columns of lists: the fields of `RankSteps` with their offsets and elements, and the type of these; that of
masks follows from the number of ranks."""
_ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class RankOf:
    """The rank of a file of steps, and the sizes that its numbers are checked by."""

    rank: int
    num_ranks: int
    num_keys: int


class StepsPart(NamedTuple):
    """Consecutive steps of one rank in an epoch."""

    first_step: int
    batches: NDArray[np.int32]
    """(num_steps,); number of the training batch of each."""
    steps: RankSteps


def _steps_schema(num_ranks: int) -> Any:
    kinds = {
        name: pa.from_numpy_dtype(dtype or mask_type(num_ranks)) for name, (_, _, dtype) in _LISTS.items()
    }
    return pa.schema(
        [
            pa.field("step", pa.int64()),
            pa.field("batch", pa.int32()),
            *(pa.field(name, pa.list_(pa.int32(), num_ranks)) for name in _COUNTS),
            *(pa.field(name, pa.large_list(kind)) for name, kind in kinds.items()),
        ]
    )


def _homes_schema(num_ranks: int) -> Any:
    return pa.schema([("home", pa.uint8()), ("users", pa.from_numpy_dtype(mask_type(num_ranks)))])


def write_homes(path: Path, homes: NDArray[np.uint8], users: Masks, num_ranks: int) -> None:
    """Write where each row lives before its first use, and the ranks that ever use it."""
    with open_writer(path, _homes_schema(num_ranks)) as writer:
        for first in range(0, homes.size, _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            columns = [pa.array(values[part]) for values in (homes, users)]
            writer.write_batch(pa.record_batch(columns, schema=_homes_schema(num_ranks)))


def read_homes(
    manifest: Manifest, entry: FileEntry, num_keys: int, num_ranks: int
) -> tuple[NDArray[np.uint8], Masks]:
    """Read a file of `write_homes`, (num_keys,) each.

    Raises:
        ManifestError: it is missing, or not what `write_homes` writes for so many rows and ranks.
    """
    path = manifest.checked_path(entry)
    kinds = (np.uint8, mask_type(num_ranks))
    with damage_named(path):
        reader = open_hashed(manifest, entry)
        if reader.schema != _homes_schema(num_ranks):
            raise TypeError("its columns are not those of homes")
        parts: list[list[NDArray[Any]]] = [[np.empty(0, kind)] for kind in kinds]
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch.validate(full=True)
            for found, column, kind in zip(parts, batch.columns, kinds, strict=True):
                found.append(values_of(column, kind))
        homes, users = (np.concatenate(found) for found in parts)
        if homes.size != num_keys:
            raise ValueError(f"it has the homes of {homes.size} rows, want {num_keys}")
        if homes.max(initial=0) >= num_ranks or int(users.max(initial=0)) >> num_ranks:
            raise ValueError(f"a row lives at a rank, or is used by one, beyond its {num_ranks} ranks")
    return homes, users


@contextmanager
def open_steps(path: Path, rank: int, num_ranks: int) -> Iterator[Callable[[StepsPart], None]]:
    """Open a file for consecutive steps of a rank; each call with a part writes it as a record batch."""
    schema = _steps_schema(num_ranks)
    with open_writer(path, schema) as writer:

        def write(part: StepsPart) -> None:
            steps = part.steps
            counts_SLW = count_rank_messages(steps, rank, num_ranks)
            columns: list[Any] = [
                pa.array(np.arange(part.first_step, part.first_step + steps.num_steps)),
                pa.array(part.batches),
            ]
            for number in range(KINDS):
                flat = pa.array(np.ascontiguousarray(counts_SLW[:, number]).reshape(-1))
                columns.append(pa.FixedSizeListArray.from_arrays(flat, num_ranks))
            for starts, values, _ in _LISTS.values():
                offsets = pa.array(getattr(steps, starts))
                columns.append(pa.LargeListArray.from_arrays(offsets, pa.array(getattr(steps, values))))
            writer.write_batch(pa.record_batch(columns, schema=schema))

        yield write


def read_steps(manifest: Manifest, entry: FileEntry, of: RankOf) -> Iterator[StepsPart]:
    """Yield the parts of a file of `open_steps` in order, in memory, after every number was checked.

    Raises:
        ManifestError: it is missing, or not what `open_steps` writes for this rank.
    """
    path = manifest.checked_path(entry)
    with damage_named(path):
        reader = open_hashed(manifest, entry)
        if reader.schema != _steps_schema(of.num_ranks):
            raise TypeError(f"its columns are not those of the steps of one of {of.num_ranks} ranks")
    for number in range(reader.num_record_batches):
        with damage_named(path):
            batch = reader.get_batch(number)
            batch.validate(full=True)
            part = _part_of(batch, of)
        _refuse_faults(path, part, batch, of)
        yield part


def _part_of(batch: Any, of: RankOf) -> StepsPart:
    arrays: dict[str, NDArray[Any]] = {}
    for name, (starts, values, dtype) in _LISTS.items():
        column = batch.column(name)
        # Lists beside each other have common offsets, which must be equal in the file, too.
        bounds = np.frombuffer(column.buffers()[1], np.int64)[: len(column) + 1]
        if arrays.setdefault(starts, bounds) is not bounds and (arrays[starts] != bounds).any():
            raise ValueError(f"its lists of {name} are cut otherwise than those beside them")
        arrays[values] = values_of(column.values, dtype or mask_type(of.num_ranks))
    # Plans are found by step, so a gap would shift all that follow.
    numbers = values_of(batch.column("step"), np.int64)
    if (numbers != numbers[:1] + np.arange(numbers.size)).any():
        raise ValueError("its steps are not consecutive")
    first = int(numbers[0]) if numbers.size else 0
    return StepsPart(first, values_of(batch.column("batch"), np.int32), RankSteps(**arrays))


def _refuse_faults(path: Path, part: StepsPart, batch: Any, of: RankOf) -> None:
    """Raise ManifestError where rows, homes or counts are none of this rank: kernels trust them."""
    fault = first_faulty_step(part.steps, of.rank, of.num_ranks, of.num_keys)
    what = "its rows are not those of its rank"
    if fault is None:
        counts_SLW = count_rank_messages(part.steps, of.rank, of.num_ranks)
        for number, name in enumerate(_COUNTS):
            wrong = (fixed_lists(batch.column(name), of.num_ranks, np.int32) != counts_SLW[:, number]).any(1)
            if wrong.any():
                fault = int(wrong.argmax())
                what = f"its {name} are not those of its rows"
                break
    if fault is not None:
        raise ManifestError(
            f"{path} is damaged: step {part.first_step + fault}: {what}", hint=hint_to_rewrite(path.parent)
        )
