"""Builds a dense model and its step from what a run records of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...pipeline.errors import ConfigError
from ..data.batch import EmbeddingTable
from ..data.batch_shares import BatchShares
from ..histories.history_step import HistoryStep
from ..histories.tbsm import Tbsm, TbsmShape
from ..model.dcn import Dcn
from ..model.dcn_shape import DcnShape
from ..model.dense_dtype import DenseDtype
from ..model.dense_model import DenseModel
from ..model.dense_step import DenseStep, build_dense_step
from ..model.dlrm import Dlrm
from ..model.dlrm_shape import shape_of_widths
from ..model.tile_gradients import BuildSums
from ..options.model_config import ModelConfig
from ..work_threads import WorkThreads
from .mean_pooling import MeanPooling
from .model_inputs import ModelInputs
from .user_code import ModelSource, build_module, import_class
from .user_model import UserModel, try_model


def build_model(
    config: ModelConfig,
    inputs: ModelInputs,
    seed: int,
    model_source: ModelSource | None = None,
    least_samples: int | None = None,
) -> DenseModel:
    """Build a model with its initial values.

    Args:
        config: which model.
        inputs: sizes of the log.
        seed: of the initial values.
        model_source: makes the module of a user; None imports the class that ``config`` names.
        least_samples: samples of the smallest batch of the training to come, where there is one.

    Raises:
        ConfigError: there is no such class, or it is no model for these inputs.
        ShardError: nothing interacts, or there is no history for a model of histories.
    """
    if config.batch_norm and least_samples == 1:
        raise ConfigError(
            "--batch-norm needs batches of two samples at least, and one of these has a single one",
            hint="pack with another --batch-size",
        )
    if config.kind == "dlrm":
        sizes = (inputs.num_dense, len(inputs.tables), inputs.embedding_dim, inputs.table_dims)
        shape = shape_of_widths(config.bottom_widths, config.top_widths, *sizes)
        return Dlrm(replace(shape, dropout=config.dropout, batch_norm=config.batch_norm), seed)
    if config.kind == "dcnv2":
        return Dcn(DcnShape(inputs.num_dense, inputs.table_dims, config), seed)
    if config.kind == "tbsm":
        are_histories = tuple(table.is_multi_hot for table in inputs.tables)
        dims = (inputs.embedding_dim, inputs.table_dims)
        return Tbsm(TbsmShape(inputs.num_dense, *dims, are_histories, config), seed)
    chosen = model_source or import_class(config.name)
    module = build_module(chosen, config.name, seed, inputs, **config.keyword_arguments())
    model = UserModel(module, config.name, inputs)
    try_model(model, seed, least_samples)
    return model


def build_step(
    model: DenseModel,
    config: ModelConfig,
    tables: Sequence[EmbeddingTable],
    shares: BatchShares,
    threads: WorkThreads,
    dtype: DenseDtype,
    seed: int = 0,
    build_sums: BuildSums | None = None,
) -> DenseStep:
    """Build the step of a model on embeddings pooled as ``config`` says; see `build_dense_step`."""
    step = build_dense_step(model, shares, threads, dtype, seed, build_sums)
    if config.kind == "tbsm":
        return HistoryStep(step, tables)
    if config.pooling == "mean" and any(table.is_multi_hot for table in tables):
        return MeanPooling(step, tables)
    return step
