"""The contents of ``config.json``: describes a run, and compares an unfinished one with its command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...pipeline.errors import HotsetError, first_line
from ..config import MOST_MICRO_BATCHES, TrainConfig
from ..data.shard_origin import ShardOrigin, vocabulary_of
from ..data.shards import Shards
from ..dense.linear import choose_library
from ..exchange.chosen_exchange import ChosenExchange
from ..model.dense_dtype import cpu_features
from ..model_building.choose_model import choose_model, recorded_name
from .removed_options import without_removed
from .run_files import CONFIG, plain_file


def describe(shards: Shards, config: TrainConfig, threads: int, *, is_replay: bool) -> dict[str, Any]:
    """The contents of ``config.json``: settings, model and tables of a run.

    An unfinished run is resumed by the same settings alone, so nothing stands here that may differ between
    two processes of a run.

    Args:
        config: with nothing left open, see `resolve`.
    """
    origin = ShardOrigin.of(shards)
    return {
        # Defaults that the shards decided are written out, so that the run can be repeated elsewhere.
        "config": asdict(config) | asdict(config.optimizers(shards.embedding_optimizer)),
        "threads": threads,
        "dense_dtype": config.dense_dtype,
        "dense_products": choose_library(cpu_features(), config.dense_dtype),
        "is_replay": is_replay,
        "shards": shards.manifest.fingerprint,
        "vocabulary": vocabulary_of(shards),
        "schema": origin.schema if origin is not None else None,
        "batch_size": shards.batch_size,
        "model": recorded_name(config, shards.embedding_dim),
        "dense_model": choose_model(config, shards.embedding_dim).to_json(),
        "embedding_dim": shards.embedding_dim,
        "num_dense": shards.num_dense,
        "tables": [
            {
                "name": table.name,
                "num_rows": table.num_rows,
                "embedding_dim": table.embedding_dim,
                "num_hot": table.num_hot,
            }
            | ({"is_multi_hot": True} if table.is_multi_hot else {})
            for table in shards.tables
        ],
    }


def settings_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a description that decides the bits of a run."""
    left_out = ("threads", "schema", "dense_products")
    found = {name: value for name, value in description.items() if name not in left_out}
    if isinstance(found.get("config"), dict):
        found["config"] = {
            name: value for name, value in found["config"].items() if name not in ("threads", "mover")
        }
    return found


def recorded_description(path: Path, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of ``config.json`` of an unfinished run, which a run goes on with.

    Raises:
        HotsetError: unless the run has these settings, but for threads and the mover.
    """
    try:
        found = json.loads(plain_file(path / CONFIG).read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError, RecursionError) as error:
        raise HotsetError(
            f"{path / CONFIG} cannot be read: {first_line(error)}",
            hint="give another --out, or remove the folder",
        ) from error
    # Through JSON, so that tuples and lists compare as the file has them.
    wanted = settings_of(json.loads(json.dumps(description)))
    for name, value in _differences(settings_of(without_removed(path, found)), wanted):
        raise HotsetError(
            f"{path} holds an unfinished run with other settings: {name} is {value[0]!r}, here {value[1]!r}",
            hint="give the settings of that run to resume it, or another --out, or remove the folder",
        )
    return found


def recorded_micro_batches(path: Path) -> int | None:
    """Return the micro-batches of an unfinished run; None where its config does not say."""
    try:
        config = json.loads(plain_file(path / CONFIG).read_bytes())["config"]
        found = config[next(name for name in ("micro_batches", "shares") if name in config)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, StopIteration):
        return None  # `recorded_description` says what is wrong with it
    return found if isinstance(found, int) and 1 <= found <= MOST_MICRO_BATCHES else None


def recorded_exchange(path: Path) -> ChosenExchange:
    """Return the codecs of an unfinished run; none where its config names none."""
    try:
        found = json.loads(plain_file(path / CONFIG).read_bytes()).get("exchange")
        return ChosenExchange() if found is None else ChosenExchange.of_json(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ChosenExchange()  # `recorded_description` says what is wrong with it


def _differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the settings that differ, with both values."""
    for name in (*wanted, *(name for name in found if name not in wanted)):
        pair = (found.get(name), wanted.get(name))
        if isinstance(pair[0], dict) and isinstance(pair[1], dict):
            yield from _differences(pair[0], pair[1], f"{prefix}{name}.")
        elif pair[0] != pair[1]:
            yield f"{prefix}{name}", pair
