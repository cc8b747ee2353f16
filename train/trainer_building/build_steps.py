"""Builds what takes the steps of a run: the host at once, or a device on which they are queued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...pipeline.errors import ConfigError
from ..config import TrainConfig
from ..data.readers import Readers
from ..data.shards import Shards
from ..device.verbs import Device
from ..execution.embeddings import Embeddings
from ..gpu_kernels.kernel_table import TWINS, Kernel, choose_kernels
from ..model.dense_model import DenseModel
from ..model.dense_step import DenseStep
from ..model.dlrm import Dlrm
from ..recipe.dense_update import DenseUpdate
from ..steps.fused_at_once import FusedAtOnce
from ..steps.fused_dlrm import FusedDlrm, rule_of
from ..steps.queued_steps import QueuedSteps
from ..steps.step_runner import StepParts, StepRunner, StepsAtOnce
from ..trainer import num_steps_ahead
from ..work_threads import WorkThreads


def has_fused_layers(config: TrainConfig, shards: Shards, model: DenseModel, verbs: Device | None) -> bool:
    """Return whether the dense layers of a run are kernels of its device.

    On the late device they are where kernels are chosen by name; else it trains with the layers of the host,
    and so with the bits of the host.
    """
    if verbs is None or (verbs.torch_device.type == "cpu" and config.kernels is None):
        return False
    is_plain = (
        isinstance(model, Dlrm) and model.is_plain and model.projections is None and config.micro_batches == 1
    )
    has_bags = any(table.is_multi_hot for table in shards.tables)
    return is_plain and not has_bags and config.recipe.clip_gradient is None


def build_runner(
    config: TrainConfig,
    shards: Shards,
    model: DenseModel,
    dense: DenseStep,
    optimizers: Sequence[torch.optim.Optimizer],
    embeddings: Embeddings,
    verbs: Device | None,
    threads: WorkThreads,
    readers: Readers,
    num_threads: int,
) -> StepRunner:
    """Build what takes the steps.

    Args:
        config: with nothing left open.
        dense: passes the model forward and backward.
        optimizers: those of its parameters.
        verbs: the device on which steps are queued; None: the host takes them.
        threads: of the step.
        readers: pack batches for a device.
        num_threads: of the run, whatever the step takes of them.

    Raises:
        ConfigError: kernels that there are not.
    """
    update = DenseUpdate(model.parameters(), optimizers, config.recipe.clip_gradient)
    parts = StepParts(embeddings, dense, update.prepare, [each.step for each in optimizers], threads)
    # On the host a step is taken at once, by kernels that need no choice.
    if verbs is None:
        if config.kernels is not None:
            raise ConfigError("kernels chooses those of a GPU, and the run is on the host")
        return StepsAtOnce(parts)
    keep_products_of_float32(verbs.torch_device)
    kernels = choose_kernels(verbs.torch_device, config.kernels or "")
    fused = None
    # The layers of DLRM as few kernels, where the device and the model allow them; else as torch has them.
    if has_fused_layers(config, shards, model, verbs):
        assert isinstance(model, Dlrm)
        name = config.optimizers(shards.embedding_optimizer).dense_optimizer
        rule = rule_of(name, config.recipe.dense_decay)
        # Where a GPU splits a long product, its parts are added in float32, too.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        fused = FusedDlrm(model, optimizers, rule, shards.batch_size, verbs, dense.dtype)
        at_once = FusedAtOnce(fused, kernels, dense, shards.batch_size)
        parts = StepParts(embeddings, at_once, at_once.prepare, [at_once.step], threads)
    return QueuedSteps(
        verbs,
        parts,
        kernels,
        shards.batch_size,
        shards.num_dense,
        num_steps_ahead(config, shards.mixed_share),
        readers,
        fused=fused,
        is_recorded=_can_be_recorded(kernels, verbs),
        mover=config.mover,
        num_threads=num_threads,
    )


def keep_products_of_float32(device: torch.device) -> None:
    """Let a GPU round no factor of a product of float32: some builds of torch and some environments have it
    round them to 10 bits (TF32)."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest")


def _can_be_recorded(kernels: Mapping[str, Kernel], verbs: Device) -> bool:
    """Whether no kernel waits for a GPU while it is recorded, as those of torch do."""
    if verbs.torch_device.type == "cpu":
        return True
    return not any(kernel.__module__.rpartition(".")[2] in TWINS.values() for kernel in kernels.values())
