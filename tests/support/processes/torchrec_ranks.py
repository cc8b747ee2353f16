"""Ranks that train on TorchRec, each a process that makes many runs: the library takes seconds to import.

    python -m hotset.tests.support.processes.torchrec_ranks CASES.json

A case may plant a fault in the batches, and says how many rows are replicated. What each step handed to c10d
is counted at rank 0.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hotset.train import run
from hotset.train.config import CheckpointSettings, TrainConfig
from hotset.train.recipe_options import RecipeOptions
from hotset.workflows.bench.examples.torchrec_ranks import Spy

Case = dict[str, Any]
"""``shards``, ``out``, ``config``; and perhaps ``num_replicated``, ``fault``, ``init_from``; ``every``, the
steps between checkpoints; and ``dies_after``, the step after which the last rank dies."""


def run_on_ranks(num_ranks: int, folder: Path, cases: Sequence[Case], *, timeout: int = 120) -> list[str]:
    """Make the runs of all cases on so many ranks; return what each rank raised, empty where nothing."""
    script = folder / f"cases-{num_ranks}-{len(list(folder.glob('cases-*')))}.json"
    script.write_text(json.dumps(cases, default=str))
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = str(opened.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(num_ranks)}
    shared |= {"HOTSET_RANK_TIMEOUT": str(timeout), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "hotset.tests.support.processes.torchrec_ranks", str(script)],
            env=os.environ | shared | {"RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(num_ranks)
    ]
    for each in ranks:
        each.communicate(timeout=600)
    reports = [script.with_suffix(f".{rank}") for rank in range(num_ranks)]
    return [report.read_text() if report.exists() else "killed" for report in reports]


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


FAULTS: dict[str, Callable[[Any], Any]] = {
    "wrong offset of cold ids": _shifted_ids,
    "inverse off by one": _shifted_places,
    "cold part forgotten": _without_cold,
    "kinds differ between ranks": _other_kind,
}


def _train(case: Case) -> None:
    """Make one run of this rank."""
    from hotset.train.torchrec import engine

    own: Any = engine
    original = own.choose_num_replicated, own.rank_batch, own.TorchRecSteps.train
    seen: list[tuple[bool, dict[str, int]]] = []

    def train(self: Any, step: Any, number: int, rates: Any) -> torch.Tensor:
        with Spy() as spy:
            loss: torch.Tensor = original[2](self, step, number, rates)
        seen.append((step.batch.is_hot_only, dict(spy.calls)))
        return loss

    try:
        if case.get("num_replicated") is not None:
            own.choose_num_replicated = lambda *_: tuple(case["num_replicated"])
        if fault := FAULTS.get(case.get("fault", "")):
            own.rank_batch = lambda *arguments, **more: fault(original[1](*arguments, **more))
        own.TorchRecSteps.train = train
        every = CheckpointSettings(checkpoint_every=case.get("every", "off"))
        init_from = Path(case["init_from"]) if "init_from" in case else None

        def progress(kind: str, done: int, total: int, note: str = "", step: int = 0) -> None:
            is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
            if step == case.get("dies_after", -1) and is_last:
                os._exit(9)

        options = run.RunOptions(checkpoints=every, init_from=init_from, progress=progress)
        config = replace(settings_of(case["config"]), engine="torchrec")
        run.train(Path(case["shards"]), config, Path(case["out"]), options)
    finally:
        own.choose_num_replicated, own.rank_batch, own.TorchRecSteps.train = original
    if os.environ["RANK"] == "0":
        Path(f"{case['out']}.seen.json").write_text(json.dumps(seen))


def main() -> None:
    """Make all runs of a file of cases."""
    script = Path(sys.argv[1])
    fault = ""
    try:
        if os.environ["WORLD_SIZE"] != "1":
            # TorchRec's own messages wait no longer than those of the run.
            seconds = float(os.environ["HOTSET_RANK_TIMEOUT"])
            dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
        for case in json.loads(script.read_text()):
            _train(case)
    except BaseException:
        fault = traceback.format_exc()
    script.with_suffix(f".{os.environ['RANK']}").write_text(fault)
    # TorchRec's threads may abort the interpreter's own end.
    os._exit(0)


if __name__ == "__main__":
    main()
