"""An engine starts its workers when first asked, keeps them, and lets them go."""

from __future__ import annotations

from typing import Any

from hotset.pipeline.runtime.engine import ENGINES, Engine


class Workers:
    """Stands for a joblib.Parallel: records whether it is open."""

    def __init__(self, count: int, options: dict[str, Any]) -> None:
        self.count = count
        self.options = options
        self.is_open = False

    def __enter__(self) -> Workers:
        self.is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False


class CountingEngine(Engine):
    """Counts how often workers are started."""

    name = "processes"
    worker_failures = (BrokenPipeError,)

    def __init__(self) -> None:
        super().__init__()
        self.started: list[Workers] = []

    def num_workers(self) -> int:
        return 3

    def _start(self, count: int, options: dict[str, Any]) -> Workers:
        self.started.append(Workers(count, options))
        return self.started[-1]


def test_workers_start_with_the_first_call_and_are_kept() -> None:
    engine = CountingEngine()
    assert engine.started == []
    first = engine.parallel(2)
    assert engine.parallel(2) is first and len(engine.started) == 1
    assert first.is_open
    assert first.options == {"return_as": "generator", "pre_dispatch": 4, "batch_size": 1}


def test_another_number_of_workers_ends_the_old_ones_first() -> None:
    engine = CountingEngine()
    engine.parallel(2)
    engine.parallel(4)
    assert [workers.is_open for workers in engine.started] == [False, True]
    assert engine.started[1].options["pre_dispatch"] == 8


def test_stopped_workers_are_started_again_when_needed() -> None:
    engine = CountingEngine()
    engine.stop()
    engine.parallel(2)
    engine.stop()
    engine.stop()
    assert not engine.started[0].is_open
    engine.parallel(2)
    assert [workers.is_open for workers in engine.started] == [False, True]
    engine.close()


def test_the_names_of_engines_are_those_of_the_option() -> None:
    assert ENGINES == ("threads", "processes", "ray")
    assert not CountingEngine.ends_with_main_process
