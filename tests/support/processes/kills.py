"""Stand-ins for a kill, and a process that holds a folder's lock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@contextmanager
def killed(after: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Raise Killed at the ``after``-th change of a name in the file system."""
    calls = [0]
    with monkeypatch.context() as patch:

        def dying(change: Any) -> Any:
            def changed(*words: Any, **options: Any) -> Any:
                calls[0] += 1
                if calls[0] == after:
                    raise Killed
                return change(*words, **options)

            return changed

        for name in ("replace", "unlink", "rmdir", "link"):
            patch.setattr(os, name, dying(getattr(os, name)))
        yield calls


HOLDER = """
import sys
from pathlib import Path
from hotset.pipeline.folders.disk import FolderLock
lock = FolderLock.take(Path(sys.argv[1]), Path(sys.argv[1]).parent)
print("held", flush=True)
sys.stdin.read()
"""


def start_holder(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until its input is closed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    return holder
