"""Writes the weights of a run, and reads the files of a finished run, of which it checks everything.

Weights are in safetensors files by name, written and read one tensor at a time.

The safetensors library joins all tensors to one string before it writes them, and reads through a map of the
file: one that another program cuts short kills the process. Here a tensor is built, written and read when it
is used, so that a model may be larger than memory. The format is 8 bytes of length, a JSON header and the
tensors one after the other; here in the order of their names, so the bytes depend on names and values alone.

A run folder may come from anywhere, so nothing of it is used unchecked: its config is typed data, its files
have the checksums of the manifest, its weights the names, shapes and finite values that the config promises.

The weights of a run that is larger than memory are read for as many batches of the evaluation part together
as the memory has room for their distinct rows. For each such group the file is read once from its start to
its end, a few megabytes at a time, without those that have no wanted row. So the larger the memory, the fewer
times the file is read.

Source:
    https://github.com/huggingface/safetensors, README, section "Format".
"""

from __future__ import annotations

import json
import math
import os
import stat
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import MIB, HotsetError, ManifestError, ShardError, first_line
from ...pipeline.folders.manifest import MANIFEST, HashedFile, Manifest, checksum_of_written, hash_file
from ...pipeline.schema.schema import DENSE_PREFIX
from ..config import RUN_HINT, RunConfig, unfinished_run
from ..data.batch import EmbeddingTable
from ..data.shards import ShardSet
from ..rows.tiers import FileTier, Layout

WEIGHTS = "weights.safetensors"
STATES = "states.safetensors"
"""Optimizer states of rows, by table, and of dense layers; a run whose optimizers have none lacks it."""
RUN_STAGE = "train"
"""The stage that the manifest of a run names."""
RUN_VERSION = 1

_ALIGNMENT = 8
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""A longer header is refused, as the library refuses it."""
_METADATA = "__metadata__"
"""Key of the header that names no tensor."""
_MOST_READ = 1 << 30
"""Bytes that are read at a time: Linux reads at most 2 GiB."""
TYPE_NAMES = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Number types of tensors as NumPy and torch call them, and as the header does."""
_DTYPES = {text: np.dtype(name) for name, text in TYPE_NAMES.items()}


def _header_of(described: Mapping[str, tuple[str, Sequence[int]]]) -> bytes:
    """Return the length and the header of a file, which come before its tensors in the order of their names.

    Args:
        described: type (as in `TYPE_NAMES`) and shape of each tensor.
    """
    header = {}
    end = 0
    for name in sorted(described):
        kind, shape = described[name]
        start = end
        end += np.dtype(kind).itemsize * math.prod(shape)
        header[name] = {"dtype": TYPE_NAMES[kind], "shape": list(shape), "data_offsets": [start, end]}
    # Blanks after the header align the values, as the format allows.
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


Parts = Callable[[], Iterator[torch.Tensor]]
"""Yields a tensor in parts of its first dimension."""


class Weights(Mapping[str, torch.Tensor]):
    """Host tensors by name, each built on access.

    Args:
        shapes: shape of each tensor.
        parts_of: yields one in parts of its first dimension, for those that are larger than memory; None
            where a subclass does.
        dtypes: type of those that are not float32: buffers of dense layers.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        parts_of: Callable[[str], Iterator[torch.Tensor]] | None = None,
        dtypes: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        self.shapes = shapes
        self._dtypes = dtypes or {}
        self._parts_of = parts_of

    def rows(self, name: str, first: int, stop: int) -> torch.Tensor:
        """Return some rows of a tensor, from the first to before the last."""
        return self[name][first:stop]

    def parts(self, name: str) -> Iterator[torch.Tensor]:
        """Yield one tensor in parts, which together have its shape."""
        assert self._parts_of is not None, "a file reads its own"
        return self._parts_of(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of the numbers of a tensor."""
        return self._dtypes.get(name, torch.float32)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, without the header."""
        return sum(self.dtype(name).itemsize * math.prod(shape) for name, shape in self.shapes.items())

    @classmethod
    def of_run(
        cls, dense: Mapping[str, torch.Tensor], tables: Mapping[str, tuple[tuple[int, int], Parts]]
    ) -> Weights:
        """Name the dense tensors and tables of a run; tables are read in parts while they are written.

        Args:
            dense: on any device.
            tables: shape of each table, and what yields its rows in id order.
        """
        shapes = {name: tuple(tensor.shape) for name, tensor in dense.items()}

        def parts_of(name: str) -> Iterator[torch.Tensor]:
            return iter([dense[name].cpu()]) if name in dense else tables[name][1]()

        own = {name: shape for name, (shape, _) in tables.items()}
        return cls(shapes | own, parts_of, dtypes=dtypes_of(dense))

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        # A tensor in one part is not copied.
        first, *others = self.parts(name)
        return torch.cat([first, *others]) if others else first

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class TensorFile(Weights):
    """An open file of tensors, whose header was checked against its size; each is read when it is used.

    Raises:
        OSError: it cannot be read.
        ValueError: the header is no description of the tensors, which fill the file without gaps.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Not to wait for the writer of a pipe.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a plain file")
        # The length of the header is bounded before it is read: the file may be anything.
        num_bytes = status.st_size
        length = int.from_bytes(self._read_at(0, _LENGTH_BYTES).tobytes(), "little")
        if length > min(num_bytes - _LENGTH_BYTES, _MOST_HEADER_BYTES):
            raise ValueError(f"its header of {length} bytes does not fit")
        text = self._read_at(_LENGTH_BYTES, length).tobytes()
        self._first_byte = _LENGTH_BYTES + length
        self._starts, shapes, self.types = _read_header(text, num_bytes - self._first_byte)
        dtypes = {name: getattr(torch, dtype.name) for name, dtype in self.types.items()}
        super().__init__(shapes, dtypes=dtypes)

    def parts(self, name: str) -> Iterator[torch.Tensor]:
        return iter([torch.from_numpy(self.array(name))])

    def array(self, name: str) -> NDArray[Any]:
        """Read a tensor; raises HotsetError where the file was cut short meanwhile."""
        shape = self.shapes[name]
        return self._values(name, 0, math.prod(shape)).reshape(shape)

    def rows(self, name: str, first: int, stop: int) -> torch.Tensor:
        num_rows, *rest = self.shapes[name]
        first, stop, _ = slice(first, stop).indices(num_rows)
        row_size = math.prod(rest)
        values = self._values(name, first * row_size, max(stop - first, 0) * row_size)
        return torch.from_numpy(values.reshape(-1, *rest) if row_size else values.reshape(0, *rest))

    def _values(self, name: str, first: int, count: int) -> NDArray[Any]:
        dtype = self.types[name]
        position = self._first_byte + self._starts[name] + dtype.itemsize * first
        try:
            found = self._read_at(position, dtype.itemsize * count)
            # A byte that is neither 0 nor 1 is no truth value, whatever torch takes it for.
            if dtype == np.bool_ and found.max(initial=0) > 1:
                raise ValueError(f"{name} holds a truth value of {found.max()}")
            return found.view(dtype)
        except (OSError, ValueError) as error:
            raise HotsetError(f"{self._path} cannot be read: {first_line(error)}") from error

    def _read_at(self, position: int, num_bytes: int) -> NDArray[np.uint8]:
        found = np.empty(num_bytes, np.uint8)
        num_read = 0
        while num_read < num_bytes:
            # The system reads 2 GiB at a time at most, and may read less.
            window = found[num_read : num_read + _MOST_READ]
            count = os.preadv(self._descriptor, [window.data], position + num_read)
            if count == 0:
                raise ValueError(f"it ends after {position + num_read} bytes")
            num_read += count
        return found


def _read_header(
    text: bytes, num_bytes: int
) -> tuple[dict[str, int], dict[str, tuple[int, ...]], dict[str, np.dtype[Any]]]:
    """Return the first byte, the shape and the type of each tensor of a header.

    Args:
        num_bytes: bytes of all tensors, which must fill them without gaps.

    Raises:
        ValueError: the header is no such description of tensors.
    """
    header = json.loads(text, object_pairs_hook=_refuse_repeated_keys)
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    # Keys under this name are for people; the rest must describe a tensor each.
    tensors = {name: found for name, found in header.items() if name != _METADATA}
    starts = {}
    shapes = {}
    dtypes = {}
    end_of = {}
    for name, found in tensors.items():
        if not isinstance(found, dict) or found.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"its header does not describe {name}")
        if found["dtype"] not in list(_DTYPES):
            raise ValueError(f"{name} holds {found['dtype']}, want one of {', '.join(_DTYPES)}")
        dtypes[name] = _DTYPES[found["dtype"]]
        # Numbers are checked before anything is computed with them: a bool or a huge one would pass as a
        # size.
        shape = found["shape"]
        offsets = found["data_offsets"]
        numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
        if any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers):
            raise ValueError(f"its header does not describe {name}")
        # The bytes that the offsets span must be those of the shape.
        if len(offsets) != 2 or offsets[1] - offsets[0] != dtypes[name].itemsize * math.prod(shape):
            raise ValueError(f"its header gives {name} another size than its shape {shape} takes")
        starts[name], end_of[name] = offsets
        shapes[name] = tuple(shape)
    # Tensors follow each other without a gap, so none overlaps another or goes beyond the end.
    end = 0
    for name in sorted(starts, key=lambda each: (starts[each], end_of[each])):
        if starts[name] != end:
            raise ValueError(f"{name} does not follow the tensor before it")
        end = end_of[name]
    if end != num_bytes:
        raise ValueError(f"it holds {num_bytes} bytes of tensors, its header says {end}")
    return starts, shapes, dtypes


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header has a key twice")
    return found


def dtypes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.dtype]:
    """Return the types of those tensors that are not float32.

    Raises:
        HotsetError: one has a type that the file of weights does not hold; that of tables is float32.
    """
    for name, tensor in tensors.items():
        if not name.startswith(DENSE_PREFIX) and tensor.dtype != torch.float32:
            raise HotsetError(f"{name} is {tensor.dtype}, want float32")
        if _type_name(tensor.dtype) not in TYPE_NAMES:
            known = ", ".join(TYPE_NAMES)
            raise HotsetError(f"the buffer {name} is {tensor.dtype}, want one of {known}")
    return {name: tensor.dtype for name, tensor in tensors.items() if tensor.dtype != torch.float32}


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def open_weights(path: Path, hint: str | None = None) -> Weights:
    """Return the tensors of a file; each is read when it is used.

    Raises:
        HotsetError: damaged, cut short since it was opened, or of tables that are not float32.
    """
    try:
        file = TensorFile(path)
        for name, dtype in file.types.items():
            if dtype != np.float32 and not name.startswith(DENSE_PREFIX):
                raise ValueError(f"{name} holds {TYPE_NAMES[dtype.name]}, want F32")
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise HotsetError(f"{path} cannot be read: {reason}", hint=hint) from error
    return file


def write_weights(path: Path, weights: Weights) -> None:
    """Write tensors to ``path``, overwriting it."""
    with open(path, "wb") as file:
        _write(file, weights)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[int, str]:
    """Write host tensors by name; return the bytes of the file and its checksum.

    Raises:
        OSError: the disk is full or does not work.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    with HashedFile(path) as file:
        _write(file, Weights(shapes, lambda name: iter([tensors[name]]), dtypes=dtypes))
    return checksum_of_written(path)


def _write(file: BinaryIO | HashedFile, weights: Weights) -> None:
    # Offsets follow from the shapes, so the header is written before the first tensor is built.
    described = {name: (_type_name(weights.dtype(name)), shape) for name, shape in weights.shapes.items()}
    file.write(_header_of(described))
    # Parts are written as they come, so that one part of a table is in memory at a time.
    for name in sorted(described):
        wanted = tuple(weights.shapes[name])
        dtype = weights.dtype(name)
        num_rows = 0
        for part in weights.parts(name):
            tensor = part.detach().contiguous()
            if tensor.dtype != dtype or tuple(tensor.shape[1:]) != wanted[1:]:
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, want {dtype} {wanted}")
            num_rows += tensor.shape[0] if wanted else 0
            if tensor.numel():
                file.write(tensor.numpy().reshape(-1).view(np.uint8).data)
        if wanted and num_rows != wanted[0]:
            raise ValueError(f"{name} has {num_rows} rows, want {dtype} {wanted}")


def send_weights(weights: Weights) -> None:
    """Send the rows of this rank to rank 0, which calls `write_weights`."""
    for name in sorted(weights.shapes):
        for _ in weights.parts(name):
            pass


_PART_BYTES = 8 * MIB
"""Bytes of a tensor that are checked or read at a time."""
_BYTES_OF_NUMBERS = 40
"""Bytes per row that finding the rows of a group takes besides the weights: numbers, sorted and joined."""


def read_weights(run: Path) -> Weights:
    """Return every tensor of a run by name, read on access.

    Raises:
        HotsetError: the file is missing or damaged, or holds other values than float32.
    """
    return open_weights(run / WEIGHTS, RUN_HINT)


def read_states(run: Path) -> Weights:
    """The optimizer states of a run by name; raises HotsetError as `read_weights`."""
    return open_weights(run / STATES, RUN_HINT)


def read_manifest(run: Path, checked: tuple[str, ...] = ()) -> Manifest:
    """Return the manifest of a finished run.

    Args:
        checked: files that are hashed.

    Raises:
        HotsetError: there is none: the run is unfinished.
        ManifestError: it is damaged or that of a stage, or a file has changed.
    """
    if not (run / MANIFEST).exists():
        raise unfinished_run(run, MANIFEST)
    manifest = Manifest.read(run)
    # The manifest of a stage has the same form, so its name and version are looked at.
    if (manifest.stage, manifest.version) != (RUN_STAGE, RUN_VERSION):
        raise ManifestError(
            f"{run} holds {manifest.stage!r} of version {manifest.version}, "
            f"want {RUN_STAGE!r} of {RUN_VERSION}",
            hint=RUN_HINT,
        )
    refuse_changed_files(manifest, checked)
    return manifest


def refuse_changed_files(manifest: Manifest, names: tuple[str, ...]) -> None:
    """Hash files of a run; raise ManifestError if one has changed."""
    for name in names:
        entry = manifest.entry(name)
        path = manifest.checked_path(entry)
        _, checksum = hash_file(path)
        if checksum != entry.xxh3_128:
            raise ManifestError(
                f"{path} is damaged: its checksum is {checksum}, want {entry.xxh3_128}",
                hint="take the run from a copy, or train again",
            )


def refuse_other_tables(config: RunConfig, shards: ShardSet, hint: str, *, may_grow: bool = False) -> None:
    """Raise ShardError unless shards have the tables and widths of a run.

    Args:
        may_grow: whether tables may have other numbers of rows.
    """
    folder = shards.manifest.folder
    trained, found = (
        [
            f"{table.name}{'' if may_grow else f' of {table.num_rows} rows'}, {table.embedding_dim} wide"
            + (f", of {', '.join(own.name for own in table.features)}" if table.features else "")
            for table in each.tables
        ]
        for each in (config, shards)
    )
    for number, (old, new) in enumerate(zip_longest(trained, found, fillvalue="nothing"), 1):
        if old != new:
            raise ShardError(f"table {number} of {folder} is {new}, the run has {old}", hint=hint)
    for name in ("embedding_dim", "num_dense"):
        size, trained_size = getattr(shards, name), getattr(config, name)
        if size != trained_size:
            raise ShardError(f"{folder} has {name} {size}, the run {trained_size}", hint=hint)


def refuse_other_weights(
    run: Path, weights: Weights, config: RunConfig, model: torch.nn.Module | None
) -> None:
    """Raise HotsetError unless tensors are exactly those of the config.

    Args:
        model: its dense layers; None: those there are, whatever they are.
    """
    # Tables are those of the config; dense layers those of the model, where it can be built.
    if model is None:
        wanted = {name: shape for name, shape in weights.shapes.items() if name.startswith(DENSE_PREFIX)}
    else:
        wanted = {f"{DENSE_PREFIX}{name}": tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wanted |= {table.name: (table.num_rows, table.embedding_dim) for table in config.tables}
    for name in sorted(wanted.keys() | weights.shapes.keys()):
        if wanted.get(name) != weights.shapes.get(name):
            raise HotsetError(
                f"the weights of {run} are not those its config describes: "
                f"{name} has the shape {weights.shapes.get(name)}, want {wanted.get(name)}",
                hint="take the run from a copy, or train again",
            )


def read_finite(run: Path, weights: Weights, name: str) -> torch.Tensor:
    """The tensor ``name``; raises HotsetError where one of its values is no number."""
    tensor = weights[name]
    if not torch.isfinite(tensor).all():
        raise _not_finite(run, name)
    return tensor


def refuse_not_finite(run: Path, weights: Weights, name: str) -> None:
    """Raise HotsetError unless the tensor ``name`` is finite; read it in parts."""
    num_rows, width = weights.shapes[name]
    part_rows = max(_PART_BYTES // (4 * max(width, 1)), 1)
    for first in range(0, num_rows, part_rows):
        if not torch.isfinite(weights.rows(name, first, min(first + part_rows, num_rows))).all():
            raise _not_finite(run, name)


def _not_finite(run: Path, name: str) -> HotsetError:
    return HotsetError(
        f"the weights of {run} are damaged: {name} holds values that are not finite",
        hint="take the run from a copy, or train again with lower learning rates",
    )


class SavedTier(FileTier):
    """The rows of one dim, all of them in the file of weights.

    Args:
        memory_bytes: memory that rows may take.
    """

    def __init__(
        self, tables: Sequence[EmbeddingTable], embedding_dim: int, weights: Weights, memory_bytes: int
    ) -> None:
        layout = Layout.of([0] * len(tables), [table.num_rows for table in tables])
        super().__init__(layout, embedding_dim, 0)
        self._names = [table.name for table in tables]
        self._weights = weights
        row_bytes = 4 * embedding_dim
        # An eighth for the part of the file that is read, the rest for rows.
        self._part_rows = max(min(memory_bytes // 8, _PART_BYTES) // row_bytes, 1)
        left = memory_bytes - self._part_rows * row_bytes
        self._most_read = left // (row_bytes + _BYTES_OF_NUMBERS)

    @property
    def most_read(self) -> int:
        return self._most_read

    def fill(self, wanted_U: NDArray[np.int64], weights_UD: NDArray[np.float32]) -> None:
        """Read the rows from the file, table by table."""
        for table, name in enumerate(self._names):
            own = self.layout.slots_of_table(table)
            start, end = np.searchsorted(wanted_U, [own.start, own.stop])
            wanted = wanted_U[start:end] - own.start
            _fill_rows(self._weights, name, wanted, weights_UD[start:end], self._part_rows)


def _fill_rows(
    weights: Weights,
    name: str,
    ids_U: NDArray[np.int64],
    rows_UD: NDArray[np.float32],
    part_rows: int,
) -> None:
    """Read rows of a table, ascending, with so many rows of the file in memory at a time."""
    num_rows, _ = weights.shapes[name]
    for first in range(0, num_rows, part_rows):
        # The wanted rows ascend, so those of this part of the file are a range of them.
        start, end = np.searchsorted(ids_U, [first, first + part_rows])
        if start == end:
            continue
        part = weights.rows(name, first, min(first + part_rows, num_rows))
        rows_UD[start:end] = part.numpy()[ids_U[start:end] - first]


def read_rows(run: Path, name: str, ids_N: NDArray[np.integer[Any]]) -> torch.Tensor:
    """Return rows of a table of a run by id, (N, embedding_dim); raises HotsetError if one is damaged."""
    weights = read_weights(run)
    ids_U, places_N = np.unique(ids_N, return_inverse=True)
    width = weights.shapes[name][1]
    rows_UD = np.empty((ids_U.size, width), np.float32)
    _fill_rows(weights, name, ids_U.astype(np.int64), rows_UD, max(_PART_BYTES // (4 * width), 1))
    if not np.isfinite(rows_UD).all():
        raise _not_finite(run, name)
    return torch.from_numpy(rows_UD[places_N])
