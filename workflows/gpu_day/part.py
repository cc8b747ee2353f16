"""``python -m hotset.workflows.gpu_day.part NAME``: one part, in this process; see `day`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from . import checks, device_verbs, gpu_tests, kernels, machine, movers, speed, step_parts
from .part_settings import PartSettings
from .records import Records

PARTS: dict[str, Callable[[PartSettings, Records], None]] = {
    "machine": machine.measure_machine,
    "host-kernels": kernels.compile_host_kernels,
    "verbs": device_verbs.try_verbs,
    "kernels": kernels.try_kernels,
    "kernel": kernels.try_kernel,
    "first-steps": checks.take_first_steps,
    "tests": gpu_tests.run_tests,
    "movers": movers.compare_movers,
    "parts": step_parts.measure_step_parts,
    "bits": checks.compare_bits,
    "speed-16": lambda settings, records: speed.measure_speed(settings, records, 16),
    "speed-64": lambda settings, records: speed.measure_speed(settings, records, 64),
    "speed-128": lambda settings, records: speed.measure_speed(settings, records, 128),
}


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
    settings = PartSettings(chosen.device, chosen.scratch, chosen.small, chosen.kernels)
    PARTS[chosen.name](settings, Records(chosen.records, chosen.seconds, chosen.done))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
