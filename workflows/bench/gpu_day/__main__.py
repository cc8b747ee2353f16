"""``make gpu-day``: everything a machine with a GPU can tell, in one command of a few minutes.

It needs torch, Numba, NumPy, pyarrow, xxhash, safetensors and pytest, and no network. The parts are
in the order of what is asked first, each with a share of the time; ``--only`` runs some of them, and goes on
with the file of an earlier call.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...machine import commit
from .day import DaySettings, Part, failed_parts, left_out_of, run_day

PARTS = (
    # What is broken, and is replaced or mended before anything else.
    Part("machine", 30, 50),
    Part("verbs", 12, 20),
    Part("kernels", 55, 80),
    Part("first-steps", 40, 90),
    # What is wrong: other bits, or a step that does not wait for another.
    Part("bits", 45, 90),
    Part("tests", 45, 120),
    # The most important figures.
    Part("speed-16", 85, 150),
    Part("speed-128", 65, 120),
    # Why they are as they are.
    Part("parts", 40, 75),
    Part("movers", 33, 75),
    Part("speed-64", 30, 90),
    # Only if requested by name.
    Part("epoch", 0, 500, is_extra=True),
)
_DAY_SECONDS = 480.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the day; 0 where every part and check was right."""
    parser = argparse.ArgumentParser(prog="gpu_day", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-day.json"), help="file of the result")
    parser.add_argument("--device", default="cuda", help="cuda, or late to try it (default: cuda)")
    day, extra = ([part for part in PARTS if part.is_extra == is_extra] for is_extra in (False, True))
    parser.add_argument(
        "--only",
        default="",
        help=f"parts to run, with commas between: {_names(day)}; left out unless named: {_names(extra)}",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=_DAY_SECONDS,
        help=f"time of all parts (default: {_DAY_SECONDS:g}) but those left out unless named, which have "
        + ", ".join(f"{part.most_seconds:g} seconds ({part.name})" for part in extra),
    )
    parser.add_argument("--small", action="store_true", help="few rows and samples: does everything run?")
    parser.add_argument("--commit", default=commit(), help="commit of the code, where git cannot tell")
    chosen = parser.parse_args(arguments)
    # A part that does not exist is refused before the machine's time is spent.
    wanted = [name for name in chosen.only.split(",") if name]
    unknown = sorted(set(wanted) - {part.name for part in PARTS})
    if unknown:
        parser.error(f"no part {', '.join(unknown)}: want some of {_names(PARTS)}")
    parts = [part for part in PARTS if part.name in wanted] if wanted else day
    settings = DaySettings(
        device=chosen.device, seconds=chosen.seconds, is_small=chosen.small, commit=chosen.commit
    )
    # A call for some parts adds to what others have found.
    before = None
    if wanted and chosen.out.exists():
        before = _result_of(chosen.out, settings)
        if before is None:
            parser.error(f"{chosen.out} is of another device, size or commit: give another --out")
    with tempfile.TemporaryDirectory(prefix="hotset-gpu-day-") as scratch:
        result = run_day(
            parts, settings, chosen.out, Path(scratch), lambda line: print(line, flush=True), before
        )
    return _print(result, chosen.out)


def _result_of(out: Path, settings: DaySettings) -> dict[str, Any] | None:
    """Return what an earlier call has found with these settings; None where it was another one."""
    try:
        result: dict[str, Any] = json.loads(out.read_text())
        earlier = DaySettings(**result["settings"])
        _ = result["facts"], result["checks"], result["rows"], [part["done"] for part in result["parts"]]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    is_same = (earlier.device, earlier.is_small, earlier.commit) == (
        settings.device,
        settings.is_small,
        settings.commit,
    )
    return result if is_same else None


def _print(result: dict[str, Any], out: Path) -> int:
    """Print what a day has found; return 0 where all was right."""
    # Rows of measurements first, then what was wrong, then how many checks were right.
    for row in result["rows"]:
        print(", ".join(f"{name} {_shown(value)}" for name, value in row.items()))
    wrong = [check for check in result["checks"] if not check["is_right"]]
    for check in wrong:
        print(f"WRONG: {check['name']}\n{check['detail']}")
    failed = [part["name"] for part in result["parts"] if part["status"] != "ok"]
    print(f"{len(result['checks']) - len(wrong)} of {len(result['checks'])} checks right; wrote {out}")
    if failed:
        print(f"did not end well: {', '.join(failed)}")
    if broken := failed_parts(result):
        print(
            f"CHECKS FAILED in {', '.join(broken)}: all speeds are of a device that computes something wrong"
        )
    # What there was no time for, and the call that goes on with it.
    left_out = left_out_of(result)
    for name, pieces in left_out.items():
        print(f"left out of {name}: {'; '.join(pieces)}")
    if left_out:
        print(f"make gpu-day OUT={out} ONLY={','.join(left_out)} goes on with what was left out")
    return 1 if wrong or failed else 0


def _names(parts: Sequence[Part]) -> str:
    return ", ".join(part.name for part in parts)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"({' '.join(map(_shown, value))})"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
