"""Finds in the code of a compiled Triton kernel what tests forbid there.

Loads and stores have their shapes in the code that Triton calls "ttgir". In PTX divisions and roots are still
instructions of their own, which the assembler replaces by sequences of fused operations. Instructions of both
name their place in the source, by which an access is found again.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

WIDE_BYTES = 16
"""Bytes that a thread reads or writes at once, at most."""
_ITEM_BYTES = {"f32": 4, "bf16": 2, "f16": 2}
_INEXACT = r"\bfma\.[\w.]+|\bmad\.(?:\w+\.)?f\d+|\b[a-z]\w*(?:\.\w+)*\.(?:ftz|approx|full)\b[\w.]*"


@dataclass(frozen=True, slots=True)
class _Access:
    """A load or a store of a tensor of numbers in memory, or a barrier."""

    kind: str
    origin: str = ""
    """Argument of the kernel that the address is counted from."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    place: str = ""
    """File, line and column of the source."""
    line: str = ""


def inexact_operations(ptx: str) -> list[str]:
    """Return the instructions of a kernel that round twice at once, or not as IEEE does."""
    return sorted(set(re.findall(_INEXACT, ptx)))


def narrow_accesses(ttgir: str, ptx: str, num_threads: int) -> list[tuple[str, str, str]]:
    """Return the loads and stores of floats of which a thread has 16 bytes or more, but not all so at once.

    Args:
        ttgir: code of a kernel.
        ptx: that of the same kernel.
        num_threads: of a program.

    Returns:
        Whether it is a "load" or a "store", the argument that it counts from, and its place in the source.
        Tensors of one dimension are left out.
    """
    # The accesses of one place are counted together: a loop may be written out.
    wanted: Counter[tuple[str, str, str]] = Counter()
    for access in _accesses(ttgir):
        item_bytes = _ITEM_BYTES.get(access.dtype, 0)
        num_wide = math.prod(access.shape) * item_bytes // (num_threads * WIDE_BYTES)
        if len(access.shape) > 1 and num_wide:
            wanted[access.kind, access.origin, access.place] += num_wide
    bytes_of_places = _access_bytes(ptx)
    return sorted(
        (kind, origin, place)
        for (kind, origin, place), num_wide in wanted.items()
        if len(found := bytes_of_places.get((kind, place), [])) < num_wide or min(found) < WIDE_BYTES
    )


def races_of(ttgir: str, num_threads: int) -> list[str]:
    """Return the stores of a kernel to which some threads may lose the value that they are about to read.

    A tensor with fewer numbers than there are threads is read by several of them, each for itself, perhaps
    twice in two layouts, and stored by one: Triton puts no barrier between the two. Larger ones are read
    once, by the thread that stores them, or pass through shared memory behind a barrier.

    Args:
        ttgir: code of a kernel.
        num_threads: of a program.
    """
    unguarded: set[str] = set()
    racing = []
    for access in _accesses(ttgir):
        if access.kind == "barrier":
            unguarded.clear()
        elif math.prod(access.shape) >= num_threads:
            continue
        elif access.kind == "load":
            unguarded.add(access.origin)
        elif access.origin in unguarded:
            racing.append(access.line)
    return racing


def _accesses(ttgir: str) -> Iterator[_Access]:
    """Yield the accesses of tensors, and the barriers, in the order of the code."""
    locations = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", ttgir, re.MULTILINE))
    origins: dict[str, str] = {}
    operations = r"tt\.(?:addptr|splat|broadcast)|ttg\.convert_layout"
    accesses = (
        r"(tt\.load|tt\.store|ttg\.async_copy_global_to_local) (%\w+).*tensor<([0-9x]+)x!tt\.ptr<(\w+)>"
    )
    for line in ttgir.splitlines():
        if derived := re.search(rf"(%\w+) = (?:{operations}) (%\w+)", line):
            origins[derived[1]] = origins.get(derived[2], derived[2])
        elif re.search(r"\b(gpu|ttg)\.\w*barrier", line):
            yield _Access("barrier")
        elif access := re.search(accesses, line):
            operation, address, shape, dtype = access.groups()
            place = re.search(r"loc\((#loc\d*)\)$", line)
            yield _Access(
                "store" if operation == "tt.store" else "load",
                origins.get(address, address).removeprefix("%"),
                tuple(map(int, shape.split("x"))),
                dtype,
                _place_of(place[1], locations) if place else "",
                line.strip(),
            )


def _place_of(location: str, locations: dict[str, str]) -> str:
    """The file, line and column of a location, which may be a name of another, or a call from another."""
    text = locations.get(location, "")
    if place := re.search(r'([^/"]+)":(\d+):(\d+)', text):
        return ":".join(place.groups())
    inner = re.search(r"#loc\d*", text)
    return _place_of(inner[0], locations) if inner else ""


def _access_bytes(ptx: str) -> dict[tuple[str, str], list[int]]:
    """The bytes of each access of global memory by kind and place."""
    place = ""
    found: dict[tuple[str, str], list[int]] = {}
    for line in ptx.splitlines():
        if re.match(r"\s*\.loc\s", line):
            named = re.search(r"// ([\w.]+:\d+:\d+)", line)
            place = named[1] if named else ""
        elif copy := re.search(r"\bcp\.async\.\w+\.shared\.global .*, 0x(\w+)", line):
            found.setdefault(("load", place), []).append(int(copy[1], 16))
        elif access := re.search(r"\b(ld|st)\.global(?:\.[a-z]+)*?(?:\.v(\d))?\.[a-z](\d+)\b", line):
            num_bytes = int(access[2] or 1) * int(access[3]) // 8
            kind = "load" if access[1] == "ld" else "store"
            found.setdefault((kind, place), []).append(num_bytes)
    return found
