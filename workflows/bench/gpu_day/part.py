"""``python -m hotset.workflows.bench.gpu_day.part NAME``: one part, in this process; see `day`.

The module of a part is imported when the part is run, so that a package that is missing or broken ends the
parts that need it, and no other.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
from collections.abc import Sequence
from pathlib import Path

from .part_settings import PartSettings
from .records import Records

PARTS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "machine": ("machine", "measure_machine", ()),
    "host-kernels": ("kernels", "compile_host_kernels", ()),
    "verbs": ("device_verbs", "try_verbs", ()),
    "kernels": ("kernels", "try_kernels", ()),
    "kernel": ("kernels", "try_kernel", ()),
    "first-steps": ("checks", "take_first_steps", ()),
    "bits": ("checks", "compare_bits", ()),
    "tests": ("gpu_tests", "run_tests", ()),
    "speed-16": ("speed", "measure_speed", (16,)),
    "speed-64": ("speed", "measure_speed", (64,)),
    "speed-128": ("speed", "measure_speed", (128,)),
    "parts": ("step_parts", "measure_step_parts", ()),
    "epoch": ("epoch", "train_an_epoch", ()),
    "movers": ("movers", "compare_movers", ()),
}
"""The module of each part, its function there, and what that is given besides settings and records."""
_LAST_WORDS_SECONDS = 3.0
"""A part that hangs prints where its threads are so long before it is killed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(prog="part")
    parser.add_argument("name", choices=sorted(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--kernels")
    parser.add_argument("--done", type=json.loads, default=[], help="pieces of work to leave out")
    chosen = parser.parse_args(arguments)
    # The time begins here: on a machine where nothing is cached, imports alone take seconds.
    records = Records(chosen.records, chosen.seconds, chosen.done)
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(chosen.seconds - _LAST_WORDS_SECONDS, 1.0))
    settings = PartSettings(chosen.device, chosen.scratch, chosen.small, chosen.kernels)
    module, function, more = PARTS[chosen.name]
    getattr(importlib.import_module(f".{module}", __package__), function)(settings, records, *more)
    faulthandler.cancel_dump_traceback_later()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
