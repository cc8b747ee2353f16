"""A run of TBSM that is stopped anywhere ends with the bits of one that is not."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ByteSize, HotsetError
from hotset.tests.support.processes.stopped_runs import results, train_until, unbroken_results
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.config import CheckpointSettings, TrainConfig
from hotset.train.recipe_options import Interval

SPEC = ShardSpec(
    num_rows=(60, 200, 80),
    num_hot=(3, 10, 5),
    num_hot_only=20,
    num_mixed=120,
    num_evaluation=40,
    num_validation=18,
    num_dense=2,
    skew=1.2,
    batch_size=20,
    multi_hot=(1,),
    table_dims=(4, 4, 2),
)
NUM_STEPS = 14
FIELDS: dict[str, Any] = {
    "model": "tbsm",
    "model_args": '{"history_length": 4}',
    "embedding_optimizer": "adagrad",
    "epochs": 2,
    "staging_bytes": ByteSize(4_000),
    "threads": 1,
    "log_every": 3,
    "evaluate_every": 5,
}
PLACEMENTS: tuple[dict[str, Any], ...] = (
    *({"placement": name} for name in ("hybrid", "fae", "lookahead", "cache")),
    {"placement": "lookahead", "device": "late:6"},
)


def run_until(
    data: Path, out: Path, stop: int | None, steps: int | None, kind: str = "kill", **fields: Any
) -> None:
    """Train, and end as if killed, or by a signal, after so many steps.

    Args:
        steps: between two checkpoints; None: there are none.
    """

    checkpoints = CheckpointSettings(checkpoint_every=Interval(steps=steps))
    num_samples = None if stop is None else stop * SPEC.batch_size
    train_until(data, TrainConfig(**FIELDS | fields), out, checkpoints, num_samples, kind)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards", SPEC)
    return folder


@pytest.fixture(scope="module")
def unbroken(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, bytes]]:
    """Return the results of runs that nothing stops; each is made once for all tests."""
    return unbroken_results(
        tmp_path_factory, lambda out, **fields: run_until(data, out, None, None, **fields)
    )


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.sampled_from(PLACEMENTS),
    stops=st.lists(st.integers(1, NUM_STEPS), min_size=1, max_size=3).map(sorted),
    steps=st.integers(1, 6),
    kind=st.sampled_from(["kill", "signal"]),
)
def test_a_stopped_run_ends_with_the_bits_of_an_unbroken_one(
    data: Path,
    unbroken: Callable[..., dict[str, bytes]],
    fields: dict[str, Any],
    stops: list[int],
    steps: int,
    kind: str,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "stopped"
        for stop in stops:
            run_until(data, out, stop, steps, kind, **fields)
        run_until(data, out, None, steps, **fields)
        assert results(out) == unbroken(**fields)


def test_a_run_that_is_killed_twice_ends_with_the_bits_of_an_unbroken_one(
    data: Path, unbroken: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    for stop in (4, 11):
        run_until(data, tmp_path / "stopped", stop, 3, placement="lookahead")
    run_until(data, tmp_path / "stopped", None, 3, placement="lookahead")
    assert results(tmp_path / "stopped") == unbroken(placement="lookahead")


def test_a_run_does_not_go_on_with_another_length_of_histories(data: Path, tmp_path: Path) -> None:
    run_until(data, tmp_path / "out", 9, 2)
    with pytest.raises(HotsetError, match="model_args"):
        run_until(data, tmp_path / "out", None, 2, model_args='{"history_length": 5}')


@pytest.mark.slow
def test_processes_that_are_killed_end_with_the_bits_of_an_unbroken_run(
    data: Path, unbroken: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    """Real kills at random moments, from before the first step to the writing of the results."""
    words = {"epochs": "2", "threads": "1", "embedding-optimizer": "adagrad", "staging-bytes": "4000"}
    words |= {
        "model": "tbsm",
        "model-args": '{"history_length": 4}',
        "placement": "lookahead",
        "checkpoint-every": "2",
    }
    words |= {"log-every": "3", "evaluate-every": "5", "out": str(tmp_path / "out")}
    command = [sys.executable, "-m", "hotset", "train", str(data), "-q"]
    command += [word for name, value in words.items() for word in (f"--{name}", value)]
    rng = random.Random(3)
    num_killed = 0
    while True:
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        # Two checkpoints more are awaited, or the end; then the kill comes at any moment.
        seen = checkpoints_of(tmp_path / "out")
        while process.poll() is None and num_killed < 3 and len(checkpoints_of(tmp_path / "out") - seen) < 2:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.02)
        if process.poll() is None and num_killed < 3:
            process.kill()
            num_killed += 1
        _, message = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, message
    assert num_killed
    assert results(tmp_path / "out") == unbroken(placement="lookahead")


def checkpoints_of(out: Path) -> set[str]:
    """Names of the checkpoints of a run that is not finished."""
    return {path.name for path in (out / "checkpoints").glob("*")} if out.is_dir() else set()
