"""Step plans as Arrow files: one row per step, one record batch per chunk of consecutive steps.

Offsets of lists are 64 bits wide, as in `StepPlans`, whose arrays are read as they lie in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.staging.step_plans import Residents, StepPlans
from ..folders.manifest import FileEntry, Manifest
from ..formats.arrow_files import damage_named, open_hashed, open_writer, values_of

_LISTS = {
    "slots": ("offsets", pa.int32()),
    "fetch_rows": ("fetch_offsets", pa.int32()),
    "fetch_slots": ("fetch_offsets", pa.int32()),
    "fetch_is_first": ("fetch_offsets", pa.uint8()),
    "write_back_rows": ("write_back_offsets", pa.int32()),
    "write_back_slots": ("write_back_offsets", pa.int32()),
}
"""Columns of lists: the name of their offsets, and the type of their elements."""
_NUMBERS = {
    "step": pa.int64(),
    "batch": pa.int32(),
    "after": pa.int64(),
    "waits_for": pa.int64(),
    "is_shortened": pa.uint8(),
    "is_split": pa.uint8(),
    "num_hits": pa.int64(),
    "num_misses": pa.int64(),
}
_SCHEMA = pa.schema(
    [pa.field(name, kind) for name, kind in _NUMBERS.items()]
    + [pa.field(name, pa.large_list(kind)) for name, (_, kind) in _LISTS.items()]
)
_RESIDENTS = {"row": pa.int32(), "slot": pa.int32()}


def write_plans(path: Path, plans: Sequence[StepPlans], batches: Sequence[NDArray[np.int32]]) -> None:
    """Write chunks of steps, and the number of the training batch of each step."""
    with open_writer(path, _SCHEMA) as writer:
        for plan, numbers in zip(plans, batches, strict=True):
            steps = np.arange(plan.first_step, plan.first_step + plan.num_steps)
            columns = {"step": steps, "batch": numbers} | {
                name: _as_stored(getattr(plan, name)) for name in list(_NUMBERS)[2:]
            }
            arrays = {name: pa.array(values) for name, values in columns.items()}
            # Lists that share offsets in memory repeat them in the file: Arrow has no lists with common
            # bounds.
            for name, (offsets, _) in _LISTS.items():
                values = pa.array(_as_stored(getattr(plan, name)))
                arrays[name] = pa.LargeListArray.from_arrays(pa.array(getattr(plan, offsets)), values)
            writer.write_batch(pa.record_batch([arrays[name] for name in _SCHEMA.names], schema=_SCHEMA))


def _as_stored(values: NDArray[Any]) -> NDArray[Any]:
    return values.view(np.uint8) if values.dtype == np.bool_ else values


def read_plans(manifest: Manifest, entry: FileEntry) -> Iterator[tuple[StepPlans, NDArray[np.int32]]]:
    """Yield chunks of steps in order, in memory, with the training batch of each step.

    Raises:
        ManifestError: the file is missing or not what `write_plans` writes.
    """
    with damage_named(manifest.checked_path(entry)):
        reader = open_hashed(manifest, entry)
        if reader.schema != _SCHEMA:
            raise TypeError("its columns are not those of a schedule")
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch.validate(full=True)
            yield _plans_of(batch), values_of(batch.column("batch"), np.int32)


def _plans_of(batch: Any) -> StepPlans:
    # Numbers first, then lists; lists beside each other share offsets, which must be equal in the file too.
    arrays: dict[str, NDArray[Any]] = {}
    for name in list(_NUMBERS)[2:]:
        arrays[name] = values_of(batch.column(name), _NUMBERS[name].to_pandas_dtype())
    for name, (offsets, kind) in _LISTS.items():
        column = batch.column(name)
        # Offsets are read as they lie, so that plans are views of what was read.
        bounds = np.frombuffer(column.buffers()[1], np.int64)[: len(column) + 1]
        if arrays.setdefault(offsets, bounds) is not bounds and (arrays[offsets] != bounds).any():
            raise ValueError(f"its lists of {name} are cut otherwise than those beside them")
        arrays[name] = values_of(column.values, kind.to_pandas_dtype())
    # Plans index by step, so a gap would shift all that follow.
    steps = values_of(batch.column("step"), np.int64)
    if (steps != steps[:1] + np.arange(steps.size)).any():
        raise ValueError("its steps are not consecutive")
    for name in ("is_shortened", "is_split", "fetch_is_first"):
        # A byte that is neither 0 nor 1 is no bool, whatever NumPy takes it for.
        if arrays[name].max(initial=0) > 1:
            raise ValueError(f"{name} is {arrays[name].max()}, want 0 or 1")
        arrays[name] = arrays[name].view(np.bool_)
    return StepPlans(first_step=int(steps[0]) if steps.size else 0, **arrays)


def write_residents(path: Path, residents: Residents) -> None:
    """Write the rows that are written back when an epoch is over."""
    arrays = [pa.array(residents.rows), pa.array(residents.slots)]
    schema = pa.schema(list(_RESIDENTS.items()))
    with open_writer(path, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))


def read_residents(manifest: Manifest, entry: FileEntry) -> Residents:
    """Read the file of `write_residents`; raise ManifestError where it is damaged."""
    with damage_named(manifest.checked_path(entry)):
        reader = open_hashed(manifest, entry)
        if reader.schema != pa.schema(list(_RESIDENTS.items())) or reader.num_record_batches != 1:
            raise TypeError("its columns are not those of the residents of a schedule")
        batch = reader.get_batch(0)
        batch.validate(full=True)
        rows, slots = (
            values_of(batch.column(i), kind.to_pandas_dtype()) for i, kind in enumerate(_RESIDENTS.values())
        )
    return Residents(rows, slots)
