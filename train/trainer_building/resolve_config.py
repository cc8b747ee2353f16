"""Settles what the settings of a run leave to its shards and its machine, and refuses what they lack."""

from __future__ import annotations

from dataclasses import replace

from ...pipeline.errors import ConfigError, ShardError
from ..config import TrainConfig
from ..data.shards import Shards
from ..model.dense_dtype import choose_dense_dtype, cpu_features
from ..placements.choose_placement import spills, with_staging
from .devices import open_device


def resolve(shards: Shards, config: TrainConfig, num_ranks: int = 1) -> TrainConfig:
    """Fill in what the settings leave to the shards and the machine, but for the optimizers.

    Args:
        num_ranks: of the run, each of which takes a share of the batch unless ``config`` says otherwise.

    Raises:
        ConfigError: no such device.
        ShardError: shards that cannot be trained on.
    """
    if shards.num_training_batches == 0:
        raise ShardError(f"{shards.manifest.folder} has no training batch")
    # Refusals first, in the order in which a user can mend them.
    _refuse_no_validation(shards, config)
    if num_ranks > 1:
        _refuse_rows_in_a_file(config)
    micro_batches = config.micro_batches or num_ranks
    if num_ranks > 1 and config.device != "cpu":
        raise ConfigError(
            f"several ranks compute on the CPU, not on {config.device}",
            hint="use --device cpu, or start one process",
        )
    # The type of the products follows from the device and the CPU, the staging area from the shards.
    dtype = choose_dense_dtype(config.dense_dtype, open_device(config.device).type, cpu_features())
    return replace(with_staging(config, shards), dense_dtype=dtype, micro_batches=micro_batches)


def _refuse_no_validation(shards: Shards, config: TrainConfig) -> None:
    """Raise ConfigError where the recipe needs what the shards or the placement do not have."""
    option = config.recipe.needs_validation
    if option is not None and not shards.num_validation_samples:
        raise ConfigError(
            f"{option} is decided by a validation part, and {shards.manifest.folder} has none",
            hint="give preprocess --valid-fraction 0.1 or --valid-files 1, with --redo count for this folder",
        )
    option = config.recipe.may_stop
    if option is not None and spills(config, shards):
        raise ConfigError(
            f"{option} needs all rows before the last step, and with --slow-bytes they lie in a file planned "
            "to the end",
            hint="leave --slow-bytes out",
        )


def _refuse_rows_in_a_file(config: TrainConfig) -> None:
    """Raise ConfigError where several ranks are to hold rows in a file."""
    if config.slow_bytes is not None:
        raise ConfigError("--slow-bytes is for a run in one process", hint="leave --slow-bytes out")
