"""Builds the steps of a run on a device: kernels, fused layers, transfers.

Imported by the builder of a run that was given a device, and by nothing else on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from ..config import TrainConfig
from ..data.shards import ShardSet
from ..device import Device
from ..model.dlrm import DenseModel, Dlrm
from ..step import StepParts
from ..threads import Readers
from .fused_dlrm import FusedDlrm, FusedHostDense
from .queued_steps import QueuedSteps
from .twins import DenseOptimizerName, DenseRule, choose_kernels, is_twin


def has_fused_layers(config: TrainConfig, shards: ShardSet, model: DenseModel, device: Device) -> bool:
    """Return whether the dense layers of a run are kernels of its device.

    On the simulated device they are where kernels are chosen by name; else it trains with the layers of the
    host, and so with the bits of the host.
    """
    if device.torch_device.type == "cpu" and config.kernels is None:
        return False
    is_plain = (
        isinstance(model, Dlrm) and model.is_plain and model.projections is None and config.micro_batches == 1
    )
    has_bags = any(table.is_multi_hot for table in shards.tables)
    return is_plain and not has_bags and config.recipe.clip_gradient is None


def build_queued_steps(
    config: TrainConfig,
    shards: ShardSet,
    model: DenseModel,
    optimizers: Sequence[torch.optim.Optimizer],
    parts: StepParts,
    device: Device,
    readers: Readers,
    num_ahead: int,
) -> QueuedSteps:
    """Build what queues the steps of a run.

    Args:
        config: resolved.
        optimizers: those of the dense layers.
        parts: what steps work on.
        readers: pack batches for the device.
        num_ahead: steps that are planned ahead.

    Raises:
        ConfigError: kernels that there are not.
    """
    keep_products_of_float32(device.torch_device)
    kernels = choose_kernels(device.torch_device, config.kernels or "")
    fused = None
    # The layers of DLRM as few kernels, where the device and the model allow them; else as torch has them.
    if parts.dense.objective is None and has_fused_layers(config, shards, model, device):
        assert isinstance(model, Dlrm)
        name = config.optimizers(shards.embedding_optimizer).dense_optimizer
        rule = DenseRule(cast("DenseOptimizerName", name), config.recipe.dense_decay)
        # Where a GPU splits a long product, its parts are added in float32, too.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        sizes = (shards.batch_size, shards.most_batch_samples)
        fused = FusedDlrm(model, optimizers, rule, *sizes, device, parts.dense.dtype)
        on_host = FusedHostDense(fused, kernels, parts.dense, shards.most_batch_samples)
        parts = replace(parts, dense=on_host, prepare_dense=on_host.prepare, step_dense=[on_host.step])
    return QueuedSteps(
        device,
        parts,
        kernels,
        shards.most_batch_samples,
        shards.num_dense,
        num_ahead,
        readers,
        fused=fused,
        # Twins wait for a GPU, which cannot be recorded.
        is_recorded=device.torch_device.type == "cpu" or not any(map(is_twin, kernels.values())),
    )


def keep_products_of_float32(device: torch.device) -> None:
    """Make a GPU multiply float32 at full precision.

    Some builds of torch and some environments round factors to 10 bits (TF32).
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest")
