"""hotset prepares click logs and trains recommendation models on what it prepared.

``hotset.preprocess`` turns raw logs into shards, ``hotset.statistics`` shows how their lookups are
distributed, ``hotset.Shards`` gives batches and counts, ``hotset.ShardDataset`` feeds training loops of your
own, where ``hotset.nn.Embeddings`` holds the rows, or ``hotset.torchrec`` on several devices, ``hotset.fit``
trains, ``hotset.evaluate``, ``hotset.predict`` and ``hotset.export`` use the run, and ``hotset.load_model``
gives its dense layers back.

Importing this module imports nothing else: each name is looked up when it is first used, because torch takes
more than a second.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import nn
    from .pipeline.errors import HotsetError
    from .train import torchrec
    from .train.config import TrainConfig
    from .train.data.dataset import ShardDataset, Shards
    from .train.fit import FittedRun, apply, evaluate, export, fit, load_model, predict
    from .train.model.shapes import ModelInputs, TableInput
    from .workflows.library import preprocess, statistics

__version__ = "0.1.0"

__all__ = [
    "FittedRun",
    "HotsetError",
    "ModelInputs",
    "ShardDataset",
    "Shards",
    "TableInput",
    "TrainConfig",
    "apply",
    "evaluate",
    "export",
    "fit",
    "load_model",
    "nn",
    "predict",
    "preprocess",
    "statistics",
    "torchrec",
]

_MODULES = {
    "FittedRun": "train.fit",
    "HotsetError": "pipeline.errors",
    "ModelInputs": "train.model.shapes",
    "ShardDataset": "train.data.dataset",
    "Shards": "train.data.dataset",
    "TableInput": "train.model.shapes",
    "TrainConfig": "train.config",
    "apply": "train.fit",
    "evaluate": "train.fit",
    "export": "train.fit",
    "fit": "workflows.fit",
    "load_model": "train.fit",
    "predict": "train.fit",
    "preprocess": "workflows.library",
    "statistics": "workflows.library",
}
"""Where each public name is defined that is no module itself."""
_PACKAGES = {"torchrec": "train.torchrec"}
"""Where public modules are that are not in the root: there, this one would shadow TorchRec in a checkout."""
_RENAMED = {"apply_changes": "apply"}
"""New names by old ones, which work for one more release."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _RENAMED:
        from warnings import warn

        new = _RENAMED[name]
        warn(f"hotset.{name} is called hotset.{new} now", DeprecationWarning, stacklevel=2)
        return globals().get(new) or __getattr__(new)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = importlib.import_module(f".{(_MODULES | _PACKAGES).get(name, name)}", __name__)
    if name in _MODULES:
        found = getattr(found, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names, whether they are imported or not, and nothing else."""
    return sorted([*__all__, "__doc__", "__file__", "__name__", "__version__"])
