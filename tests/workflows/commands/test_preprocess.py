"""``hotset preprocess`` and its stages.

The table of a dry run: work to do has numbers, what is finished has none. Lines about finished stages have
numbers that people can check against the manifests.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hotset.pipeline.dry_run import FINISHED, MADE, REFUSED, RunEstimate, estimate_run
from hotset.pipeline.errors import ConfigError, format_byte_size
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.preprocess import StageReport
from hotset.pipeline.stages.other_vocabulary import map_ids
from hotset.pipeline.stages.rank import RankConfig
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.preprocess_runs import CONFIG
from hotset.tests.support.resealed import write_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.workflows.cli import main
from hotset.workflows.commands.preprocess import (
    PreprocessCommand,
    RankCommand,
    describe_id_map,
    describe_shards,
    describe_stage,
    show_plan,
)
from hotset.workflows.options import config_of


@pytest.fixture(scope="module")
def every_folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the output of every stage, for reading only."""
    out = tmp_path_factory.mktemp("every") / "dir"
    shutil.copytree(data, out)
    return out


def test_other_settings_are_refused_and_redo_rebuilds_the_stage(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["preprocess", str(log), "--out", str(tmp_path / "out"), "--hot-bytes", "64KiB"]
    assert main(arguments) == 0
    arguments[-1] = "32KiB"
    assert main(arguments) == 1
    assert "plan was written with hot_bytes = 64KiB, now 32KiB" in capsys.readouterr().err
    assert main([*arguments, "--redo", "split"]) == 0
    assert main(["rank", str(tmp_path / "out"), "--min-count", "3"]) == 1
    assert "min_count = 1, now 3" in capsys.readouterr().err
    assert main(["rank", str(tmp_path / "out"), "--min-count", "3", "--redo"]) == 0
    assert not (tmp_path / "out" / "shards").exists()


def test_nothing_is_removed_for_a_memory_cap_that_cannot_be_kept(
    log: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(data.rglob("*"))
    for words in (
        ["preprocess", "--redo", "count"],
        ["preprocess", "--redo", "ingest"],
        ["ingest", "--redo"],
    ):
        assert main([*words, str(log), "--out", str(data), "--memory", "1KiB"]) == 1
        error, hint = capsys.readouterr().err.splitlines()
        assert "cannot stay within 1 KiB of memory" in error and hint.startswith("hint: --memory ")
        assert sorted(data.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    [
        *([stage, "--memory", "1KiB"] for stage in ("count", "rank", "encode", "split", "pack")),
        ["count", "--eval-files", "1"],
        ["rank", "--rank-by", "peel", "--memory", "180MiB", "--workers", "1"],
        ["rank", "--rank-by", "sampled", "--memory", "180MiB", "--workers", "1"],
        ["split", "--mode", "fae-code"],
    ],
    ids=" ".join,
)
def test_a_refused_stage_removes_nothing(words: list[str], every_folder: Path) -> None:
    before = sorted(every_folder.rglob("*"))
    assert main([words[0], str(every_folder), "--redo", *words[1:]]) == 1
    assert sorted(every_folder.rglob("*")) == before


def test_settings_that_preprocess_refuses_remove_nothing(log: Path, data: Path) -> None:
    before = sorted(data.rglob("*"))
    arguments = ["preprocess", str(log), "--out", str(data), "--eval-files", "1", "--redo", "count"]
    assert main(arguments) == 1
    assert sorted(data.rglob("*")) == before


def test_stages_one_by_one_give_what_preprocess_gives(log: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["ingest", str(log), "--out", str(out)]) == 0
    for stage in ("count", "rank", "encode"):
        assert main([stage, str(out)]) == 0
    assert main(["split", str(out), "--hot-bytes", "64KiB"]) == 0
    assert main(["pack", str(out), "--batch-size", "128"]) == 0
    files = sorted(path.relative_to(data) for path in data.rglob("*"))
    assert files == sorted(path.relative_to(out) for path in out.rglob("*"))
    assert all(
        (data / file).read_bytes() == (out / file).read_bytes() for file in files if (data / file).is_file()
    )


def test_a_finished_run_is_reported_as_done(
    log: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["preprocess", str(log), "--out", str(data), "--hot-bytes", "64KiB", "--batch-size", "128"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.err.count(": already done") == 6
    assert f"{data}: " in said.out and " for evaluation; " in said.out
    assert main([*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("finished") == 6 and "About 1,500 samples" in shown and "Nothing was written." in shown


def test_a_single_stage_that_was_finished_says_so(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data, tmp_path / "data")
    mine = str(tmp_path / "data")
    for options, is_done in (([], True), (["--redo"], False)):
        assert main(["pack", mine, "--batch-size", "128", *options]) == 0
        assert capsys.readouterr().out.endswith(", already done\n") == is_done
    assert main(["pack", mine, "--batch-size", "128", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["was_finished"] is True


def test_the_schema_sets_the_defaults_and_options_replace_them() -> None:
    options = PreprocessCommand.parse(
        "preprocess", ["raw", "--out", "x", "--schema", "criteo-1tb", "--embedding-dim", "8"]
    )
    assert (options.ingest.schema, options.rank.min_count, options.split.embedding_dim) == (
        "criteo-1tb",
        15,
        8,
    )
    assert PreprocessCommand.parse("preprocess", ["raw", "--out", "x"]).rank.min_count == 1


def test_another_folder_sets_the_defaults_too(data: Path) -> None:
    options = PreprocessCommand.parse("preprocess", ["raw", "--out", "x", f"--like={data}", "--seed", "3"])
    assert options.like == data and options.split.hot_bytes == 65536
    assert (options.pack.batch_size, options.pack.seed) == (128, 3)


def test_the_log_of_a_folder_sets_the_defaults_of_its_stages(log: Path, tmp_path: Path) -> None:
    assert main(["ingest", str(log), "--out", str(tmp_path), "--schema", "criteo-1tb"]) == 0
    options = RankCommand.parse("rank", ["--sampling-seed", "5", str(tmp_path)])
    config = config_of(RankConfig, options)
    assert options.dir == tmp_path
    assert (config.min_count, config.sampling_seed) == (15, 5)


def shown(plan: RunEstimate) -> list[str]:
    # Wide enough for a folder of any length: where it wraps is a test of its own.
    console = Console(file=StringIO(), width=1000)
    show_plan(plan, console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def plan(tmp_path: Path) -> RunEstimate:
    """The plan of a run into a folder that is not there."""
    (tmp_path / "log").write_bytes(text_of(draw_samples(50, np.random.default_rng(1))))
    return estimate_run([tmp_path / "log"], CONFIG, tmp_path / "dir")


def test_each_stage_to_do_has_its_bytes_and_seconds(plan: RunEstimate, tmp_path: Path) -> None:
    lines = shown(plan)
    assert lines[0].split() == ["stage", "folder", "bytes", "seconds", "state"]
    for stage, line in zip(plan.stages, lines[1:7], strict=True):
        assert stage.state == MADE
        words = [stage.stage, str(stage.folder), *format_byte_size(stage.new_bytes).split()]
        assert line.split()[:4] == words and MADE in line
        assert f"{stage.seconds:.1f}" in line


def test_a_finished_stage_has_no_numbers_and_a_reason_stands_behind_the_state(plan: RunEstimate) -> None:
    first, second, *others = plan.stages
    finished = replace(first, state=FINISHED, why="")
    again = replace(second, why="its log has grown")
    lines = shown(replace(plan, stages=[finished, again, *others]))
    assert lines[1].split() == [first.stage, str(first.folder), FINISHED]
    assert lines[2].rstrip().endswith(f"{MADE} (its log has grown)")


def test_why_a_stage_is_refused_is_left_to_the_error(plan: RunEstimate) -> None:
    """The command prints the refusal as its error and hint: the table says only where it is."""
    first, *others = plan.stages
    refused = replace(first, state=REFUSED, why="written with seed = 1")
    lines = shown(replace(plan, stages=[refused, *others], refusal=ConfigError("written with seed = 1")))
    assert lines[1].split() == [first.stage, str(first.folder), REFUSED]


def test_sums_and_limits_stand_below(plan: RunEstimate) -> None:
    plan = replace(plan, disk_needed=3 << 20, disk_free=5 << 30, memory_peak=7 << 20, memory_cap=1 << 30)
    below = "\n".join(shown(plan)[7:])
    assert "About 50 samples in " in below
    assert f"{plan.estimate.num_rows:,.0f} rows" in below
    assert f"about {sum(stage.seconds for stage in plan.stages):.1f} s on an idle machine" in below
    assert "Disk: about 3 MiB more (5 GiB free). Memory: at most about 7 MiB (limit 1 GiB)." in below
    assert below.rstrip().endswith("Nothing was written. These are estimates from a few MiB of the log.")


@pytest.mark.parametrize("columns", [60, 80])
def test_long_folders_wrap_and_no_number_is_cut(plan: RunEstimate, columns: int) -> None:
    first = plan.stages[0]
    long = replace(first, folder=Path("/a/rather/long/" * 9), why="a reason " * 9)
    console = Console(file=StringIO(), width=columns)
    show_plan(replace(plan, stages=[long]), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert format_byte_size(first.new_bytes) in text and f"{first.seconds:.1f}" in text
    assert "\u2026" not in text and max(map(len, text.splitlines())) <= columns


def test_a_stage_is_a_line_with_its_bytes_and_its_speed(data: Path) -> None:
    counts = Manifest.read(data / "counts")
    report = StageReport("count", counts, 0.5, 3_000_000, was_sealed=False)
    num_bytes = format_byte_size(sum((counts.folder / entry.path).stat().st_size for entry in counts.files))
    assert describe_stage(report) == f"count    {counts.folder}: {num_bytes} in 0.5 s, 6.00 M samples/s"
    assert describe_stage(replace(report, was_sealed=True)) == f"count    {counts.folder}: already done"


@pytest.mark.parametrize("was_sealed", [False, True])
def test_a_long_folder_is_cut_before_a_number_is(data: Path, was_sealed: bool) -> None:
    report = StageReport("encode", Manifest.read(data / "samples"), 2.0, 1500, was_sealed)
    whole = describe_stage(report)
    assert describe_stage(report, len(whole)) == whole
    shorter = describe_stage(report, len(whole) - 1)
    assert shorter == whole.replace(str(data / "samples"), "samples")


def test_a_stage_within_the_resolution_of_the_clock_has_a_speed(data: Path) -> None:
    line = describe_stage(StageReport("rank", Manifest.read(data / "vocabulary"), 0.0, 0, was_sealed=False))
    assert line.endswith("in 0.0 s, 0 samples/s")


def test_shards_are_told_by_kind(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec()))
    assert describe_shards(shards) == (
        "70 samples in 3 hot-only batches, 150 in 5 mixed batches, 90 for evaluation; 35 of 345 rows are hot"
    )


def test_an_id_map_tells_what_is_new(data: Path, tmp_path: Path) -> None:
    vocabulary = Manifest.read(data / "vocabulary")
    made = map_ids(vocabulary, vocabulary, tmp_path / "map")
    parts = json.loads((made.folder / "manifest.json").read_text())
    parts["totals"] |= {"num_old_rows": 900, "num_new_rows": 1500, "num_kept": 600}
    parts["totals"] |= {"kept_lookups": 3000, "new_lookups": 4000}
    write_manifest(made.folder, parts)
    assert describe_id_map(Manifest.read(made.folder)) == (
        f"{made.folder}: 600 of 900 old rows are kept; they serve 75.0% of the lookups counted for the new "
        "vocabulary. 900 rows start fresh"
    )


def test_an_id_map_tells_what_is_kept(data: Path, tmp_path: Path) -> None:
    """A vocabulary mapped to itself keeps every row."""
    vocabulary = Manifest.read(data / "vocabulary")
    made = map_ids(vocabulary, vocabulary, tmp_path / "map")
    rows = f"{vocabulary.totals['num_rows']:,}"
    assert describe_id_map(made) == (
        f"{made.folder}: {rows} of {rows} old rows are kept; they serve 100.0% of the lookups counted for "
        "the new vocabulary. 0 rows start fresh"
    )
