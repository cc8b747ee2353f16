"""Maps and merges of any size leave the bytes of one pass in one thread, and each part is read once.

Tests `count`, too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.disk import PARTIAL
from hotset.pipeline.folders.manifest import FileEntry, Manifest
from hotset.pipeline.formats.arrow_files import read_batch
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages import count_tasks as module
from hotset.pipeline.stages.count import CountConfig, count, needed_bytes
from hotset.pipeline.stages.count_tasks import CountedLog, MapTask, Span, SpilledCounts, least_room, map_tasks
from hotset.tests.support.logs.criteo_text import NUM_SPARSE, draw_samples, few_features, tree_of
from hotset.tests.support.naive.naive_stages import columns_of as columns_of_samples
from hotset.tests.support.processes.kills import Killed, killed
from hotset.tests.support.processes.memory_caps import count_stages_alone

WINDOW = CountConfig(eval_fraction=0.2, count_last=3)


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Three files of a few parts each."""
    rng = np.random.default_rng(8)
    with few_features():
        return columns_of_samples(
            tmp_path_factory.mktemp("log"), *(draw_samples(n, rng) for n in (130, 70, 90))
        )


@pytest.fixture(scope="module")
def whole(
    columns: Manifest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[CountConfig], dict[str, bytes]]:
    """The bytes of counts in one map by one thread."""
    folder = tmp_path_factory.mktemp("whole")
    found: dict[CountConfig, dict[str, bytes]] = {}

    def of(config: CountConfig) -> dict[str, bytes]:
        if config not in found:
            out = folder / str(len(found)) / "counts"
            count(config, columns, out, Resources(workers=1))
            found[config] = tree_of(out)
        return found[config]

    return of


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let maps be of some parts, and merges of some rows."""
    monkeypatch.setattr(module, "_MAP_BYTES", 6000)
    monkeypatch.setattr(module, "_LEAST_MERGED", 8)
    return monkeypatch


@pytest.mark.parametrize("config", [CountConfig(), WINDOW], ids=["log", "window"])
@settings(max_examples=6, deadline=None)
@given(
    map_bytes=st.sampled_from([1, 5000, 12_000, 30_000]),
    least_merged=st.sampled_from([1, 9, 1 << 20]),
    workers=st.integers(1, 3),
    spare_bytes=st.none() | st.sampled_from([0, 3000, 40_000]),
)
def test_maps_and_merges_of_any_size_leave_the_same_bytes(
    columns: Manifest,
    whole: Callable[[CountConfig], dict[str, bytes]],
    tmp_path_factory: pytest.TempPathFactory,
    config: CountConfig,
    map_bytes: int,
    least_merged: int,
    workers: int,
    spare_bytes: int | None,
) -> None:
    out = tmp_path_factory.mktemp("counts") / "counts"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MAP_BYTES", map_bytes)
        patch.setattr(module, "_LEAST_MERGED", least_merged)
        memory_bytes = None
        if spare_bytes is not None:
            count_stages_alone(patch)
            patch.setattr("hotset.stats.counting.SMALLEST_ENTRIES", 16)
            patch.setattr("hotset.pipeline.stages.count_tasks.SMALLEST_ENTRIES", 1)
            memory_bytes = needed_bytes(9, workers) + spare_bytes
        count(config, columns, out, Resources(workers, memory_bytes))
    assert tree_of(out) == whole(config)


def cut(columns: Manifest, workers: int, *stops: int, room: int = 1 << 30) -> list[MapTask]:
    """The maps of a log whose spans end at some samples."""
    spans = [Span(*own, number) for number, own in enumerate(pairwise([0, *stops]))]

    class Nothing:
        def has(self, name: str) -> bool:
            return False

    log = CountedLog(columns, Nothing(), {"a": ("C1",), "b": ("C2",)}, spans, None, {})  # type: ignore[arg-type]
    return map_tasks(log, ["a", "b"], room, workers)


def test_maps_of_a_long_log_are_more_than_its_features(columns: Manifest, small: pytest.MonkeyPatch) -> None:
    for stops in ([290], [130, 200, 290]):
        tasks = cut(columns, 1, *stops)
        assert len(tasks) > 5 and {task.tables for task in tasks} == {("a", "b")}
        assert all(before.stop == after.first for before, after in pairwise(tasks))
        assert (tasks[0].first, tasks[-1].stop) == (0, 290)
    # About as many bytes each, at least two for each worker, and none of less than a part.
    assert len(cut(columns, 50, 290)) == len([*columns.parts()])
    # A short log, or memory for few tables: workers share them, so that all together need room for each once.
    least = least_room(2)
    assert needed_bytes(1000, 2) - least_room(1000) == 2 * (needed_bytes(1000, 1) - least_room(1000))
    assert cut(columns, 4, 290, room=least) == cut(columns, 4, 290)
    tight = cut(columns, 4, 290, room=least - 1)
    assert [task.tables for task in tight] == [("a",), ("b",)] and all(task.is_only for task in tight)
    small.setattr(module, "_MAP_BYTES", 1 << 30)
    assert cut(columns, 4, 290) == tight


@pytest.mark.parametrize("config", [CountConfig(), WINDOW], ids=["log", "window"])
def test_each_part_of_a_long_log_is_read_once(
    columns: Manifest, tmp_path: Path, small: pytest.MonkeyPatch, config: CountConfig
) -> None:
    read: Counter[str] = Counter()
    opened = read_batch

    def counting(manifest: Manifest, entry: FileEntry) -> Any:
        read[entry.path] += manifest.folder == columns.folder
        return opened(manifest, entry)

    small.setattr(module, "read_batch", counting)
    count(config, columns, tmp_path / "counts", Resources(workers=3))
    num_train = int(290 * (1 - config.eval_fraction)) + 1
    files = [entry.path for _, entry, _, _ in columns.parts_within(0, num_train)]
    # A part that two spans share, or where training ends, is cut: one read for each.
    assert set(read) >= set(files[:-1]) and sum(read.values()) <= len(files) + 2 * (config.count_last > 0)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_log_that_grew_is_merged_with_its_counts(
    tmp_path: Path, small: pytest.MonkeyPatch, rng: np.random.Generator, is_cut: bool
) -> None:
    if not is_cut:
        small.setattr(module, "_MAP_BYTES", 1 << 30)
    with few_features():
        days = [draw_samples(n, rng) for n in (80, 60)]
        for name in ("first", "both"):
            (tmp_path / name).mkdir()
        first = columns_of_samples(tmp_path / "first", days[0])
        both = columns_of_samples(tmp_path / "both", *days)
    count(CountConfig(eval_fraction=0.0), first, tmp_path / "grown" / "counts", Resources(workers=1))
    grown = count(CountConfig(eval_fraction=0.0), both, tmp_path / "grown" / "counts", Resources(workers=2))
    small.undo()
    count(CountConfig(eval_fraction=0.0), both, tmp_path / "whole", Resources(workers=1))
    assert tree_of(grown.folder) == tree_of(tmp_path / "whole")


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_any_change_of_a_name_it_resumes_to_the_same_bytes(
    columns: Manifest,
    whole: Callable[[CountConfig], dict[str, bytes]],
    tmp_path: Path,
    small: pytest.MonkeyPatch,
    workers: int,
) -> None:
    small.setattr(module, "_MAP_BYTES", 20_000)
    for after in range(1, 400, 9 if workers == 1 else 27):
        out = tmp_path / str(after)
        try:
            with killed(after, small):
                count(CountConfig(), columns, out, Resources(workers=workers))
        except Killed:
            count(CountConfig(), columns, out, Resources(workers=1))
            assert tree_of(out) == whole(CountConfig())
        else:
            assert after > 40
            return


def test_maps_that_an_interrupted_run_finished_are_kept_where_they_are_whole(
    columns: Manifest,
    whole: Callable[[CountConfig], dict[str, bytes]],
    tmp_path: Path,
    small: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: Any) -> None:
        raise Killed

    def counting(task: MapTask, *others: Any) -> Any:
        counted.append(task.name)
        return counts_of_parts(task, *others)

    counts_of_parts = module._count_parts
    counted: list[str] = []
    with small.context() as patch:
        patch.setattr(module, "merge_tables", interrupt)
        with pytest.raises(Killed):
            count(CountConfig(), columns, tmp_path / "counts", Resources(workers=1))
    runs = sorted((tmp_path / "counts" / PARTIAL).glob("*.runs"))
    # One file was cut off, one lost its note, of one a bit is another, and one is of other parts.
    runs[0].write_bytes(runs[0].read_bytes()[:-8])
    runs[1].with_name(f"{runs[1].name}.note").unlink()
    data = bytearray(runs[2].read_bytes())
    data[40] ^= 1
    runs[2].write_bytes(data)
    note = runs[3].with_name(f"{runs[3].name}.note")
    note.write_text(json.dumps(json.loads(note.read_text()) | {"parts": "0" * 32}))
    small.setattr(module, "_count_parts", counting)
    count(CountConfig(), columns, tmp_path / "counts", Resources(workers=1))
    assert counted == [path.name for path in runs[:4]] and len(runs) > 5
    assert tree_of(tmp_path / "counts") == whole(CountConfig())


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("spare_bytes", [0, 2000])
def test_tables_that_do_not_fit_are_counted_in_runs_to_the_same_bytes(
    tmp_path: Path, workers: int, spare_bytes: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = columns_of_samples(tmp_path, draw_samples(400, rng))
    count(CountConfig(), columns, tmp_path / "whole", Resources(workers=1))
    count_stages_alone(monkeypatch)
    monkeypatch.setattr("hotset.stats.counting.SMALLEST_ENTRIES", 16)
    monkeypatch.setattr("hotset.pipeline.stages.count_tasks.SMALLEST_ENTRIES", 1)
    spilled: list[str] = []
    monkeypatch.setattr(SpilledCounts, "spill", recording(SpilledCounts.spill, spilled))
    memory_bytes = needed_bytes(NUM_SPARSE, workers) + spare_bytes
    count(CountConfig(), columns, tmp_path / "runs", Resources(workers=workers, memory_bytes=memory_bytes))
    assert tree_of(tmp_path / "runs") == tree_of(tmp_path / "whole")
    assert len(spilled) > len(set(spilled)) > 0
    assert [path for path in (tmp_path / "runs").iterdir() if path.suffix not in (".arrow", ".json")] == []


def recording(
    spill: Callable[[SpilledCounts, str], None], names: list[str]
) -> Callable[[SpilledCounts, str], None]:
    def recorded(tables: SpilledCounts, name: str) -> None:
        names.append(name)
        spill(tables, name)

    return recorded


def test_a_full_disk_while_tables_are_emptied_is_one_clear_line(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = columns_of_samples(tmp_path, draw_samples(400, rng))
    count_stages_alone(monkeypatch)
    monkeypatch.setattr("hotset.stats.counting.SMALLEST_ENTRIES", 16)
    monkeypatch.setattr("hotset.pipeline.stages.count_tasks.SMALLEST_ENTRIES", 1)

    opened = Path.open

    def full(path: Path, mode: str = "r", *more: Any, **ways: Any) -> Any:
        if mode == "wb":
            raise OSError(28, "No space left on device")
        return opened(path, mode, *more, **ways)

    least = needed_bytes(NUM_SPARSE, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(ManifestError, match="has no space for spill files: No space left"):
            count(CountConfig(), columns, tmp_path / "counts", Resources(workers=1, memory_bytes=least))
    count(CountConfig(), columns, tmp_path / "counts", Resources(workers=1, memory_bytes=least))
