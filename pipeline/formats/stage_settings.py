"""The settings of a finished stage that later ones read, as its manifest has them.

What a stage may vary is the config beside the stage; what others need to know of it stands here, with the
checks of every record of a manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from ..folders.json_record import JsonRecord, require_range
from ..folders.manifest import Manifest


class StageSettings(JsonRecord):
    """Base of the settings of all stages."""

    __slots__ = ()

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return the settings of ``manifest``; raise ManifestError where one is missing."""
        return manifest.read_settings(cls)


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnsSettings(StageSettings):
    """The settings of columns/."""

    schema: str
    """Name of a schema that is built in, or ``toml:`` and a fingerprint."""
    block_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingSettings(StageSettings):
    """The settings of a vocabulary that was ordered by a sample of the log."""

    sampling_rate: float
    sampling_seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSettings(StageSettings):
    """The settings of plan/."""

    hot_bytes: int
    mode: str = "budget"
    """The way to choose hot rows."""
    embedding_dim: int
    embedding_optimizer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSettings(StageSettings):
    """The settings of shards/."""

    batch_size: int
    """Samples of a batch; the last one of a kind may have fewer."""
    order: Literal["grouped", "original"]

    @property
    def is_grouped(self) -> bool:
        """Whether each training batch is hot-only or mixed by choice, and the order spreads them evenly."""
        return self.order == "grouped"

    def refuse_nonsense(self, where: str) -> None:
        require_range(f"{where}batch_size", self.batch_size, 1)
