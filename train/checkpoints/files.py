"""The files of checkpoints, in the folder ``checkpoints/`` of a run.

    step-000000500.json                 written last: what the checkpoint holds, with a checksum of each file
    dense-000000500.safetensors         dense layers, their optimizers, batches so far
    rows-000000500-00000.safetensors    rows: tables, ids, weights, state; one table group in a file

A checkpoint has the rows that changed since the one before, and lists the files of earlier ones too: if a row
is in several files the last one has its value, and a row in none has its initial value. Once the files have
more than twice as many rows as were ever changed, they are merged, so that only the newest value of each row
stays. A file that no checkpoint lists any more is removed. Disk space is reserved at the start, so that a
disk that is too small is an error before the first step.

Nothing in a file is trusted: its checksum is taken before it is read, every table and id is checked against
the shards, and no format can run code.

The record says how far the run is and what it has counted. Other parts of a run with a state, such as a
schedule of learning rates or the best score so far, save and restore it by the protocol `Resumable`; the
trainer keeps a dict of them, by name.
"""

from __future__ import annotations

import json
import logging
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ...pipeline.errors import HotsetError, first_line
from ...pipeline.folders.disk import write_synced
from ...pipeline.folders.manifest import JsonRecord, RecordError, checksum_of, hash_file
from ..rows.embeddings import RowsPart
from ..run_folder.weights import TensorFile, write_tensors

BATCHES = "run.batches"
"""The tensor of a checkpoint with the batch of each step so far, (num_steps,) int32."""


@dataclass(frozen=True, slots=True)
class TableSizes:
    """The sizes of the tables of a run, by number."""

    num_rows: list[int]
    widths: list[tuple[int, int]]
    """Floats of a row, and of its state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState(JsonRecord):
    """The plain part of a run's state after some step."""

    step: int
    """Steps so far."""
    num_samples: int
    """Samples of these steps."""
    is_logged: bool = True
    """Whether the evaluation that is due after the step was made."""
    unlogged_samples: int = 0
    """Samples since the last line of losses."""
    metrics: tuple[str, ...] = ()
    """The lines of metrics.jsonl so far."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by kind of work; so too the two below."""
    bytes_to_fast: dict[str, int] = field(default_factory=dict)
    bytes_to_slow: dict[str, int] = field(default_factory=dict)
    rows_by_table: dict[str, dict[str, int]] = field(default_factory=dict)
    """Rows moved, by way and table."""
    transfers: dict[str, float] = field(default_factory=dict)
    """Seconds and numbers of transfers."""
    test_losses: tuple[float, ...] = ()
    """Those that the scheduler of fae has seen."""
    others: dict[str, dict] = field(default_factory=dict)  # type: ignore[type-arg]
    """Plain state of each `Resumable`, by name."""


_log = logging.getLogger(__name__)

RECORD_VERSION = 1
_RECORD_NAME = re.compile(r"step-(\d{9,18})\.json")
_FILE_NAME = re.compile(r"(dense|rows)-\d{9,18}(-[0-9]+)?\.safetensors")
_MOST_RECORD_BYTES = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord(JsonRecord):
    """One file of a checkpoint."""

    path: str
    """Name in the folder of checkpoints."""
    bytes: int
    xxh3_128: str
    rows: int = 0
    """Rows in it."""

    def check_values(self, where: str) -> None:
        if not _FILE_NAME.fullmatch(self.path):
            raise RecordError(f"{where}path is {self.path!r}, no name of a checkpoint's file")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRecord(JsonRecord):
    """The contents of ``step-N.json`` but for its checksum."""

    version: int
    run: str
    """Checksum of the run's settings."""
    state: RunState
    dense: FileRecord
    rows: tuple[FileRecord, ...]
    """Files of rows, the oldest first."""

    @property
    def files(self) -> tuple[FileRecord, ...]:
        return (self.dense, *self.rows)


def record_path(folder: Path, step: int) -> Path:
    """Return where the record of a checkpoint is."""
    return folder / f"step-{step:09}.json"


def record_paths(folder: Path) -> list[Path]:
    """The records of all checkpoints in a folder, whole or not, the newest first."""
    if not folder.is_dir():
        return []
    found = {int(match[1]): path for path in folder.iterdir() if (match := _RECORD_NAME.fullmatch(path.name))}
    return [found[step] for step in sorted(found, reverse=True)]


def write_record(folder: Path, record: CheckpointRecord) -> None:
    """Write the record, which makes the checkpoint whole.

    Raises:
        OSError: the disk is full or does not work.
    """
    parts = record.to_json()
    text = json.dumps(parts | {"checksum": checksum_of(parts)})
    path = record_path(folder, record.state.step)
    write_synced(path, text.encode(), aside=path.with_name(f".{path.name}.tmp"), sync=True)


def read_record(path: Path) -> CheckpointRecord:
    """Read and check a record, but not the files it lists.

    Raises:
        HotsetError: it is damaged, or of another version.
    """
    try:
        # Size and checksum before contents, so that nothing damaged is interpreted.
        _refuse_no_file(path)
        if path.stat().st_size > _MOST_RECORD_BYTES:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        parts = json.loads(path.read_bytes())
        if not isinstance(parts, dict):
            raise ValueError("it is no object")
        checksum = parts.pop("checksum", None)
        if checksum != checksum_of(parts):
            raise ValueError(f"its checksum is {checksum!r}, want {checksum_of(parts)!r}")
        if parts.get("version") != RECORD_VERSION:
            raise ValueError(f"it is of version {parts.get('version')!r}, want {RECORD_VERSION}")
        record = CheckpointRecord.from_json(parts)
        # A record under another name is a copy that someone renamed.
        if record_path(path.parent, record.state.step) != path:
            raise ValueError(f"it is of step {record.state.step}")
    except (OSError, ValueError, RecursionError) as error:
        raise HotsetError(f"{path} is damaged: {first_line(error)}") from error
    return record


def refuse_damaged_files(folder: Path, record: CheckpointRecord) -> None:
    """Hash every file of a checkpoint; raise HotsetError where one has changed."""
    for entry in record.files:
        # Hashing reads every byte, which also finds files that the disk no longer gives back.
        path = folder / entry.path
        try:
            _refuse_no_file(path)
            found = hash_file(path)
        except (OSError, ValueError) as error:
            raise HotsetError(f"{path} cannot be read: {first_line(error)}") from error
        if found != (entry.bytes, entry.xxh3_128):
            raise HotsetError(
                f"{path} is damaged: {found[0]} bytes with the checksum {found[1]}, "
                f"want {entry.bytes} with {entry.xxh3_128}"
            )


def _refuse_no_file(path: Path) -> None:
    """Raise ValueError unless it is a plain file: no link, no pipe."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError("it is not a plain file")


def newest_whole(folder: Path, run: str | None = None) -> CheckpointRecord | None:
    """Return the newest checkpoint whose files are all as written, else None.

    One that is damaged is named in a warning.

    Args:
        run: checksum of the settings that it must be of; None: of any.

    Raises:
        HotsetError: there are checkpoints, and all are damaged.
    """
    # Try from the newest on until one is whole; report those passed over with the step that is used instead.
    faults = []
    for path in record_paths(folder):
        try:
            record = read_record(path)
            if run is not None and record.run != run:
                raise HotsetError(f"{path} is of a run with other settings")
            refuse_damaged_files(folder, record)
        except HotsetError as error:
            faults.append(str(error))
            continue
        for fault in faults:
            _log.warning("%s: going back to the checkpoint of step %s", fault, record.state.step)
        return record
    if faults:
        raise HotsetError(
            f"no checkpoint in {folder} is whole: {faults[0]}",
            hint="take the run from a copy, or remove its folder to train from the start",
        )
    return None


def remove_others(folder: Path, keep: int, newest: int) -> None:
    """Remove all but the ``keep`` newest checkpoints up to ``newest``, and unlisted files."""
    # Records first: a file that no record names any more can go, and not the other way round.
    records: list[CheckpointRecord] = []
    for path in record_paths(folder):
        if int(path.stem.removeprefix("step-")) > newest or len(records) == keep:
            path.unlink()
            continue
        try:
            records.append(read_record(path))
        except HotsetError:
            path.unlink()
    listed = {entry.path for record in records for entry in record.files}
    for path in list(folder.iterdir()):
        is_aside = path.name.startswith(".step-") and path.suffix == ".tmp"
        if is_aside or (_FILE_NAME.fullmatch(path.name) and path.name not in listed):
            path.unlink()


_PART_BYTES = 16 * 2**20
_MOST_COPIES = 2
"""Files that have more rows than so many times those that there are, are merged. So a row is written at most
twice as often as it is saved, and files take at most three times the bytes of all rows."""


def is_worth_merging(files: Sequence[FileRecord], num_used: int) -> bool:
    """Return whether files hold so many old values that they are to be merged."""
    return len(files) > 1 and sum(entry.rows for entry in files) > _MOST_COPIES * num_used


def merge_parts(folder: Path, files: Sequence[FileRecord], sizes: TableSizes) -> Iterator[RowsPart]:
    """Yield every row of the files once, newest value, in bounded parts.

    Args:
        files: the oldest first.

    Raises:
        HotsetError: a file is damaged.
    """
    # A row's number over all tables, so that one bitmap says which rows have their newest value already.
    first_F = np.concatenate([[0], np.cumsum(sizes.num_rows)])
    seen = np.zeros(int(first_F[-1]), np.bool_)
    # From the newest file to the oldest: of each row the first value met is the one to keep.
    held: dict[int, list[RowsPart]] = {}
    for entry in reversed(files):
        part = read_part(folder / entry.path, sizes)
        rows_N = first_F[part.tables_N] + part.ids_N
        is_new_N = ~seen[rows_N]
        seen[rows_N] = True
        if not is_new_N.any():
            continue
        # Parts of one width collect until they are worth a write.
        of_width = held.setdefault(part.weights_ND.shape[1], [])
        of_width.append(part.chosen(is_new_N))
        if sum(each.num_bytes for each in of_width) >= _PART_BYTES:
            yield join_parts(of_width)
            of_width.clear()
    for of_width in held.values():
        if of_width:
            yield join_parts(of_width)


def join_parts(parts: Sequence[RowsPart]) -> RowsPart:
    """Return rows of one width as one part."""
    return RowsPart(*map(np.concatenate, zip(*(part.arrays for part in parts), strict=True)))


_PART = {"tables": "int32", "ids": "int32", "weights": "float32", "state": "float32"}
"""Tensors of a part of all rows, and their types."""


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a file; raises HotsetError where it is damaged."""
    try:
        return dict(TensorFile(path))
    except (OSError, ValueError, RecursionError) as error:
        raise HotsetError(f"{path} is damaged: {first_line(error)}") from error


def write_part(path: Path, part: RowsPart) -> tuple[int, str]:
    """Write a part of all rows, as `write_tensors` does."""
    return write_tensors(path, dict(zip(_PART, map(torch.from_numpy, part.arrays), strict=True)))


def read_part(path: Path, sizes: TableSizes) -> RowsPart:
    """Read a part of all rows, whose tables and ids index what there is.

    Raises:
        HotsetError: it is damaged, or of other tables.
    """
    try:
        file = TensorFile(path)
        found = {name: dtype.name for name, dtype in file.types.items()}
        if found != _PART:
            raise ValueError(f"it holds {found}")
        part = RowsPart(*map(file.array, _PART))
        _refuse_nonsense(part, sizes)
    except (OSError, ValueError, RecursionError) as error:
        raise HotsetError(f"{path} is damaged: {first_line(error)}") from error
    return part


def _refuse_nonsense(part: RowsPart, sizes: TableSizes) -> None:
    """Raise ValueError unless rows are of one dim, distinct and in the tables."""
    # Check each array alone before arrays are compared.
    tables_N, ids_N, weights_ND, state_NW = part.arrays
    num_rows, widths = sizes.num_rows, sizes.widths
    count = tables_N.size
    if tables_N.shape != (count,) or ids_N.shape != (count,):
        raise ValueError(f"tables and ids have the shapes {tables_N.shape} and {ids_N.shape}")
    if count == 0:
        return
    least, most = int(tables_N.min()), int(tables_N.max())
    if least < 0 or most >= len(num_rows):
        raise ValueError(f"a row of table {least if least < 0 else most}, there are {len(num_rows)}")
    # A file holds rows of one width, that of its first row's table.
    width = widths[least]
    if len({widths[table] for table in np.unique(tables_N)}) > 1:
        raise ValueError("rows of several widths")
    if weights_ND.shape != (count, width[0]) or state_NW.shape != (count, width[1]):
        shapes = f"{weights_ND.shape} and {state_NW.shape}"
        raise ValueError(f"rows of the shapes {shapes}, want {count} of {width[0]} and {width[1]} floats")
    # Every row is one of its table, once, and a number: what is read goes to the tiers unchecked.
    is_stray_N = (ids_N < 0) | (ids_N >= np.array(num_rows)[tables_N])
    if is_stray_N.any():
        stray = int(np.flatnonzero(is_stray_N)[0])
        table = int(tables_N[stray])
        raise ValueError(f"id {ids_N[stray]} in table {table} of {num_rows[table]} rows")
    if np.unique(tables_N.astype(np.int64) << 32 | ids_N).size != count:
        raise ValueError("it has a row twice")
    if not (np.isfinite(weights_ND).all() and np.isfinite(state_NW).all()):
        raise ValueError("it holds values that are not finite")


_MODEL = "model."
_OPTIMIZER = "optimizer."
_SEPARATOR = " "


def dense_state(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, torch.Tensor]:
    """Copy the state of the model and its optimizers to the host."""
    found = {f"{_MODEL}{name}": tensor for name, tensor in model.state_dict().items()}
    state_of = {parameter: state for each in optimizers for parameter, state in each.state.items()}
    for name, parameter in model.named_parameters():
        for key, value in state_of.get(parameter, {}).items():
            found[f"{_OPTIMIZER}{name}{_SEPARATOR}{key}"] = torch.as_tensor(
                value, dtype=torch.float32, device="cpu"
            )
    # Copies in the usual layout: training continues while they are written.
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in found.items()}


def is_optimizer_state(name: str) -> bool:
    """Return whether a tensor of `tensors` is one of an optimizer."""
    return name.startswith(_OPTIMIZER)


def restore_dense(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    tensors: Mapping[str, torch.Tensor],
    where: str,
) -> None:
    """Set the model and its optimizers to a state that `tensors` returned.

    Args:
        where: the checkpoint, for messages.

    Raises:
        HotsetError: the state is that of another model, or damaged.
    """
    # The shapes are compared first: torch's own error would name neither the file nor the tensor wanted.
    wanted = model.state_dict()
    own = {name.removeprefix(_MODEL): tensor for name, tensor in tensors.items() if name.startswith(_MODEL)}
    for name in sorted(wanted.keys() | own.keys()):
        refuse_other_shape(where, name, own.get(name), wanted.get(name))
    model.load_state_dict(own)
    # The state of an optimizer is stored by the name of its parameter, whichever optimizer steps it today.
    owner = {
        parameter: optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    parameters = dict(model.named_parameters())
    for name, tensor in tensors.items():
        if not name.startswith(_OPTIMIZER):
            continue
        of, _, key = name.removeprefix(_OPTIMIZER).partition(_SEPARATOR)
        parameter = parameters.get(of)
        if parameter is None or parameter not in owner or tensor.shape not in (parameter.shape, ()):
            raise HotsetError(
                f"{where} is damaged: {name} of shape {tuple(tensor.shape)} is not of its model"
            )
        owner[parameter].state[parameter][key] = _placed(tensor, parameter)


def refuse_other_shape(
    where: str, name: str, found: torch.Tensor | None, wanted: torch.Tensor | None
) -> None:
    """Raise HotsetError unless a model tensor has its shape, type and finite values."""
    if found is None or _said(found) != _said(wanted):
        raise HotsetError(
            f"the model of {where} is another: dense layer {name} is {_said(found)}, want {_said(wanted)}",
            hint="give the model that the run was begun with",
        )
    if not torch.isfinite(found).all():
        raise HotsetError(f"{where} is damaged: dense layer {name} holds values that are not finite")


def _said(tensor: torch.Tensor | None) -> str:
    return (
        "missing"
        if tensor is None
        else f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
    )


def _placed(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Copy a tensor, laid out like its parameter; counts are on the host."""
    if tensor.shape != parameter.shape:
        return tensor.clone()
    placed = torch.zeros_like(parameter, memory_format=torch.preserve_format, dtype=tensor.dtype)
    return placed.copy_(tensor)
