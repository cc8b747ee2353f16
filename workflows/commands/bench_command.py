"""``hotset bench NAME``: measurements, most of them interleaved with a named baseline."""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...pipeline.errors import HotsetError
from ...pipeline.formats.whole_file import refuse_target, whole_file
from ..command_list import Command
from ..console import print_json, say, say_error, stdout_console, with_help
from ..options import NO_OPTION, command_options, config_of, parse_options

BENCHES = {
    "preprocess": (
        "bench_preprocess",
        "compare preprocessing with Polars and pyarrow",
    ),
    "dlrm": (
        "bench_dlrm",
        "compare preprocessing with facebookresearch/dlrm",
    ),
    "growth": ("bench_growth", "measure speed, memory and disk on growing logs"),
    "stats": ("bench_stats", "compare statistics kernels with plain Python and NumPy"),
    "train": ("training.bench_train", "compare a training step with plain torch, part by part"),
    "predict": ("training.bench_predict", "compare predictions with training, the dataset with its reader"),
    "host-steps": (
        "training.bench_host_steps",
        "measure what the host does for each step of a device",
    ),
    "larger-than-memory": (
        "limited.bench_larger_than_memory",
        "train on tables four times the memory, beside memory-mapped ones",
    ),
    "schedule": ("checks.bench_schedule", "count bytes and CPU seconds of a schedule, and of its checks"),
    "exchange": ("ranks.bench_exchange", "count the rows that cross between ranks, by the scheme of homes"),
    "codecs": ("ranks.bench_codecs", "compare the bytes of trained rows in every codec"),
    "links": ("ranks.bench_links", "compare codecs by the step of two ranks behind slow links"),
    "placements": ("bench_placements", "compare bytes, speed and AUC of all placements"),
    "batch-quality": (
        "planning.bench_batch_quality",
        "measure AUC by batch size at equal samples and at equal time",
    ),
    "quality": ("quality.bench_quality", "measure AUC over seeds: small samples, published splits"),
    "torch-quality": (
        "quality.bench_torch_quality",
        "compare the AUC of a DLRM in plain torch and of hotset, by seed",
    ),
    "fuxictr": ("quality.bench_fuxictr", "compare the AUC of FuxiCTR's DCN V2 and of hotset's"),
    "defaults": ("bench_defaults", "compare default optimizers and learning rates by batch size"),
    "days": ("bench_days", "compare a model continued every day with models from scratch"),
    "orders": ("bench_orders", "count fully hot samples per budget and order of rows"),
    "fuzz": ("checks.bench_fuzz", "check that mutated lines, files and folders are read right or refused"),
    "kills": ("bench_kills", "kill preprocessing at random moments, compare bytes"),
    "train-kills": (
        "checks.bench_train_kills",
        "kill training at random moments, compare bits, and time checkpoints",
    ),
}
"""For each benchmark, the module of `bench` with ``CONFIG``, ``measure`` and ``show``, and a line of help."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of every benchmark besides those of its config."""

    out: Path | None = None
    """File for the result as JSON."""

    json: bool = False
    """Print one JSON object on stdout."""


@dataclass(frozen=True, kw_only=True)
class BenchCommand(Command):
    """Run a benchmark."""

    typed: tuple[str, ...] = field(default=(), metadata={NO_OPTION: True})
    """Name of the benchmark and its options."""

    @classmethod
    def parse(cls, command: str, arguments: Sequence[str]) -> BenchCommand:
        """Take the arguments as they are: each benchmark parses its own."""
        return cls(typed=tuple(arguments))

    def execute(self) -> int:
        """Run ``hotset bench``."""
        return run(self.typed)


def run(arguments: Sequence[str]) -> int:
    """Run one benchmark, or list them where no name is given."""
    # Benchmarks are listed by hand: tyro would have to import all of them to print their names.
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: hotset bench NAME [OPTIONS]\n")
        print(with_help((name, description) for name, (_, description) in BENCHES.items()))
        return 0 if arguments else 2
    if arguments[0] not in BENCHES:
        nearest = difflib.get_close_matches(arguments[0], BENCHES, n=1)
        hint = f"hotset bench {nearest[0]}" if nearest else "hotset bench --help lists the benchmarks"
        say_error(f"there is no benchmark {arguments[0]!r}", hint)
        return 2
    name = arguments[0]
    module_name, _ = BENCHES[name]
    # Imported by name, so that one benchmark does not wait for the dependencies of the others.
    module = importlib.import_module(f"..bench.{module_name}", __package__)
    # The options are those of the benchmark's own config, and where its result goes.
    options = parse_options(
        command_options(module.CONFIG, BenchOptions),
        arguments[1:],
        command=f"bench {name}",
    )
    # Some measure for hours, so a file that cannot be written is refused before.
    if options.out:
        refuse_target(options.out, overwrite=True)
    result = module.measure(config_of(module.CONFIG, options))
    # The file is written before anything is printed, so that a closed pipe loses no result.
    if options.out:
        _write(options.out, result)
    if options.json:
        print_json(result)
    else:
        show: Callable[[dict[str, Any], Any], None] = module.show
        show(result, stdout_console())
    return 0


def _write(out: Path, result: Mapping[str, Any]) -> None:
    """Write a result to a file; where the disk has no room left, print it before the error."""
    try:
        with whole_file(out, overwrite=True) as file:
            file.write((json.dumps(result, indent=1, default=str) + "\n").encode())
    except HotsetError:
        print_json(result)
        raise
    say(f"wrote {out}")


COMMANDS: dict[str, type[Command]] = {"bench": BenchCommand}
