"""Feed mutated lines, fields and whole folders to everything that reads them.

Each part runs in a separate process, as ``python -m hotset.tests.fuzz.NAME``. A part lists each input that
was judged wrongly in ``wrong``; a process that ends by a signal counts as one.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from typing import Any

from ...pipeline.runtime.tasks import num_workers
from .harness import Facts, new_parser, run_script, tell

_MODULES = "hotset.tests.fuzz"

PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("--lines", type=int, default=1_000_000, help="lines of Criteo's format, and fields")
PARSER.add_argument("--folders", type=int, default=10_000, help="crafted folders")
PARSER.add_argument("--seed", type=int, default=0, help="seed of all inputs")


def measure(options: argparse.Namespace) -> Facts:
    """Run every part; a part of size 0 is left out."""
    parts = {
        "lines": ("fuzz_text", ["--kind", "lines", "--lines", options.lines]),
        "fields": ("fuzz_text", ["--kind", "fields", "--lines", options.lines]),
        "folders": ("fuzz_folders", ["--workers", num_workers(0), "--folders", options.folders]),
    }
    found: Facts = {}
    for name, (module, words) in parts.items():
        if words[-1]:
            found[name] = _run(module, [*map(str, words), "--seed", str(options.seed)])
            tell(f"{name}: {found[name]['inputs']:,} inputs, wrong {found[name]['wrong'] or 0}")
    return found


def _run(module: str, words: list[str]) -> dict[str, Any]:
    """Run one part; a part that finds an input judged wrongly may end there."""
    ended = subprocess.run(
        [sys.executable, "-m", f"{_MODULES}.{module}", *words], capture_output=True, text=True
    )
    if ended.returncode == 0:
        result: dict[str, Any] = json.loads(ended.stdout)
        return result
    # A part that ended by a signal is worth more than any wrong verdict: its last line is kept.
    by_signal = ended.returncode < 0
    status = signal.Signals(-ended.returncode).name if by_signal else f"exit status {ended.returncode}"
    last = (ended.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    return {"inputs": 0, "wrong": [f"{module} {' '.join(words)} ended by {status}: {last}"], "seconds": 0.0}


if __name__ == "__main__":
    sys.exit(run_script(PARSER, measure))
