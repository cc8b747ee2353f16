"""Every public call leaves the process as it found it, whatever torch is set to, and no tensor is left open.

The garbage collector is off: what a call leaves to it stays.
"""

from __future__ import annotations

import ast
import gc
import inspect
import logging
import os
import random
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hotset.nn
from hotset.tests.support.logs.other_logs import schema_text
from hotset.tests.support.scored_runs import ScoredRun, run_on_lists
from hotset.workflows.cli import main

ROOT = Path(hotset.__file__).resolve().parent
MADE = (
    *("zeros", "ones", "empty", "full", "tensor", "arange", "rand", "randn", "randint", "randperm"),
    *("eye", "linspace", "as_tensor", "scalar_tensor", "tril_indices", "triu_indices", "asarray"),
)
"""Functions of torch whose tensors are of the default type or on the default device."""


def test_every_tensor_has_its_type_and_its_device() -> None:
    left_open = []
    for path in [*(ROOT / "train").rglob("*.py"), ROOT / "nn.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if ast.unparse(node.func.value) == "torch" and node.func.attr in MADE:
                named = {each.arg for each in node.keywords}
                if not {"dtype", "device"} <= named:
                    left_open.append(f"{path.relative_to(ROOT)}, line {node.lineno}: {ast.unparse(node)}")
    assert left_open == []


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    return run_on_lists(tmp_path_factory.mktemp("lists"))


def state(folders: list[Path]) -> dict[str, Any]:
    """What a call may leave behind."""
    bits, position = np.random.get_state(legacy=True)[1:3]  # type: ignore[index]  # noqa: NPY002
    return {
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "modes": (torch.is_inference_mode_enabled(), torch.is_grad_enabled()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "random numbers": (torch.get_rng_state().tolist(), random.getstate(), bits.tolist(), position),
        "environment": dict(os.environ),
        "files": sorted(entry.resolve().as_posix() for entry in Path("/proc/self/fd").iterdir()),
        "running": sorted(thread.name for thread in threading.enumerate()),
        "disk": sorted(str(path) for folder in folders for path in folder.rglob("*")),
        "folder": os.getcwd(),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
        "warnings": list(warnings.filters),
        "logging": (list(logging.getLogger().handlers), logging.getLogger("hotset").level),
    }


def changes(before: dict[str, Any], folders: list[Path]) -> dict[str, Any]:
    """Return what is otherwise than before, once threads of libraries have come to rest."""
    for _ in range(20):
        after = state(folders)
        # A file that an earlier call had opened may be closed by now.
        after["files"] = [*(Counter(after["files"]) - Counter(before["files"]))] + before["files"]
        changed = {key: (before[key], after[key]) for key in after if after[key] != before[key]}
        if not changed:
            break
        time.sleep(0.05)
    return changed


def own_loop(scored: ScoredRun) -> None:
    """Call every method of `hotset.nn.Embeddings`."""
    emb = hotset.nn.Embeddings(scored.data, placement="lookahead", threads=1)
    schedule = torch.optim.lr_scheduler.StepLR(emb.optimizer, 1)
    dataset = hotset.ShardDataset(scored.data, seed=1)
    dataset.set_epoch(1)
    for batch in emb.read_ahead(dataset):
        sum(each.sum() for each in emb(batch).values()).backward()
        torch.nn.utils.clip_grad_norm_(emb.rows.values(), 1.0)
        emb.step()
        schedule.step()
    emb(batch)
    emb.zero_grad()
    emb.requires_grad_(False)
    emb.eval()
    emb(batch)
    emb.load_state_dict(emb.state_dict())
    assert emb.inputs.num_dense == len(batch["dense"][0])


def calls_of(scored: ScoredRun, folders: Path, folder: Path) -> dict[str, Callable[[], object]]:
    """Calls by the public names that they use, in an order in which they work."""
    run, shards = folder / "run", hotset.Shards(scored.data)
    tables = shards.tables["table"].to_list()
    fitted: list[Any] = []
    return {
        "preprocess": lambda: hotset.preprocess(
            scored.log, folder / "data", schema=str(folders / "log.toml"), progress=False
        ),
        "statistics": lambda: hotset.statistics(scored.data, series=["features"]),
        "TrainConfig": hotset.TrainConfig,
        "Shards": lambda: list(hotset.Shards(scored.data).batches("evaluation")),
        "Shards properties": lambda: [
            repr(shards),
            shards._repr_html_(),
            shards.folder,
            shards.batch_size,
            shards.num_dense,
            shards.num_samples,
            *map(shards.counts, tables),
        ],
        "Shards categories": lambda: [shards.categories(each, shards.ids(each, [])) for each in tables],
        "ShardDataset": lambda: list(hotset.ShardDataset(scored.data)),
        "nn ModelInputs TableInput": lambda: own_loop(scored),
        "fit": lambda: fitted.append(hotset.fit(scored.data, run, threads=1, progress=False)),
        "FittedRun": lambda: [repr(fitted[0]), fitted[0]._repr_html_(), fitted[0].load_model()],
        "FittedRun vectors": lambda: [
            (fitted[0].table(each), fitted[0].vectors(each, fitted[0].categories(each, [0])))
            for each in tables
        ],
        "evaluate": lambda: hotset.evaluate(run, scored.data, progress=False),
        "predict": lambda: hotset.predict(run, scored.log, threads=1, progress=False),
        "load_model": lambda: hotset.load_model(run),
        "export": lambda: hotset.export(run, folder / "exported", progress=False),
        "apply": lambda: hotset.apply(
            folders / "served", folders / "changes", folder / "applied", progress=False
        ),
    }


@pytest.fixture(scope="module")
def folders(scored: ScoredRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a schema, an exported run and the changes to another one."""
    folder = tmp_path_factory.mktemp("served")
    assert scored.lines is not None
    (folder / "log.toml").write_text(schema_text(scored.lines, format="csv"))
    hotset.fit(scored.data, folder / "later", seed=7, threads=1, progress=False)
    hotset.export(scored.run, folder / "served", progress=False)
    command = ["export", str(folder / "later"), "--since", str(scored.run), "--out", str(folder / "changes")]
    assert main([*command, "-q"]) == 0
    return folder


def test_every_public_name_is_called_here(scored: ScoredRun, folders: Path) -> None:
    words = " ".join(calls_of(scored, folders, folders)).split()
    # Processes of ranks call those of TorchRec, and end with them.
    assert {*hotset.__all__} - {*words} == {"HotsetError", "torchrec"}
    source = inspect.getsource(calls_of) + inspect.getsource(own_loop)
    for kind in (hotset.FittedRun, hotset.Shards, hotset.nn.Embeddings):
        methods = (
            name for name, each in vars(kind).items() if inspect.isfunction(each) or type(each) is property
        )
        public = [name for name in methods if not name.startswith("_")]
        assert [name for name in public if f".{name}" not in source] == ["forward"] * ("forward" in public)


@contextmanager
def torch_set_otherwise(device: str) -> Iterator[None]:
    """Let new tensors be float64 and on a device, with two threads and no garbage collector."""
    threads, is_collecting = torch.get_num_threads(), gc.isenabled()
    gc.disable()
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
        if is_collecting:
            gc.enable()


@pytest.mark.parametrize("device", ["cpu", pytest.param("meta", marks=pytest.mark.slow)])
def test_calls_leave_the_process_as_they_found_it(
    scored: ScoredRun, folders: Path, tmp_path: Path, device: str
) -> None:
    hotset.predict(scored.run, scored.log, progress=False)  # libraries set variables when they are imported
    watched = [scored.data, scored.run, folders, Path(scored.log).parent]
    with torch_set_otherwise(device):
        for name, call in calls_of(scored, folders, tmp_path).items():
            with torch.inference_mode(name in ("evaluate", "predict", "load_model")):
                before = state(watched)
                call()
                assert (name, changes(before, watched)) == (name, {})


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_torch_is_set_to_changes_no_bit(scored: ScoredRun, tmp_path: Path, device: str) -> None:
    def trained(out: Path) -> dict[str, torch.Tensor]:
        run = hotset.fit(scored.data, out, threads=1, progress=False)
        loop = hotset.nn.Embeddings(scored.data, threads=1)
        for batch in loop.read_ahead(hotset.ShardDataset(scored.data)):
            sum(each.sum() for each in loop(batch).values()).backward()
            loop.step()
        tables = {name.partition(".")[0] for name in loop.state_dict()}
        return {f"run.{name}": run.table(name) for name in tables} | loop.state_dict()

    wanted = trained(tmp_path / "plain")
    with torch_set_otherwise(device):
        found = trained(tmp_path / "otherwise")
    assert {(each.dtype, each.device.type) for each in found.values()} == {(torch.float32, "cpu")}
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_inference_mode_is_refused_or_read_in_one_line(scored: ScoredRun) -> None:
    with torch.inference_mode():
        emb = hotset.nn.Embeddings(scored.data, threads=1)
        batch = next(iter(hotset.ShardDataset(scored.data)))
        seen = emb(batch)
        with pytest.raises(hotset.HotsetError, match=r"^step\(\) comes after a batch was looked up"):
            emb.step()
    # Rows that were made and read inside are trained outside.
    found = emb(batch)
    assert all(torch.equal(seen[name], each) for name, each in found.items())
    sum(each.sum() for each in found.values()).backward()
    emb.step()
