"""The limit of a process's addresses, ``ulimit -v``.

Libraries meet it in ways of their own: some end the process without a message where a thread finds no room
for its variables, others raise errors that name a file. So it is looked at before the first thread starts.
"""

from __future__ import annotations

import resource
from pathlib import Path

from ..errors import SystemFaultError, first_line
from ..sizes import MIB, format_byte_size
from .usable_cores import usable_cores

_LEAST_BYTES = 160 * MIB
"""Addresses of kernels and buffers of the smallest jobs; with 110 MiB altogether commands aborted."""
_THREAD_BYTES = 16 * MIB
"""Addresses of the stacks of a thread here and in a library."""
TORCH_BYTES = 1100 * MIB
"""Addresses that the CPU's build of torch takes when it is imported, which ends the process with 300 MiB."""
_LIBRARY_BYTES = 512 * MIB
"""Addresses with which any library is loaded."""


def addresses_left() -> int | None:
    """Return the bytes of addresses that this process may still take; None where it has no limit."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else max(0, most - _addresses_taken())


def refuse_few_addresses(subject: str, more_bytes: int = 0) -> None:
    """Raise SystemFaultError where threads could not start: the hint names a limit that would do.

    Args:
        subject: the command, for the message.
        more_bytes: addresses that libraries of the command take later.
    """
    left = addresses_left()
    wanted = _LEAST_BYTES + usable_cores() * _THREAD_BYTES + more_bytes
    if left is None or left >= wanted:
        return
    # In KiB, as the shell counts, and whole MiB with some to spare.
    enough = (_addresses_taken() + wanted) // MIB + 16
    raise SystemFaultError(
        f"{subject}: `ulimit -v` leaves {format_byte_size(left)} of addresses beside the libraries, "
        f"want {format_byte_size(wanted)}",
        hint=f"raise the limit: `ulimit -v {enough * MIB // 1024}`",
    )


def lost_library(subject: str, error: BaseException) -> SystemFaultError | None:
    """Return what stopped a library from loading where that may be the limit, None where it is not."""
    left = addresses_left()
    if left is None or left >= _LIBRARY_BYTES:
        return None
    return SystemFaultError(
        f"{subject}: a library cannot be loaded with {format_byte_size(left)} of addresses: "
        f"{first_line(error)}",
        hint="raise the limit: `ulimit -v 4194304`, or `ulimit -v unlimited`",
    )


def _addresses_taken() -> int:
    """Return the bytes of addresses of this process; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in lines if line.startswith("VmSize:")]
    return int(sizes[0]) * 1024 if sizes else 0
