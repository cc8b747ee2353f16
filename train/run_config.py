"""Reads ``config.json`` of a run as typed data.

A run folder may come from anywhere, so each value is checked for its type and range before it sizes a model
or a pool of threads.
The module imports nothing heavy: the command line prints the settings of runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from ..pipeline.errors import ByteSize, HotsetError, first_line
from ..pipeline.folders.manifest import JsonRecord, RecordError, read_value
from ..stats.ranking.row_bytes import OPTIMIZERS
from .config import MOST_THREADS, ModelConfig, TrainConfig
from .recipe_options import RecipeOptions

_PRESETS = ("kaggle", "terabyte", "mlperf", "small")
_MOST_ROWS = 2**31
_MOST_FLOATS = 2**20
"""Floats of a row, or dense features of a sample: far more than any model has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTable(JsonRecord):
    """An embedding table of a run."""

    name: str
    num_rows: int
    embedding_dim: int
    num_hot: int | None = None
    """Rows that were hot; None in runs of earlier versions."""
    is_multi_hot: bool = False
    """Whether its feature is list-valued; runs of earlier versions do not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings(JsonRecord):
    """Settings of a run that one which starts from it needs."""

    seed: int
    embedding_optimizer: str
    dense_optimizer: str

    def refuse_nonsense(self, where: str) -> None:
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
    """Type of the products of the dense layers; runs of earlier versions do not say."""
    config: RunSettings | None = None
    """Other settings; None in runs of earlier versions."""
    vocabulary: str | None = None
    """Fingerprint of the vocabulary of the ids; None where the shards' folder had none."""
    schema: str | None = None
    """Schema of the log, as a setting; None where the shards' folder had no vocabulary."""
    batch_size: int | None = None
    """Nominal samples of a training batch; None in runs of earlier versions."""
    dense_model: ModelConfig | None = None
    """The layers of the model; None in runs of earlier versions, whose ``model`` is always a preset."""

    @property
    def num_hot(self) -> list[int] | None:
        """Rows of each table that were hot; None where the run does not say."""
        found = [table.num_hot for table in self.tables if table.num_hot is not None]
        return found if len(found) == len(self.tables) else None

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
            raise HotsetError(
                f"{where} is damaged: {error}",
                hint="give the folder that a finished training run wrote (its --out)",
            ) from error
        return config

    def _refuse_nonsense(self) -> None:
        """Raise RecordError for a number out of bounds or a duplicate table."""
        _require("threads", self.threads, 1, MOST_THREADS)
        _require("embedding_dim", self.embedding_dim, 1, _MOST_FLOATS)
        _require("num_dense", self.num_dense, 0, _MOST_FLOATS)
        if self.batch_size is not None:
            _require("batch_size", self.batch_size, 1, _MOST_ROWS)
        # A model of hotset is one of its presets; any other has a description in addition to its name.
        names: tuple[str, ...] = _PRESETS
        if self.dense_model is not None and self.dense_model.kind != "dlrm":
            names = (self.dense_model.name,)
        if self.model not in names:
            raise RecordError(f"model is {self.model!r}, want {' or '.join(names)}")
        for number, table in enumerate(self.tables):
            _require(f"tables[{number}].num_rows", table.num_rows, 1, _MOST_ROWS)
            _require(f"tables[{number}].embedding_dim", table.embedding_dim, 1, _MOST_FLOATS)
            if table.num_hot is not None:
                _require(f"tables[{number}].num_hot", table.num_hot, 0, table.num_rows)
        # Names are columns and tensors, so each must be of one table.
        tables = [table.name for table in self.tables]
        if len(set(tables)) != len(tables):
            raise RecordError("tables lists a table twice")


def _require(key: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise RecordError(f"{key} is {value}, want {least} to {most}")


_MOST_BYTES = 64 * 2**20
_NESTED = "recipe"


def read_settings(path: Path) -> TrainConfig:
    """Return the settings in ``path``, with defaults for those of older versions.

    Older versions lack some settings.

    Raises:
        HotsetError: it is missing or damaged, or holds a setting that no run has.
    """
    try:
        # The file may be anything, and may have any size.
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise FileNotFoundError("it is no file that train writes")
        config = json.loads(path.read_bytes())["config"]
        recipe = RecipeOptions(**_known(RecipeOptions, config.get(_NESTED, {}), "recipe."))
        return TrainConfig(**_known(TrainConfig, config, "") | {_NESTED: recipe})
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError, HotsetError) as error:
        state = "cannot be read" if isinstance(error, OSError) else "is damaged"
        raise HotsetError(
            f"{path} {state}: {first_line(error)}", hint="give the folder that a training run wrote"
        ) from error


def _known(kind: type, values: object, where: str) -> dict[str, Any]:
    """Return the values that are settings of ``kind``.

    A run of another version may have more or fewer.
    """
    if not isinstance(values, dict):
        raise TypeError(f"{where.removesuffix('.') or 'config'} is no object")
    kinds = {name: each for name, each in get_type_hints(kind).items() if name != _NESTED and name in values}
    return {name: _read(values[name], each, where + name) for name, each in kinds.items()}


def _read(value: object, kind: Any, path: str) -> Any:
    # A size is a plain number in JSON, and a text may stand for a number.
    if isinstance(value, str) and str in get_args(kind):
        return value
    if ByteSize not in get_args(kind):
        return read_value(value, kind, path)
    num_bytes = read_value(value, int | None, path)
    return None if num_bytes is None else ByteSize(num_bytes)
