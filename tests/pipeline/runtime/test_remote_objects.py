"""Workers in other processes end with the run; what tasks carry there is tested with engines and outputs."""

from __future__ import annotations

import subprocess
import sys

import pytest

_WORKER = """
import os, threading, time
{without}
from hotset.pipeline.runtime.remote_objects import _exit_after
threading.Thread(target=_exit_after, args=(os.getppid(),), daemon=True).start()
print("at work", flush=True)
time.sleep(120)
print("still here", flush=True)
"""
_MAIN = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {worker!r}]); time.sleep(120)"


@pytest.mark.parametrize("without", ["", "del os.pidfd_open"], ids=["told", "looking"])
def test_a_worker_ends_with_its_main_process(without: str) -> None:
    main = _MAIN.format(worker=_WORKER.format(without=without))
    with subprocess.Popen([sys.executable, "-c", main], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.kill()
        # The worker has the same stdout: its end is the end of both.
        assert process.stdout.read() == ""
