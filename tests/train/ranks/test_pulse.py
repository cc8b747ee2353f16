"""The store of a launch: which rank is gone, and launches that come back after one was lost."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.ranks import pulse
from hotset.train.ranks.pulse import Pulse

SPEC = ShardSpec(
    num_rows=(300, 40, 900), num_hot=(9, 3, 20), num_hot_only=60, num_mixed=900, skew=1.2, batch_size=24
)
OPTIONS = ("--micro-batches", "4", "--threads", "1", "--epochs", "6", "--checkpoint-every", "5", "-q")


def test_a_rank_that_gives_no_sign_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "_BEAT_SECONDS", 0.1)
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


def launched(folder: Path, num_ranks: int, *options: str, restarts: int = 0) -> subprocess.Popen[str]:
    """Start a run of several ranks by torchrun."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    command = [sys.executable, "-m", *launcher, "--max-restarts", str(restarts), "-m", "hotset"]
    return subprocess.Popen(
        [*command, "train", "shards", *OPTIONS, *options],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ranks_of(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """Return the processes of a launch by rank."""
    found = {}
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    for child in map(int, children):
        words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        values = dict(word.split(b"=", 1) for word in words if b"=" in word)
        if b"RANK" in values:
            found[int(values[b"RANK"])] = child
    return found


def wait_for_checkpoint(folder: Path, launcher: subprocess.Popen[str]) -> None:
    """Wait until a run has saved its first steps."""
    while not list(folder.glob("checkpoints/step-*.json")):
        assert launcher.poll() is None
        time.sleep(0.01)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards, and a run in one process."""
    folder = tmp_path_factory.mktemp("pulse")
    write_shards(folder / "shards", SPEC)
    command = [sys.executable, "-m", "hotset", "train", "shards", *OPTIONS, "--out", "one"]
    subprocess.run(command, cwd=folder, check=True)
    return folder


@pytest.mark.slow
def test_a_launch_with_restarts_comes_back_from_a_lost_rank(folder: Path) -> None:
    """Kill a rank at any moment: one restart is enough, and the weights are those of an unbroken run."""
    rng = random.Random(int(os.environ.get("HOTSET_KILL_SEED", "5")))
    out = folder / f"killed-{rng.randrange(10**9)}"
    launcher = launched(folder, 2, "--out", out.name, restarts=1)
    wait_for_checkpoint(out, launcher)
    time.sleep(rng.random() * 0.5)
    os.kill(ranks_of(launcher)[rng.randrange(2)], signal.SIGKILL)
    _, stderr = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, stderr
    wanted = (folder / "one" / "weights.safetensors").read_bytes()
    assert (out / "weights.safetensors").read_bytes() == wanted


@pytest.mark.slow
def test_the_lost_rank_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop one of four ranks, so that it keeps its connections: the others tell which one is gone."""
    monkeypatch.setenv("HOTSET_RANK_TIMEOUT", "5")
    launcher = launched(folder, 4, "--out", "stopped")
    wait_for_checkpoint(folder / "stopped", launcher)
    ranks = ranks_of(launcher)
    os.kill(ranks[2], signal.SIGSTOP)
    # Torchrun waits half a minute for a stopped one to end.
    for rank in (0, 1, 3):
        while Path(f"/proc/{ranks[rank]}").exists():
            time.sleep(0.05)
    os.kill(ranks[2], signal.SIGKILL)
    _, stderr = launcher.communicate(timeout=120)
    first = re.search(r"^error: rank \d lost (.*?):", stderr, re.MULTILINE)
    assert first is not None and first[1] == "rank 2", stderr
