"""``hotset demo``: from a raw log to three trained models."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from ...pipeline.errors import MIB, ByteSize, ConfigError, HotsetError, format_byte_size, require_at_least
from ...pipeline.folders.disk import make_folder
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.totals import VocabularyTotals
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.preprocess import StageReport, preprocess
from ...pipeline.raw.part import iterate_blocks
from ...pipeline.raw.raw_file import RawFile
from ...pipeline.runtime.tasks import Resources
from ...pipeline.schema.schema_file import setting_of
from ...pipeline.statistics.frequencies import QUICK, frequency_statistics
from ...stats.compile_notice import working_clock
from ...stats.row_bytes import row_bytes
from ...train.config import TrainConfig
from ..command_list import STAGE_INTERRUPTED, JsonCommand
from ..compile_ahead import LOG, PREPROCESSING, ROW_TRANSFERS, TRAINING_STEPS, compiling_ahead
from ..console import (
    TextTable,
    bars_hidden,
    command_prefix,
    describe_rate,
    load_torch,
    message_width,
    print_command,
    print_json,
    print_line,
    print_table,
    progress_bars,
    say,
    stderr_console,
    stdout_console,
)
from ..recipes import DEFAULT_SCHEMA, criteo_kaggle, recipe_for, small_real_sample
from .preprocess import describe_stage
from .stats import show_statistics

_SAMPLES = 150_000
_HOT_SHARE = 0.1
_BATCH_SIZE = 512
_SEED = 0
"""Of the generated log, the shuffle and the models."""
_SETTINGS_FILE = "demo.json"
"""Holds the settings of a demo, and marks its folder as one that may be overwritten."""
_PLACEMENTS: Final = ("all-fast", "fae", "lookahead")


@dataclass(frozen=True, kw_only=True)
class DemoCommand(JsonCommand):
    """Generate a log, preprocess it, and compare three models."""

    json_object = "statistics, stages and runs"
    on_interrupt = STAGE_INTERRUPTED
    needs_torch = True

    samples: int | None = None
    """Number of samples to generate, or of lines to read from --data. Default: 150,000, or all of --data."""

    data: Path | None = None
    """Raw log to use instead of a generated one."""

    schema: str | None = None
    """Schema of --data, as 'preprocess --schema' takes it. Default: criteo-kaggle."""

    hot_bytes: ByteSize | None = None
    """Fast memory for hot rows. Default: what a tenth of the rows needs."""

    out: Path = Path("demo")
    """Folder of the demo. A demo with other settings replaces its contents."""

    def __post_init__(self) -> None:
        require_at_least("samples", self.samples, 100)
        if self.schema is not None and self.data is None:
            raise ConfigError("--schema describes the log of --data, which is not given")

    def execute(self) -> int:
        """Run ``hotset demo``."""
        # With --json only the object goes to stdout, and the steps are reported on stderr.
        console = stderr_console() if self.json else stdout_console()
        result = demo(self, console)
        if self.json:
            print_json(result)
        return 0


def demo(options: DemoCommand, console: Console) -> dict[str, Any]:
    """Run the whole job; print each step to ``console`` and return the figures."""
    # All kernels are there before the first clock starts: each rate is that of a warm run. Missing torch is
    # reported before anything is generated.
    kinds = [TRAINING_STEPS, ROW_TRANSFERS]
    kinds += [PREPROCESSING] * (options.schema is None) + [LOG] * (options.data is None)
    with progress_bars() as progress, compiling_ahead(kinds) as ahead:
        load_torch(progress)
        # The folder is claimed first: nothing is generated where it holds someone's work.
        _claim(options)
        ahead.wait(progress)
    from ...train.run import RunOptions, train

    def show(line: str) -> None:
        # Stages report while their bars are on the terminal that stdout may be as well.
        with bars_hidden():
            print_line(console, line)

    drawn = f"{options.samples or _SAMPLES:,} samples drawn from the statistics of Criteo's Kaggle log"
    show(f"1. A raw log: {options.data or drawn}")
    log = _log(options)
    show("2. Preprocessing: parse, count, rank, encode, split hot from mixed, pack batches")
    reports = _preprocess(log, options, show)
    # Only the series that take no time: the demo is about training.
    show("\n3. How lookups are distributed over rows: what fast memory for some of them serves")
    statistics = frequency_statistics(options.out / "data", Resources(), series=QUICK)
    # A row for each table, as in `hotset stats`, would push everything else off the screen.
    show_statistics({name: found for name, found in statistics.items() if name != "features"}, console)
    show("\n4. Training the same model three ways: every row in fast memory, as in FAE, and with lookahead")
    runs = []
    # Equal seeds and equal batches, so that a difference is the placement's.
    for placement in _PLACEMENTS:
        config = TrainConfig(placement=placement, seed=_SEED)
        with progress_bars() as progress:
            run_folder = options.out / "runs" / placement
            runs.append(
                train(options.out / "data", config, run_folder, RunOptions(progress=progress)).to_dict()
            )
    print_table(console, _comparison(runs))
    show(_explain(runs, statistics))
    show("\nNext:")
    for next_command in _next_commands(options):
        print_command(console, next_command)
    return {"statistics": statistics, "stages": reports, "runs": runs}


def _settings(options: DemoCommand) -> dict[str, Any]:
    return {
        "samples": options.samples,
        "hot_bytes": options.hot_bytes,
        "seed": _SEED,
        "data": options.data and str(options.data.resolve()),
        # The text of a schema file, which may be edited between two demos.
        "schema": options.schema and setting_of(options.schema),
    }


def _claim(options: DemoCommand) -> None:
    """Take over the folder: keep the log and shards of a demo with equal settings, but train again."""
    # A folder that no demo wrote may hold someone's work.
    make_folder(options.out)
    settings_file = options.out / _SETTINGS_FILE
    wanted = _settings(options)
    if any(options.out.iterdir()) and not settings_file.exists():
        raise HotsetError(
            f"{options.out} is not empty, and no demo wrote it",
            hint="give another --out, or empty the folder",
        )
    # Equal settings give an equal log and equal shards; runs are trained again, to be watched.
    is_equal = False
    with suppress(OSError, ValueError):  # there are none yet, or a kill left a part of them
        is_equal = json.loads(settings_file.read_text()) == wanted
    for name in ("runs",) if is_equal else ("runs", "data"):
        shutil.rmtree(options.out / name, ignore_errors=True)
    if not is_equal:
        (options.out / "log.tsv").unlink(missing_ok=True)
    settings_file.write_text(json.dumps(wanted))


def _log(options: DemoCommand) -> Path:
    path = options.out / "log.tsv"
    # A user's log is read in place, unless only its first lines are wanted.
    if options.data is not None and options.samples is None:
        return options.data
    if options.data is not None:
        _copy_lines(options.data, options.samples or 0, path)
    # A log that an earlier demo generated is used again.
    elif not path.exists():
        started = working_clock()
        num_samples = options.samples or _SAMPLES
        generate(GenerateConfig(samples=num_samples, seed=_SEED), path)
        rate = num_samples / (working_clock() - started)
        say(f"   generate {path}: {describe_rate(rate)}")
    return path


def _copy_lines(log: Path, num_lines: int, path: Path) -> None:
    """Write the first lines of a log, plain or compressed, to ``path``."""
    left = num_lines
    raw = RawFile.inspect(log)
    if raw.read_start(4) == b"PAR1":
        raise ConfigError(f"--samples takes the first lines of a text, and {log} is Parquet: leave it out")
    with open(path, "wb") as file:
        for block in iterate_blocks(raw, MIB):
            lines = block.read().lines.tobytes().splitlines(keepends=True)[:left]
            file.writelines(lines)
            left -= len(lines)
            if left == 0:
                return


def _preprocess(log: Path, options: DemoCommand, show: Callable[[str], None]) -> list[dict[str, Any]]:
    """Preprocess in two runs: the number of rows that the first one finds decides the default budget."""
    reports: dict[str, StageReport] = {}

    def report_stage(report: StageReport) -> None:
        if report.stage not in reports:
            width = message_width()
            show("   " + describe_stage(report, None if width is None else width - 3))
        reports.setdefault(report.stage, report)

    data = options.out / "data"
    # A log that is given is most often a small sample, where rare categories should share a row.
    recipe = criteo_kaggle() if options.data is None else small_real_sample()
    if options.schema is not None:
        named = recipe_for(setting_of(options.schema))
        rank = replace(recipe.rank, feature_min_counts=named.rank.feature_min_counts)
        recipe = replace(recipe, ingest=named.ingest, rank=rank, split=named.split)
    recipe = replace(recipe, pack=replace(recipe.pack, seed=_SEED, batch_size=_BATCH_SIZE))
    # Run up to the vocabulary, choose the budget from its rows, then run on; sealed stages are skipped.
    with progress_bars() as progress:
        run_stages = partial(
            preprocess,
            [log],
            out=data,
            resources=Resources(progress=progress),
            on_stage=report_stage,
        )
        run_stages(config=recipe, until="rank")
        num_hot = int(_HOT_SHARE * VocabularyTotals.of(Manifest.read(data / "vocabulary")).num_rows)
        wanted = row_bytes(recipe.split.embedding_dim, recipe.split.embedding_optimizer) * max(1, num_hot)
        hot_bytes = options.hot_bytes or ByteSize(wanted)
        run_stages(config=replace(recipe, split=replace(recipe.split, hot_bytes=hot_bytes)))
    return [{"stage": report.stage, "seconds": report.seconds} for report in reports.values()]


def _comparison(runs: list[dict[str, Any]]) -> TextTable:
    """Return what a newcomer asks about, a column for each run."""
    weights = [_checksum_of_weights(run) for run in runs]
    moved = [(run["bytes_to_fast"] + run["bytes_to_slow"]) / run["num_training_samples"] for run in runs]
    rows = [
        ["AUC", *("-" if run["auc"] is None else f"{run['auc']:.4f}" for run in runs)],
        ["samples/s", *(f"{run['samples_per_second']:,.0f}" for run in runs)],
        ["bytes moved per sample", *(f"{each:,.0f}" for each in moved)],
        ["batches that waited for rows", *(f"{run['transfers']['stalls']:,}" for run in runs)],
        [
            "weights of all-fast, bit for bit",
            "-",
            *("yes" if each == weights[0] else "no" for each in weights[1:]),
        ],
    ]
    return TextTable(["", *(run["placement"] for run in runs)], rows)


def _checksum_of_weights(run: dict[str, Any]) -> str:
    from ...train.run_folder.weights import WEIGHTS

    files = Manifest.read(Path(run["run"])).files
    return next(file.xxh3_128 for file in files if file.path == WEIGHTS)


def _explain(runs: list[dict[str, Any]], statistics: dict[str, Any]) -> str:
    """Return what was gained, in sentences."""
    fast, _, lookahead = runs
    # The figures of the plan's budget, not of one of the round budgets.
    chosen = next(budget for budget in statistics["budgets"] if budget["is_chosen"])
    share = chosen["num_hot_rows"] / max(1, statistics["num_rows"])
    # What the budget of hot rows buys in lookups and in whole samples.
    lines = [
        f"With {format_byte_size(chosen['bytes'])} of fast memory, {share:.1%} of the rows are hot; "
        f"they serve {chosen['hot_lookup_share']:.1%} of the lookups, "
        f"and {chosen['hot_sample_share']:.1%} of the samples need no other row.",
    ]
    # hybrid sends one vector per lookup; its bytes follow from the counts, without a run.
    lookups = sum(feature["num_lookups"] for feature in statistics["features"])
    vector_bytes = 4 * statistics["embedding_dim"]
    hybrid = 2 * lookups * vector_bytes / max(1, fast["num_training_samples"])
    up, down = (format_byte_size(lookahead[f"bytes_to_{tier}"]) for tier in ("fast", "slow"))
    # Then what each way of training moved, with the baseline that keeps no row.
    lines += [
        f"hybrid, with every row in host memory, would move {hybrid:,.0f} bytes per sample.",
        f"lookahead moved {up} up and {down} down: a row that is looked up for the first time needs no load.",
    ]
    return "\n".join(lines)


def _next_commands(options: DemoCommand) -> list[str]:
    """Return commands to try next, with the paths of this demo and as this shell finds them."""
    hotset = command_prefix()
    data, folder = (shlex.quote(str(path)) for path in (options.out / "data", options.out))
    schema = shlex.quote(options.schema or DEFAULT_SCHEMA)
    return [
        f"{hotset} stats {data}",
        f"{hotset} train {data} --placement hybrid-dedup --out {folder}/runs/hybrid-dedup",
        f"{hotset} evaluate {folder}/runs/lookahead {data}",
        f"{hotset} preprocess YOUR-LOG.tsv.gz --schema {schema} --out DIR",
    ]
