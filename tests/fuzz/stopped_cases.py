"""Cases of `fuzz_folders` that end their process, which must be a module that it can import."""

from __future__ import annotations

import faulthandler
import os
import time
from pathlib import Path

from hotset.tests.fuzz.fuzz_folders import Case, crafter_of, run_case


def abort_or_hang(root: Path, seed: int, number: int) -> Case:
    """End the process in case 1 by a signal, and in case 2 by the time that it takes."""
    crafter_of(root, seed)
    if number == 1:
        os.abort()
    if number == 2:
        faulthandler.dump_traceback_later(0.1, exit=True)
        time.sleep(50)
    return run_case(root, seed, number)
