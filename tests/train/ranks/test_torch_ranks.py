"""Ranks as processes of torch.distributed over gloo, started by torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.train.options.rank_options import is_launched
from hotset.train.ranks.torch_ranks import first_reason, join_ranks

_PROGRAM = """
import os, torch
from hotset.train.exchange.dense_sums import DenseSums
from hotset.train.exchange.coded_exchange import CodedExchange
from hotset.train.ranks.ranks import Message, RankError, refuse_other_plans
from hotset.train.options.rank_options import is_launched
from hotset.train.ranks.torch_ranks import join_ranks
assert is_launched()
ranks = join_ranks(timeout_seconds=300)
other = 1 - ranks.rank
sizes = [0, 3] if ranks.rank == 0 else [5, 0]
back = [0, 5] if ranks.rank == 0 else [3, 0]
received = Message.unset(back)
sent = torch.full((sum(sizes),), ranks.rank + 7, dtype=torch.uint8)
ranks.exchange(Message(sent, tuple(sizes)), received).wait()
assert received.data.tolist() == [other + 7] * sum(back), received
refuse_other_plans(ranks, bytes(16))
gradient = torch.arange(9.0) * (1 + ranks.rank)
assert DenseSums(ranks, CodedExchange(ranks.rank, 0), 9).add(gradient, 0.5) == 1.0
assert gradient.tolist() == [3.0 * i for i in range(9)]
# Gone as a killed process is, without a word: torch's own threads may abort at an orderly end.
if ranks.rank == 1:
    os._exit(0)
try:
    for _ in range(3):
        ranks.gather(torch.zeros(1))
except RankError as error:
    assert str(error).startswith("rank 0 lost another rank: "), error
    print("the other is gone", flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_two_processes_exchange_and_notice_that_one_is_gone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = subprocess.run([*command, str(program)], capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "the other is gone"


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
