"""Ranks as processes end with the bits of one process, also where they are killed and others go on.

``hotset bench train-kills --ranks`` kills more often, and under all placements.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotset.tests.support.shard_factory import ShardSpec, write_shards

SPEC = ShardSpec(
    num_rows=(300, 40, 900), num_hot=(9, 3, 20), num_hot_only=60, num_mixed=900, skew=1.2, batch_size=24
)
OPTIONS = ("--micro-batches", "4", "--threads", "1", "--epochs", "4", "--checkpoint-every", "5", "-q")


def start(num_ranks: int, folder: Path, *options: str, timeout: int = 60) -> list[subprocess.Popen[bytes]]:
    """Start the ranks of a run as a launcher does, one process each."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = str(opened.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(num_ranks)}
    shared |= {"HOTSET_RANK_TIMEOUT": str(timeout)}
    command = [sys.executable, "-m", "hotset", "train", "shards", *OPTIONS, *options]
    return [
        subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | shared | {"RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(num_ranks)
    ]


def finished(num_ranks: int, folder: Path, out: str, *options: str) -> bytes:
    """Train to the end, and return the weights."""
    ranks = start(num_ranks, folder, "--out", out, *options)
    ends = [(process.communicate(timeout=300)[1].decode(), process.returncode) for process in ranks]
    assert [code for _, code in ends] == [0] * num_ranks, ends
    return weights_of(folder / out)


def weights_of(run: Path) -> bytes:
    """Return the file of weights of a finished run."""
    return (run / "weights.safetensors").read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards, and the run of one process under the default placement."""
    folder = tmp_path_factory.mktemp("ranks")
    write_shards(folder / "shards", SPEC)
    finished(1, folder, "one")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--placement", "hybrid")], ids=["default", "hybrid"])
def test_processes_write_the_weights_of_one(options: tuple[str, ...], folder: Path) -> None:
    # All placements end with the same bits, and count the same losses.
    assert finished(2, folder, "-".join(["two", *options]), *options) == weights_of(folder / "one")
    log = [(folder / out / "metrics.jsonl").read_text() for out in ("one", "-".join(["two", *options]))]
    assert log[0] == log[1]


@pytest.mark.slow
def test_a_killed_rank_is_noticed_and_any_number_of_ranks_goes_on(folder: Path) -> None:
    wanted = weights_of(folder / "one")
    rng = random.Random(7)
    ranks = start(2, folder, "--out", "killed", timeout=300)
    # From the first checkpoint on, at any moment.
    while not list(folder.glob("killed/checkpoints/step-*.json")) and ranks[0].poll() is None:
        time.sleep(0.01)
    time.sleep(rng.random() * 0.3)
    victim = rng.randrange(2)
    ranks[victim].kill()
    _, stderr = ranks[1 - victim].communicate(timeout=300)
    ranks[victim].communicate(timeout=300)
    # One of them, or both, may have ended just before.
    assert ranks[1 - victim].returncode == 0 or b"lost another rank" in stderr
    if not (folder / "killed" / "manifest.json").exists():
        assert finished(4, folder, "killed") == wanted
