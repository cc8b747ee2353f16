"""Step plans as Arrow files: one row a step, one record batch a stretch of consecutive steps.

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
from ..errors import ManifestError
from ..folders.manifest import FileEntry, Manifest, first_line
from ..formats.arrow_files import DAMAGE, open_writer, values_of

_HINT = "remove its folder and run its stage again"
_LISTS = {
    "slots": ("offsets", pa.int32()),
    "fetch_rows": ("fetch_offsets", pa.int64()),
    "fetch_slots": ("fetch_offsets", pa.int32()),
    "fetch_is_first": ("fetch_offsets", pa.uint8()),
    "write_back_rows": ("write_back_offsets", pa.int64()),
    "write_back_slots": ("write_back_offsets", pa.int32()),
}
"""Columns of lists: which offsets, and of what."""
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
_RESIDENTS = {"row": pa.int64(), "slot": pa.int32()}


def write_plans(path: Path, plans: Sequence[StepPlans], batches: Sequence[NDArray[np.int32]]) -> None:
    """Write stretches of steps, and the number of the training batch of each step."""
    with open_writer(path, _SCHEMA) as writer:
        for plan, numbers in zip(plans, batches, strict=True):
            steps = np.arange(plan.first_step, plan.first_step + plan.num_steps)
            columns = {"step": steps, "batch": numbers} | {
                name: _as_stored(getattr(plan, name)) for name in list(_NUMBERS)[2:]
            }
            arrays = {name: pa.array(values) for name, values in columns.items()}
            for name, (offsets, _) in _LISTS.items():
                values = pa.array(_as_stored(getattr(plan, name)))
                arrays[name] = pa.LargeListArray.from_arrays(pa.array(getattr(plan, offsets)), values)
            writer.write_batch(pa.record_batch([arrays[name] for name in _SCHEMA.names], schema=_SCHEMA))


def _as_stored(values: NDArray[Any]) -> NDArray[Any]:
    return values.view(np.uint8) if values.dtype == np.bool_ else values


def read_plans(manifest: Manifest, entry: FileEntry) -> Iterator[tuple[StepPlans, NDArray[np.int32]]]:
    """Stretches of steps in order, mapped, with the training batch of each step.

    Raises:
        ManifestError: the file is missing or not what `write_plans` writes.
    """
    path = manifest.checked_path(entry)
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        if reader.schema != _SCHEMA:
            raise TypeError("its columns are not those of a schedule")
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch.validate(full=True)
            yield _plans_of(batch), values_of(batch.column("batch"), np.int32)
    except DAMAGE as error:
        raise ManifestError(f"{path} is damaged: {first_line(error)}", hint=_HINT) from error


def _plans_of(batch: Any) -> StepPlans:
    arrays: dict[str, NDArray[Any]] = {}
    for name in list(_NUMBERS)[2:]:
        arrays[name] = values_of(batch.column(name), _NUMBERS[name].to_pandas_dtype())
    for name, (offsets, kind) in _LISTS.items():
        column = batch.column(name)
        bounds = np.frombuffer(column.buffers()[1], np.int64)[column.offset :][: len(column) + 1]
        if arrays.setdefault(offsets, bounds) is not bounds and (arrays[offsets] != bounds).any():
            raise ValueError(f"its lists of {name} are cut otherwise than those beside them")
        arrays[name] = values_of(column.values, kind.to_pandas_dtype())
    steps = values_of(batch.column("step"), np.int64)
    if (steps != steps[:1] + np.arange(steps.size)).any():
        raise ValueError("its steps are not consecutive")
    for name in ("is_shortened", "is_split", "fetch_is_first"):
        arrays[name] = arrays[name].view(np.bool_)
    return StepPlans(first_step=int(steps[0]) if steps.size else 0, **arrays)


def write_residents(path: Path, residents: Residents) -> None:
    """Write what goes home when an epoch is over."""
    arrays = [pa.array(residents.rows), pa.array(residents.slots)]
    schema = pa.schema(list(_RESIDENTS.items()))
    with open_writer(path, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))


def read_residents(manifest: Manifest, entry: FileEntry) -> Residents:
    """What `write_residents` wrote; raises ManifestError."""
    path = manifest.checked_path(entry)
    try:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        batch.validate()
        rows, slots = (
            values_of(batch.column(i), kind.to_pandas_dtype()) for i, kind in enumerate(_RESIDENTS.values())
        )
    except DAMAGE as error:
        raise ManifestError(f"{path} is damaged: {first_line(error)}", hint=_HINT) from error
    return Residents(rows, slots)
