"""Reads ``config.json`` of a run as typed data.

A run folder may come from anywhere, so each value is checked for its type and range before it sizes a model
or a pool of threads.
The module imports nothing heavy: the command line prints the settings of runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..pipeline.errors import HotsetError, first_line
from ..pipeline.folders.manifest import JsonRecord, RecordError, require_range
from ..pipeline.folders.totals import TableFeature, by_feature
from ..stats.row_bytes import OPTIMIZERS
from .config import MOST_THREADS, ModelConfig, TrainConfig

RUN_HINT = "give the folder that a finished training run wrote (its --out)"
CONFIG = "config.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
_MOST_BYTES = 64 * 2**20
_PRESETS = ("kaggle", "terabyte", "mlperf", "small")
_MOST_ROWS = 2**31
_MOST_LABELS = 1024
"""Far more than a log has."""
_MOST_FLOATS = 2**20
"""Floats of a row, or dense features of a sample: far more than any model has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTable(JsonRecord):
    """An embedding table of a run."""

    name: str
    num_rows: int
    embedding_dim: int
    num_hot: int
    """Rows that were hot."""
    is_multi_hot: bool = False
    """Whether samples may look it up other than once: its feature is list-valued, or there are several."""
    features: tuple[TableFeature, ...] = ()
    """Features that look up in it; empty where that is the one of its name alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings(JsonRecord):
    """Settings of a run that one which starts from it needs."""

    seed: int
    embedding_optimizer: str
    dense_optimizer: str
    negative_rate: float | None = None
    """Share of the samples without a click that the log kept; None: all."""

    def check_values(self, where: str) -> None:
        if self.negative_rate is not None and not 0 < self.negative_rate < 1:
            raise RecordError(f"{where}negative_rate is {self.negative_rate}, want a share in (0, 1)")
        if self.embedding_optimizer not in OPTIMIZERS:
            raise RecordError(f"{where}embedding_optimizer is {self.embedding_optimizer!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig(JsonRecord):
    """The parts of ``config.json`` that decide a model's shapes and execution."""

    threads: int
    """Threads of the dense layers."""
    model: str
    """Preset of a DLRM, dcnv2, tbsm, or the class of the user."""
    embedding_dim: int
    """Width of the embeddings that interact."""
    num_dense: int
    """Number of dense features."""
    tables: tuple[RunTable, ...]
    dense_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type of the products of the dense layers."""
    config: RunSettings
    """Other settings."""
    vocabulary: str | None = None
    """Fingerprint of the vocabulary of the ids; None where the shards' folder had none."""
    schema: str | None = None
    """Schema of the log, as a setting; None where the shards' folder had no vocabulary."""
    batch_size: int
    """Nominal samples of a training batch."""
    dense_model: ModelConfig
    """The layers of the model."""
    labels: tuple[str, ...] = ()
    """Labels by their names in the log, in the order of the logits; empty where the log has one without a
    name, which all samples have."""
    predicts: Literal["probability", "value"] = "probability"
    """Whether a prediction is the sigmoid of a logit, or with a loss of the user's own the logit itself."""

    @property
    def num_logits(self) -> int:
        """Logits of a sample."""
        return max(1, len(self.labels))

    @classmethod
    def read(cls, value: object, where: str) -> RunConfig:
        """Read and check the parsed JSON of the file ``where``.

        Raises:
            HotsetError: a key is missing, or its value no run writes.
        """
        try:
            config = cls.from_json(value)
            config._refuse_nonsense()
        except RecordError as error:
            raise HotsetError(f"{where} is damaged: {error}", hint=RUN_HINT) from error
        return config

    def _refuse_nonsense(self) -> None:
        """Raise RecordError for a number out of bounds or a duplicate table."""
        require_range("threads", self.threads, 1, MOST_THREADS)
        require_range("embedding_dim", self.embedding_dim, 1, _MOST_FLOATS)
        require_range("num_dense", self.num_dense, 0, _MOST_FLOATS)
        require_range("batch_size", self.batch_size, 1, _MOST_ROWS)
        # A DLRM is called by its preset, any other model by its own name.
        names = _PRESETS if self.dense_model.kind == "dlrm" else (self.dense_model.name,)
        if self.model not in names:
            raise RecordError(f"model is {self.model!r}, want {' or '.join(names)}")
        for number, table in enumerate(self.tables):
            require_range(f"tables[{number}].num_rows", table.num_rows, 1, _MOST_ROWS)
            require_range(f"tables[{number}].embedding_dim", table.embedding_dim, 1, _MOST_FLOATS)
            require_range(f"tables[{number}].num_hot", table.num_hot, 0, table.num_rows)
        # Names are columns and tensors, so each must be of one table, and of one feature.
        for what, tables in (("table", self.tables), ("feature", by_feature(self.tables))):
            if len({table.name for table in tables}) != len(tables):
                raise RecordError(f"tables lists a {what} twice")
        if len(set(self.labels)) != len(self.labels) or len(self.labels) > _MOST_LABELS:
            raise RecordError(f"labels has a name twice, or more than {_MOST_LABELS}")


def read_object(path: Path, hint: str | None = RUN_HINT) -> dict[str, Any]:
    """Return the JSON object in a file, which may be anything of any size.

    Raises:
        HotsetError: it cannot be read, is no plain file, or holds no object.
    """
    try:
        # Opening a pipe would wait forever.
        if path.exists() and not path.is_file():
            raise OSError("it is not a plain file")
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError, RecursionError) as error:
        state = "cannot be read" if isinstance(error, OSError) else "is damaged"
        reason = getattr(error, "strerror", None) or first_line(error)
        raise HotsetError(f"{path} {state}: {reason}", hint=hint) from error
    return found


def read_settings(path: Path) -> TrainConfig:
    """Return the settings in ``path``, with defaults for those that older versions lack.

    Raises:
        HotsetError: it is missing or damaged, or holds a setting that no run has.
    """
    found = read_object(path)
    try:
        return TrainConfig.from_json(found["config"])
    except (KeyError, ValueError, HotsetError) as error:
        raise HotsetError(f"{path} is damaged: {first_line(error)}", hint=RUN_HINT) from error


def read_config(run: Path, *, must_be_finished: bool = True) -> RunConfig:
    """Return a finished run's config; raise HotsetError without one, or if damaged."""
    # The summary marks the end of a run: one without it has not ended.
    if not (run / (SUMMARY if must_be_finished else CONFIG)).exists():
        raise unfinished_run(run, SUMMARY)
    return RunConfig.read(read_object(run / CONFIG), str(run / CONFIG))


def unfinished_run(run: Path, lacking: str) -> HotsetError:
    """Return what to raise for a run without its file ``lacking``, or a path that is none."""
    if not run.is_dir():
        state = "is not a folder" if run.exists() else "does not exist"
    else:
        state = "is unfinished" if (run / CONFIG).exists() else "holds no training run"
        state += f": it has no {lacking}"
    return HotsetError(f"{run} {state}", hint=RUN_HINT)
