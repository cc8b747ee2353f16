"""All ranks measure the same link, whatever its speed.

Ranks as processes of torch.distributed over gloo, started by torchrun.
"""

from __future__ import annotations

import datetime
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from hotset.pipeline.errors import ConfigError
from hotset.tests.support.processes.rank_promises import check_promises
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train.config import is_launched
from hotset.train.ranks import ranks as link_speed
from hotset.train.ranks import ranks as torch_ranks
from hotset.train.ranks.ranks import (
    Message,
    RankError,
    Ranks,
    first_reason,
    join_ranks,
    joined_ranks,
    measure_link,
    slowest,
)


def test_every_rank_finds_the_line_through_both_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    # 0.5 s, and a second for each 10 MiB.
    monkeypatch.setattr(link_speed, "_trial", lambda ranks, num_bytes: 0.5 + num_bytes / (10 << 20))
    for speed in run_thread_ranks(3, measure_link):
        assert speed.delay_seconds == pytest.approx(0.5)
        # Two messages of that size leave a rank in that time.
        assert speed.bytes_per_second == pytest.approx(20 << 20)


def test_messages_are_sent_and_the_slowest_rank_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_speed, "_MOST_TRIALS", 2)
    found = run_thread_ranks(2, measure_link)
    assert found[0] == found[1] and found[0].bytes_per_second > 0

    def largest(ranks: Ranks) -> float:
        return slowest(ranks, float(ranks.rank))

    assert run_thread_ranks(3, largest) == [2.0] * 3


_PROGRAM = """
import os, torch
from hotset.train.ranks.messages import DenseSums
from hotset.train.ranks.codes import CodedExchange
from hotset.tests.support.processes.rank_promises import check_promises
from hotset.train.ranks.ranks import Message, RankError, refuse_other_plans
from hotset.train.config import is_launched
from hotset.train.ranks.ranks import join_ranks
assert is_launched()
ranks = join_ranks(timeout_seconds=300)
check_promises(ranks)
refuse_other_plans(ranks, bytes(16))
gradient = torch.arange(9.0) * (1 + ranks.rank)
assert DenseSums(ranks, CodedExchange(ranks.rank, 0), 9).add(gradient, 0.5) == 1.0
assert gradient.tolist() == [3.0 * i for i in range(9)]
# Gone as a killed process is, without a word: torch's own threads may abort at an orderly end.
if ranks.rank == 1:
    os._exit(0)
nothing = Message.unset([0, 1])
for work in (lambda: ranks.exchange(nothing, nothing).wait(), lambda: ranks.gather(torch.zeros(1))):
    try:
        for _ in range(3):
            work()
    except RankError as error:
        assert str(error).startswith("rank 0 lost another rank: ") and "timeout" not in str(error), error
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


@pytest.mark.slow
def test_processes_that_have_joined_keep_their_group(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_JOINED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = subprocess.run([*command, str(program)], capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "rank 0 lost another rank: no answer in 1 s (HOTSET_RANK_TIMEOUT)"


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
    monkeypatch.setattr(dist, "all_to_all_single", broken)
    try:
        with pytest.raises(RankError, match=r"^rank 0 lost another rank: Connection closed by peer$"):
            ranks.exchange(Message.unset([0]), Message.unset([0]))
    finally:
        ranks.close()


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
