"""``hotset preprocess`` and its stages.

The table of a dry run: work to do has numbers, what is finished has none. Lines about finished stages have
numbers that people can check against the manifests.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hotset.pipeline import preprocess as stages
from hotset.pipeline.dry_run import FINISHED, MADE, REFUSED, RunEstimate, estimate_run
from hotset.pipeline.errors import ConfigError, exact_byte_size, format_byte_size
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.preprocess import StageReport
from hotset.pipeline.runtime import progress
from hotset.pipeline.runtime.limits import Node
from hotset.pipeline.stage_work import StageWork
from hotset.pipeline.stages.rank import RankConfig, map_ids
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.logs.known_logs import lines_of
from hotset.tests.support.preprocess_runs import CONFIG
from hotset.tests.support.resealed import write_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.workflows.cli import main
from hotset.workflows.command_list import config_of
from hotset.workflows.commands.preprocess import (
    PreprocessCommand,
    RankCommand,
    describe_id_map,
    describe_shards,
    describe_stage,
    show_plan,
)


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


def test_what_auto_stands_for_is_printed_once(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    call = ["preprocess", str(log), "--out", str(out)]
    assert main(call) == 0
    size = exact_byte_size(Manifest.read(out / "plan").config["hot_bytes"])
    line = f"--hot-bytes auto is {size}: the rows that serve 90% of the training lookups\n"
    assert capsys.readouterr().err.count(line) == 1
    # It is in the folder from then on, under either name, and for a dry run.
    for again in (call, [*call, "--hot-bytes", "auto"], [*call, "--hot-bytes", size], ["split", str(out)]):
        assert main(again) == 0
        said = capsys.readouterr()
        assert "auto is" not in said.err and "already done" in said.err + said.out
    assert main([*call, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("finished") == 6
    assert main(["split", str(out), "--redo", "--hot-bytes", "auto"]) == 0
    assert line in capsys.readouterr().err


def test_a_folder_goes_on_with_the_number_of_its_plan(log: Path, data: Path, tmp_path: Path) -> None:
    out = shutil.copytree(data, tmp_path / "out")
    shutil.rmtree(out / "shards")
    sizes = ["--batch-size", "128", "--embedding-dim", "4"]
    assert main(["preprocess", str(log), "--out", str(out), *sizes]) == 0
    assert (out / "shards/manifest.json").read_bytes() == (data / "shards/manifest.json").read_bytes()


@pytest.mark.parametrize("is_auto", [False, True])
def test_that_every_row_is_hot_is_one_note_with_a_way_out(
    is_auto: bool, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["preprocess", str(log), "--out", str(tmp_path), *([] if is_auto else ["--hot-bytes", "256MiB"])]
    assert main(call) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "rows fit in --hot-bytes" in line]
    assert len(said) == (not is_auto)
    if said:
        assert said[0].startswith("note: all ") and "--redo split --hot-bytes auto" in said[0]
        assert main([*call[:4], "--redo", "split", "--hot-bytes", "auto"]) == 0
        assert "rows fit" not in capsys.readouterr().err


KEPT = ("--hot-bytes", "20KiB", "--min-count", "2", "--eval-fraction", "0.2", "--batch-size", "32")
"""Settings of a folder that differ from the defaults, of all stages but one."""
MORE_KEPT = ("--seed", "3", "--embedding-dim", "8", "--on-bad-line", "skip:0.01", "--valid-fraction", "0.1")


@pytest.mark.parametrize(
    ("schema", "num_samples", "is_warned"),
    [
        ("criteo-1tb", 4000, True),
        ("criteo-kaggle", 4000, False),
        ("criteo-1tb", 900, False),  # too few to judge
    ],
)
def test_a_log_of_another_size_than_its_schema_is_warned_of(
    schema: str, num_samples: int, is_warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = str(tmp_path / "log.tsv")
    assert main(["generate", "--samples", str(num_samples), "--out", log]) == 0
    capsys.readouterr()
    assert main(["preprocess", log, "--schema", schema, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().err
    assert ("give --schema criteo-kaggle" in shown) == is_warned == ("warning:" in shown)
    if is_warned:  # a threshold of the user's is no surprise
        options = ["--min-count", "14", "--redo", "rank"]
        assert main(["preprocess", log, "--schema", schema, "--out", str(tmp_path / "out"), *options]) == 0
        assert "warning:" not in capsys.readouterr().err


def test_categories_that_occur_once_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text('format = "csv"\nlabel = "y"\ndense = []\n[sparse]\na = "text"\nb = "integer"\n')
    for repeats, is_warned in ((1, True), (4, False)):
        log, out = tmp_path / f"{repeats}.csv", str(tmp_path / str(repeats))
        rows = [f"{row % 2},t{row // repeats},{row // repeats}" for row in range(2000)]
        log.write_text("\n".join(["y,a,b", *rows, ""]))
        assert main(["preprocess", str(log), "--schema", str(schema), "--out", out]) == 0
        assert ("categories that occur once" in capsys.readouterr().err) == is_warned


def test_one_file_of_a_published_split_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.csv").write_text(lines_of("avazu-x1", num_rows=50))
    command = [
        "preprocess",
        str(tmp_path / "train.csv"),
        "--schema",
        "avazu-x1",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(command) == 1
    assert "none is left to train on\nhint: give the files of all parts" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*command, "--eval-files", "0", "--valid-files", "0"]) == 0


def files_of(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and "id_map" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    "killed_at", [None, "split", *(pytest.param(each, marks=pytest.mark.slow) for each in ("rank", "pack"))]
)
def test_an_extension_keeps_the_settings_of_the_folder(
    killed_at: str | None, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second.tsv"
    second.write_bytes(text_of(draw_samples(200, np.random.default_rng(5))))
    logs = ["preprocess", str(log), str(second), "-q", "--out"]
    assert main([*logs, str(tmp_path / "fresh"), *KEPT, *MORE_KEPT]) == 0
    out = str(tmp_path / "grown")
    assert main(["preprocess", str(log), "-q", "--out", out, *KEPT, *MORE_KEPT]) == 0
    if killed_at is not None:
        # Folders of fewer logs are removed by then, and what follows has not begun.
        run_stage = stages.run_stage

        def failing(name: str, *arguments: Any) -> Manifest:
            if name == killed_at:
                raise KeyboardInterrupt
            return run_stage(name, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(stages, "run_stage", failing)
            assert main([*logs, out, "--extend"]) == 130
    assert main([*logs, out, "--extend"]) == 0
    assert files_of(Path(out)) == files_of(tmp_path / "fresh")


def test_what_is_typed_wins_over_the_settings_of_an_extended_folder(data: Path, log: Path) -> None:
    words = [str(log), "more", "--out", str(data), "--extend", "--seed", "9", "--hot-bytes", "auto"]
    options = PreprocessCommand.parse("preprocess", words)
    assert (options.split.hot_bytes, options.pack.seed, options.pack.batch_size) == ("auto", 9, 128)


def test_a_log_without_labels_is_extended_with_and_without_saying_so(log: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    second = tmp_path / "second.tsv"
    lines = log.read_bytes().splitlines(keepends=True)
    for path, some in ((tmp_path / "first.tsv", lines[:700]), (second, lines[700:])):
        path.write_bytes(b"".join(line.partition(b"\t")[2] for line in some))
    first = str(tmp_path / "first.tsv")
    assert main(["preprocess", first, "--no-label", "-q", "--out", out]) == 0
    assert main(["preprocess", first, str(second), "-q", "--out", out, "--extend"]) == 0
    again = ["preprocess", first, str(second), "--no-label", "-q", "--out", out, "--extend"]
    assert main(again) == 0


def test_without_a_terminal_stages_report_in_plain_lines(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "Lines", partial(progress.Lines, every_seconds=0))
    assert main(["preprocess", str(log), "--out", str(tmp_path / "out"), "--workers", "1"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert any(re.match(r"ingest 100%: [\d.]+ KiB", line) for line in lines)
    assert any(re.match(r"encode 100%: 1,500 samples", line) for line in lines)
    assert main(["preprocess", "-q", str(log), "--out", str(tmp_path / "quiet"), "--workers", "1"]) == 0
    assert capsys.readouterr().err == ""


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
    for options in (
        ["--eval-files", "1", "--redo", "count"],
        # Stages before the removed ones were written with other settings.
        ["--eval-fraction", "0.3", "--redo", "split"],
        ["--min-count", "3", "--redo", "pack"],
        ["--redo", "packs"],
    ):
        assert main(["preprocess", str(log), "--out", str(data), *options]) == 1
        assert sorted(data.rglob("*")) == before


def test_a_finished_run_is_reported_as_done(
    log: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--hot-bytes", "64KiB", "--batch-size", "128", "--embedding-dim", "4"]
    arguments = ["preprocess", str(log), "--out", str(data), *sizes]
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


def test_each_stage_to_do_has_its_work_and_seconds(plan: RunEstimate) -> None:
    lines = shown(plan)
    headings = "stage tasks passes read written temporary memory time state"
    assert lines[0].split() == headings.split()
    for stage, line in zip(plan.stages, lines[1:7], strict=True):
        work = stage.work
        assert stage.state == MADE and work is not None
        sizes = [work.bytes_read, work.bytes_written, work.temporary_bytes, work.memory_bytes]
        words = [word for size in sizes if size for word in format_byte_size(size).split()]
        numbers = [stage.stage, f"{work.tasks:,}", f"{work.passes:,}", *words, f"{stage.seconds:.1f}", "s"]
        assert line.split() == [*numbers, *MADE.split()]


def test_a_terabyte_on_a_cluster_fits_in_a_terminal(plan: RunEstimate) -> None:
    machines = [Node(64, 256 << 30)] * 8
    work = StageWork(1_083_916, 46, 1.1e12, 9e11, 9.99e11, 6.4e10)
    stages = [replace(stage, work=work, seconds=123_456.7) for stage in plan.stages]
    console = Console(file=StringIO(), width=80)
    show_plan(replace(plan, stages=stages, machines=machines, disk_free=1), console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    words = "ingest 1,083,916 46 1 TiB 838.2 GiB 930.4 GiB 59.6 GiB 34 h"
    assert lines[1].split()[: len(words.split())] == words.split()
    below = " ".join(" ".join(lines[-6:]).split())
    assert (
        "about 206 h of computing on 8 idle machines of 64 cores and 256 GiB" in below
        and "free)" not in below
    )
    assert "on each machine (limit" in below
    assert " more, and up to 930.4 GiB while a stage runs." in below
    assert "while a stage runs" not in " ".join(shown(plan))


def test_machines_to_plan_for_need_a_dry_run(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preprocess", str(log), "--out", str(tmp_path / "dir"), "--nodes", "3", "--node-memory", "64GiB"]
    assert main(words) == 1
    assert "error: --nodes and --node-memory describe machines" in capsys.readouterr().err
    assert main([*words, "--workers", "10", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machines"] == [{"cores": 4, "memory_bytes": 64 << 30}] * 3
    for wrong, error in {
        ("--nodes", "-2"): "--nodes must be 0 or more, got -2",
        ("--nodes", "2", "--node-memory", "0"): "--node-memory must be 1 or more, got 0",
        ("--node-memory", "1GiB"): "--node-memory is that of machines of --nodes",
    }.items():
        assert main([*words[:4], "--dry-run", *wrong]) == 1
        assert error in capsys.readouterr().err
    # Two processes of a machine, and the one that starts them, do not fit.
    words = [*words[:4], "--dry-run", "--nodes", "2", "--workers", "4", "--node-memory"]
    assert main([*words, "300MiB"]) == 1
    found = re.search(
        r"cannot stay within 300 MiB of memory\nhint: --node-memory (\d+)MiB", capsys.readouterr().err
    )
    assert found is not None and int(found[1]) > 480
    assert (main([*words, f"{int(found[1]) - 1}MiB"]), main([*words, f"{found[1]}MiB"])) == (1, 0)
    assert not (tmp_path / "dir").exists()


def test_a_finished_stage_has_no_numbers_and_a_reason_stands_behind_the_state(plan: RunEstimate) -> None:
    first, second, *others = plan.stages
    finished = replace(first, state=FINISHED, why="", work=None)
    again = replace(second, why="its log has grown")
    lines = shown(replace(plan, stages=[finished, again, *others]))
    assert lines[1].split() == [first.stage, FINISHED]
    assert lines[2].rstrip().endswith(f"{MADE} (its log has grown)")


def test_why_a_stage_is_refused_is_left_to_the_error(plan: RunEstimate) -> None:
    """The command prints the refusal as its error and hint: the table says only where it is."""
    first, *others = plan.stages
    refused = replace(first, state=REFUSED, why="written with seed = 1", work=None)
    lines = shown(replace(plan, stages=[refused, *others], refusal=ConfigError("written with seed = 1")))
    assert lines[1].split() == [first.stage, REFUSED]


def test_sums_and_limits_stand_below(plan: RunEstimate) -> None:
    plan = replace(plan, disk_needed=3 << 20, disk_free=5 << 30, memory_peak=7 << 20, memory_cap=1 << 30)
    below = "\n".join(shown(plan)[7:])
    assert "About 50 samples in " in below
    assert f"{plan.estimate.num_rows:,.0f} rows" in below
    assert (
        f"about {sum(stage.seconds for stage in plan.stages):.1f} s of computing on an idle machine" in below
    )
    assert "Disk: about 3 MiB more (5 GiB free).\nMemory: at most about 7 MiB (limit 1 GiB)." in below
    assert below.rstrip().endswith("Nothing was written. These are estimates from a few MiB of the log.")


@pytest.mark.parametrize("columns", [70, 80])
def test_long_reasons_wrap_and_no_number_is_cut(plan: RunEstimate, columns: int) -> None:
    first = plan.stages[0]
    long = replace(first, why="a reason " * 9)
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
