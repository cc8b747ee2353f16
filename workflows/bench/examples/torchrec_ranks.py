"""Ranks of this machine that train on TorchRec for a script, and what each hands to collectives.

The library takes seconds to import, so one process a rank makes all runs of a script.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ....pipeline.errors import HotsetError
from ..harness import Facts, free_port

_TIMEOUT = datetime.timedelta(minutes=5)
"""How long a rank waits for another one, which may have failed."""


class Spy(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls of c10d and the bytes handed to them by name, those of C++ code included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::").strip("_")
            sent = args[1] if name == "alltoall_base" else args[0]
            tensors = sent if isinstance(sent, (list, tuple)) else [sent]
            self.calls[name] += 1
            self.num_bytes[name] += sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))
        return func(*args, **(kwargs or {}))


def call_on_ranks(
    num_ranks: int, scratch: Path, function: Callable[..., Facts], *arguments: Any
) -> list[Facts]:
    """Call a top-level function in a process for each rank; return what each call returns.

    Raises:
        HotsetError: a rank failed; it has printed why.
    """
    spawn = multiprocessing.get_context("spawn")
    files = [scratch / f"rank-{rank}.json" for rank in range(num_ranks)]
    port = free_port()
    ranks = [
        spawn.Process(target=_call, args=(rank, num_ranks, port, file, function, arguments))
        for rank, file in enumerate(files)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    if any(each.exitcode for each in ranks):
        raise HotsetError(f"ranks ended with {[each.exitcode for each in ranks]}")
    return [json.loads(file.read_text()) for file in files]


def _call(
    rank: int, num_ranks: int, port: str, file: Path, function: Callable[..., Facts], arguments: Any
) -> None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    os.environ |= dict(zip(names, map(str, (rank, num_ranks, "127.0.0.1", port)), strict=True))
    status = 1
    try:
        if num_ranks > 1:
            dist.init_process_group("gloo", timeout=_TIMEOUT)
        file.write_text(json.dumps(function(*arguments)))
        status = 0
    finally:
        if status:
            traceback.print_exc()
        # TorchRec's threads may abort the interpreter's own end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
