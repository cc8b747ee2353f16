"""Events as TensorBoard reads them; in a slow test by its own reader."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import HotsetError
from hotset.tests.support.shard_factory import write_shards
from hotset.train.checkpoints.checkpoint_settings import CheckpointSettings
from hotset.train.config import TrainConfig
from hotset.train.options.interval import Interval
from hotset.train.run import train
from hotset.train.run_folder.tensorboard_events import EVENTS, TensorboardEvents, crc32c

LINES: list[dict[str, Any]] = [
    {"step": 100, "samples": 2_000, "loss": 0.5},
    {"step": 300, "evaluation": {"auc": 0.75, "num_samples": 7, "pr_auc": None, "hot": {"auc": 0.5}}},
]


def records(path: Path) -> list[bytes]:
    """The messages of a file of records, whose checksums are right."""
    data = path.read_bytes()
    found = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        message = data[12 : 12 + length]
        for part, checksum in ((data[:8], data[8:12]), (message, data[12 + length : 16 + length])):
            rest = crc32c(part)
            assert struct.unpack("<I", checksum)[0] == ((rest >> 15 | rest << 17) + 0xA282EAD8) % 2**32
        found.append(message)
        data = data[16 + length :]
    return found


def test_the_checksum_is_that_of_the_standard() -> None:
    # RFC 3720, appendix B.4.
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_each_line_is_a_record_with_its_step_and_numbers(tmp_path: Path) -> None:
    events = TensorboardEvents(tmp_path / "tb", [json.dumps(LINES[0])])
    events.add(LINES[1])
    version, first, second = records(tmp_path / "tb" / EVENTS)
    assert version.endswith(b"brain.Event:2")
    # Field 2, the step: 100, and 300 in two bytes.
    assert first[9:11] == b"\x10d" and second[9:12] == b"\x10\xac\x02"
    assert b"train/loss\x15" + struct.pack("<f", 0.5) in first
    assert b"evaluation/auc\x15" + struct.pack("<f", 0.75) in second
    assert b"evaluation/hot/auc" in second and b"pr_auc" not in second and b"samples" not in first + second


def test_a_resumed_run_has_every_line_once(tmp_path: Path) -> None:
    data = write_shards(tmp_path / "shards")
    config = TrainConfig(placement="all-fast", epochs=2, log_every=2, threads=1)
    settings = CheckpointSettings(checkpoint_every=Interval(steps=3))

    class Killed(BaseException):
        pass

    def progress(stage: str, done: int, *_: object) -> None:
        if stage == "train" and done >= 100:
            raise Killed

    arguments: dict[str, Any] = {"checkpoints": settings, "tensorboard": tmp_path / "tb"}
    with pytest.raises(Killed):
        train(data, config, tmp_path / "run", progress=progress, **arguments)
    train(data, config, tmp_path / "run", **arguments)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(records(tmp_path / "tb" / EVENTS)) == 1 + len(lines)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tb").write_text("")
    with pytest.raises(HotsetError, match="tb cannot be written"):
        TensorboardEvents(tmp_path / "tb", [])


@pytest.mark.slow
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = TensorboardEvents(tmp_path, [])
    for line in LINES:
        events.add(line)
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    assert sorted(found.Tags()["scalars"]) == ["evaluation/auc", "evaluation/hot/auc", "train/loss"]
    assert [(event.step, event.value) for event in found.Scalars("evaluation/auc")] == [(300, 0.75)]
