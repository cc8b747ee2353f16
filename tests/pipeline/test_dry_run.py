"""A dry run reports what a run then does, writes nothing, and estimates bytes from some blocks of a log.

Tests `preprocess`, too.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from hotset.pipeline import dry_run as module
from hotset.pipeline.dry_run import (
    AGAIN,
    DEPENDS,
    EXTENDED,
    FINISHED,
    MADE,
    MAKING,
    NOT_REACHED,
    REFUSED,
    RESUMES,
    Estimate,
    LogSample,
    SampledFeature,
    estimate_run,
    estimate_stages,
    sample_log,
    stage_states,
)
from hotset.pipeline.errors import ByteSize, HotsetError, InputError, parse_byte_size
from hotset.pipeline.folders.disk import PARTIAL, bytes_in, discard_files
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.output import Output, input_of
from hotset.pipeline.preprocess import FOLDERS, PreprocessConfig, Stage, StageReport, preprocess, remove_from
from hotset.pipeline.raw.part import RawParts
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.runtime.limits import Node
from hotset.pipeline.runtime.tasks import FIXED_BYTES, Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stage_work import work_of_stages
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig, open_log
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.tests.support.json_records import AnyRecord
from hotset.tests.support.logs.criteo_text import SCHEMA, draw_samples, generate_chunk, text_of, tree_of
from hotset.tests.support.logs.list_logs import KINDS
from hotset.tests.support.logs.other_logs import draw_log, naive_columns, schema_text, write_parquet
from hotset.tests.support.preprocess_runs import CONFIG, copy_of
from hotset.tests.support.processes.kills import Killed, killed
from hotset.workflows.cli import main

STAGES = list(FOLDERS)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, rng = tmp_path_factory.mktemp("logs"), np.random.default_rng(3)
    paths = [folder / f"day_{number}" for number in range(3)]
    for path in paths:
        path.write_bytes(text_of(draw_samples(60, rng)))
    return paths


@pytest.fixture(scope="module")
def made(logs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DIR of the first two logs; not to be changed."""
    out = tmp_path_factory.mktemp("made") / "dir"
    preprocess(logs[:2], CONFIG, out, Resources(workers=1))
    return out


def stamps(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def check(raw: list[Path], config: PreprocessConfig, out: Path, **how: Any) -> list[str]:
    """Hold the states told against what a run does; returns them."""
    before = stamps(out.parent)
    plan = estimate_run(raw, config, out, Resources(workers=1), **how)
    assert stamps(out.parent) == before
    states = [stage.state for stage in plan.stages]
    reports: list[StageReport] = []
    refusal = None
    try:
        redo = how.pop("redo", None)
        if redo is not None:
            remove_from(redo, out)
        preprocess(raw, config, out, Resources(workers=1), on_stage=reports.append, **how)
    except HotsetError as error:
        refusal = str(error)
    done = [FINISHED if report.was_sealed else "made" for report in reports]
    told = ["made" if state in MAKING else state for state in states]
    assert [state for state in told if state not in (REFUSED, NOT_REACHED)][: len(done)] == done
    assert (refusal is None) == (len(done) == len(states)) == (REFUSED not in states)
    assert refusal == (None if plan.refusal is None else str(plan.refusal))
    return states


def test_a_folder_that_is_not_there(tmp_path: Path, logs: list[Path]) -> None:
    assert check(logs, CONFIG, tmp_path / "a" / "dir") == [MADE] * 6


def test_a_finished_folder(tmp_path: Path, logs: list[Path], made: Path) -> None:
    assert check(logs[:2], CONFIG, copy_of(made, tmp_path / "dir")) == [FINISHED] * 6


@pytest.mark.parametrize(
    "config",
    [
        replace(
            CONFIG,
            rank=RankConfig(rank_by="peel"),
            split=replace(CONFIG.split, feature_dims=FeatureSettings([("C3", 2)])),
        ),
        replace(CONFIG, split=replace(CONFIG.split, mode="fae-code")),
    ],
    ids=["peel", "fae-code"],
)
def test_orders_for_which_the_columns_are_read(
    tmp_path: Path, logs: list[Path], config: PreprocessConfig
) -> None:
    assert check(logs[:2], config, tmp_path / "dir") == [MADE] * 6
    by_order, plain = (estimate_run(logs[:2], each, tmp_path / "other").estimate for each in (config, CONFIG))
    assert by_order.core_seconds["rank"] > plain.core_seconds["rank"]
    assert by_order.sizes.order_bytes > plain.sizes.order_bytes
    assert check(logs[:2], config, tmp_path / "dir") == [FINISHED] * 6


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("after", [12, 70, 130, 160])
def test_a_run_that_was_killed(
    tmp_path: Path, logs: list[Path], after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed(after, monkeypatch), pytest.raises(Killed):
        preprocess(logs, CONFIG, tmp_path / "dir", Resources(workers=1))
    states = check(logs, CONFIG, tmp_path / "dir")
    assert states.count(RESUMES) == 1


CHANGES: dict[str, Any] = {
    "ingest": replace(CONFIG.ingest, on_bad_line="skip:0.5"),
    "count": CountConfig(eval_fraction=0.3, eval_files=1),
    "rank": RankConfig(min_count=3),
    "split": replace(CONFIG.split, embedding_dim=8),
    "pack": replace(CONFIG.pack, seed=5),
}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("stage", CHANGES)
def test_a_changed_option(tmp_path: Path, logs: list[Path], made: Path, stage: str) -> None:
    config, position = replace(CONFIG, **{stage: CHANGES[stage]}), STAGES.index(stage)
    out = copy_of(made, tmp_path / "dir")
    wanted = [FINISHED] * position + [REFUSED] + [NOT_REACHED] * (5 - position)
    assert check(logs[:2], config, out) == wanted
    assert check(logs[:2], config, out, redo=stage) == [FINISHED] * position + [AGAIN] * (6 - position)


def test_a_longer_log(tmp_path: Path, logs: list[Path], made: Path) -> None:
    out = copy_of(made, tmp_path / "dir")
    assert check(logs, CONFIG, out) == [REFUSED] + [NOT_REACHED] * 5
    other = replace(CONFIG, count=CountConfig(eval_files=1))
    assert check(logs, other, out, extend=True) == [REFUSED] + [NOT_REACHED] * 5
    assert check(logs, CONFIG, out, extend=True) == [EXTENDED] * 2 + [AGAIN] * 4
    assert check(logs, CONFIG, out, extend=True) == [FINISHED] * 6


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("after", [3, 12, 45, 90, 150])
def test_an_extension_that_was_killed(
    tmp_path: Path, logs: list[Path], made: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = copy_of(made, tmp_path / "dir")
    with killed(after, monkeypatch), pytest.raises(Killed):
        preprocess(logs, CONFIG, out, Resources(workers=1), extend=True)
    check(logs, CONFIG, out, extend=True)


def test_a_log_added_to_a_run_that_was_killed(
    tmp_path: Path, logs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed(12, monkeypatch), pytest.raises(Killed):
        preprocess(logs[:2], CONFIG, tmp_path / "dir", Resources(workers=1))
    assert check(logs, CONFIG, tmp_path / "dir") == [REFUSED] + [NOT_REACHED] * 5
    assert check(logs, CONFIG, tmp_path / "dir", extend=True)[0] == EXTENDED


def test_folders_that_were_discarded_or_removed(tmp_path: Path, logs: list[Path], made: Path) -> None:
    out = copy_of(made, tmp_path / "dir")
    discard_files(out / "columns")
    assert check(logs[:2], CONFIG, out) == [FINISHED] * 6
    shutil.rmtree(out / "shards")
    assert check(logs[:2], CONFIG, out) == [FINISHED] * 5 + [REFUSED]
    (tmp_path / "strange" / "columns").mkdir(parents=True)
    (tmp_path / "strange" / "columns" / "mine.txt").write_text("mine")
    assert check(logs, CONFIG, tmp_path / "strange") == [REFUSED] + [NOT_REACHED] * 5


def test_ids_of_another_folder(tmp_path: Path, logs: list[Path], made: Path) -> None:
    assert check(logs[2:], CONFIG, tmp_path / "dir", like=made) == [MADE] * 5
    assert check(logs[2:], CONFIG, tmp_path / "dir", like=made) == [FINISHED] * 5
    assert check(logs[2:], CONFIG, tmp_path / "dir") == [FINISHED, MADE, REFUSED, *[NOT_REACHED] * 3]


def test_the_command_prints_a_table_or_json_and_ends_as_the_run_would(
    tmp_path: Path, logs: list[Path], made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preprocess", *map(str, logs), "--out", str(tmp_path / "dir"), "--dry-run"]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "will be built" in told.out and "Nothing was written" in told.out and told.err == ""
    assert main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [stage["stage"] for stage in plan["stages"]] == STAGES and plan["refused"] is None
    assert plan["samples"] == 180 and plan["disk"]["needed_bytes"] > 0 and plan["seconds"] > 0
    assert not (tmp_path / "dir").exists()
    assert main([*words, "--memory", "64MiB"]) == 1
    assert "cannot stay within 64 MiB" in capsys.readouterr().err
    assert main([*words, "--redo", "nothing"]) == 1
    out = copy_of(made, tmp_path / "made")
    before = tree_of(out)
    assert main(["preprocess", *map(str, logs), "--out", str(out), "--dry-run"]) == 1
    assert "error: " in capsys.readouterr().err and tree_of(out) == before


NUM_SAMPLES = 60_000


@pytest.fixture(scope="module")
def long_log() -> bytes:
    return generate_chunk("criteo-kaggle", 1, 0, NUM_SAMPLES)


def plain(text: bytes, folder: Path) -> tuple[list[Path], str]:
    (folder / "log.tsv").write_bytes(text)
    return [folder / "log.tsv"], "criteo-kaggle"


def zipped(text: bytes, folder: Path) -> tuple[list[Path], str]:
    half = text.index(b"\n", len(text) // 2) + 1
    (folder / "a.gz").write_bytes(gzip.compress(text[:half], 1))
    with pa.CompressedOutputStream(str(folder / "b.zst"), "zstd") as stream:
        stream.write(text[half:])
    return [folder / "a.gz", folder / "b.zst"], "criteo-kaggle"


def _table_of(text: bytes) -> tuple[Any, str]:
    names = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
    types = {name: pa.string() if name[0] == "C" else pa.int32() for name in names}
    table = pyarrow.csv.read_csv(
        pa.BufferReader(text),
        read_options=pyarrow.csv.ReadOptions(column_names=names),
        parse_options=pyarrow.csv.ParseOptions(delimiter="\t"),
        convert_options=pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=True),
    )
    sparse = "".join(f'{name} = "hex8"\n' for name in names[14:])
    dense = ", ".join(f'"{name}"' for name in names[1:14])
    return table, f'label = "label"\ndense = [{dense}]\n[sparse]\n{sparse}'


def as_csv(text: bytes, folder: Path) -> tuple[list[Path], str]:
    table, schema = _table_of(text)
    pyarrow.csv.write_csv(table, folder / "log.csv", pyarrow.csv.WriteOptions(quoting_style="none"))
    return [folder / "log.csv"], f'format = "csv"\n{schema}'


def as_parquet(text: bytes, folder: Path) -> tuple[list[Path], str]:
    table, schema = _table_of(text)
    pyarrow.parquet.write_table(table, folder / "log.parquet", row_group_size=7000)
    return [folder / "log.parquet"], f'format = "parquet"\n{schema}'


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("written", [plain, zipped, as_csv, as_parquet])
def test_bytes_told_are_near_those_that_come_out(
    tmp_path: Path, long_log: bytes, written: Callable[[bytes, Path], tuple[list[Path], str]]
) -> None:
    raw, schema = written(long_log, tmp_path)
    config = PreprocessConfig(
        ingest=IngestConfig(schema=schema), rank=RankConfig(), split=SplitConfig(), pack=PackConfig()
    )
    plan = estimate_run(raw, config, tmp_path / "dir", Resources(workers=2))
    preprocess(raw, config, tmp_path / "dir", Resources(workers=2))
    assert abs(plan.estimate.num_samples / NUM_SAMPLES - 1) < 0.05
    for stage in plan.stages:
        made = bytes_in(stage.folder)
        bound = 1.3 if stage.stage in ("count", "rank", "split") else 1.1
        assert 1 / bound < stage.new_bytes / made < bound, (stage.stage, stage.new_bytes, made)
    total = sum(bytes_in(stage.folder) for stage in plan.stages)
    assert 0.92 < plan.disk_needed / total < 1.08
    assert not (tmp_path / "dir" / "columns" / PARTIAL).exists()


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of a made-up stage."""

    level: int = 1


LOGS = ({"name": "day0", "bytes": 9}, {"name": "day1", "bytes": 9})
RUNS = [
    Stage("ingest", "ingest", 1, Settings(), (), LOGS[:1]),
    Stage("rank", "rank", 1, Settings(), ("columns",)),
    Stage("encode", "encode", 1, Settings(), ("columns", "vocabulary")),
]


def begin(out: Path, run: Stage) -> Output:
    inputs = [input_of(Manifest.read(out / name)) for name in run.inputs] + list(run.others)
    return Output.begin(run.made_by, run.version, run.config, inputs, out / FOLDERS[run.name])


def seal(out: Path, *runs: Stage) -> None:
    """Write the folders of some stages, one file each."""
    for run in runs:
        output = begin(out, run)
        with output.writing("a.arrow", 1) as path:
            path.write_bytes(run.name.encode())
        output.seal(AnyRecord(samples=1))


def states_of(out: Path, runs: list[Stage], **options: object) -> list[str]:
    return [state.state for state in stage_states(out, runs, **options)]  # type: ignore[arg-type]


def with_level(level: int, *stages: str) -> list[Stage]:
    return [replace(run, config=Settings(level=level)) if run.name in stages else run for run in RUNS]


def test_an_interrupted_stage_resumes_and_those_behind_it_are_built(tmp_path: Path) -> None:
    seal(tmp_path, RUNS[0])
    output = begin(tmp_path, RUNS[1])
    # Begun without a finished file, it is not resumed but built from the start.
    begun = stage_states(tmp_path, RUNS)[1]
    assert (begun.state, begun.why) == (MADE, "was interrupted")
    with output.writing("a.arrow", 1) as path:
        path.write_bytes(b"a")
    resumes = stage_states(tmp_path, RUNS)[1]
    assert (resumes.state, resumes.why) == (RESUMES, "files done: 1")
    assert states_of(tmp_path, RUNS) == [FINISHED, RESUMES, MADE]


def test_other_settings_are_refused_and_nothing_behind_is_reached(tmp_path: Path) -> None:
    seal(tmp_path, *RUNS)
    states = stage_states(tmp_path, with_level(2, "rank"))
    assert [state.state for state in states] == [FINISHED, REFUSED, NOT_REACHED]
    assert "level = 1, now 2" in states[1].why
    assert states[1].hint is not None and "--redo rank" in states[1].hint


def test_behind_a_stage_that_changes_a_sealed_folder_depends_on_the_outcome(tmp_path: Path) -> None:
    seal(tmp_path, *RUNS)
    columns = Manifest.read(tmp_path / "columns").folder
    for path in columns.iterdir():
        path.unlink()
    columns.rmdir()
    assert states_of(tmp_path, RUNS) == [MADE, DEPENDS, DEPENDS]
    # Even then another setting is known to be refused.
    assert states_of(tmp_path, with_level(2, "rank")) == [MADE, REFUSED, NOT_REACHED]


def test_a_missing_file_is_refused_before_a_run_would_meet_it(tmp_path: Path) -> None:
    seal(tmp_path, *RUNS)
    (tmp_path / "vocabulary" / "a.arrow").unlink()
    state = stage_states(tmp_path, RUNS)[1]
    assert state.state == REFUSED and "a.arrow cannot be read" in state.why


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_extension_rebuilds_what_was_made_from_fewer_logs(tmp_path: Path, is_begun: bool) -> None:
    seal(tmp_path, *RUNS[:2])
    if is_begun:
        begin(tmp_path, RUNS[2])
    else:
        seal(tmp_path, RUNS[2])
    longer = [replace(RUNS[0], others=LOGS), *RUNS[1:]]
    states = stage_states(tmp_path, longer, extend=True)
    assert [state.state for state in states[1:]] == [AGAIN, AGAIN]
    assert states[0].why == "1 new of 2 logs"
    assert states[2].why == ("begun" if is_begun else "made") + " from fewer logs"
    # Without --extend the longer log is refused, with the option in the hint.
    refused = stage_states(tmp_path, longer)[0]
    assert refused.state == REFUSED and "--extend, which adds the last 1" in str(refused.hint)


SAMPLE = LogSample(
    text_bytes=[200_000.0, 100_000.0],
    samples=[2000.0, 1000.0],
    num_sampled=3000,
    column_bytes=160.0,
    list_lookups=0.0,
    features={name: SampledFeature(3000, 4, (100, 150, 200)) for name in SCHEMA.sparse},
)


def estimated(
    sample: LogSample = SAMPLE, count: CountConfig | None = None, *, min_count: int = 1
) -> Estimate:
    config = PreprocessConfig(
        count=count or CountConfig(eval_fraction=0.25),
        rank=RankConfig(min_count=min_count),
        pack=PackConfig(batch_size=100),
    )
    return estimate_stages(sample, config)


def test_every_stage_has_bytes_seconds_and_memory() -> None:
    found = estimated()
    assert (found.num_samples, found.num_train) == (3000, 2250)
    for of_stages in (found.folder_bytes, found.core_seconds):
        assert list(of_stages) == STAGES and all(value > 0 for value in of_stages.values())
    work, refusals = work_of_stages(found.sizes, PackConfig(batch_size=100), Resources(workers=1))
    assert list(work) == STAGES and all(each.memory_bytes > 0 for each in work.values()) and not refusals


@pytest.mark.parametrize(
    ("config", "num_train"),
    [
        (CountConfig(eval_fraction=0.0), 3000),
        (CountConfig(eval_fraction=0.5), 1500),
        (CountConfig(eval_files=1), 2000),
    ],
)
def test_the_training_part_is_that_of_count(config: CountConfig, num_train: int) -> None:
    assert estimated(count=config).num_train == num_train


def test_bytes_of_values_follow_from_the_formats() -> None:
    """Twice the samples of the same categories: what is stored per sample doubles, beside headers."""
    once = estimated()
    twice = estimated(replace(SAMPLE, samples=[4000.0, 2000.0], text_bytes=[400_000.0, 200_000.0]))
    assert twice.folder_bytes["ingest"] - once.folder_bytes["ingest"] == pytest.approx(3000 * 160)
    assert twice.folder_bytes["encode"] - once.folder_bytes["encode"] == pytest.approx(3000 * 4 * 26)
    assert twice.folder_bytes["split"] - once.folder_bytes["split"] == pytest.approx(3000)
    for stage in ("ingest", "encode", "split", "pack", "count"):
        assert twice.core_seconds[stage] == pytest.approx(2 * once.core_seconds[stage])


def test_rows_are_fewer_where_rare_categories_share_one() -> None:
    every, frequent = estimated(), estimated(min_count=10)
    # Two rows of each table have no category of their own: missing, and oov.
    assert 26 * 150 < every.num_rows <= 26 * 202
    assert 26 * 2 < frequent.num_rows < every.num_rows
    assert frequent.folder_bytes["count"] == every.folder_bytes["count"], "rare categories are counted too"
    assert frequent.folder_bytes["rank"] < every.folder_bytes["rank"]


def test_a_window_of_several_files_writes_the_counts_of_each() -> None:
    whole = estimated(count=CountConfig(eval_fraction=0.25))
    window = estimated(count=CountConfig(eval_fraction=0.25, count_last=2))
    assert window.folder_bytes["count"] > 1.5 * whole.folder_bytes["count"]


def test_more_workers_hold_more() -> None:
    works = [work_of_stages(estimated().sizes, PackConfig(), Resources(workers))[0] for workers in (1, 4)]
    held = [work["ingest"].memory_bytes - FIXED_BYTES for work in works]
    assert held[1] == pytest.approx(4 * held[0])


INGEST = IngestConfig()


def write_logs(folder: Path, *lengths: int) -> list[Path]:
    rng = np.random.default_rng(5)
    paths = [folder / f"day{number}" for number in range(len(lengths))]
    for path, length in zip(paths, lengths, strict=True):
        path.write_bytes(text_of(draw_samples(length, rng)))
    return paths


def test_a_log_that_fits_in_the_sample_is_counted_exactly(tmp_path: Path) -> None:
    (path,) = write_logs(tmp_path, 300)
    samples = draw_samples(300, np.random.default_rng(5))
    found = sample_log([path], INGEST)
    assert found.num_sampled == found.samples[0] == 300
    assert found.text_bytes == [path.stat().st_size] and found.list_lookups == 0
    for feature, name in enumerate(SCHEMA.sparse):
        present = [s.categories[feature] for s in samples if s.categories[feature] is not None]
        sampled = found.features[name]
        assert sampled.num_lookups == len(present) and sampled.category_bytes == 4
        quarter, half, whole = sampled.distinct
        assert quarter <= half <= whole == len(set(present))
    # Labels, 13 integers and 26 categories, and a bitmap at most for each but the label.
    assert 1 + 39 * 4 <= found.column_bytes <= 1 + 39 * 4 + 39 / 8 + 1


def test_of_many_files_some_are_read_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_logs(tmp_path, *[40] * 9)
    read: list[str] = []

    def recording(file: RawFile, number: int, config: IngestConfig) -> RawParts:
        read.append(file.path.name)
        return open_log(file, number, config)

    monkeypatch.setattr(module, "open_log", recording)
    found = sample_log(paths, INGEST)
    assert read == ["day0", "day3", "day5", "day8"], "the first, the last, and some between them"
    assert found.num_sampled == 160 and len(found.samples) == 9
    assert sum(found.samples) == pytest.approx(360, rel=0.05)


def test_blocks_are_taken_from_all_over_a_plain_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write_logs(tmp_path, 2000)
    monkeypatch.setattr(module, "_BLOCK_BYTES", ByteSize(4000))
    found = sample_log([path], INGEST)
    assert 100 < found.num_sampled < 1000
    assert found.samples[0] == pytest.approx(2000, rel=0.1)


def test_a_compressed_log_is_told_by_how_far_it_expands(tmp_path: Path) -> None:
    (path,) = write_logs(tmp_path, 800)
    packed = tmp_path / "day.gz"
    packed.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    plain, found = sample_log([path], INGEST), sample_log([packed], INGEST)
    assert found.text_bytes[0] == pytest.approx(plain.text_bytes[0], rel=0.02)
    assert found.samples[0] == pytest.approx(800, rel=0.02) and found.features == plain.features


def test_elements_of_lists_are_lookups(tmp_path: Path) -> None:
    log = draw_log(60, KINDS, np.random.default_rng(2))
    path = write_parquet(tmp_path / "log.parquet", log)
    found = sample_log([path], IngestConfig(schema=schema_text(log, format="parquet")))
    columns = naive_columns(log)
    lists = [name for name, kind in KINDS.items() if kind.startswith("list")]
    elements = sum(len(bag) for name in lists for bag in columns[name])
    assert found.num_sampled == 60 and found.list_lookups == pytest.approx(elements / 60)
    assert found.features["tags"].num_lookups == sum(
        one is not None for bag in columns["tags"] for one in bag
    )


def test_a_bad_line_is_named_as_ingest_would_name_it(tmp_path: Path) -> None:
    (path,) = write_logs(tmp_path, 30)
    path.write_bytes(path.read_bytes() + b"1\tx\n")
    with pytest.raises(InputError, match=r"day0, line 31") as caught:
        sample_log([path], INGEST)
    assert "--on-bad-line skip" in str(caught.value.hint)
    assert sample_log([path], IngestConfig(on_bad_line="skip")).num_sampled == 30


def test_no_file_and_an_empty_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no input file given"):
        sample_log([], INGEST)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(InputError, match="the log is empty"):
        sample_log([tmp_path / "empty"], INGEST)


def test_a_cluster_is_planned_for_on_any_machine(tmp_path: Path, logs: list[Path]) -> None:
    """Its tasks follow from all of its workers, its memory from each machine."""
    packed = [tmp_path / f"{log.name}.gz" for log in logs]
    for path, log in zip(packed, logs, strict=True):
        path.write_bytes(gzip.compress(log.read_bytes(), mtime=0))
    out = tmp_path / "dir"
    here = estimate_run(packed, CONFIG, out, Resources(workers=2))
    machines = [Node(3, 32 << 30)] * 4
    there = estimate_run(packed, CONFIG, out, machines=machines)
    found = {stage.stage: stage.work for stage in there.stages}
    # A compressed file is one task of a cluster, and a short log has a map for each group of tables.
    ingest, counting, packing = (found[name] for name in ("ingest", "count", "pack"))
    assert ingest is not None and counting is not None and packing is not None
    assert ingest.tasks == 3 and counting.tasks == 24
    assert ingest.memory_bytes > 4 * FIXED_BYTES > packing.memory_bytes
    assert (there.memory_cap, there.refusal) == (8 << 30, None)
    assert there.to_json()["machines"] == [{"cores": 3, "memory_bytes": 32 << 30}] * 4
    assert here.to_json()["machines"] == [] and here.stages[0].work is not None
    # A machine too small for the stages is refused as a run on it would be.
    few = Resources(memory_bytes=200 << 20)
    refused = estimate_run(packed, CONFIG, out, few, machines=machines).refusal
    assert refused is not None and "cannot stay within 200 MiB" in str(refused)
    # The hint does for all stages, of which a late one needs the most here.
    wide = replace(CONFIG, pack=replace(CONFIG.pack, batch_size=1 << 20))
    refused = estimate_run(packed, wide, out, Resources(1, 100 << 20), machines=machines).refusal
    assert refused is not None and refused.hint is not None and str(refused).startswith("pack cannot stay")
    enough = parse_byte_size(refused.hint.split()[1])
    assert estimate_run(packed, wide, out, Resources(1, enough), machines=machines).refusal is None
