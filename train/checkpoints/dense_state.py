"""The dense layers and their optimizers as named tensors, into however many optimizers they are split.

model.NAME           parameter or buffer of the model
optimizer.NAME KEY   state of the optimizer of parameter NAME, as torch calls it (exp_avg, step, ...)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...pipeline.errors import HotsetError

_MODEL = "model."
_OPTIMIZER = "optimizer."
_SEPARATOR = " "


def dense_state(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, torch.Tensor]:
    """Copy the state of the model and its optimizers to the host."""
    found = {f"{_MODEL}{name}": tensor for name, tensor in model.state_dict().items()}
    state_of = _states(optimizers)
    for name, parameter in model.named_parameters():
        for key, value in state_of.get(parameter, {}).items():
            found[f"{_OPTIMIZER}{name}{_SEPARATOR}{key}"] = torch.as_tensor(value)
    # Copies in the usual layout: training continues while they are written.
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in found.items()}


def is_optimizer_state(name: str) -> bool:
    """Whether a tensor of `dense_state` is one of an optimizer."""
    return name.startswith(_OPTIMIZER)


def restore_dense(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    tensors: Mapping[str, torch.Tensor],
    where: str,
) -> None:
    """Set the model and its optimizers to a state that `dense_state` returned.

    Args:
        where: the checkpoint, for messages.

    Raises:
        HotsetError: the state is that of another model, or damaged.
    """
    # The shapes are compared first: torch's own error would name neither the file nor the tensor wanted.
    wanted = model.state_dict()
    own = {name.removeprefix(_MODEL): tensor for name, tensor in tensors.items() if name.startswith(_MODEL)}
    for name in sorted(wanted.keys() | own.keys()):
        refuse_other_shape(where, name, own.get(name), wanted.get(name))
    model.load_state_dict(own)
    # The state of an optimizer is stored by the name of its parameter, whichever optimizer steps it today.
    owner = {parameter: optimizer for optimizer in optimizers for parameter in _parameters(optimizer)}
    parameters = dict(model.named_parameters())
    for name, tensor in tensors.items():
        if not name.startswith(_OPTIMIZER):
            continue
        of, _, key = name.removeprefix(_OPTIMIZER).partition(_SEPARATOR)
        parameter = parameters.get(of)
        if parameter is None or parameter not in owner or tensor.shape not in (parameter.shape, ()):
            raise HotsetError(
                f"{where} is damaged: {name} of shape {tuple(tensor.shape)} is not of its model"
            )
        owner[parameter].state[parameter][key] = _placed(tensor, parameter)


def refuse_other_shape(
    where: str, name: str, found: torch.Tensor | None, wanted: torch.Tensor | None
) -> None:
    """Raise HotsetError unless a tensor of the model is there with its shape and type, and finite."""
    if found is None or _said(found) != _said(wanted):
        raise HotsetError(
            f"the model of {where} is another: dense layer {name} is {_said(found)}, want {_said(wanted)}",
            hint="give the model that the run was begun with",
        )
    if not torch.isfinite(found).all():
        raise HotsetError(f"{where} is damaged: dense layer {name} holds values that are not finite")


def _said(tensor: torch.Tensor | None) -> str:
    return (
        "missing"
        if tensor is None
        else f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
    )


def _states(optimizers: Sequence[torch.optim.Optimizer]) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
    return {parameter: state for optimizer in optimizers for parameter, state in optimizer.state.items()}


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _placed(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A copy as the optimizer makes its state: laid out as the parameter, a count of steps on the host."""
    if tensor.shape != parameter.shape:
        return tensor.clone()
    placed = torch.zeros_like(parameter, memory_format=torch.preserve_format, dtype=tensor.dtype)
    return placed.copy_(tensor)
