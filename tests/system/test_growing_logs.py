"""A day more: adding logs to a folder ends in the bytes of a run over all of them, even when killed.

Tests `count` and `log_parts`, too.
"""

from __future__ import annotations

import gzip
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.dry_run import FINISHED, estimate_run
from hotset.pipeline.errors import ByteSize, InputError, ManifestError
from hotset.pipeline.folders.disk import LOCK, REMOVED, WORKERS, discard_files
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.preprocess import FOLDERS, PreprocessConfig, preprocess, remove_from
from hotset.pipeline.raw import part as raw_module
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.runtime.limits import Node
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import Sample, draw_samples, few_features, text_of, tree_of
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_csv, write_parquet
from hotset.tests.support.naive.naive_stages import naive_log, naive_table, rows_of
from hotset.tests.support.preprocess_runs import CONFIG_OF_FEW as CONFIG
from hotset.tests.support.preprocess_runs import copy_of
from hotset.tests.support.processes.kills import Killed, killed
from hotset.tests.support.processes.made_up_cluster import made_up_cluster
from hotset.tests.support.resealed import reseal, reseal_later_folders
from hotset.workflows.cli import main

LENGTHS = (60, 45, 50, 40)
WINDOW = replace(CONFIG, count=CountConfig(eval_files=1, count_last=2))
SETTINGS = {
    "a fraction": CONFIG,
    "a day": replace(CONFIG, count=CountConfig(eval_files=1)),
    "a window": WINDOW,
    "a window and a fraction": replace(CONFIG, count=CountConfig(eval_fraction=0.3, count_last=2)),
    "a day and validation": replace(CONFIG, count=CountConfig(eval_files=1, valid_fraction=0.2)),
    "a day long window": replace(CONFIG, count=CountConfig(eval_files=1, count_last=1)),
}


def data_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder without ``id_map/``, which only an extended one has."""
    return {name: data for name, data in tree_of(folder).items() if not name.startswith("id_map/")}


@pytest.fixture(scope="module", autouse=True)
def _few_features() -> Iterator[None]:
    with few_features():
        yield


@pytest.fixture(scope="module")
def samples() -> list[list[Sample]]:
    drawn = draw_samples(sum(LENGTHS), np.random.default_rng(12))
    stops = np.cumsum(LENGTHS)
    return [drawn[stop - length : stop] for length, stop in zip(LENGTHS, stops, strict=True)]


@pytest.fixture(scope="module")
def days(samples: list[list[Sample]], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("days")
    paths = [folder / f"day_{number}" for number in range(len(samples))]
    for number, (path, day) in enumerate(zip(paths, samples, strict=True)):
        path.write_bytes(gzip.compress(text_of(day), mtime=0) if number == 1 else text_of(day))
    return paths


@pytest.fixture(scope="module")
def made(days: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """DIR of the first so many days, made from scratch; not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    for number in (2, 3):
        preprocess(days[:number], CONFIG, folder / str(number), Resources(workers=1))
    return {number: folder / str(number) for number in (2, 3)}


@pytest.fixture
def out(made: dict[int, Path], tmp_path: Path) -> Path:
    """DIR of the first two days, which a test may change."""
    return copy_of(made[2], tmp_path / "dir")


def check_extended(raw: list[Path], stops: list[int], config: PreprocessConfig, folder: Path) -> None:
    """Add logs up to each stop; the folder has the bytes of one that was made from scratch."""
    for number in stops:
        preprocess(raw[:number], config, folder / "dir", Resources(workers=2), extend=True)
        preprocess(raw[:number], config, folder / str(number), Resources(workers=1))
        assert data_of(folder / "dir") == data_of(folder / str(number))
    assert verify(folder / "dir", raw=raw) == []
    assert all(stage.state == FINISHED for stage in estimate_run(raw, config, folder / "dir").stages)


@pytest.mark.parametrize(
    "setting",
    # The setting with most in it stands for the others in quick runs.
    [
        name if name == "a window and a fraction" else pytest.param(name, marks=pytest.mark.slow)
        for name in SETTINGS
    ],
)
def test_days_added_one_by_one_end_in_the_bytes_of_a_run_from_scratch(
    tmp_path: Path, days: list[Path], setting: str
) -> None:
    check_extended(days, [2, 3, 4], SETTINGS[setting], tmp_path)
    preprocess(days, SETTINGS[setting], tmp_path / "dir", extend=True)  # nothing to add
    assert data_of(tmp_path / "dir") == data_of(tmp_path / "4")


@pytest.mark.parametrize("setting", ["a window", pytest.param("a fraction", marks=pytest.mark.slow)])
def test_several_days_at_once_an_empty_one_and_a_single_one_before(
    setting: str, tmp_path: Path, days: list[Path]
) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    config = SETTINGS[setting]
    config = replace(config, count=replace(config.count, eval_files=0, eval_fraction=0.3))
    check_extended([days[0], empty, *days[1:]], [1, 5], config, tmp_path)


def test_only_the_new_day_is_read_and_counted(
    out: Path, days: list[Path], made: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    iterate = raw_module.iterate_blocks

    def recording(raw: RawFile, *settings: Any, **options: Any) -> Iterator[Any]:
        if options.get("in_thread_buffer"):  # else only the start is read, which tells the format
            read.append(raw.path.name)
        return iterate(raw, *settings, **options)

    told: dict[str, int] = {}
    for reader in ("log_parts", "text_parts"):
        monkeypatch.setattr(f"hotset.pipeline.raw.{reader}.iterate_blocks", recording)
    preprocess(
        days[:3],
        CONFIG,
        out,
        Resources(progress=lambda stage, done, total: told.update({stage: done})),
        extend=True,
    )
    assert read == ["day_2"]
    trained = {
        number: Manifest.read(path / "counts").totals["num_train_samples"] for number, path in made.items()
    }
    assert told["count"] == 9 * (trained[3] - trained[2])


def test_a_longer_log_is_refused_without_extend(out: Path, days: list[Path], made: dict[int, Path]) -> None:
    before = tree_of(out)
    with pytest.raises(ManifestError, match="columns was made from the first 2 of these 3 files") as caught:
        preprocess(days[:3], CONFIG, out)
    assert "--extend, which adds the last 1 and rebuilds what follows" in str(caught.value.hint)
    assert tree_of(out) == before


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (0,), (1, 2)])
def test_other_logs_than_those_behind_are_refused(
    out: Path, days: list[Path], order: tuple[int, ...]
) -> None:
    before = tree_of(out)
    with pytest.raises(ManifestError, match="columns was written from other inputs"):
        preprocess([days[number] for number in order], CONFIG, out, extend=True)
    assert tree_of(out) == before


def test_a_setting_that_counts_differently_is_refused_before_anything_changes(
    out: Path, days: list[Path]
) -> None:
    before = tree_of(out)
    with pytest.raises(ManifestError, match=r"counts was written with eval_fraction = 0.3, now 0.2"):
        preprocess(days[:3], replace(CONFIG, count=CountConfig(eval_fraction=0.2)), out, extend=True)
    other = replace(CONFIG, ingest=replace(CONFIG.ingest, on_bad_line="skip:0.5"))
    with pytest.raises(ManifestError, match=r"columns was written with on_bad_line"):
        preprocess(days[:3], other, out, extend=True)
    assert tree_of(out) == before
    discard_files(out / "columns")
    with pytest.raises(ManifestError, match="columns was discarded, and --extend needs its files"):
        preprocess(days[:3], CONFIG, out, extend=True)


def test_a_bad_new_day_leaves_the_old_state_to_go_back_to(
    out: Path, tmp_path: Path, days: list[Path], made: dict[int, Path]
) -> None:
    bad, good = tmp_path / "day_2", days[2].read_bytes()
    bad.write_bytes(good[:-60] + b"x")
    logs = [*days[:2], bad]
    with pytest.raises(InputError, match=r"day_2, line 50"):
        preprocess(logs, CONFIG, out, Resources(workers=1), extend=True)
    kept = {name: text for name, text in data_of(made[2]).items() if not name.startswith("columns/manifest")}
    assert kept.items() <= data_of(out).items()
    preprocess(days[:2], CONFIG, copy_of(out, tmp_path / "back"), Resources(workers=1))
    assert data_of(tmp_path / "back") == data_of(made[2])
    bad.write_bytes(good)
    preprocess(logs, CONFIG, out, Resources(workers=1), extend=True)
    assert data_of(out) == data_of(made[3])


@pytest.mark.parametrize("setting", [pytest.param("a fraction", marks=pytest.mark.slow), "a window"])
def test_killed_at_any_moment_the_same_command_ends_in_the_same_bytes(
    tmp_path: Path, days: list[Path], setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, before, wanted = SETTINGS[setting], tmp_path / "before", tmp_path / "wanted"
    preprocess(days[:3], config, before, Resources(workers=1))
    preprocess(days, config, wanted, Resources(workers=1), until="rank")
    whole = copy_of(before, tmp_path / "whole")
    with killed(-1, monkeypatch) as calls:
        preprocess(days, config, whole, Resources(workers=1), extend=True, until="count")
    # Every moment at which a folder is opened again, and some of the renames of files behind them.
    moments = {
        *range(1, 8),
        *random.Random(1).sample(range(8, calls[0] + 1), 2 if setting == "a window" else 5),
    }
    for moment in sorted(moments):
        out = copy_of(before, tmp_path / f"at{moment}")
        with killed(moment, monkeypatch), pytest.raises(Killed):
            preprocess(days, config, out, Resources(workers=1), extend=True)
        preprocess(days, config, out, Resources(workers=1 + moment % 2), extend=True, until="rank")
        # An emptied folder that no stage has begun keeps its settings, and may hold its lock.
        marks = (REMOVED, LOCK, WORKERS)
        left = {name: text for name, text in data_of(out).items() if not name.endswith(marks)}
        assert left == data_of(wanted), moment
        shutil.rmtree(out)


def test_killed_while_counting_a_run_without_extend_goes_on_too(
    out: Path, days: list[Path], made: dict[int, Path]
) -> None:
    preprocess(days[:3], CONFIG, out, extend=True, until="ingest")
    assert sorted(path.name for path in out.iterdir() if any(path.glob("*.arrow"))) == [
        "columns",
        "counts",
        "old_vocabulary",
    ]
    preprocess(days[:3], CONFIG, out)
    assert data_of(out) == data_of(made[3])


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("stage", list(FOLDERS)[1:])
def test_a_run_stopped_anywhere_is_extended(
    stage: str, tmp_path: Path, days: list[Path], made: dict[int, Path]
) -> None:
    out = copy_of(made[2], tmp_path / stage, before=stage)
    preprocess(days[:3], CONFIG, out, extend=True)
    assert data_of(out) == data_of(made[3])


def test_the_commands_say_what_is_made_again_and_stages_alone_go_on_too(
    tmp_path: Path, days: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    logs, scratch, out = [str(day) for day in days[:3]], str(tmp_path / "scratch"), str(tmp_path / "dir")
    assert main(["preprocess", *logs, "--out", scratch]) == 0
    assert main(["preprocess", *logs[:2], "--out", out]) == 0
    assert main(["preprocess", *logs, "--out", out]) == 1
    assert "hint: give --extend, which adds the last 1 and rebuilds what follows" in capsys.readouterr().err
    assert main(["preprocess", *logs, "--out", out, "--extend"]) == 0
    said = capsys.readouterr().err
    assert f"removed {out}/samples, which was written from fewer logs; it will be rebuilt" in said
    assert f"removed {out}/vocabulary" not in said  # kept for the map of ids, until that is written
    assert f"removed {out}/counts" not in said
    assert data_of(Path(out)) == data_of(Path(scratch))
    alone = str(tmp_path / "alone")
    for first, more in ((logs[:2], ()), (logs, ("--extend",))):
        assert main(["ingest", *first, "--out", alone, *more]) == 0
        assert all(main([stage, alone]) == 0 for stage in ("count", "rank", "encode", "split", "pack"))
    assert data_of(Path(alone)) == data_of(Path(scratch))


def test_other_columns_are_not_gone_on_from(out: Path, days: list[Path]) -> None:
    shutil.rmtree(out / "columns")
    with pytest.raises(ManifestError, match="counts was written from other inputs"):
        preprocess([days[3], days[2]], CONFIG, out)


@pytest.mark.parametrize("config", [SETTINGS["a window"], SETTINGS["a window and a fraction"]])
def test_a_window_counts_the_last_days_of_the_training_part(
    tmp_path: Path, days: list[Path], samples: list[list[Sample]], config: PreprocessConfig
) -> None:
    preprocess(days, config, tmp_path / "dir", Resources(workers=2))
    log = [sample for day in samples for sample in day]
    num_train = sum(LENGTHS[:3]) if config.count.eval_files else len(log) - int(0.3 * len(log))
    first = LENGTHS[0]
    vocabulary = Manifest.read(tmp_path / "dir" / "vocabulary")
    columns = [[sample.categories[f] for sample in log[first:num_train]] for f in range(9)]
    assert rows_of(vocabulary) == [naive_table(column, 2) for column in columns]
    assert vocabulary.totals["num_counted_samples"] == num_train - first
    assert Manifest.read(tmp_path / "dir" / "shards").totals["samples"]["evaluation"] == len(log) - num_train
    assert naive_log(log[first:], num_train - first, min_count=2, num_hot_rows=40).tables == rows_of(
        vocabulary
    )


@pytest.mark.parametrize(
    ("format", "count_last", "rank_by"),
    [
        pytest.param("csv", 0, "frequency", marks=pytest.mark.slow),
        pytest.param("csv", 2, "peel", marks=pytest.mark.slow),
        pytest.param("parquet", 0, "peel", marks=pytest.mark.slow),
        ("parquet", 2, "frequency"),
    ],
)
def test_days_with_lists_and_texts_are_added(
    tmp_path: Path, format: str, count_last: int, rank_by: Any, rng: np.random.Generator
) -> None:
    kinds = {"y": "label", "tags": "list text", "age": "dense", "site": "text", "seen": "list integer"}
    logs = [draw_log(40, kinds, rng) for _ in range(3)]
    write = write_csv if format == "csv" else write_parquet
    raw = [write(tmp_path / f"day{number}.{format}", log) for number, log in enumerate(logs)]
    config = PreprocessConfig(
        ingest=IngestConfig(schema=schema_text(logs[0], format=format), block_bytes=ByteSize(900)),
        count=CountConfig(eval_fraction=0.2, count_last=count_last),
        rank=RankConfig(rank_by=rank_by),
        pack=PackConfig(batch_size=8),
    )
    check_extended(raw, [2, 3], config, tmp_path)


@pytest.mark.parametrize("config", [CONFIG, pytest.param(WINDOW, marks=pytest.mark.slow)])
def test_a_day_is_added_by_a_cluster(tmp_path: Path, days: list[Path], config: PreprocessConfig) -> None:
    preprocess(days[:2], config, tmp_path / "dir", Resources(workers=1))
    with made_up_cluster(Node(2, 1 << 36), Node(2, 1 << 36)) as engine:
        preprocess(days[:3], config, tmp_path / "dir", extend=True)
    preprocess(days[:3], config, tmp_path / "scratch", Resources(workers=1))
    assert data_of(tmp_path / "dir") == data_of(tmp_path / "scratch") and engine.sent


def test_a_day_that_does_not_add_up_is_found(tmp_path: Path, days: list[Path]) -> None:
    preprocess(days, WINDOW, tmp_path / "dir")
    counts = tmp_path / "dir" / "counts"
    assert {entry.path for entry in Manifest.read(counts).files} == {
        f"{prefix}C{number}.arrow" for prefix in ("", "file0001-", "file0002-") for number in range(1, 10)
    }
    for name in ("C9.arrow", "file0001-C9.arrow"):
        folder = copy_of(tmp_path / "dir", tmp_path / name)

        def add_one(columns: dict[str, Any]) -> None:
            columns["count"][0] += 1

        path = reseal(folder / "counts", add_one, name)
        reseal_later_folders(folder)
        assert any(fault.startswith(f"{path}: count in row 0") for fault in verify(folder))


def test_removing_a_reopened_folder_leaves_nothing(out: Path, tmp_path: Path, days: list[Path]) -> None:
    bad = tmp_path / "day_2"
    bad.write_bytes(b"x\n")
    with pytest.raises(InputError):
        preprocess([*days[:2], bad], CONFIG, out, extend=True)
    remove_from("ingest", out)
    assert list(out.iterdir()) == []
