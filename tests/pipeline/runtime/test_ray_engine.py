"""Stages on a real Ray cluster of several nodes on one machine, one of which dies in the middle."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError, EngineError, InputError
from hotset.pipeline.preprocess import preprocess
from hotset.pipeline.runtime.limits import Node, default_memory_bytes
from hotset.pipeline.runtime.tasks import Resources, nodes, num_workers, run_tasks, use_engine
from hotset.tests.support.logs.criteo_text import draw_samples, text_of, tree_of
from hotset.tests.support.preprocess_runs import CONFIG
from hotset.tests.support.processes.remote_tasks import die_at, fail_at, square, where_at

pytestmark = [
    # Ray itself takes a second to import, in each process that collects tests.
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install 'hotset[ray]'"),
    pytest.mark.filterwarnings("default"),  # Ray's own: files and processes it leaves to the system
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs and two nodes of two; the object store, which nothing uses, as small as may be."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 << 20, "include_dashboard": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0} | small)
        for _ in range(2):
            made.add_node(num_cpus=2, object_store_memory=80 << 20)
        ray.init(made.address, log_to_driver=False, logging_level=logging.ERROR)
        made.wait_for_nodes()
        yield made
        ray.shutdown()
        made.shutdown()


def test_an_address_where_nobody_listens_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(EngineError, match="no Ray cluster answers at RAY_ADDRESS 127"), use_engine("ray"):
            pass


def test_the_nodes_of_one_machine_share_its_memory() -> None:
    from hotset.pipeline.runtime.ray_engine import nodes_of

    def node(address: str, is_alive: bool = True, **resources: float) -> dict[str, Any]:
        return {"NodeManagerAddress": address, "Alive": is_alive, "Resources": resources}

    found = [
        node("10.0.0.1", CPU=4.0, memory=7e9, object_store_memory=3e9),
        node("10.0.0.1", CPU=2.0, memory=8e9, object_store_memory=1e9),
        node("10.0.0.2", CPU=16.0, memory=60e9, object_store_memory=4e9),
        node("10.0.0.3", is_alive=False, CPU=16.0, memory=60e9),
        node("10.0.0.4", memory=60e9),
    ]
    assert nodes_of(found) == [Node(6, 10**10), Node(16, 64 * 10**9)]


def test_a_cluster_without_cores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    head = {"Resources": {"memory": 1e9}, "Alive": True, "NodeManagerAddress": "10.0.0.1"}
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: [head])
    with pytest.raises(EngineError, match="the Ray cluster has no node with CPUs"), use_engine("ray"):
        pass


def kill_node(cluster: Any, places: set[tuple[str, int]]) -> None:
    """End a node as a machine ends that loses its power."""
    node = next(iter(cluster.worker_nodes))
    cluster.remove_node(node, allow_graceful=False)
    assert any(place == node.node_id for place, _ in places)
    for place, pid in places:
        if place == node.node_id:
            with suppress(ProcessLookupError):  # it saw that its node has gone
                os.kill(pid, signal.SIGKILL)


def nodes_after_death() -> set[str]:
    """Nodes that run tasks once one is left; workers of the other may take a while to see that it died."""
    for _ in range(30):
        left = {node for node, _ in run_tasks(where_at, ((number,) for number in range(40)))}
        if len(left) == 1:
            break
        time.sleep(0.5)
    return left


@pytest.mark.slow
def test_tasks_end_as_in_threads_whatever_happens_to_a_worker(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with use_engine("ray"):
        check_results(monkeypatch)
        check_a_killed_worker(tmp_path, monkeypatch)
        check_an_error_is_what_the_task_raised()
        check_a_feed_that_fails()
        check_a_caller_that_stops_reading()


def check_results(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    make = Mock(side_effect=ray.remote)
    monkeypatch.setattr(ray, "remote", make)
    results = list(run_tasks(square, ((number,) for number in range(30)), workers=2))
    assert results == [number * number for number in range(30)]
    assert make.call_count == 1  # for all tasks
    monkeypatch.undo()


def check_a_killed_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [(number, 7, tmp_path / "mark") for number in range(20)]
    assert list(run_tasks(die_at, tasks, workers=2)) == [number * number for number in range(20)]
    monkeypatch.setattr("hotset.pipeline.runtime.ray_engine._MOST_RETRIES", 0)
    with pytest.raises(EngineError, match="killed 1 times in a row") as caught:
        list(run_tasks(die_at, ((number, 3, None) for number in range(20)), workers=2))
    assert caught.value.hint and "resumes the run" in caught.value.hint
    monkeypatch.undo()


def check_an_error_is_what_the_task_raised() -> None:
    with pytest.raises(InputError, match="7 is bad") as caught:
        list(run_tasks(fail_at, ((number, 7) for number in range(1000))))
    assert caught.value.hint == "give another"


def check_a_feed_that_fails() -> None:
    def feed() -> Iterator[tuple[int]]:
        yield from ((number,) for number in range(9))
        raise InputError("the feed broke")

    with pytest.raises(InputError, match="the feed broke"):
        list(run_tasks(square, feed(), workers=2))


def check_a_caller_that_stops_reading() -> None:
    results = run_tasks(fail_at, ((number, -1) for number in range(1000)), workers=2)
    assert next(results) != os.getpid()
    results.close()
    assert list(run_tasks(square, [(3,), (4,)], workers=2)) == [9, 16]


@pytest.mark.slow
def test_a_cluster_makes_the_same_bytes_though_a_node_dies(tmp_path: Path, cluster: Any) -> None:
    log = tmp_path / "log.tsv"
    log.write_bytes(text_of(draw_samples(180, np.random.default_rng(10))))
    preprocess([log], CONFIG, tmp_path / "alone", Resources(workers=1))
    stages: list[str] = []

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "encode" and stage not in stages:
            kill_node(cluster, places)
        stages.append(stage)

    with use_engine("ray"):
        # Two nodes on this machine are one machine's, and so is its memory.
        assert num_workers(0) == 4 and [node.cores for node in nodes()] == [4]
        assert default_memory_bytes() < nodes()[0].memory_bytes < 8 * default_memory_bytes()
        with pytest.raises(ConfigError, match="5 workers on a Ray cluster of 4 CPUs"):
            list(run_tasks(where_at, [(1,)], workers=5))
        places: set[tuple[str, int]] = set()
        for _ in range(30):  # the first workers may do all while others start
            places.update(run_tasks(where_at, ((number,) for number in range(40))))
            if len(places) >= 4:
                break
        assert len(places) >= 4 and len({node for node, _ in places}) == 2
        preprocess([log], CONFIG, tmp_path / "together", Resources(progress=progress))
        assert "encode" in stages
        # How many processes the node then starts is Ray's to decide.
        assert nodes_after_death() == {node.node_id for node in cluster.worker_nodes}
    assert tree_of(tmp_path / "together") == tree_of(tmp_path / "alone")
