"""Processes that take turns as ranks of TorchRec: the library takes seconds to import.

A case is a run. It may plant a fault in the batches, and says how many rows are replicated. What each step
handed to c10d is counted at rank 0, and how often the caches of a device were emptied.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import io
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hotset.pipeline.errors import ShardError
from hotset.tests.support.processes.made_up_tensorboard import STUB
from hotset.train import run
from hotset.train.config import TrainConfig
from hotset.train.config_parts import CheckpointSettings, RecipeOptions
from hotset.workflows.bench.harness import free_port
from hotset.workflows.bench.ranks import Spy

Case = dict[str, Any]
"""``shards``, ``out``, ``config``; and perhaps ``num_replicated``, ``fault``, ``init_from``, ``speeds``;
``every``, the steps between checkpoints; ``is_plain``, for a TorchRec whose pipeline cannot stop;
``dies_after``, the step after which the last rank dies; ``made_up``, for tables of GPUs that are made up, and
``is_cached`` if their rows are behind a cache."""


class RankPool:
    """Processes that are ranks of one call after another, as many as it asks for."""

    def __init__(self) -> None:
        self._workers: list[ProcessPoolExecutor] = []

    def run(self, num_ranks: int, cases: Sequence[Case], *, timeout: int = 120) -> list[str]:
        """Make the runs of all cases; return what each rank raised, empty where nothing.

        Args:
            timeout: seconds for which ranks wait for each other.
        """
        jobs = self._start(num_ranks, _make_runs, timeout, list(cases))
        found = []
        for rank, job in enumerate(jobs):
            try:
                found.append(job.result(timeout=600))
            except BrokenProcessPool:
                found.append("killed")
                self._workers[rank] = _new_worker()
        return found

    def call(self, num_ranks: int, scratch: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return what a top-level function returns on each rank, as `call_on_ranks` does."""
        jobs = self._start(num_ranks, function, 120, *arguments)
        return [job.result(timeout=600) for job in jobs]

    def _start(
        self, num_ranks: int, function: Callable[..., Any], timeout: int, *arguments: Any
    ) -> list[Future[Any]]:
        self._workers += [_new_worker() for _ in range(num_ranks - len(self._workers))]
        launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(num_ranks)}
        launched |= {"HOTSET_RANK_TIMEOUT": str(timeout), "OMP_NUM_THREADS": "1"}
        return [
            worker.submit(_as_rank, launched | {"RANK": str(rank)}, function, arguments)
            for rank, worker in enumerate(self._workers[:num_ranks])
        ]

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.submit(os._exit, 0)
        for worker in self._workers:
            worker.shutdown()


def _new_worker() -> ProcessPoolExecutor:
    # Ranks are forked from one process, which has imported the library.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torchrec", "hotset.train.torchrec.engine"])
    return ProcessPoolExecutor(1, mp_context=context)


def _as_rank(launched: dict[str, str], function: Callable[..., Any], arguments: Any) -> Any:
    """Call a function as one rank."""
    os.environ |= launched
    # The library asks all ranks once a process, and some of these processes are new.
    collectives: Any = importlib.import_module("torchrec.distributed.collective_utils")
    collectives._INITIALIZED = False
    try:
        return function(*arguments)
    finally:
        # A program leaves its group itself.
        if dist.is_initialized():
            dist.destroy_process_group()


def _join() -> None:
    # TorchRec's own messages wait no longer than those of a run.
    seconds = float(os.environ["HOTSET_RANK_TIMEOUT"])
    if os.environ["WORLD_SIZE"] != "1":
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))


def losses_of(out: Path) -> list[float]:
    """Return the logged losses of a run."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def settings_of(settings: dict[str, Any]) -> TrainConfig:
    """Return a config from plain data, those of its recipe among the others."""
    of_recipe = {each.name for each in fields(RecipeOptions)} & settings.keys()
    recipe = RecipeOptions(**{name: settings[name] for name in of_recipe})
    own = {name: value for name, value in settings.items() if name not in of_recipe}
    return TrainConfig(**{"threads": 1, "log_every": 1} | own, recipe=recipe)


def _shifted_ids(batch: Any) -> Any:
    """Cold ids counted from the wrong row: the first one of a table becomes its second."""
    return _with_groups(batch, lambda group: replace(group, cold_ids_C=(group.cold_ids_C - 1).clamp(min=0)))


def _shifted_places(batch: Any) -> Any:
    """An inverse that is off by one."""
    return _with_groups(
        batch,
        lambda group: replace(
            group, cold_places_M=(group.cold_places_M + 1).clamp(max=max(group.cold_ids_C.numel() - 1, 0))
        ),
    )


def _with_groups(batch: Any, change: Callable[[Any], Any]) -> Any:
    return replace(batch, groups=tuple(map(change, batch.groups)))


def _without_cold(batch: Any) -> Any:
    """A mixed batch that is taken for a hot-only one, everywhere."""
    return replace(batch, is_hot_only=True)


def _other_kind(batch: Any) -> Any:
    """A kind that differs between ranks."""
    return replace(batch, is_hot_only=os.environ["RANK"] == "1")


def _unreadable(batch: Any) -> Any:
    """A batch in the middle of a run of mixed ones that the second rank cannot read."""
    if os.environ["RANK"] == "1" and batch.number == 20:
        raise ShardError("batch 20 is damaged")
    return batch


FAULTS: dict[str, Callable[[Any], Any]] = {
    "wrong offset of cold ids": _shifted_ids,
    "inverse off by one": _shifted_places,
    "cold part forgotten": _without_cold,
    "batch that one rank cannot read": _unreadable,
    "kinds differ between ranks": _other_kind,
}


@contextlib.contextmanager
def _tables(case: Case) -> Iterator[None]:
    """Let a case have its tables; note what is left of prefetches at its end."""
    if not case.get("made_up"):
        yield
        return
    from .made_up_fbgemm import MadeUpTables, made_up_tables

    with made_up_tables(is_cached=case.get("is_cached", False)):
        yield
    made = MadeUpTables.made
    facts = {
        "num_prefetched": sum(each.num_prefetched for each in made),
        "num_locked": sum(int(each.lxu_cache_locking_counter.count_nonzero()) for each in made),
    }
    if os.environ["RANK"] == "0":
        Path(f"{case['out']}.tables.json").write_text(json.dumps(facts))


def _train(case: Case) -> None:
    """Make one run of this rank."""
    from hotset.train.torchrec import engine

    own: Any = engine
    exchanges = own.EXCHANGES
    original = own.choose_num_replicated, own.rank_batch, own.TorchRecSteps.train
    seen: list[tuple[bool, dict[str, int], int]] = []
    lookups: Any = importlib.import_module("torchrec.distributed.embedding_lookup").GroupedEmbeddingsLookup
    purge = lookups.purge
    num_purges = 0

    def count_purges(self: Any) -> None:
        nonlocal num_purges
        num_purges += 1
        purge(self)

    def train(self: Any, step: Any, number: int, rates: Any) -> torch.Tensor:
        with Spy() as spy:
            loss: torch.Tensor = original[2](self, step, number, rates)
        num_left = 0 if self._pipeline is None else len(self._pipeline.batches)
        seen.append((step.batch.is_hot_only, dict(spy.calls), num_left))
        return loss

    try:
        if case.get("num_replicated") is not None:
            own.choose_num_replicated = lambda *_: tuple(case["num_replicated"])
        if fault := FAULTS.get(case.get("fault", "")):
            own.rank_batch = lambda *arguments, **more: fault(original[1](*arguments, **more))
        own.TorchRecSteps.train = train
        own.EXCHANGES = "elsewhere" if case.get("is_plain") else exchanges
        lookups.purge = count_purges
        every = CheckpointSettings(checkpoint_every=case.get("every", "off"))
        init_from = Path(case["init_from"]) if "init_from" in case else None

        def progress(kind: str, done: int, total: int, note: str = "", step: int = 0) -> None:
            is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
            if step == case.get("dies_after", -1) and is_last:
                os._exit(9)

        board = Path(case["tensorboard"]) if "tensorboard" in case else None
        options = run.RunOptions(
            checkpoints=every,
            init_from=init_from,
            progress=progress,
            tensorboard=board,
            speeds=case.get("speeds"),
        )
        config = replace(settings_of(case["config"]), engine="torchrec")
        sys.modules.update(STUB)
        with _tables(case):
            run.train(Path(case["shards"]), config, Path(case["out"]), options)
    finally:
        own.choose_num_replicated, own.rank_batch, own.TorchRecSteps.train = original
        own.EXCHANGES = exchanges
        lookups.purge = purge
    if os.environ["RANK"] == "0":
        Path(f"{case['out']}.seen.json").write_text(json.dumps(seen))
        Path(f"{case['out']}.purges.json").write_text(json.dumps(num_purges))


def _make_runs(cases: Sequence[Case]) -> str:
    """Make the runs of one rank; return what was raised."""
    try:
        _join()
        for case in cases:
            _train(case)
    except BaseException:
        return traceback.format_exc()
    return ""


def run_program(folder: Path, text: str) -> str:
    """Run a program in a folder, as a launcher does; return what it prints."""
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(compile(text, "program.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue()
