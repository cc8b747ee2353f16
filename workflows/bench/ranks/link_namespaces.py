"""Two network namespaces with a cable between them, whose speed ``tc tbf`` bounds: a slow link of the kernel.

Needs Linux, root (or CAP_NET_ADMIN) and iproute2. Bytes pass the real network stack here, acknowledgements
and headers too; where this is not allowed, `ThrottledRanks` waits instead. Delays cannot be added so: few
kernels have ``netem``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ....pipeline.errors import HotsetError, first_line
from ....train.ranks.ranks import Message, Pending, Ranks

INTERFACE = "link0"
"""Name of the cable's end in each namespace."""
ADDRESSES = ("10.213.77.1", "10.213.77.2")
_BURST_BYTES = 1 << 20
_QUEUE_BYTES = 64 << 20
"""More than is ever under way: a full queue drops packets, and TCP would be slower than the link."""
_SECONDS = 30


class NamespacesError(HotsetError):
    """This machine, or this user, may not make network namespaces."""


@contextmanager
def linked_namespaces() -> Iterator[tuple[str, str]]:
    """Make two namespaces with a cable inside the block; yields their names.

    Raises:
        NamespacesError: this machine or user may not.
    """
    names = (f"hotset-{os.getpid()}-0", f"hotset-{os.getpid()}-1")
    ends = tuple(f"hs{os.getpid() % 10**8}{end}" for end in "ab")
    if shutil.which("ip") is None or shutil.which("tc") is None:
        raise NamespacesError("network namespaces need `ip` and `tc`", hint="install iproute2")
    made = []
    try:
        for name in names:
            _call("ip", "netns", "add", name)
            made.append(name)
        _call("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            _call("ip", "link", "set", end, "netns", name, "name", INTERFACE)
            for command in (
                ["address", "add", f"{address}/24", "dev", INTERFACE],
                ["link", "set", INTERFACE, "up"],
                ["link", "set", "lo", "up"],
            ):
                _call("ip", "-netns", name, *command)
        yield names
    finally:
        # With a namespace its end of the cable goes, and with that the other end.
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


class ShapedRanks:
    """Ranks of a namespace, whose end of the cable is given a speed.

    Args:
        ranks: that carry the bytes over the cable.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.rank = ranks.rank
        self.num_ranks = ranks.num_ranks

    def set_speed(self, bytes_per_second: float) -> None:
        """Let this rank send so many bytes per second from now on."""
        rate = f"{int(8 * bytes_per_second)}bit"
        shape = ("rate", rate, "burst", str(_BURST_BYTES), "limit", str(_QUEUE_BYTES))
        _call("tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", *shape)

    def exchange(self, sent: Message, received: Message) -> Pending:
        """Exchange."""
        return self._ranks.exchange(sent, received)

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Gather."""
        return self._ranks.gather(part)

    def close(self) -> None:
        """Leave the others."""
        self._ranks.close()


def _call(*command: str) -> None:
    found = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if found.returncode:
        reason = first_line(Exception(found.stderr.strip() or f"it ended with {found.returncode}"))
        raise NamespacesError(
            f"`{' '.join(command)}`: {reason}", hint="start it as root, or with --network throttle"
        )
