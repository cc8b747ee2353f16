"""Ranks as threads and as processes of torchrun: what arrives, who is gone, and how fast the link is.

Whole runs end with the bits of one process, also where ranks are killed and others go on.

The signs of ranks that are at work, and which rank gives none.
"""

from __future__ import annotations

import datetime
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hotset.pipeline.errors import ConfigError
from hotset.tests.support.processes.rank_promises import check_promises
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train.config_parts import is_launched
from hotset.train.ranks import ranks
from hotset.train.ranks import ranks as torch_ranks
from hotset.train.ranks.ranks import (
    Message,
    OneRank,
    Pulse,
    RankError,
    Ranks,
    check_equal_settings,
    first_reason,
    join_ranks,
    joined_processes,
    joined_ranks,
    measure_link,
    slowest,
)
from hotset.workflows.cli import main

PLAN = {"the plan of the exchange": 3}


def test_every_rank_finds_the_line_through_both_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    # 0.5 s, and a second for each 10 MiB.
    monkeypatch.setattr(torch_ranks, "_trial", lambda ranks, num_bytes: 0.5 + num_bytes / (10 << 20))
    for speed in run_thread_ranks(3, measure_link):
        assert speed.delay_seconds == pytest.approx(0.5)
        # Two messages of that size leave a rank in that time.
        assert speed.bytes_per_second == pytest.approx(20 << 20)


def test_messages_are_sent_and_the_slowest_rank_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ranks, "_MOST_TRIALS", 2)
    found = run_thread_ranks(2, measure_link)
    assert found[0] == found[1] and found[0].bytes_per_second > 0

    def largest(ranks: Ranks) -> float:
        return slowest(ranks, float(ranks.rank))

    assert run_thread_ranks(3, largest) == [2.0] * 3


_PROGRAM = """
import os, torch
from hotset.train.ranks.messages import DenseSums
from hotset.train.ranks.messages import CodedExchange
from hotset.tests.support.processes.rank_promises import check_promises
from hotset.train.ranks.ranks import Message, RankError, check_equal_settings
from hotset.train.config_parts import is_launched
from hotset.train.ranks.ranks import join_ranks
assert is_launched()
ranks = join_ranks(timeout_seconds=300)
check_promises(ranks)
check_equal_settings(ranks, {"the plan of the exchange": 3})
gradient = torch.arange(9.0) * (1 + ranks.rank)
assert DenseSums(ranks, CodedExchange(ranks.rank, 0), 9).add(gradient, 0.5) == 1.0
assert gradient.tolist() == [3.0 * i for i in range(9)]
# Gone as a killed process is, without a word: torch's own threads may abort at an orderly end.
if ranks.rank == 1:
    os._exit(0)
nothing = Message.unset([0, 1])
for work in (lambda: ranks.exchange(nothing, nothing)(), lambda: ranks.gather(torch.zeros(1))):
    try:
        for _ in range(3):
            work()
    except RankError as error:
        assert str(error).startswith("rank 0 lost rank 1: ") and "timeout" not in str(error), error
        print("the other is gone", flush=True)
os._exit(0)
"""

_JOINED = """
import os, time, torch
import torch.distributed as dist
from hotset.tests.support.processes.rank_promises import check_promises
from hotset.train.ranks.ranks import RankError
from hotset.train.ranks.ranks import join_ranks
# A group that sends nothing from host memory, as those of Ray's workers with GPUs.
class Elsewhere(dist.ProcessGroup):
    def getBackendName(self):
        return "elsewhere"
def make(store, rank, size, timeout):
    return Elsewhere(rank, size)
dist.Backend.register_backend("elsewhere", make, devices=["cpu"])
dist.init_process_group("elsewhere")
whole = dist.group.WORLD
for _ in range(2):
    ranks = join_ranks(timeout_seconds=300)
    check_promises(ranks)
    ranks.close()
    assert dist.group.WORLD is whole
# A rank that is late is noticed in the time that was given, not in that of the group.
ranks = join_ranks(timeout_seconds=1)
if ranks.rank == 1:
    time.sleep(5)
    os._exit(0)
try:
    ranks.gather(torch.zeros(1))
except RankError as error:
    print(error, flush=True)
os._exit(0)
"""


def said_by(command: list[str], num_ranks: int, folder: Path) -> list[str]:
    """Start processes as a launcher does; return what each prints, once all have ended well."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = str(opened.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(num_ranks)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen(command, cwd=folder, env=os.environ | shared | {"RANK": str(rank)}, **pipes)
        for rank in range(num_ranks)
    ]
    ends = [(*process.communicate(timeout=300), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [0] * num_ranks, ends
    return [stdout for stdout, *_ in ends]


@pytest.mark.slow
def test_processes_that_have_joined_keep_their_group(tmp_path: Path) -> None:
    lost = "rank 0 lost another rank: no answer in 1 s (HOTSET_RANK_TIMEOUT)\n"
    assert said_by([sys.executable, "-c", _JOINED], 2, tmp_path) == [lost, ""]


@pytest.mark.slow
def test_two_processes_exchange_and_notice_that_one_is_gone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = subprocess.run([*command, str(program)], capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split("\n") == ["the other is gone"] * 2 + [""]


def lone_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of a launch of one process."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = str(opened.getsockname()[1])
    values = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_a_group_is_joined_for_so_long_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    lone_rank(monkeypatch)
    joined: list[datetime.timedelta] = []

    def init(*arguments: Any, **options: Any) -> None:
        joined.append(options["timeout"])
        real(*arguments, **options)

    real = dist.init_process_group
    monkeypatch.setattr(dist, "init_process_group", init)
    for _ in range(2):
        ranks = join_ranks(timeout_seconds=7)
        check_promises(ranks)
        ranks.close()
        assert not dist.is_initialized()
    assert joined == [datetime.timedelta(seconds=7)] * 2


def test_a_launch_leaves_its_group_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lone_rank(monkeypatch)
    monkeypatch.setattr(torch_ranks, "is_launched", lambda: True)
    with pytest.raises(ZeroDivisionError), joined_ranks(timeout_seconds=7) as ranks:
        assert dist.is_initialized() and ranks.num_ranks == 1
        raise ZeroDivisionError
    assert not dist.is_initialized()


def test_what_torch_raises_where_a_message_begins_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **options: Any) -> None:
        raise RuntimeError("[/gloo/pair.cc:553] Connection closed by peer. This is typical.")

    lone_rank(monkeypatch)
    ranks = join_ranks()
    ranks.num_ranks = 2
    monkeypatch.setattr(dist, "all_to_all_single", broken)
    try:
        with pytest.raises(RankError, match=r"^rank 0 lost another rank: Connection closed by peer\n"):
            ranks.exchange(Message.unset([0]), Message.unset([0]))
    finally:
        ranks.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device_is_refused_by_all_ranks_together() -> None:
    with joined_processes(7, "cuda") as ranks:
        assert ranks.num_ranks == 1 and dist.get_backend() == "gloo"
    assert not dist.is_initialized()


def test_a_rank_without_a_device_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with (
        pytest.raises(ConfigError, match="rank 2 of this machine has no CUDA device: there are 2"),
        joined_processes(7, "cuda"),
    ):
        pass


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_other_errors_of_torch_are_not_blamed_on_ranks(num_ranks: int) -> None:
    with joined_processes(7, "cpu") as ranks:
        assert isinstance(ranks, torch_ranks.TorchRanks)
        ranks.num_ranks = num_ranks
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"), ranks.lost_ranks():
            raise torch.OutOfMemoryError("out of memory")
        wanted = RankError if num_ranks > 1 else RuntimeError
        with pytest.raises(wanted, match="closed"), ranks.lost_ranks():
            raise RuntimeError("closed")


def test_a_process_that_is_no_rank_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert not is_launched()
    with pytest.raises(
        ConfigError, match="not launched as a rank: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"
    ):
        join_ranks()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not is_launched()


def test_the_place_in_torchs_own_code_is_left_out() -> None:
    text = "[/third_party/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19075. This is typical."
    assert first_reason(RuntimeError(text)) == "Connection closed by peer [127.0.0.1]:19075"
    assert first_reason(RuntimeError("\n")) == "RuntimeError"


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_every_byte_and_every_tensor_arrives_where_it_was_sent(num_ranks: int) -> None:
    run_thread_ranks(num_ranks, check_promises)


def test_messages_may_be_waited_for_in_another_order() -> None:
    def work(ranks: Ranks) -> list[list[int]]:
        other = 1 - ranks.rank
        sizes = tuple(2 * (rank == other) for rank in range(2))
        received = [Message.unset(sizes) for _ in range(3)]
        pending = [
            ranks.exchange(Message(torch.full((2,), 10 * step + ranks.rank, dtype=torch.uint8), sizes), each)
            for step, each in enumerate(received)
        ]
        pending[1]()
        # A message that nobody has waited for is not taken for a tensor that is gathered.
        assert [int(each) for each in ranks.gather(torch.tensor([7 + ranks.rank]))] == [7, 8]
        pending[2]()
        pending[0]()
        return [each.data.tolist() for each in received]

    assert run_thread_ranks(2, work) == [[[10 * step + other] * 2 for step in range(3)] for other in (1, 0)]


def test_a_rank_that_fails_stops_the_others_and_its_own_error_is_raised() -> None:
    def work(ranks: Ranks) -> None:
        if ranks.rank == 1:
            raise ZeroDivisionError("mine")
        with pytest.raises(RankError, match="rank 1 is gone"):
            ranks.gather(torch.zeros(1))
        raise RankError("rank 1 is gone")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run_thread_ranks(3, work)


def test_a_rank_that_sends_nothing_is_not_waited_for_for_ever() -> None:
    def work(ranks: Ranks) -> None:
        if ranks.rank == 0:
            ranks.gather(torch.zeros(1))
        else:
            ranks.exchange(Message.unset([0, 0]), Message.unset([0, 0]))
            ranks.exchange(Message.unset([0, 0]), Message.unset([3, 0]))()

    with pytest.raises(RankError, match="rank 0 sent"):
        run_thread_ranks(2, work, timeout_seconds=0.2)


def test_ranks_with_other_plans_are_named_by_everyone() -> None:
    plans = [b"a", b"b", b"a", b"c"]

    def work(ranks: Ranks) -> str:
        with pytest.raises(RankError) as caught:
            check_equal_settings(ranks, {"the plan of the exchange": plans[ranks.rank]})
        return str(caught.value)

    assert set(run_thread_ranks(4, work)) == {"ranks 1, 3 differ from rank 0 in the plan of the exchange"}
    run_thread_ranks(3, lambda ranks: check_equal_settings(ranks, PLAN))


def test_one_rank_talks_to_nobody() -> None:
    ranks = OneRank()
    check_promises(ranks)
    check_equal_settings(ranks, PLAN)
    ranks.close()


def test_a_message_has_the_bytes_of_its_parts() -> None:
    with pytest.raises(ValueError, match=r"a message of 3 torch\.uint8 has parts of 4 bytes"):
        Message(torch.zeros(3, dtype=torch.uint8), (0, 4))


SPEC = ShardSpec(
    num_rows=(300, 40, 900), num_hot=(9, 3, 20), num_hot_only=60, num_mixed=900, skew=1.2, batch_size=24
)
OPTIONS = ("--threads", "1", "--epochs", "6", "--checkpoint-every", "5", "-q", "--micro-batches")


def finish(folder: Path, out: str, num_micro_batches: int) -> bytes:
    """Train to the end in this process, and return the weights."""
    words = ["train", str(folder / "shards"), *OPTIONS, str(num_micro_batches), "--out", str(folder / out)]
    assert main(words) == 0
    return weights_of(folder / out)


def weights_of(run: Path) -> bytes:
    """Return the file of weights of a finished run."""
    return (run / "weights.safetensors").read_bytes()


def metrics_of(run: Path) -> str:
    return (run / "metrics.jsonl").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    write_shards(folder / "shards", SPEC)
    return folder


def launched(num_ranks: int, run: Path, restarts: int) -> subprocess.Popen[bytes]:
    """Start a run with a micro-batch a rank by torchrun, and wait for its first checkpoint."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += [str(num_ranks), "--max-restarts", str(restarts), "-m", "hotset", "train", "shards"]
    command += [*OPTIONS, str(num_ranks), "--out", run.name]
    launch = subprocess.Popen(command, cwd=run.parent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not list(run.glob("checkpoints/step-*.json")):
        assert launch.poll() is None, launch.communicate()
        time.sleep(0.01)
    return launch


@pytest.mark.slow
def test_a_stopped_rank_is_named_and_one_process_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop one of three ranks, so that it keeps its connections: the others tell which one is gone."""
    monkeypatch.setenv("HOTSET_RANK_TIMEOUT", "5")
    launch = launched(3, folder / "stopped", 0)
    ranks = ranks_of(launch)
    os.kill(ranks[2], signal.SIGSTOP)
    while all(Path(f"/proc/{ranks[rank]}").exists() for rank in (0, 1)):
        time.sleep(0.05)
    # Torchrun waits half a minute for a stopped one to end.
    with suppress(ProcessLookupError):
        os.kill(ranks[2], signal.SIGKILL)
    _, stderr = launch.communicate(timeout=120)
    first = re.search(rb"^error: rank \d lost (.*?):", stderr, re.MULTILINE)
    assert first is not None and first[1] == b"rank 2", stderr
    assert finish(folder, "stopped", 3) == finish(folder, "one", 3)


@pytest.mark.slow
def test_a_launch_with_restarts_comes_back_from_a_killed_rank(folder: Path) -> None:
    """Kill a rank at any moment: one restart is enough, and the run is that of one process."""
    rng = random.Random(int(os.environ.get("HOTSET_KILL_SEED", "5")))
    out = folder / f"killed-{rng.randrange(10**9)}"
    launch = launched(2, out, 1)
    time.sleep(rng.random() * 0.3)
    os.kill(ranks_of(launch)[rng.randrange(2)], signal.SIGKILL)
    _, stderr = launch.communicate(timeout=300)
    assert launch.returncode == 0, stderr
    assert weights_of(out) == finish(folder, "one of two", 2)
    assert metrics_of(out) == metrics_of(folder / "one of two")


def ranks_of(launch: subprocess.Popen[bytes]) -> dict[int, int]:
    """Return the processes of a launch by rank."""
    found = {}
    for child in Path(f"/proc/{launch.pid}/task/{launch.pid}/children").read_text().split():
        words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        values = dict(word.split(b"=", 1) for word in words if b"=" in word)
        if b"RANK" in values:
            found[int(values[b"RANK"])] = int(child)
    return found


def test_a_rank_that_gives_no_sign_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_BEAT_SECONDS", 0.1)
    store = dist.HashStore()  # type: ignore[attr-defined]
    pulses = [Pulse(store, rank, 4) for rank in range(4)]
    try:
        pulses[1].stop()
        pulses[3].stop()
        assert pulses[0].lost() == [1, 3]
        assert pulses[2].lost() == [1, 3]
    finally:
        for each in pulses:
            each.stop()
