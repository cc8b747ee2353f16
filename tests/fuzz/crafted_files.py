"""Edits of the files that folders hold: raw bytes, and values of Arrow, NumPy, safetensors and JSON files.

An edit of values keeps the file readable, so that it reaches the checks behind those of the format; an edit
of bytes mostly does not.
"""

from __future__ import annotations

import copy
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from numpy.typing import NDArray

_EXTREMES = [0, 1, 2, 3, 7, 8, 255, 2**16, 2**31 - 1, -(2**31), -1, 2**40, 2**62, 2**63 - 1, -(2**63)]
_JSON: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    1e308,
    "x",
    "../x",
    "",
    [],
    {},
    [1],
    [[]],
    {"name": 3},
]
_NUMBERS = (0, 1, 2, 7, 255, 2**16, 2**31 - 1, -(2**31), -1, -2, 2**40, 2**62, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e38, float("nan"), float("inf"), float("-inf"), 1e-45)


def edit_bytes(whole: bytes, luck: random.Random) -> bytes:
    """Flip, cut, repeat or overwrite bytes, mostly where Arrow keeps its schema and its offsets."""
    mutated = bytearray(whole)
    for _ in range(luck.choice([1, 1, 1, 2, 3])):
        _edit_some(mutated, luck)
    return bytes(mutated)


def _edit_some(mutated: bytearray, luck: random.Random) -> None:
    length = len(mutated)
    if not length:
        return mutated.extend(luck.randbytes(8))
    first, stop = luck.choice([(0, min(length, 2500)), (max(0, length - 2500), length), (0, length)])
    place = luck.randrange(first, stop)
    match luck.randrange(10):
        case 0 | 1 | 2:
            mutated[place] ^= 1 << luck.randrange(8)
        case 3:
            mutated[place] = luck.randrange(256)
        case 4 | 5:
            width = luck.choice([2, 4, 4, 8])
            number = luck.choice(_EXTREMES) % (1 << 8 * width)
            place -= place % width
            mutated[place : min(place + width, length)] = number.to_bytes(8, "little")[
                : min(width, length - place)
            ]
        case 6:
            count = min(luck.randint(1, 64), length - place)
            mutated[place : place + count] = luck.choice(
                [luck.randbytes(count), bytes(count), b"\xff" * count]
            )
        case 7:
            other = luck.randrange(first, stop)
            for i in range(min(8, length - max(place, other))):
                mutated[place + i], mutated[other + i] = mutated[other + i], mutated[place + i]
        case 8:
            other = luck.randrange(first, stop)
            count = min(luck.choice([4, 8, 16, 64]), length - max(place, other))
            mutated[place : place + count] = mutated[other : other + count]
        case _:
            if luck.random() < 0.5:
                del mutated[place:]
            else:
                mutated.extend(luck.randbytes(luck.choice([1, 8, 100])))


def edit_parts(parts: dict[str, Any], luck: random.Random) -> None:
    """Change one value somewhere in a JSON value: remove it, or put another in its place."""
    where, key = luck.choice(list(_places(parts)))
    match luck.randrange(4):
        case 0:
            del where[key]
        case 1 if type(where[key]) is int:
            where[key] += luck.choice([-1, 1, 1000, -1000])
        case 2 if isinstance(where, list):
            where.insert(key, copy.deepcopy(where[luck.randrange(len(where))]))
        case _:
            where[key] = copy.deepcopy(luck.choice(_JSON))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items: Any = ()
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, inner in items:
        yield value, key
        yield from _places(inner)


def edit_values(path: Path, whole: bytes, luck: random.Random) -> bytes:
    """Put other values in a file of a known format; bytes where the format is none of these."""
    edits: dict[str, Callable[[bytes, random.Random], bytes]] = {
        ".arrow": edit_arrow,
        ".npy": edit_npy,
        ".safetensors": edit_safetensors,
        ".json": edit_json,
        ".jsonl": edit_bytes,
    }
    try:
        return edits.get(path.suffix, edit_bytes)(whole, luck)
    except (pa.ArrowException, ValueError):  # Arrow writes no array that breaks its own rules so far
        return edit_bytes(whole, luck)


def edit_json(whole: bytes, luck: random.Random) -> bytes:
    """Change, remove or repeat one to three values somewhere in a JSON object."""
    parts = json.loads(whole)
    for _ in range(luck.choice([1, 1, 2, 3])):
        if parts:
            edit_parts(parts, luck)
    return json.dumps(parts).encode()


def edit_arrow(whole: bytes, luck: random.Random) -> bytes:
    """Change values, offsets or lengths in a column of a record batch, or drop or repeat a batch."""
    batches = list(pa.ipc.open_file(pa.py_buffer(whole)).read_all().to_batches())
    schema = pa.ipc.open_file(pa.py_buffer(whole)).schema
    if not batches or luck.random() < 0.05:
        return _write_arrow(schema, batches[1:] if luck.random() < 0.5 else [*batches, *batches[:1]])
    number = luck.randrange(len(batches))
    batch = batches[number]
    if luck.random() < 0.1:
        batches[number] = batch.slice(luck.randrange(max(batch.num_rows, 1)))
        return _write_arrow(schema, batches)
    arrays = list(batch.columns)
    column = luck.randrange(len(arrays))
    arrays[column] = _edited(arrays[column], luck)
    batches[number] = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return _write_arrow(schema, batches)


def _write_arrow(schema: Any, batches: list[Any]) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def _edited(array: Any, luck: random.Random) -> Any:
    """The array with other values, its lists with other elements or bounds."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if luck.random() < 0.6:
            values = _edited(array.values, luck)
            return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], children=[values])
        width = np.int64 if pa.types.is_large_list(kind) else np.int32
        offsets = np.frombuffer(array.buffers()[1], width)[: len(array) + 1].copy()
        _scramble(offsets, luck)
        buffers = [None, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(kind, len(array), buffers, children=[array.values])
    if pa.types.is_fixed_size_list(kind):
        values = _edited(array.values, luck)
        return pa.Array.from_buffers(kind, len(array), [None], children=[values])
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(_edited(array.indices, luck), array.dictionary, safe=False)
    if pa.types.is_string(kind):
        texts = array.to_pylist()
        if texts:
            texts[luck.randrange(len(texts))] = luck.choice(["", "x", "\0", "é" * 500])
        return pa.array(texts, kind)
    values = np.frombuffer(array.buffers()[1], kind.to_pandas_dtype())[: len(array)].copy()
    _scramble(values, luck)
    return pa.Array.from_buffers(kind, len(array), [array.buffers()[0], pa.py_buffer(values)])


def _scramble(values: NDArray[Any], luck: random.Random) -> None:
    """Change some values in place: to extremes or neighbours, by swaps, or all to one."""
    if not values.size:
        return
    numbers: tuple[float, ...] = _FLOATS if values.dtype.kind == "f" else _NUMBERS
    bits = 8 * values.dtype.itemsize
    with np.errstate(all="ignore"):
        for _ in range(luck.choice([1, 1, 2, 5])):
            place = luck.randrange(values.size)
            match luck.randrange(6):
                case 0:
                    values[place] = values[luck.randrange(values.size)]
                case 1:
                    other = luck.randrange(values.size)
                    values[[place, other]] = values[[other, place]]
                case 2:
                    values[place] += values.dtype.type(1)
                case 3 if luck.random() < 0.3:
                    values[:] = values[place]
                case _:
                    number = luck.choice(numbers)
                    is_whole = isinstance(number, int)
                    values[place] = (
                        np.array(number % 2**bits, f"u{bits // 8}").view(values.dtype) if is_whole else number
                    )


def edit_npy(whole: bytes, luck: random.Random) -> bytes:
    """Change values of an array of whole numbers; `test_batch` has headers of others."""
    values = np.load(io.BytesIO(whole), allow_pickle=False).copy()
    _scramble(values, luck)
    sink = io.BytesIO()
    np.save(sink, values)
    return sink.getvalue()


def edit_safetensors(whole: bytes, luck: random.Random) -> bytes:
    """Change values of a tensor, or the header with names, types, shapes and places of all of them."""
    length = int.from_bytes(whole[:8], "little")
    header, data = json.loads(whole[8 : 8 + length]), bytearray(whole[8 + length :])
    if luck.random() < 0.4:
        place = luck.randrange(0, max(len(data) - 4, 1), 4)
        data[place : place + 4] = np.float32(luck.choice(_FLOATS)).tobytes()
    elif luck.random() < 0.2:
        return luck.choice(_NUMBERS[:6]).to_bytes(8, "little") + whole[8:]
    else:
        edit_parts(header, luck)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)
