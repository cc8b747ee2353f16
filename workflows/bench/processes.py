"""CPU and wall time of whole processes: what a new user waits for, or this checkout against another one.

Without ``--other``: a demo whose kernels are not compiled yet and one whose kernels are, in turns.

With it, both checkouts have their environment in ``.venv``. They preprocess the same log and train on the
same shards, which the other one wrote, in turns. The cost of a training sample is the difference between runs
of one and of several epochs, so that starting a process does not count. A ratio above 1 says that this
checkout is faster.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from functools import partial
from pathlib import Path

from ..machine import commit
from . import harness
from .harness import Facts, Options, Seconds, tell

_THIS = Path(__file__).resolve().parents[2]

PARSER = harness.new_parser(__spec__, __doc__)
PARSER.add_argument("--demo-samples", type=int, help="of the demo, instead of its default")
PARSER.add_argument("--other", type=Path, help="checkout with .venv/bin/hotset, to compare with")
PARSER.add_argument("--samples", type=int, default=4_000_000, help="that are preprocessed")
PARSER.add_argument("--train-samples", type=int, default=262_144, help="of the log that is trained on")
PARSER.add_argument("--batch-sizes", type=int, nargs="*", default=[2048, 16384])
PARSER.add_argument("--embedding-dims", type=int, nargs="+", default=[16, 64])
PARSER.add_argument("--threads", type=int, nargs="+", default=[1, 2])
PARSER.add_argument("--placements", nargs="+", default=["all-fast", "lookahead"])
PARSER.add_argument("--epochs", type=int, default=3, help="of the longer run; the shorter one has one")
PARSER.add_argument("--rounds", type=int, default=5)


def measure(options: Options, scratch: Path) -> Facts:
    """Measure the first commands of a new user, or both checkouts."""
    if options.other is None:
        return {"demo": _demos(options, scratch)}
    checkouts = {"this": _THIS, "other": options.other.resolve()}
    programs = {name: harness.program_of(checkout) for name, checkout in checkouts.items()}
    facts: Facts = {"commits": {name: commit(path) for name, path in checkouts.items()}}
    if options.samples:
        facts["preprocess"] = _preprocess(programs, options, scratch)
    return facts | {"train": _train(programs, options, scratch)}


def _demos(options: Options, scratch: Path) -> Facts:
    """Run demos with an empty cache of kernels, and right after each one with the cache that it filled."""
    samples = () if options.demo_samples is None else ("--samples", str(options.demo_samples))
    # Reads libraries from disk, for the first demo as for the others.
    harness.time_process([sys.executable, "-c", "import numba, polars, pyarrow, torch"])
    rounds: dict[str, list[Seconds]] = {"cold": [], "warm": []}
    for number, name in itertools.product(range(options.rounds), rounds):
        kernels, out = scratch / f"kernels-{number}", scratch / f"demo-{number}-{name}"
        words = ["env", f"NUMBA_CACHE_DIR={kernels}", sys.executable, "-m", "hotset", "demo", *samples]
        rounds[name].append(harness.time_process([*words, "--out", str(out)]))
        tell(f"round {number + 1} of {options.rounds}: {name}, {rounds[name][-1][0]:.1f} s")
        shutil.rmtree(out)
    return {name: harness.median_seconds(own) for name, own in rounds.items()} | {"rounds": rounds}


def _preprocess(programs: dict[str, str], options: Options, scratch: Path) -> Facts:
    log = harness.new_log(scratch, options.samples, name="preprocess.tsv")
    turns = {
        name: partial(harness.time_anew, program, scratch / "out", "preprocess", log, "--hot-bytes", "256MiB")
        for name, program in programs.items()
    }
    # One of each before the clock starts: kernels are compiled, and the log is in memory.
    harness.take_turns(turns, 1)
    return {"samples": options.samples} | _ratio(harness.take_turns(turns, options.rounds))


def _train(programs: dict[str, str], options: Options, scratch: Path) -> list[Facts]:
    log = harness.new_log(scratch, options.train_samples, name="train.tsv")
    # Criteo's recipe keeps the last of seven days for evaluation.
    num_samples = (options.epochs - 1) * (6 * options.train_samples // 7)
    found: list[Facts] = []
    for batch_size, dim in itertools.product(options.batch_sizes, options.embedding_dims):
        data = scratch / f"{batch_size}-{dim}"
        words = ("--batch-size", batch_size, "--embedding-dim", dim, "--hot-bytes", "1MiB")
        harness.time_anew(programs["other"], data, "preprocess", log, *words)

        def train_sample(program: str, words: tuple[object, ...], data: Path = data) -> Seconds:
            """Return the seconds of a training sample: those of the epochs after the first."""
            short, long = (
                harness.time_anew(program, scratch / "run", "train", data, "--epochs", num_epochs, *words)
                for num_epochs in (1, options.epochs)
            )
            wall, cpu = ((above - below) / num_samples for above, below in zip(long, short, strict=True))
            return wall, cpu

        for threads, placement in itertools.product(options.threads, options.placements):
            setting = {"threads": threads, "placement": placement}
            setting = {"batch_size": batch_size, "embedding_dim": dim} | setting
            tell(", ".join(f"{name} {value}" for name, value in setting.items()))
            chosen = ("--threads", threads, "--placement", placement)
            turns = {name: partial(train_sample, program, chosen) for name, program in programs.items()}
            if not found:
                harness.take_turns(turns, 1)
            found.append(setting | _ratio(harness.take_turns(turns, options.rounds)))
    return found


def _ratio(rounds: dict[str, list[Seconds]]) -> Facts:
    ratios = harness.compare(rounds["other"], rounds["this"])
    facts: Facts = {f"{clock}_ratio": ratio for clock, ratio in ratios.items()}
    medians = {who: harness.median_seconds(measured) for who, measured in rounds.items()}
    facts |= {clock: {who: own[clock] for who, own in medians.items()} for clock in medians["this"]}
    return facts | {"rounds": rounds}


if __name__ == "__main__":
    harness.main(PARSER, measure)
