"""Raw log to shards next to Polars, to DLRM's own preprocessing, and on growing logs.

The Polars program does the same job all in memory; both write the same samples. ``--dlrm`` takes a checkout
of facebookresearch/dlrm instead, whose outputs differ: ids in order of first appearance, not shuffled. What
its loader reads instead is written by `export_dlrm`.
``--phases`` compares the two ways of `pack`, see `in_phases`.
``--growth`` preprocesses a log of each size within a cap of memory, to see whether anything grows faster than
the log.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import DTypeLike, NDArray

from ...pipeline.errors import MIB, ByteSize, ConfigError, parse_byte_size
from ...pipeline.export import NamedBatches, Split, check_log
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.totals import ShardsTotals
from ...pipeline.preprocess import FOLDERS, PreprocessConfig, StageReport, preprocess
from ...pipeline.raw.part import Block, PlainBlock, iterate_blocks
from ...pipeline.raw.raw_file import RawFile
from ...pipeline.raw.text_parts import parse_block
from ...pipeline.runtime.limits import default_memory_bytes, numbers_in
from ...pipeline.runtime.tasks import Resources, num_workers, run_tasks
from ...pipeline.schema.schema import LABEL
from ...pipeline.schema.schema_file import schema_named
from ...pipeline.stages import pack as pack_stage
from ...pipeline.stages.ingest import IngestConfig
from ...pipeline.stages.pack import PackConfig, pack
from ..recipes import criteo_kaggle
from . import harness
from . import polars_program as polars
from .harness import Facts, Measurement, MemoryLimit, Options, Seconds, tell

_WARM_UP_LINES = 2000
_HOT_BYTES, _LARGE_HOT_BYTES = ByteSize(4 * MIB), ByteSize(256 * MIB)
"""The first so small that both kinds of batches occur; the second as for large logs."""
_ROOM_LOGS = 6
"""Memory and page cache that the largest candidate needs, in multiples of the log."""
_ROOM_PER_SAMPLE = 450
"""Bytes that all stages write for each sample."""
_DLRM_MODULE, _TRAINING_DAYS = "data_utils.py", 6
PROCESSED = "kaggleAdDisplayChallenge_processed.npz"
DAY_COUNT, FEATURE_COUNT = "train_day_count.npz", "train_fea_count.npz"
_PASSES, _TWO_PHASES = "passes", "two phases"
_MEMORY_SHARE = 0.8
"""``--memory`` of `pack` over the limit, which also has the libraries and the page cache."""
_PACKED = ("columns", "samples", "plan")
"""Folders that `pack` reads."""
_PACKED_BYTES = 265
"""Their bytes for a sample of Criteo's log."""
_INGEST = IngestConfig()
_PAIRS = (("polars", "hotset"), ("polars read_csv", "hotset parse, kept"))
"""The slow and the fast candidate of each ratio."""

PARSER = harness.new_parser(__spec__, __doc__)
PARSER.add_argument("--samples", type=int, default=1_000_000, help="samples of the generated log")
PARSER.add_argument("--rounds", type=int, default=3, help="rounds in which each candidate runs once")
PARSER.add_argument("--dlrm", type=Path, help="checkout of facebookresearch/dlrm to compare with")
PARSER.add_argument("--phases", action="store_true", help="pack in passes and in two phases")
PARSER.add_argument("--limit", type=parse_byte_size, default=ByteSize(300 * MIB), help="limit of memory")
PARSER.add_argument("--times", type=float, default=8.0, help="size of what pack reads over the limit")
PARSER.add_argument("--growth", type=int, nargs="+", help="samples of logs that grow")
PARSER.add_argument("--alone", action="store_true", help="growth without Polars, whose memory grows, too")


def measure(options: Options, scratch: Path) -> Facts:
    """Measure what the options select."""
    if min(options.samples, options.rounds) < 1:
        raise ConfigError("samples and rounds must be 1 or more")
    if options.growth:
        return growth(options, scratch)
    if options.phases:
        return in_phases(options, scratch)
    if options.dlrm:
        return against_dlrm(options, scratch)
    return against_polars(options, scratch)


def _recipe(hot_bytes: ByteSize) -> PreprocessConfig:
    """Return the recipe of the log with a budget that no other program has to find."""
    recipe = criteo_kaggle()
    return replace(recipe, split=replace(recipe.split, hot_bytes=hot_bytes))


def against_polars(options: Options, scratch: Path) -> Facts:
    """Compare whole jobs, parsing alone, and whole processes, imports included."""
    recipe = _recipe(_HOT_BYTES)
    log, warm_up = harness.new_log(scratch, options.samples), _warm_up_log(scratch)
    os.sync()  # no write-back of the log while candidates run
    # Parsing alone ends with what its functions say.
    functions = {
        "hotset": hotset_preprocess,
        "polars": polars.polars_program,
        "hotset parse, kept": hotset_parse,
        "polars read_csv": polars.polars_read_csv,
    }
    fresh = partial(harness.measure_in_fresh_process, scratch, room_bytes=_ROOM_LOGS * log.stat().st_size)
    turns = {name: partial(fresh, function, warm_up, log, recipe) for name, function in functions.items()}
    measured = harness.take_turns(turns, options.rounds)
    _check_agreement(measured)
    facts = measured["hotset"][0].facts
    seconds = {name: [one.seconds for one in own] for name, own in measured.items()}
    ratios = {f"{slow} / {fast}": harness.compare(seconds[slow], seconds[fast]) for slow, fast in _PAIRS}
    contestants = {name: harness.summarize(function, measured[name]) for name, function in functions.items()}
    return {
        "ratios": ratios,
        "ratio_total": ratios["polars / hotset"]["wall"],
        "samples_per_second": contestants["hotset"]["samples_per_second"],
        "stages": facts["stages"],
        "contestants": contestants,
        "processes": _whole_processes(log, recipe, scratch, options.rounds),
        "data": {"bytes": log.stat().st_size} | {key: facts[key] for key in ("num_samples", "samples")},
        "recipe": asdict(recipe),
    }


def _warm_up_log(scratch: Path) -> Path:
    return harness.new_log(scratch, _WARM_UP_LINES, name="warm_up.tsv")


def _check_agreement(measured: dict[str, list[Measurement]]) -> None:
    """Assert that all candidates did the same job: the same samples, as many of them hot."""
    facts = {name: rounds[0].facts for name, rounds in measured.items()}
    assert len({fact["num_samples"] for fact in facts.values()}) == 1, "numbers of samples differ"
    for key in ("samples", "num_hot"):
        assert facts["hotset"][key] == facts["polars"][key], f"hotset and Polars differ in {key}"


def _whole_processes(log: Path, recipe: PreprocessConfig, scratch: Path, rounds: int) -> Facts:
    """Time the command and the Polars program from start to end, in turns; return medians and ratios."""
    split = recipe.split
    options = [f"--hot-bytes={split.hot_bytes}", f"--embedding-optimizer={split.embedding_optimizer}"]
    settings = json.dumps(polars.polars_settings(recipe))

    def turn(*words: str) -> Seconds:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            return harness.time_process([sys.executable, "-m", *words, f"{folder}/out"])

    turns = {
        "hotset": partial(turn, "hotset", "preprocess", str(log), *options, "--out"),
        "polars": partial(turn, polars.__name__, str(log), settings),
    }
    measured = harness.take_turns(turns, rounds)
    return {
        "seconds": {name: harness.median_seconds(own) for name, own in measured.items()},
        "ratio": harness.compare(measured["polars"], measured["hotset"]),
    }


def hotset_preprocess(folder: Path, log: Path, recipe: PreprocessConfig) -> Facts:
    """Preprocess a raw log to shards, every stage sealed; ``stages`` has seconds and bytes of each."""
    stages: dict[str, dict[str, float]] = {}
    before = os.times().user

    def on_stage(report: StageReport) -> None:
        nonlocal before
        seconds, before = os.times().user - before, os.times().user
        num_bytes = sum(entry.num_bytes for entry in report.manifest.files)
        times = {"wall_seconds": report.seconds, "user_seconds": seconds}
        stages[report.stage] = times | {"written_bytes": num_bytes}

    shards = preprocess([log], recipe, folder / "out", on_stage=on_stage)
    totals = ShardsTotals.of(shards)
    return {
        "num_samples": shards.num_samples,
        "samples": totals.samples.to_json(),
        "num_hot": [table.num_hot for table in totals.tables],
        "stages": stages,
    }


def hotset_parse(folder: Path, log: Path, recipe: PreprocessConfig) -> Facts:
    """Parse each block to Arrow columns and keep all in memory."""
    blocks = iterate_blocks(RawFile.inspect(log), _INGEST.block_bytes, in_thread_buffer=True)
    kept = list(run_tasks(_keep, ((block,) for block in blocks), workers=num_workers(0)))
    return {"num_samples": sum(batch.num_rows for batch in kept)}


def _keep(block: PlainBlock | Block) -> pa.RecordBatch:
    parsed = parse_block(block.read(), schema_named(_INGEST.schema), has_label=True, is_kept=True)
    return pa.record_batch(parsed.columns)


def against_dlrm(options: Options, scratch: Path) -> Facts:
    """Compare with DLRM's code, which visits each value in Python."""
    if not (options.dlrm / _DLRM_MODULE).is_file():
        raise ConfigError(f"{options.dlrm} has no {_DLRM_MODULE}: give a checkout of facebookresearch/dlrm")
    log, warm_up = harness.new_log(scratch, options.samples), _warm_up_log(scratch)
    fresh = partial(harness.measure_in_fresh_process, scratch)
    turns = {
        "dlrm": partial(fresh, dlrm_preprocess, warm_up, log, options.dlrm.resolve()),
        "hotset": partial(fresh, hotset_preprocess, warm_up, log, _recipe(_LARGE_HOT_BYTES)),
    }
    measured = harness.take_turns(turns, options.rounds)
    seconds = {name: [one.seconds for one in own] for name, own in measured.items()}
    ratios = harness.compare(seconds["dlrm"], seconds["hotset"])
    functions: dict[str, Callable[..., Facts]] = {"dlrm": dlrm_preprocess, "hotset": hotset_preprocess}
    return {
        "ratio_total": ratios["wall"],
        "ratio_cpu": ratios["cpu"],
        "contestants": {name: harness.summarize(of, measured[name]) for name, of in functions.items()},
        "data": {"samples": {name: own[0].facts["num_samples"] for name, own in measured.items()}},
    }


def dlrm_preprocess(folder: Path, log: Path, dlrm: Path) -> Facts:
    """Run DLRM's Criteo preprocessing as its training script does, and discard its messages."""
    module = load_data_utils(dlrm)
    # It writes next to its input, so the input is a link in the folder that is deleted afterwards.
    raw = folder / "train.txt"
    os.link(log, raw)
    options = {"max_ind_range": -1, "sub_sample_rate": 0.0, "days": 7, "data_split": "train"}
    options |= {"randomize": "total", "criteo_kaggle": True, "memory_map": False}
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        written = module.getCriteoAdData(str(raw), "kaggleAdDisplayChallenge_processed", **options)
    with np.load(written) as arrays:
        return {"num_samples": int(arrays["y"].shape[0])}


def load_data_utils(dlrm: Path) -> types.ModuleType:
    """Return DLRM's ``data_utils`` with a NumPy whose int32 arrays wrap around, as before 2.0."""
    spec = importlib.util.spec_from_file_location("dlrm_data_utils", dlrm / _DLRM_MODULE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(dlrm))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(dlrm))
    # A copy of the numpy module for this one importer: the real one must stay as it is.
    older = types.ModuleType("numpy")
    vars(older).update(vars(np))
    vars(older)["array"] = _wrapping_array
    vars(module)["np"] = older
    return module


def _wrapping_array(values: Sequence[Any], dtype: DTypeLike | None = None) -> NDArray[Any]:
    """Return ``np.array(values, dtype)``, but let integers wrap around in int32."""
    if dtype is np.int32 and len(values) and isinstance(values[0], int):
        return np.array(values, np.int64).astype(np.int32)
    return np.array(values, dtype)


def export_dlrm(shards: Manifest, out: Path) -> None:
    """Write what DLRM's loader reads instead of Criteo's Kaggle log into the new folder ``out``.

    With ``--data-set=kaggle --raw-data-file=OUT/train.txt`` and the first of the three ``.npz`` files as
    ``--processed-data-file`` it finds all (dlrm_data_pytorch.py, class CriteoDataset). That program takes
    log(x + 1) of dense values itself, so X_int is exp(x) - 1 of the transformed values x. It has seven
    "days": the last one is its test part, cut in two halves, and the others are trained on.
    """
    batches = NamedBatches(shards, first_id=0)
    check_log(batches, "dlrm-npz")
    totals = batches.totals
    # In memory: the loader holds all arrays in memory, too.
    samples = pa.Table.from_batches(
        (batch for split in get_args(Split) for batch in batches.batches(split)), batches.schema
    )

    def matrix(names: Sequence[str], dtype: Any) -> NDArray[Any]:
        found = np.empty((samples.num_rows, len(names)), dtype)
        for number, name in enumerate(names):
            found[:, number] = samples.column(name).to_numpy()
        return found

    counts_F = np.array([table.num_rows for table in totals.tables], np.int32)
    out.mkdir()
    np.savez(
        out / PROCESSED,
        X_cat=matrix([table.name for table in totals.tables], np.int32),
        X_int=np.expm1(matrix(totals.dense, np.float64)).astype(np.float32),
        y=matrix([LABEL], np.int32)[:, 0],
        counts=counts_F,
    )
    # The loader expects the sizes in separate files.
    np.savez(out / FEATURE_COUNT, counts=counts_F)
    np.savez(out / DAY_COUNT, total_per_file=_days(batches.num_samples["train"], samples.num_rows))


def _days(num_train: int, num_samples: int) -> NDArray[np.int64]:
    """Return samples of each "day": the training part in six, then the evaluation part."""
    step = -(-num_train // _TRAINING_DAYS)
    ends = [min(step * day, num_train) for day in range(_TRAINING_DAYS + 1)]
    return np.array([*np.diff(ends), num_samples - num_train], np.int64)


def growth(options: Options, scratch: Path) -> Facts:
    """Preprocess a log of each size in a fresh process, within a quarter of the memory, Polars next to it."""
    recipe, cap_bytes = _recipe(_LARGE_HOT_BYTES), default_memory_bytes()
    warm_up = _warm_up_log(scratch)
    runs: list[Facts] = []
    for num_samples in options.growth:
        log = harness.new_log(scratch, num_samples)
        os.sync()  # else the log's own pages compete with the run for the disk
        room_bytes = num_samples * _ROOM_PER_SAMPLE + cap_bytes
        measured = partial(harness.measure_in_fresh_process, scratch, room_bytes=room_bytes)
        found = measured(hotset_preprocess, warm_up, log, recipe)
        run = harness.summarize(hotset_preprocess, [found]) | {
            "num_samples": num_samples,
            "log_bytes": log.stat().st_size,
            "user_seconds": found.user_seconds,
            "written_bytes": sum(stage["written_bytes"] for stage in found.facts["stages"].values()),
            "stages": found.facts["stages"],
        }
        if not options.alone:
            polars_run = measured(polars.polars_program, warm_up, log, recipe)
            run["polars"] = harness.summarize(polars.polars_program, [polars_run])
        runs.append(run)
        log.unlink()
        tell(f"{num_samples:,} samples: {run['samples_per_second']:,.0f} samples/s")
    return {"runs": runs, "cap_bytes": cap_bytes}


def in_phases(options: Options, scratch: Path) -> Facts:
    """Let `pack` take passes and two phases in turn, on inputs larger than a limit of memory.

    Both get the same limit, page cache included, and most of it as ``--memory``; the inputs are on disk at
    first. Passes are what every run took before there were two phases. Bytes read are those of the device.
    """
    num_samples = int(options.limit * options.times) // _PACKED_BYTES
    data, warm_up = (_pack_inputs(scratch, number) for number in (num_samples, _WARM_UP_LINES))
    turns = {
        way: partial(_pack_in_limit, way == _PASSES, options, data, warm_up, scratch)
        for way in (_PASSES, _TWO_PHASES)
    }
    rounds = harness.take_turns(turns, options.rounds)
    seconds = {way: [one.seconds for one in measured] for way, measured in rounds.items()}
    return {
        "num_samples": num_samples,
        "input_bytes": sum(entry.num_bytes for name in _PACKED for entry in Manifest.read(data / name).files),
        "ways": {
            way: {
                **harness.median_seconds(seconds[way]),
                "bytes_read": statistics.median(one.facts["bytes_read"] for one in measured),
                "peak_anonymous_bytes": max(one.peak_anonymous_bytes for one in measured),
                "rounds": [{"seconds": one.seconds, **one.facts} for one in measured],
            }
            for way, measured in rounds.items()
        },
        "ratios": harness.compare(seconds[_PASSES], seconds[_TWO_PHASES]),
        "equal_bytes": len({one.facts["digest"] for measured in rounds.values() for one in measured}) == 1,
    }


def _pack_inputs(scratch: Path, num_samples: int) -> Path:
    """Preprocess a log up to `pack`, whose inputs alone are left."""
    tell(f"making inputs of {num_samples:,} samples")
    data = scratch / f"data-{num_samples}"
    log = harness.new_log(scratch, num_samples, name=f"log-{num_samples}.tsv")
    preprocess([log], criteo_kaggle(), data, until="split")
    log.unlink()
    return data


def _pack_in_limit(
    is_in_passes: bool, options: Options, data: Path, warm_up: Path, scratch: Path
) -> Measurement:
    """Pack once in a new process whose group is limited, from files that no page cache holds."""
    with harness.memory_limit(options.limit) as limit:
        _forget_files(data)
        job = (data, int(options.limit * _MEMORY_SHARE), limit)
        return harness.measure_in_fresh_process(
            scratch, pack_limited, (warm_up, None, None), job, is_in_passes
        )


def _forget_files(data: Path) -> None:
    """Let the page cache drop the inputs: pages that it has are charged to another group."""
    os.sync()
    for name in FOLDERS.values():
        for path in (data / name).glob("*.arrow"):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def pack_limited(folder: Path, job: tuple[Path, int | None, MemoryLimit | None], is_in_passes: bool) -> Facts:
    """Pack into ``folder``; return the device's traffic and the checksum of what was written.

    Args:
        job: the inputs, the cap of memory, and the group of processes to join; None for no limit.
        is_in_passes: whether to pack in passes, whatever the sizes.
    """
    data, memory, limit = job
    if limit is not None:
        limit.join()
    io = Path("/proc/self/io")
    before = numbers_in(io)["read_bytes"]
    columns, samples, plan = (Manifest.read(data / name) for name in _PACKED)
    # Where the page cache is unknown, it counts as large enough.
    unknown = patch.object(pack_stage, "page_cache_bytes", lambda _: None)
    with unknown if is_in_passes else contextlib.nullcontext():
        resources = Resources(memory_bytes=memory)
        shards = pack(PackConfig(), columns, samples, plan, folder / "shards", resources)
    digest = xxhash.xxh3_128("".join(entry.xxh3_128 for entry in shards.files).encode())
    return {
        "num_samples": shards.num_samples,
        "bytes_read": numbers_in(io)["read_bytes"] - before,
        "peak_bytes": limit.peak_bytes() if limit else None,
        "digest": digest.hexdigest(),
    }


if __name__ == "__main__":
    harness.main(PARSER, measure)
