"""The room that a stage has under a memory cap.

Tests `resources`, too.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotset.pipeline.errors import GIB, MIB, ConfigError, MemoryCapError
from hotset.pipeline.formats.ids import PartSize
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.runtime import memory
from hotset.pipeline.runtime.limits import Node, control_groups
from hotset.pipeline.runtime.memory import (
    FIXED_BYTES,
    available_bytes,
    check_caps,
    default_memory_bytes,
    groups_within,
    least_cap,
    room_for,
    workers_within,
)
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.encode import cuts_of_table, room_of_tables, workers_for
from hotset.stats.id_tables import id_table_bytes
from hotset.tests.support.processes.made_up_cluster import made_up_cluster
from hotset.tests.support.processes.made_up_groups import write_groups

CAP_BYTES = 232 * MIB
NUM_SAMPLES = 1_700_000
SLACK_BYTES = 115 * MIB
"""Libraries and kernels that stages load, and what allocators keep: some 80 MiB, and 35 more where pandas is
installed, which pyarrow then imports."""
WORKERS = ("--workers", "2")
MEASURED = """
import sys
from hotset.workflows.bench.harness import AnonymousMemory
from hotset.workflows.cli import main

with AnonymousMemory() as memory:
    code = main(sys.argv[1:])
print(memory.peak_bytes)
sys.exit(code)
"""
"""A command, and the peak of the memory of its process that is no mapped file, read every 20 ms."""


def test_the_room_is_what_the_process_leaves_of_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: 0)
    assert room_for("count", Resources(memory_bytes=FIXED_BYTES + 50 * MIB), 8 * MIB) == 50 * MIB
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: FIXED_BYTES)
    assert room_for("count", Resources(memory_bytes=FIXED_BYTES + 50 * MIB), 8 * MIB) == 18 * MIB
    assert room_for("count", Resources(memory_bytes=FIXED_BYTES + 50 * MIB), 40 * MIB) == 40 * MIB
    assert room_for("count", Resources(), 1) == default_memory_bytes() - FIXED_BYTES - 32 * MIB


def test_a_cap_given_is_refused_where_it_cannot_be_kept_and_the_default_never_is() -> None:
    with pytest.raises(ConfigError, match="pack cannot stay within 170 MiB of memory") as caught:
        room_for("pack", Resources(memory_bytes=170 * MIB), 10 * MIB + 1)
    assert caught.value.hint == "--memory 171MiB would do; fewer --workers need less"
    room_for("pack", Resources(memory_bytes=171 * MIB), 10 * MIB + 1)
    assert room_for("pack", Resources(), 1 << 50) == 1 << 50


def test_of_several_stages_the_one_that_needs_the_most_is_named() -> None:
    cap = Resources(3, FIXED_BYTES + 10 * MIB)
    needed = {"count": 11 * MIB, "ingest": 30 * MIB, "pack": 20 * MIB}
    needs = {stage: least_cap(cap, num_bytes) for stage, num_bytes in needed.items()}
    with pytest.raises(MemoryCapError, match="ingest cannot stay within 170 MiB of memory") as caught:
        check_caps(cap, needs)
    assert caught.value.hint == "--memory 190MiB would do; a smaller --block-bytes needs less"
    check_caps(Resources(3, 190 * MIB), needs)
    check_caps(Resources(), needs)


def test_as_many_workers_as_fit_are_taken_and_one_that_does_not_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: 0)
    cap = FIXED_BYTES + 100 * MIB
    for workers, wanted in ((1, 1), (3, 3), (4, 3), (50, 3)):
        assert workers_within("ingest", Resources(workers, cap), 33 * MIB) == wanted
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: FIXED_BYTES)
    assert workers_within("ingest", Resources(4, cap), 33 * MIB) == 2  # 32 MiB are the allocators'
    with pytest.raises(ConfigError, match="ingest cannot stay within 260 MiB of memory") as caught:
        workers_within("ingest", Resources(4, cap), 101 * MIB)
    assert caught.value.hint == "--memory 261MiB would do; a smaller --block-bytes needs less"
    # Without a cap a quarter of the machine's memory bounds the workers, and nothing is refused.
    assert workers_within("ingest", Resources(4), 1 << 50) == 1


CATEGORIES = (292_800_000, 227_600_000, 187_200_000, 130_200_000, 40_800_000)
"""Rows of the largest tables of the terabyte log."""


@pytest.mark.parametrize(
    ("machines", "workers", "passes"),
    # Where all was compared with the memory of the driver, these had 16, 64, 96, 98, 23, 256 and 397 workers
    # in ingest, and took 1, 4, 2411, 2411, 2411, 1 and 2411 passes in encode.
    [
        ([Node(16, 64 * GIB)], 16, 1),
        ([Node(16, 64 * GIB)] * 4, 64, 1),
        ([Node(16, 64 * GIB)] * 6, 96, 1),
        ([Node(16, 64 * GIB)] * 16, 256, 1),
        ([Node(16, 16 * GIB)] * 2, 32, 7),
        ([Node(64, 256 * GIB)] * 4, 256, 1),
        ([Node(64, 256 * GIB)] * 8, 512, 1),
        # One machine of few bytes for each core: fewer workers, for the sake of fewer passes.
        ([Node(256, 64 * GIB)], 98, 3),
        ([Node(96, 64 * GIB)], 96, 3),
    ],
)
def test_the_memory_of_each_machine_decides_its_workers_and_tables(
    machines: list[Node], workers: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: 0)
    monkeypatch.setattr("hotset.pipeline.runtime.memory.default_memory_bytes", lambda: GIB)  # of the driver
    part = PartSize(69_000)
    with made_up_cluster(*machines):
        assert workers_within("ingest", Resources(), 4_600_000) == workers
        table_bytes = sum(id_table_bytes(rows, 4) for rows in CATEGORIES)
        resources = Resources(workers_for(part, 26, table_bytes, Resources()))
        room = room_of_tables(part, 26, resources)
        cuts = (cut for rows in CATEGORIES for cut in cuts_of_table(rows, 4, room))
        pieces = [id_table_bytes(stop - first, 4) for first, stop in cuts]
        assert len(list(groups_within(room, pieces, int))) == passes


def test_more_machines_never_leave_a_stage_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: 0)
    rooms = []
    for number in (1, 2, 7):
        with made_up_cluster(*[Node(8, 32 * GIB)] * number):
            rooms.append(room_for("count", Resources(memory_bytes=4 * GIB), MIB))
            assert least_cap(Resources(), MIB) == 9 * FIXED_BYTES + MIB
            # What shares memory runs on this machine alone, without processes.
            assert least_cap(Resources(), MIB, here=True) == FIXED_BYTES + MIB
            assert room_for("pack", Resources(memory_bytes=GIB), MIB, here=True) == GIB - FIXED_BYTES
    assert rooms == [4 * GIB - 9 * FIXED_BYTES] * 3
    # Of machines that differ the one with the least room decides.
    with made_up_cluster(Node(8, 32 * GIB), Node(8, 8 * GIB)):
        assert room_for("count", Resources(), MIB) == 2 * GIB - 9 * FIXED_BYTES


def test_available_memory_is_the_least_of_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "hotset.pipeline.runtime.memory"
    found = available_bytes()
    assert found is not None and found > MIB
    monkeypatch.setattr(f"{module}._available_to_cgroup", lambda: 5)
    assert available_bytes() == 5
    for name in ("_available_to_machine", "_available_to_cgroup", "addresses_left"):
        monkeypatch.setattr(f"{module}.{name}", lambda: None)
    assert available_bytes() is None


def test_the_limit_of_a_process_is_what_its_addresses_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 50, 1 << 50))
    monkeypatch.setattr("hotset.pipeline.runtime.memory._available_to_machine", lambda: None)
    monkeypatch.setattr("hotset.pipeline.runtime.memory._available_to_cgroup", lambda: None)
    found = available_bytes()
    assert found is not None and 1 << 49 < found < 1 << 50


@pytest.mark.parametrize(
    ("version", "files", "available"),
    [
        (1, {"memory_of_limit_in_bytes": "1000", "memory_of_usage_in_bytes": "300"}, 700),
        (2, {"memory_of_max": "1000", "memory_of_current": "300"}, 700),
        # The kernel drops the page cache for a group, but not files that lie in memory.
        (2, {"memory_of_max": "9", "memory_of_current": "8", "memory_of_stat": "file 5\nshmem 2"}, 4),
        (
            1,
            {
                "memory_of_limit_in_bytes": "9",
                "memory_of_usage_in_bytes": "8",
                "memory_of_stat": "cache 1\ntotal_cache 5\ntotal_shmem 2",
            },
            4,
        ),
        (2, {"memory_of_max": "5", "memory_of_current": "8"}, 0),
        # No limit, and nothing that could be read as one.
        (2, {"memory_of_max": "max", "memory_of_current": "8"}, None),
        (1, {"memory_of_limit_in_bytes": "9223372036854771712", "memory_of_usage_in_bytes": "8"}, None),
        (2, {"memory_of_max": "5"}, None),
        (2, {"memory_of_max": "-1", "memory_of_current": "8"}, None),
        (2, {}, None),
        # The group around the process's own binds it, too.
        (2, {"a__memory_of_max": "1000", "a__memory_of_current": "1", "memory_of_max": "max"}, 999),
        (
            2,
            {
                "a__memory_of_max": "1000",
                "a__memory_of_current": "1",
                "memory_of_max": "100",
                "memory_of_current": "40",
            },
            60,
        ),
    ],
)
def test_the_limits_of_control_groups_are_seen(
    version: int,
    files: dict[str, str],
    available: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = control_groups("memory", write_groups(tmp_path, "/a", version=version, **files))
    monkeypatch.setattr(memory, "control_groups", lambda controller: found if controller == "memory" else [])
    assert memory._available_to_cgroup() == available
    # The default cap follows the limit itself, whatever is in use.
    limits = [int(text) for name, text in files.items() if "max" in name or "limit" in name if text.isdigit()]
    if available is not None:
        assert default_memory_bytes() == min(limits) // 4
    else:
        assert default_memory_bytes() > MIB


@pytest.mark.parametrize(
    ("room", "groups"),
    [
        (0, [[3], [1], [1], [5], [2]]),
        (5, [[3, 1, 1], [5], [2]]),
        (4, [[3, 1], [1], [5], [2]]),
        (12, [[3, 1, 1, 5, 2]]),
    ],
)
def test_groups_are_as_long_as_the_room_allows(room: int, groups: list[list[int]]) -> None:
    assert list(groups_within(room, [3, 1, 1, 5, 2], lambda item: item)) == groups
    assert list(groups_within(room, [], lambda item: item)) == []


def peak_bytes(*arguments: str) -> int:
    """Peak of the anonymous memory of a command in a process of its own."""
    ran = subprocess.run([sys.executable, "-c", MEASURED, *arguments], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout.split()[-1])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "log.tsv"
    generate(GenerateConfig(samples=NUM_SAMPLES), path, workers=2)
    yield path
    shutil.rmtree(tmp_path)  # 2 GB that nobody reads afterwards


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells anonymous memory")
def test_no_stage_takes_more_than_its_cap_on_a_log_that_is_much_larger(log: Path) -> None:
    assert os.stat(log).st_size > 3 * CAP_BYTES // 2
    out = str(log.parent / "data")
    cap = ("--memory", f"{CAP_BYTES // MIB}MiB", *WORKERS)
    peaks = {"ingest": peak_bytes("ingest", str(log), "--out", out, *cap)}
    peaks |= {stage: peak_bytes(stage, out, *cap) for stage in ("count", "rank", "encode", "split", "pack")}
    assert {stage: peak for stage, peak in peaks.items() if peak > CAP_BYTES} == {}
    # Nor more than the room that the cap leaves, beside what the interpreter holds before.
    before = peak_bytes("--version")
    allowed = before + CAP_BYTES - FIXED_BYTES + SLACK_BYTES
    assert {stage: peak for stage, peak in peaks.items() if not before < peak <= allowed} == {}
    # The cap is what keeps the heaviest stage there.
    assert peak_bytes("pack", out, "--redo", *WORKERS) > allowed
