"""Checks what must hold on the device: that steps run at all, the GPU tests, and equal bits of placements."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import get_args

from ...pipeline.sizes import ByteSize
from ...stats.ranking.row_bytes import OPTIMIZERS
from ...train.config import EmbeddingOptimizer, PlacementName, TrainConfig
from ...train.data.shards import Shards
from ...train.run import train
from ...train.steps.queued_steps import QueuedSteps
from ...train.trainer import run_steps
from ...train.trainer_building.build_trainer import build_trainer
from ..bench.measuring.kaggle_shards import draw_kaggle, write_kaggle_shards
from .part_settings import PartSettings
from .records import Records

_ROOT = Path(__file__).resolve().parents[2]
_EXACT: tuple[PlacementName, ...] = ("lookahead", "cache", "hybrid", "hybrid-dedup", "hybrid-uva")
"""Placements that train in the batch order of all-fast, and promise its bits."""
STAGING_BYTES = ByteSize(1 << 20)
_SCALE = 1000.0


def take_first_steps(settings: PartSettings, records: Records) -> None:
    """Train a few batches under every placement; an error is written down, and the next one begins."""
    shards = small_shards(settings, "first-steps", "adagrad")
    for name in get_args(PlacementName):
        config = TrainConfig(
            placement=name, device=settings.device, kernels=settings.step_kernels, evaluate_every=None
        )
        with records.catching(f"first steps of {name}"):
            trainer = build_trainer(shards, config)
            runner = trainer.runner
            assert isinstance(runner, QueuedSteps), "a part for devices that are not the host"
            # With twins among the kernels nothing is recorded to begin with.
            was_recorded = runner.is_recorded
            run_steps(trainer, lambda *_: None)
            records.check(f"first steps of {name}", True, f"{trainer.step} steps")
            if was_recorded:
                records.check(f"steps of {name} are recorded", runner.is_recorded)


def run_tests(settings: PartSettings, records: Records) -> None:
    """Run the tests that need a GPU, where the checkout has any, and write down each.

    Without a GPU they are only collected, which imports all they need.
    """
    files = [
        str(path) for path in sorted((_ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()
    ]
    if not files:
        records.check("tests", False, f"{_ROOT} has no tests that need a GPU")
        return
    # Without a GPU the tests can at least be collected, which finds what no longer imports.
    if settings.torch_device.type == "cpu":
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--collect-only", *files]
        found = subprocess.run(command, cwd=_ROOT, check=False)
        records.check("tests are collected", found.returncode == 0)
        return
    report = settings.scratch / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", "-m", "gpu", "-p", "no:cacheprovider"]
    command += ["--timeout=60"] if _has_timeouts() else []
    found = subprocess.run(
        [*command, "--continue-on-collection-errors", f"--junitxml={report}", *files], cwd=_ROOT, check=False
    )
    if not report.exists():
        records.check("tests", False, f"pytest ended with {found.returncode} and wrote no report")
        return
    # Every test is a check of its own, so that one failure does not hide the others.
    for case in ElementTree.parse(report).iter("testcase"):
        faults = [child for child in case if child.tag in ("failure", "error")]
        skipped = case.find("skipped")
        name = f"{case.get('classname')}::{case.get('name')}"
        detail = (faults[0].text or "")[-1500:] if faults else ""
        if skipped is not None:
            detail = f"skipped: {skipped.get('message')}"
        records.check(name, not faults and skipped is None, detail)


def compare_bits(settings: PartSettings, records: Records) -> None:
    """Compare the weights of the exact placements with those of all-fast, for every optimizer."""
    for optimizer in get_args(EmbeddingOptimizer):
        assert optimizer in OPTIMIZERS
        # A staging area that is too small for comfort: rows move at every batch.
        shards = small_shards(settings, f"bits-{optimizer}", optimizer)
        base = TrainConfig(
            device=settings.device,
            kernels=settings.step_kernels,
            staging_bytes=STAGING_BYTES,
            placement="all-fast",
        )
        wanted = weights_of(shards, base, settings.scratch / f"bits-{optimizer}-all-fast")
        for name in _EXACT:
            out = settings.scratch / f"bits-{optimizer}-{name}"
            check = f"{name} has the bits of all-fast with {optimizer}"
            with records.catching(check):
                records.check(check, weights_of(shards, replace(base, placement=name), out) == wanted)


def small_shards(settings: PartSettings, name: str, optimizer: str) -> Shards:
    """Shards with some forty thousand rows, more than the staging slots hold."""
    folder = settings.scratch / name / "shards"
    samples = draw_kaggle(3_000 if settings.is_small else 40_000, _SCALE)
    write_kaggle_shards(
        samples,
        folder,
        batch_size=512,
        embedding_dim=16,
        hot_share=0.05,
        optimizer=optimizer,
        num_evaluation=512,
    )
    return Shards.open(folder)


def weights_of(shards: Shards, config: TrainConfig, out: Path) -> str:
    """Train, and return a checksum of the weights."""
    train(shards.manifest.folder, config, out)
    return hashlib.sha256((out / "weights.safetensors").read_bytes()).hexdigest()


def _has_timeouts() -> bool:
    """Whether pytest can stop a test that hangs."""
    return importlib.util.find_spec("pytest_timeout") is not None
