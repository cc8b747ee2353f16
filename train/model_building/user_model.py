"""A user's module as a dense model, and what is asked of it before a run begins.

The module is any ``torch.nn.Module`` with ``forward(dense, embeddings)``: dense features (B, K) float32 and
a dictionary from the name of each table to its embeddings (B, D) float32, in the order of the tables; it
returns (B,) logits. A class attribute ``per_sample = True`` says that each logit depends on its own sample
alone, so that batches may be computed in tiles on several threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ...pipeline.errors import ConfigError, HotsetError
from ..model.dense_model import DenseModel
from ..model.dlrm_shape import tables_by_width
from ..model.graph_step import set_mode
from .model_inputs import ModelInputs
from .user_code import explained

PER_SAMPLE = "per_sample"
"""Class attribute by which a module says that its samples do not depend on each other."""
_TRIED_SAMPLES = 7
"""Samples of the batch that is made up to try a module; no table or layer is likely to be as wide."""


class UserModel(DenseModel):
    """Calls a user's module with embeddings by table.

    Its weights are called ``module.`` and the name they have in the module.

    Args:
        module: the user's.
        name: what messages call it.
        inputs: sizes of the log.
    """

    def __init__(self, module: nn.Module, name: str, inputs: ModelInputs) -> None:
        super().__init__()
        self.module = module
        self.name = name
        self.inputs = inputs
        self.is_per_sample = bool(getattr(module, PER_SAMPLE, False))
        self._widths = tables_by_width(inputs.table_dims)

    def logits(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        num_samples = dense_BK.shape[0]
        batch = f"a batch of {num_samples} sample{'' if num_samples == 1 else 's'}"
        # The user's code runs inside, so its exceptions are told as such.
        with explained(f"the model {self.name}, on {batch},"):
            logits = self.module(dense_BK, self._by_table(embeddings))
        # Anything but one logit per sample is refused; a column is the usual slip, with a remedy of its own.
        if isinstance(logits, torch.Tensor) and logits.shape == (num_samples,):
            return logits
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else type(logits).__name__
        is_column = isinstance(logits, torch.Tensor) and logits.shape == (num_samples, 1)
        raise ConfigError(
            f"the model {self.name} returned {found} for {num_samples} samples, want ({num_samples},)",
            hint="return logits.squeeze(1)" if is_column else "return one logit of each sample",
        )

    def _by_table(self, embeddings: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the (B, D) embeddings of each table by name, in the order of the tables."""
        found: dict[int, torch.Tensor] = {}
        for tables, emb_BFd in zip(self._widths.values(), embeddings, strict=True):
            found |= dict(zip(tables, emb_BFd.unbind(1), strict=True))
        return {table.name: found[number] for number, table in enumerate(self.inputs.tables)}


def try_model(model: UserModel, seed: int, least_samples: int | None = None) -> None:
    """Pass a made-up batch through a module, which also gives lazy layers their sizes.

    Args:
        seed: of the initial values of lazy layers.
        least_samples: samples of the smallest batch of the training to come, where there is one.

    Raises:
        HotsetError: the module fails, returns something else than logits, or is not what its ``per_sample``
            says.
    """
    # A batch of its own generator, so that trying a model draws no number of the run.
    generator = torch.Generator().manual_seed(0)
    inputs = model.inputs
    dense_BK = torch.rand(_TRIED_SAMPLES, inputs.num_dense, generator=generator).requires_grad_()
    embeddings = [
        torch.rand(_TRIED_SAMPLES, len(tables), dim, generator=generator).sub_(0.5).requires_grad_()
        for dim, tables in tables_by_width(inputs.table_dims).items()
    ]
    with torch.random.fork_rng([]):
        # Lazy layers draw their initial values at the first batch.
        torch.manual_seed(seed)
        set_mode(model, is_training=False)
        with torch.no_grad():
            model.logits(dense_BK, embeddings)
        if next(model.parameters(), None) is None:
            raise ConfigError(
                f"the model {model.name} has no parameters",
                hint="layers must be attributes of the module, or be in a torch.nn.ModuleList",
            )
        _refuse_other_numbers(model)

        # In training buffers change, those of batch normalization for example; a trial is to leave no trace.
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        set_mode(model, is_training=True)
        # Whether it draws random numbers is seen from the state of torch's generator.
        state = torch.get_rng_state()
        logit_B = model.logits(dense_BK, embeddings)
        draws = not torch.equal(state, torch.get_rng_state())
        _try_smallest(model, dense_BK, embeddings, least_samples or _TRIED_SAMPLES)
        changed = [name for name, buffer in model.named_buffers() if not torch.equal(buffer, buffers[name])]
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    # Now the results: they must be numbers that a gradient can flow through.
    if not torch.isfinite(logit_B).all():
        raise ConfigError(
            f"the model {model.name} returned {logit_B.detach().tolist()} before any training, "
            "want finite numbers",
            hint="look for a division by zero or a logarithm in forward()",
        )
    if not logit_B.requires_grad:
        raise ConfigError(
            f"the logits of the model {model.name} depend neither on its parameters nor on its inputs",
            hint="forward() may detach them, or run under torch.no_grad()",
        )
    if model.is_per_sample:
        _refuse_dependent_samples(model, logit_B, [dense_BK, *embeddings], draws=draws, changed=changed)


def _try_smallest(
    model: UserModel, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor], num_samples: int
) -> None:
    """Pass as few samples as the smallest batch has: one has no variance to normalize by."""
    if num_samples >= dense_BK.shape[0]:
        return
    try:
        model.logits(dense_BK[:num_samples], [emb_BFd[:num_samples] for emb_BFd in embeddings])
    except HotsetError as error:
        raise HotsetError(
            str(error), hint="the smallest training batch is so small: pack with another --batch-size"
        ) from error


def _refuse_other_numbers(model: UserModel) -> None:
    for name, parameter in model.module.named_parameters():
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"the parameter {name} of the model {model.name} is {parameter.dtype}, want torch.float32",
                hint="keep it in float32: --dense-dtype bf16 computes in bfloat16 with such parameters",
            )


def _refuse_dependent_samples(
    model: UserModel, logit_B: torch.Tensor, inputs: list[torch.Tensor], *, draws: bool, changed: list[str]
) -> None:
    """Raise ConfigError where a module says that its samples are independent and they are not."""
    reason = None
    if draws:
        reason = "it draws random numbers, as dropout does"
    elif changed:
        reason = f"it changes its buffer {changed[0].removeprefix('module.')}, as batch normalization does"
    elif _depends_on_others(logit_B, inputs):
        reason = "a logit depends on other samples of its batch"
    if reason:
        raise ConfigError(
            f"the model {model.name} has {PER_SAMPLE} = True, but {reason}", hint=f"remove {PER_SAMPLE}"
        )


def _depends_on_others(logit_B: torch.Tensor, inputs: list[torch.Tensor]) -> bool:
    """Return whether the first logit has a gradient by the inputs of another sample."""
    grads = torch.autograd.grad(logit_B[0], inputs, allow_unused=True)
    return any(grad is not None and bool(grad[1:].any()) for grad in grads)
