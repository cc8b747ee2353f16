"""hotset prepares click logs and trains recommendation models on what it prepared.

``hotset.fit`` trains from Python, ``hotset.evaluate`` scores a run and ``hotset.load_model`` gives its dense
layers back. Below them ``hotset.pipeline`` turns raw logs into shards, ``hotset.train`` trains on them,
``hotset.stats`` holds the arithmetic both share, ``hotset.workflows`` the command line.

Importing this module imports nothing else: each name is looked up when it is first used, because torch takes
more than a second.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pipeline.errors import HotsetError
    from .train.config import TrainConfig
    from .train.fit import FittedRun, evaluate, fit, load_model
    from .train.model_building.model_inputs import ModelInputs, TableInput

__version__ = "0.1.0"

__all__ = [
    "FittedRun",
    "HotsetError",
    "ModelInputs",
    "TableInput",
    "TrainConfig",
    "evaluate",
    "fit",
    "load_model",
]

_MODULES = {
    "FittedRun": "train.fit",
    "HotsetError": "pipeline.errors",
    "ModelInputs": "train.model_building.model_inputs",
    "TableInput": "train.model_building.model_inputs",
    "TrainConfig": "train.config",
    "evaluate": "train.fit",
    "fit": "train.fit",
    "load_model": "train.fit",
}
"""Where each public name is defined."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names before they are imported, too."""
    return sorted({*globals(), *__all__})
