"""Training from Python as the command trains: `hotset.fit`, whose kernels are compiled ahead."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from ..pipeline.errors import local_path
from ..pipeline.folders.manifest import shards_in
from ..pipeline.runtime.progress import shown_progress
from ..train.config import TrainConfig
from ..train.config_parts import is_launched
from ..train.fit import FittedRun
from ..train.fit import fit as _fit
from .compile_ahead import compiling_ahead, kinds_of_training


@wraps(_fit)
def fit(
    data: str | Path,
    out: str | Path,
    *,
    config: TrainConfig | None = None,
    progress: bool | Callable[..., object] = True,
    **settings: Any,
) -> FittedRun:
    """Train as `train.fit.fit` does, which documents the arguments."""
    # A wrong folder is refused before anything is compiled. Ranks would all compile the same kernels.
    shards_in(local_path(data))
    if not is_launched():
        # What is no config is refused below.
        chosen = config if isinstance(config, TrainConfig) else TrainConfig()
        device = settings.get("device", chosen.device)
        # A function that is given is called with samples alone.
        with (
            shown_progress(not callable(progress) and progress) as shown,
            compiling_ahead(kinds_of_training(settings.get("placement", chosen.placement), device)) as ahead,
        ):
            ahead.wait(shown)
    return _fit(data, out, config=config, progress=progress, **settings)
