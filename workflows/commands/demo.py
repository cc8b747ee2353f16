"""``hotset demo``: the main job, from a raw log to two trained models side by side."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from ...pipeline.errors import ConfigError, HotsetError
from ...pipeline.folders.manifest import Manifest
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.inspect.frequency_series import QUICK, frequency_statistics
from ...pipeline.raw.raw_blocks import RawFile, iterate_blocks
from ...pipeline.sizes import MIB, ByteSize, format_byte_size
from ...pipeline.stages.preprocess import StageReport, preprocess
from ...stats.ranking.row_bytes import row_bytes
from ...train.config import TrainConfig
from ..console import print_json, progress_bars, say, stdout_console
from ..options import parse_options
from ..recipes import criteo_kaggle, small_real_sample
from .describe_stages import describe_stage
from .show_stats import show_statistics

_SAMPLES = 300_000
_HOT_SHARE = 0.1
_BATCH_SIZE = 512
_MARK = "demo.json"
_OPTIMIZER: Final = "adagrad"
_PLACEMENTS: Final = ("all-fast", "fae", "lookahead")


@dataclass(frozen=True, kw_only=True)
class DemoCommand:
    """The main job on an embedded default, or on a log of one's own."""

    samples: int | None = None
    """Samples to generate, 300,000 by default; of --data, its first lines, all by default."""

    data: Path | None = None
    """A raw Criteo log to use instead of a generated one."""

    hot_bytes: ByteSize | None = None
    """Fast memory for hot rows (bytes); by default what a tenth of the rows need."""

    seed: int = 0
    """Of the generated log, the shuffle and the models."""

    out: Path = Path("demo")
    """Folder of the demo; a later demo with other settings replaces what is in it."""

    workers: int = 0
    """Threads of the preprocessing; 0 takes every core."""

    json: bool = False
    """Print one JSON object on stdout."""

    def __post_init__(self) -> None:
        if self.samples is not None and self.samples < 100:
            raise ConfigError(f"samples must be 100 or more, got {self.samples}")


def run(command: str, words: list[str]) -> int:
    """Run ``hotset demo``."""
    options = parse_options(
        DemoCommand, words, command=command, description="Generate a log, preprocess it, train and compare."
    )
    console = Console(stderr=True, highlight=False) if options.json else stdout_console()
    result = demo(options, console)
    if options.json:
        print_json(result)
    return 0


def demo(options: DemoCommand, console: Console) -> dict[str, Any]:
    """The whole job; prints each step to ``console`` and returns the numbers."""
    from ...train.run import train
    from .train_commands import show_runs

    show = _teller(console)
    _claim(options)
    show(f"1. A raw log: {_describe_log(options)}")
    log = _log(options)
    show("2. Preprocessing: parse, count, rank, encode, split hot from mixed, pack batches")
    reports = _preprocess(log, options, show)
    show("\n3. How look-ups fall on rows")
    statistics = frequency_statistics(options.out / "data", series=QUICK, workers=options.workers)
    show_statistics(statistics, console)
    show("\n4. Training from equal seeds: every row on the fast tier, as FAE does, and by look-ahead")
    runs = []
    for placement in _PLACEMENTS:
        config = TrainConfig(placement=placement, seed=options.seed, embedding_optimizer=_OPTIMIZER)
        with progress_bars() as progress:
            run_folder = options.out / "runs" / placement
            runs.append(train(options.out / "data", config, run_folder, progress=progress).to_dict())
    show_runs(runs, console)
    show(_explain(runs, statistics, options))
    return {"statistics": statistics, "stages": reports, "runs": runs}


def _teller(console: Console) -> Callable[[str], None]:
    return lambda line: console.print(line, soft_wrap=True, markup=False)


def _settings(options: DemoCommand) -> dict[str, Any]:
    kept = ("samples", "hot_bytes", "seed")
    source = None if options.data is None else str(options.data.resolve())
    return {name: asdict(options)[name] for name in kept} | {"data": source}


def _claim(options: DemoCommand) -> None:
    """Take the folder over: keep what a demo of equal settings made, but train anew."""
    mark, wanted = options.out / _MARK, _settings(options)
    if options.out.exists() and any(options.out.iterdir()) and not mark.exists():
        raise HotsetError(
            f"{options.out} is not empty and no demo made it", hint="give another --out, or empty the folder"
        )
    is_equal = mark.exists() and json.loads(mark.read_text()) == wanted
    for name in ("runs",) if is_equal else ("runs", "data"):
        shutil.rmtree(options.out / name, ignore_errors=True)
    if not is_equal:
        (options.out / "log.tsv").unlink(missing_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    mark.write_text(json.dumps(wanted))


def _describe_log(options: DemoCommand) -> str:
    if options.data is not None:
        return str(options.data)
    return f"{options.samples or _SAMPLES:,} samples drawn from the statistics of Criteo's Kaggle log"


def _log(options: DemoCommand) -> Path:
    path = options.out / "log.tsv"
    if options.data is not None and options.samples is None:
        return options.data
    if options.data is not None:
        _copy_lines(options.data, options.samples or 0, path)
    elif not path.exists():
        started, num_samples = time.perf_counter(), options.samples or _SAMPLES
        generate(GenerateConfig(samples=num_samples, seed=options.seed), path, workers=options.workers)
        rate = num_samples / (time.perf_counter() - started) / 1e6
        say(f"   generate {path}: {rate:.2f} M samples/s")
    return path


def _copy_lines(log: Path, num_lines: int, path: Path) -> None:
    """Write the first lines of a log, plain or compressed, to ``path``."""
    left = num_lines
    with open(path, "wb") as file:
        for read in iterate_blocks(RawFile.look_at(log), MIB):
            lines = read().lines.tobytes().splitlines(keepends=True)[:left]
            file.writelines(lines)
            left -= len(lines)
            if left == 0:
                return


def _preprocess(log: Path, options: DemoCommand, show: Callable[[str], None]) -> list[dict[str, Any]]:
    """Preprocess in two goes: the number of rows decides the default budget."""
    reports: dict[str, StageReport] = {}

    def report_stage(report: StageReport) -> None:
        if report.stage not in reports:
            show("   " + describe_stage(report))
        reports.setdefault(report.stage, report)

    data, recipe = options.out / "data", criteo_kaggle() if options.data is None else small_real_sample()
    recipe = replace(
        recipe,
        split=replace(recipe.split, embedding_optimizer=_OPTIMIZER),
        pack=replace(recipe.pack, seed=options.seed, batch_size=_BATCH_SIZE),
    )
    with progress_bars() as progress:
        run_stages = partial(
            preprocess, [log], out=data, workers=options.workers, progress=progress, on_stage=report_stage
        )
        run_stages(config=recipe, until="rank")
        num_hot = int(_HOT_SHARE * Manifest.read(data / "vocabulary").totals["num_rows"])
        wanted = row_bytes(recipe.split.embedding_dim, recipe.split.embedding_optimizer) * max(1, num_hot)
        hot_bytes = options.hot_bytes or ByteSize(wanted)
        run_stages(config=replace(recipe, split=replace(recipe.split, hot_bytes=hot_bytes)))
    return [{"stage": report.stage, "seconds": report.seconds} for report in reports.values()]


def _explain(runs: list[dict[str, Any]], statistics: dict[str, Any], options: DemoCommand) -> str:
    """What was gained, in plain words, and what to type next."""
    fast, fae, lookahead = runs
    chosen = next(budget for budget in statistics["budgets"] if budget["is_chosen"])
    share = chosen["num_hot_rows"] / max(1, statistics["num_rows"])
    lines = [
        "",
        f"With {format_byte_size(chosen['bytes'])} of fast memory, {share:.1%} of the rows are hot; "
        f"they serve {chosen['hot_lookup_share']:.1%} of the look-ups, "
        f"and {chosen['hot_sample_share']:.1%} of the samples need no other row.",
    ]
    lookups = fae["num_training_samples"] * len(statistics["features"])
    vector_bytes = 4 * statistics["embedding_dim"]
    moved, hybrid = format_byte_size(fae["bytes_to_fast"]), format_byte_size(lookups * vector_bytes)
    up, down = (format_byte_size(lookahead[f"bytes_to_{tier}"]) for tier in ("fast", "slow"))
    lines += [
        f"fae moved {moved} each way; hybrid, with every row in host memory, would move {hybrid}.",
        f"lookahead moved {up} up and {down} down, for the very bits of all-fast.",
    ]
    if fast["auc"] is not None and fae["auc"] is not None:
        lines.append(f"AUC of fae less that of all-fast: {fae['auc'] - fast['auc']:+.4f}.")
    data, folder = (shlex.quote(str(path)) for path in (options.out / "data", options.out))
    lines += [
        "",
        "Next:",
        f"  hotset stats {data}",
        f"  hotset train {data} --placement hybrid-dedup --out {folder}/runs/hybrid-dedup",
        f"  hotset evaluate {folder}/runs/lookahead {data}",
        "  hotset preprocess YOUR-LOG.tsv.gz --schema criteo-kaggle --hot-bytes 256MiB --out DIR",
    ]
    return "\n".join(lines)
