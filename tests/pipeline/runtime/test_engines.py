"""Engines are chosen by name; a cap counts the processes of a cluster (`remote_objects`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import MIB, ConfigError, install_hint
from hotset.pipeline.runtime import engines
from hotset.pipeline.runtime.engines import ENGINES, use_engine
from hotset.pipeline.runtime.memory import FIXED_BYTES, refuse_small_cap, room_for
from hotset.pipeline.runtime.tasks import Resources, num_processes, num_workers, run_tasks
from hotset.workflows.cli import main


class _Cluster:
    """Stands for an engine of three workers that runs nothing."""

    def num_workers(self) -> int:
        return 3


@pytest.fixture
def cluster() -> Iterator[None]:
    """The tasks of a test are those of a cluster."""
    stand_in: Any = _Cluster()
    token = engines._current.set(stand_in)
    yield
    engines._current.reset(token)


def test_a_cap_counts_what_every_process_costs(monkeypatch: pytest.MonkeyPatch, cluster: None) -> None:
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: 0)
    assert num_processes(3) == 3 and num_processes(1) == 0
    with pytest.raises(ConfigError) as caught:
        refuse_small_cap("count", Resources(3, 4 * FIXED_BYTES), MIB)
    assert caught.value.hint == "--memory 641MiB would do; fewer --workers need less"
    assert room_for("count", Resources(3, 4 * FIXED_BYTES + 9 * MIB), MIB) == 9 * MIB


def test_tasks_that_share_arrays_stay_here(cluster: None) -> None:
    seen: list[int] = []
    assert num_workers(0) == 3
    assert list(run_tasks(seen.append, [(1,), (2,)], workers=2, shares_memory=True)) == [None, None]
    assert sorted(seen) == [1, 2]


def test_threads_are_no_other_processes() -> None:
    with use_engine("threads"):
        assert num_processes(3) == 0
    assert ENGINES == ("threads", "ray")


def test_an_engine_that_is_none_or_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("dask", "processes"):
        with pytest.raises(ConfigError, match=f"no engine '{name}'") as caught:
            with use_engine(name):  # type: ignore[arg-type]
                pass
        assert caught.value.hint == "use one of threads, ray"
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "hotset.pipeline.runtime.ray_engine", raising=False)
    log = tmp_path / "log.tsv"
    assert main(["preprocess", str(log), "--out", str(tmp_path / "dir"), "--engine", "ray"]) == 1
    assert capsys.readouterr().err == f"error: --engine ray needs ray\nhint: {install_hint('ray')}\n"
