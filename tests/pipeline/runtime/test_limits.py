"""A limit of addresses is told in a line before libraries end the process at it.

The control groups of a process: found in both versions, as far out as a container sees.

The cores that a process may use: those of the machine, less what it is bound to and its container.

The room that a stage has under a memory cap.

Tests `tasks`, too.
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

from hotset.pipeline.errors import GIB, MIB, ConfigError, MemoryCapError, SystemFaultError
from hotset.pipeline.formats.ids import PartSize
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.runtime import limits
from hotset.pipeline.runtime.limits import (
    ControlGroup,
    Node,
    addresses_left,
    available_bytes,
    check_addresses,
    control_groups,
    default_memory_bytes,
    lost_library,
    numbers_in,
    usable_cores,
)
from hotset.pipeline.runtime.tasks import (
    FIXED_BYTES,
    Resources,
    check_caps,
    groups_within,
    least_cap,
    room_for,
    workers_within,
)
from hotset.pipeline.stages.encode import cuts_of_table, room_of_tables, workers_for
from hotset.stats.id_tables import id_table_bytes
from hotset.tests.support.processes.made_up_cluster import made_up_cluster
from hotset.tests.support.processes.made_up_groups import write_groups


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "usable_cores", lambda: 2)


def limit(monkeypatch: pytest.MonkeyPatch, most: int, taken: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    monkeypatch.setattr(limits, "_addresses_taken", lambda: taken)


def test_without_a_limit_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, resource.RLIM_INFINITY, 1 << 50)
    assert addresses_left() is None and lost_library("hotset stats", OSError("lost")) is None
    check_addresses("hotset stats")


@pytest.mark.parametrize(("taken", "left"), [(0, 700 * MIB), (500 * MIB, 200 * MIB), (900 * MIB, 0)])
def test_what_is_left_is_what_is_not_taken(taken: int, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 700 * MIB, taken)
    assert addresses_left() == left


def test_the_limit_in_the_hint_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 600 * MIB, 490 * MIB)
    with pytest.raises(SystemFaultError) as caught:
        check_addresses("hotset verify")
    assert str(caught.value) == (
        "hotset verify: `ulimit -v` leaves 110 MiB of addresses next to the libraries, want 192 MiB"
    )
    assert caught.value.hint == "raise the limit: `ulimit -v 714752`"
    limit(monkeypatch, 714752 * 1024, 490 * MIB)
    check_addresses("hotset verify")
    with pytest.raises(SystemFaultError):
        check_addresses("training", more_bytes=32 * MIB)


def test_more_cores_want_more(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 700 * MIB, 490 * MIB)
    check_addresses("hotset verify")
    monkeypatch.setattr(limits, "usable_cores", lambda: 4)
    with pytest.raises(SystemFaultError, match="want 224 MiB"):
        check_addresses("hotset verify")


def test_a_library_is_lost_to_the_limit_only_where_little_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1000 * MIB, 100 * MIB)
    assert lost_library("hotset stats", OSError("lost")) is None
    limit(monkeypatch, 400 * MIB, 311 * MIB)
    fault = lost_library("hotset stats", OSError("libx.so is lost\nand more"))
    assert str(fault) == "hotset stats: a library cannot be loaded with 89 MiB of addresses: libx.so is lost"


def test_this_process_has_addresses() -> None:
    assert limits._addresses_taken() > 10 * MIB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "mebibytes"),
    [("verify", 200), ("verify", 400), *(("train", limit) for limit in (400, 560, 620, 1000, 1350, 1550))],
)
def test_every_limit_leads_to_a_line_or_to_the_end(command: str, mebibytes: int, tmp_path: Path) -> None:
    arguments = [command, str(tmp_path), *(["--out", str(tmp_path / "run")] if command == "train" else [])]
    line = f"ulimit -v {mebibytes * 1024}; exec {sys.executable} -m hotset {' '.join(arguments)}"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=os.environ, check=False)
    # The folder is empty, so that what has room enough ends with a line, too.
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    assert sum(each.startswith("error: ") for each in ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(("version", "tree"), [(1, "sys/fs/cgroup/memory"), (2, "sys/fs/cgroup")])
@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ("/a/b", ["a/b", "a", ""]),
        ("/", [""]),
        # A container that sees its own part of the host's tree, with the path on the host.
        ("/docker/c1/a", ["a", ""]),
        # Groups that are not seen: the outermost one that is stands for them.
        ("/docker/c1", [""]),
        ("/../sibling", [""]),
        ("/a/../b", [""]),
    ],
)
def test_the_groups_around_a_process_are_found(
    version: int, tree: str, own: str, wanted: list[str], tmp_path: Path
) -> None:
    write_groups(tmp_path, own, version=version)
    (tmp_path / tree / "a" / "b").mkdir(parents=True)
    assert control_groups("memory", tmp_path) == [
        ControlGroup(tmp_path / tree / path, version) for path in wanted
    ]


def test_a_tree_of_other_controllers_says_nothing(tmp_path: Path) -> None:
    write_groups(tmp_path, "/", version=1)
    assert control_groups("memory", tmp_path) and control_groups("cpu", tmp_path)
    assert control_groups("pids", tmp_path) == []


def test_of_two_versions_at_once_both_are_looked_at(tmp_path: Path) -> None:
    write_groups(tmp_path, "/", version=1)
    (tmp_path / "sys/fs/cgroup/unified").mkdir()
    with (tmp_path / "proc/self/cgroup").open("a") as file:
        file.write("0::/\n")
    found = control_groups("memory", tmp_path)
    assert [(group.folder.name, group.version) for group in found] == [("memory", 1), ("unified", 2)]


@pytest.mark.parametrize("text", ["", "\n", "nonsense", "a - cgroup", ":"])
def test_what_no_system_says_means_no_group(text: str, tmp_path: Path) -> None:
    assert control_groups("memory", tmp_path) == []
    write_groups(tmp_path, "/", version=2)
    (tmp_path / "proc/self/cgroup").write_text(text)
    assert control_groups("memory", tmp_path) == []


def test_files_of_a_group_are_read_as_far_as_there_are_any(tmp_path: Path) -> None:
    group = ControlGroup(tmp_path, 2)
    (tmp_path / "memory.stat").write_text("anon 5\nfile 7\nodd\nnone x\n")
    assert numbers_in(tmp_path / "memory.stat") == {"anon": 5, "file": 7}
    assert group.read("memory.max") == "" and numbers_in(tmp_path / "memory.max") == {}


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [("250000 100000", 3), ("100000 100000", 1), ("10 100000", 1), ("900000 100000", 6), ("max 100000", 6)],
)
def test_a_container_of_version_2_counts_in_whole_cores(tmp_path: Path, limit: str, wanted: int) -> None:
    assert usable_cores(write_groups(tmp_path, "/", version=2, cpu_of_max=f"{limit}\n")) == wanted


@pytest.mark.parametrize(("share", "wanted"), [("150000", 2), ("-1", 6)])
def test_a_container_of_version_1_does_too(tmp_path: Path, share: str, wanted: int) -> None:
    files = {"cpu_of_cfs_quota_us": f"{share}\n", "cpu_of_cfs_period_us": "100000\n"}
    assert usable_cores(write_groups(tmp_path, "/", version=1, **files)) == wanted


def test_the_least_of_nested_groups_counts(tmp_path: Path) -> None:
    files = {"a__cpu_of_max": "200000 100000", "a__b__cpu_of_max": "400000 100000"}
    assert usable_cores(write_groups(tmp_path, "/a/b", version=2, **files)) == 2
    assert usable_cores(write_groups(tmp_path, "/", version=2, **files)) == 6


def test_files_that_say_nothing_set_no_limit(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "missing") == 6
    assert usable_cores(write_groups(tmp_path, "/", version=2, cpu_of_max="")) == 6
    assert usable_cores(write_groups(tmp_path, "/", version=2, cpu_of_max="100000 0")) == 6


def test_a_system_that_binds_no_process_has_all_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores(tmp_path) == 8


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
    monkeypatch.setattr("hotset.pipeline.runtime.tasks.anonymous_bytes", lambda: 0)
    assert room_for("count", Resources(memory_bytes=FIXED_BYTES + 50 * MIB), 8 * MIB) == 50 * MIB
    monkeypatch.setattr("hotset.pipeline.runtime.tasks.anonymous_bytes", lambda: FIXED_BYTES)
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
    monkeypatch.setattr("hotset.pipeline.runtime.tasks.anonymous_bytes", lambda: 0)
    cap = FIXED_BYTES + 100 * MIB
    for workers, wanted in ((1, 1), (3, 3), (4, 3), (50, 3)):
        assert workers_within("ingest", Resources(workers, cap), 33 * MIB) == wanted
    monkeypatch.setattr("hotset.pipeline.runtime.tasks.anonymous_bytes", lambda: FIXED_BYTES)
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
    monkeypatch.setattr("hotset.pipeline.runtime.tasks.anonymous_bytes", lambda: 0)
    monkeypatch.setattr("hotset.pipeline.runtime.tasks.default_memory_bytes", lambda: GIB)  # of the driver
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
    monkeypatch.setattr("hotset.pipeline.runtime.tasks.anonymous_bytes", lambda: 0)
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
    module = "hotset.pipeline.runtime.limits"
    found = available_bytes()
    assert found is not None and found > MIB
    monkeypatch.setattr(f"{module}._available_to_cgroup", lambda: 5)
    assert available_bytes() == 5
    for name in ("_available_to_machine", "_available_to_cgroup", "addresses_left"):
        monkeypatch.setattr(f"{module}.{name}", lambda: None)
    assert available_bytes() is None


def test_the_limit_of_a_process_is_what_its_addresses_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 50, 1 << 50))
    monkeypatch.setattr("hotset.pipeline.runtime.limits._available_to_machine", lambda: None)
    monkeypatch.setattr("hotset.pipeline.runtime.limits._available_to_cgroup", lambda: None)
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
    monkeypatch.setattr(limits, "control_groups", lambda controller: found if controller == "memory" else [])
    assert limits._available_to_cgroup() == available
    # The default cap follows the limit itself, whatever is in use.
    caps = [int(text) for name, text in files.items() if "max" in name or "limit" in name if text.isdigit()]
    if available is not None:
        assert default_memory_bytes() == min(caps) // 4
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
