"""Runs of `hotset train` for `bench train-kills`: which kinds there are, and how one is started and killed.

A run on several ranks is started as a launcher starts it, one process each. One of them is killed, and the
others have to find out by themselves.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ....train.config import PlacementName

NUM_SHARES = 4
"""Shares of a batch of runs on ranks: any number of ranks that divides it goes on with them."""
_OTHER_RANKS = (1, 4)
"""Numbers of ranks that go on with a run of two."""
_RANK_TIMEOUT = 20
"""Seconds that ranks of a run that is killed wait for each other."""
_PATIENCE = 120
"""Seconds after which ranks that are still there do not stop by themselves."""
_LOOK_SECONDS = 0.002
"""Seconds between two looks at the files of a run; a step takes longer."""


_SLOW_BYTES = "1280KiB"
"""Less than the rows of the log take with any optimizer, and enough for those of Adam by their next use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKind:
    """A way to train."""

    placement: str
    options: tuple[str, ...] = ()
    num_ranks: int = 1
    """Ranks of the runs that are killed."""
    is_continued: bool = False
    """Whether runs start from the weights and states of another run."""

    @property
    def name(self) -> str:
        """The kind as a table names it."""
        name = " ".join((self.placement, *self.options))
        if self.is_continued:
            name += " --init-from"
        return f"{name}, {self.num_ranks} ranks" if self.num_ranks > 1 else name

    @property
    def decides(self) -> tuple[bool, bool, bool]:
        """What alone may change the weights beside the optimizer: the order of batches, the shares, the
        beginning."""
        return self.placement == "fae", self.num_ranks > 1, self.is_continued

    def other_ranks(self, rng: random.Random) -> int:
        """Draw how many ranks go on with a run."""
        return rng.choice(_OTHER_RANKS) if self.num_ranks > 1 else 1


PLACEMENTS: tuple[str, ...] = get_args(PlacementName)
KINDS = (
    *(RunKind(placement=placement) for placement in PLACEMENTS),
    RunKind(placement="lookahead", options=("--plan", "online")),
    RunKind(placement="lookahead", options=("--slow-bytes", _SLOW_BYTES)),
    RunKind(placement="hybrid", options=("--slow-bytes", "1")),
    RunKind(placement="lookahead", options=("--slow-bytes", _SLOW_BYTES), is_continued=True),
    RunKind(placement="cache", is_continued=True),
    RunKind(placement="lookahead", num_ranks=2),
)
"""Kinds of runs that are killed by default."""
RANKED_KINDS = tuple(RunKind(placement=placement, num_ranks=2) for placement in PLACEMENTS)
"""The kinds of runs on two ranks."""


class StartedRun:
    """The processes of a run, one for each rank.

    Args:
        arguments: of the command line.
        scratch: folder of the file of messages.
        num_ranks: processes.
        is_killed: whether one is to be killed; the others then do not wait for it for long.
    """

    def __init__(
        self, arguments: list[str], scratch: Path, num_ranks: int = 1, *, is_killed: bool = False
    ) -> None:
        command = [sys.executable, "-m", "hotset.workflows.cli", *arguments]
        launched: dict[str, str] = {}
        if num_ranks > 1:
            timeout = _RANK_TIMEOUT if is_killed else _PATIENCE
            command += ["--rank-timeout", str(timeout)]
            launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(), "WORLD_SIZE": str(num_ranks)}
        with open(scratch / "messages.txt", "wb") as messages:
            self._processes = [
                subprocess.Popen(
                    command,
                    env=os.environ | launched | ({"RANK": str(rank)} if launched else {}),
                    stdout=messages,
                    stderr=messages,
                )
                for rank in range(num_ranks)
            ]

    def wait_until(self, is_so: Callable[[], bool]) -> bool:
        """Wait until something is so; return False where a process ended before."""
        while not is_so():
            if any(process.poll() is not None for process in self._processes):
                return is_so()
            time.sleep(_LOOK_SECONDS)
        return True

    def kill_after(self, seconds: float, victim: int) -> bool:
        """Kill one process after ``seconds``; return whether it was there still."""
        process = self._processes[victim]
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
        return process.wait() < 0

    def wait(self, timeout: float | None = None) -> list[int]:
        """Wait for the end of all processes, and return their exit statuses; kill them after ``timeout``."""
        for process in self._processes:
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
        return [process.wait() for process in self._processes]

    def survivors_stop(self, victim: int) -> bool:
        """Return whether the others end by themselves after one was killed."""
        statuses = self.wait(_PATIENCE)
        return all(status >= 0 for rank, status in enumerate(statuses) if rank != victim)


def _free_port() -> str:
    """Return a port at which nobody listens."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return str(opened.getsockname()[1])
