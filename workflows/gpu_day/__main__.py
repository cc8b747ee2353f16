"""``make gpu-day``: everything a machine with a GPU can tell, in one command of a few minutes.

It needs torch, Numba, NumPy, pyarrow, joblib, xxhash, safetensors and pytest, and no network. The parts are
in the order of what is asked first; ``--only`` runs some of them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..machine_facts import commit
from .day import DaySettings, Part, run_day

PARTS = (
    Part("machine", 40),
    Part("verbs", 20),
    Part("kernels", 90),
    Part("first-steps", 120),
    Part("tests", 120),
    Part("speed-16", 110),
    Part("movers", 60),
    Part("parts", 60),
    Part("bits", 80),
    Part("speed-128", 90),
    Part("speed-64", 60),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the day; 0 where every part and check was right."""
    parser = argparse.ArgumentParser(prog="gpu_day", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-day.json"), help="file of the result")
    parser.add_argument("--device", default="cuda", help="cuda, or late to try it (default: cuda)")
    parser.add_argument("--only", default="", help="parts to run, with commas between: " + _names(PARTS))
    parser.add_argument("--seconds", type=float, default=480, help="time of all parts (default: 480)")
    parser.add_argument("--small", action="store_true", help="few rows and samples: does everything run?")
    parser.add_argument("--commit", default=commit(), help="commit of the code, where git cannot tell")
    chosen = parser.parse_args(arguments)
    # A part that does not exist is refused before the machine's time is spent.
    wanted = [name for name in chosen.only.split(",") if name]
    unknown = sorted(set(wanted) - {part.name for part in PARTS})
    if unknown:
        parser.error(f"no part {', '.join(unknown)}: want some of {_names(PARTS)}")
    parts = [part for part in PARTS if not wanted or part.name in wanted]
    settings = DaySettings(
        device=chosen.device, seconds=chosen.seconds, is_small=chosen.small, commit=chosen.commit
    )
    with tempfile.TemporaryDirectory(prefix="hotset-gpu-day-") as scratch:
        result = run_day(parts, settings, chosen.out, Path(scratch), lambda line: print(line, flush=True))
    # Rows of measurements first, then what was wrong, then how many checks were right.
    for row in result["rows"]:
        print(", ".join(f"{name} {_shown(value)}" for name, value in row.items()))
    wrong = [check for check in result["checks"] if not check["is_right"]]
    for check in wrong:
        print(f"WRONG: {check['name']}\n{check['detail']}")
    failed = [part["name"] for part in result["parts"] if part["status"] != "ok"]
    print(f"{len(result['checks']) - len(wrong)} of {len(result['checks'])} checks right; wrote {chosen.out}")
    if failed:
        print(f"did not end well: {', '.join(failed)}")
    return 1 if wrong or failed else 0


def _names(parts: Sequence[Part]) -> str:
    return ", ".join(part.name for part in parts)


def _shown(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
