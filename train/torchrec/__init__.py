"""Training on several devices by TorchRec: hot rows replicated, cold rows sharded."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .batches import GroupLookups, RankBatch, RankBatches, ReplicatedRows

if TYPE_CHECKING:
    from .embeddings import HotColdEmbeddings
    from .own_loop import RankData

__all__ = ["GroupLookups", "HotColdEmbeddings", "RankBatch", "RankBatches", "RankData", "ReplicatedRows"]

_MODULES = {"HotColdEmbeddings": "embeddings", "RankData": "own_loop"}
"""Where names are defined that need TorchRec, which takes seconds to import."""


def __getattr__(name: str) -> Any:
    """Import what needs TorchRec when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = found
    return found
