"""DLRM's dense layers as kernels with preallocated memory: forward, backward and optimizer step.

The interaction reads rows straight from the tier, and gradients go straight to where they are summed, so that
no (B, F, D) tensor of embeddings is written. All shapes are those of a whole batch: a short batch is padded
with samples of zeros whose gradient is zero, so the work can be recorded once and replayed. The products
multiply float32 or bfloat16 numbers and add in float32; the weights, the sums of their gradients and the last
layer are always float32. `FusedHostDense` runs the same layers synchronously, on embeddings looked up before.

B samples, K dense features, F tables, D embedding_dim, P inputs of the top MLP, N outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.batch import Batch
from ..device import Device
from ..model.dense_step import DenseStep
from ..model.dlrm import Dlrm
from ..model.gradients import DenseDtype
from .twins import BIAS_BLOCK, LOSS_BLOCK, DenseRule

if TYPE_CHECKING:
    from ..model.kernels import Objective

# ruff: noqa: N815  (tensors carry shape suffixes)


Launch = Callable[..., None]
"""Queues a kernel: ``launch(name or function, *arguments)``."""

_ROUNDED_TO = 16
"""Inputs of a layer are rounded up to this, so that products run on tensor cores: 13 to 16, 367 to 368."""
_STATES: dict[str, tuple[str, ...]] = {"sgd": (), "adagrad": ("sum",), "adam": ("exp_avg", "exp_avg_sq")}
"""Torch's names for the optimizer states of each weight."""


@dataclass(frozen=True, slots=True)
class DenseInputs:
    """The inputs of the dense layers, in fixed memory."""

    label_B: torch.Tensor
    """uint8."""
    dense_BK: torch.Tensor
    """float32; zeros after the batch."""
    num_samples_1: torch.Tensor
    """int32."""
    weights_SD: torch.Tensor
    """Rows of the fast tier."""
    slots_BF: torch.Tensor
    """int32; slot of each lookup."""
    grad_BFD: torch.Tensor
    """float32, written: gradient of each lookup."""


class FusedDlrm:
    """The dense layers of a run, whose parameters become parts of one vector.

    Args:
        model: the layers; one table group, no projection.
        optimizers: torch's own, whose state is kept up to date for checkpoints.
        rule: what they do.
        batch_size: samples of a whole batch.
        most_samples: those of the largest batch.
        device: where everything is.
        dtype: type of the products.
    """

    def __init__(
        self,
        model: Dlrm,
        optimizers: Sequence[torch.optim.Optimizer],
        rule: DenseRule,
        batch_size: int,
        most_samples: int,
        device: Device,
        dtype: DenseDtype,
    ) -> None:
        self.rule = rule
        self.device = device.torch_device
        self._model = model
        self._optimizers = optimizers
        self._scale = 1 / batch_size
        self._counts_P: torch.Tensor | None = None
        """Steps queued, those before a checkpoint included, as torch's optimizers count them."""
        self._num_steps = 0
        """The same of each parameter, where they are counted."""
        self._last_rate = -1.0
        self._last_rates_2 = np.empty(0, np.float32)
        on = device.torch_device
        compute = torch.bfloat16 if dtype == "bf16" else torch.float32
        # The first layer of each MLP reads an input written here and padded with zeros; others read a layer.
        num_bottom = len(model.shape.bottom[1:])
        shapes = [
            (_rounded(inputs) if number in (0, num_bottom) else inputs, outputs)
            for number, (inputs, outputs) in enumerate(model.shape.layers)
        ]
        # All parameters are one vector, layer after layer, so that one kernel takes the whole step.
        num_weights = sum((inputs + 1) * outputs for inputs, outputs in shapes)
        self._weights_N = torch.zeros(num_weights, device=on, dtype=torch.float32)
        self._grad_N = torch.zeros(num_weights, device=on, dtype=torch.float32)
        self._states_KN = torch.zeros(rule.num_states, num_weights, device=on, dtype=torch.float32)
        self._rounded_N = torch.zeros(num_weights, dtype=compute, device=on) if dtype == "bf16" else None
        self._keeps_sums = keeps_float32_sums(on, compute)

        used_N = self._weights_N if self._rounded_N is None else self._rounded_N
        # In bfloat16 the products read a rounded copy, which the step writes with the weights.
        layers = [
            _Layer.of(start, inputs, outputs, used_N, self._grad_N, most_samples)
            for start, (inputs, outputs) in zip(_starts(shapes), shapes, strict=True)
        ]
        self._bottom, self._top, self._last = layers[:num_bottom], layers[num_bottom:-1], layers[-1]
        self._adopt_parameters(layers)
        # What goes into each MLP, and the gradients that come out of them.
        self._dense_BK = torch.zeros(
            most_samples,
            self._bottom[0].num_inputs if self._bottom else 0,
            device=on,
            dtype=torch.float32,
        ).to(compute)
        first_of_top = (self._top or [self._last])[0]
        self._inputs_BP = torch.zeros(most_samples, first_of_top.num_inputs, dtype=compute, device=on)
        self._inputs_grad_BP = torch.zeros_like(self._inputs_BP)
        # Each block of samples leaves its loss and the gradients of the last layer.
        num_blocks = -(-most_samples // LOSS_BLOCK)
        self._losses_K = torch.zeros(num_blocks, dtype=torch.float64, device=on)
        self._last_partials_KM = torch.zeros(
            num_blocks, self._last.num_inputs + 1, device=on, dtype=torch.float32
        )
        self.loss_1 = torch.zeros(1, dtype=torch.float64, device=on)
        """Loss of the last step in nats, summed over its samples."""

    def next_rates(self, rate: float) -> NDArray[np.float32]:
        """The numbers of the step that is queued next, for this learning rate."""
        # Counted when a step is queued, as the numbers go up with its batch.
        if self._counts_P is None:
            self._counts_P = self._adopt_states()
            self._num_steps = int(self._counts_P[0]) if self._counts_P.numel() else 0
        self._num_steps += 1
        if self._counts_P.numel():
            self._counts_P += 1
        # Only Adam's numbers change from step to step.
        if rate != self._last_rate or self.rule.name == "adam":
            self._last_rate = rate
            self._last_rates_2 = self.rule.rates(rate, self._num_steps)
        return self._last_rates_2

    def queue_passes(self, launch: Launch, inputs: DenseInputs) -> None:
        """Queue everything between the rows of a batch and their gradients."""
        self._queue_forward(launch, inputs)
        self._queue_last(launch, inputs)
        self._queue_backward(launch, inputs)

    def queue_step(self, launch: Launch, rates_2: torch.Tensor) -> None:
        """Queue the step of the layers, with `next_rates` on the device."""
        launch(
            "step_dense",
            self.rule,
            rates_2,
            self._weights_N,
            self._grad_N,
            self._states_KN,
            self._rounded_N,
        )

    def _queue_forward(self, launch: Launch, inputs: DenseInputs) -> None:
        bottom_BD = None
        # Dense values through the bottom MLP, where the model has one.
        if self._bottom:
            # Then the dots of its output with the rows, which are the inputs of the top MLP.
            launch(_copy_dense, inputs.dense_BK, self._dense_BK)
            bottom_BD = self._dense_BK
            for layer in self._bottom:
                launch(_forward, layer, bottom_BD)
                bottom_BD = layer.outputs_BN
        launch(
            "gather_dots",
            inputs.weights_SD,
            inputs.slots_BF,
            inputs.num_samples_1,
            bottom_BD,
            self._inputs_BP,
        )
        hidden_BN = self._inputs_BP
        for layer in self._top:
            launch(_forward, layer, hidden_BN)
            hidden_BN = layer.outputs_BN

    def _queue_last(self, launch: Launch, inputs: DenseInputs) -> None:
        """Queue the last layer, whose products are those of vectors, and the loss."""
        place = slice(self._last.weight_place.start, self._last.bias_place.stop)
        # Without hidden layers in the top MLP, the last layer reads the dots themselves.
        launch(
            "last_layer",
            self._top[-1].outputs_BN if self._top else self._inputs_BP,
            self._weights_N[place],
            inputs.label_B,
            inputs.num_samples_1,
            self._scale,
            self._top[-1].grad_BN if self._top else self._inputs_grad_BP,
            self._last_partials_KM,
            self._losses_K,
            self._grad_N[place],
            self.loss_1,
        )

    def _queue_backward(self, launch: Launch, inputs: DenseInputs) -> None:
        # Back through the top MLP, the dots and the bottom MLP; nothing wants the gradient of dense values.
        self._queue_mlp_backward(launch, self._top, self._inputs_BP, self._inputs_grad_BP)
        bottom_BD = self._bottom[-1].outputs_BN if self._bottom else None
        launch(
            "gather_dots_backward",
            inputs.weights_SD,
            inputs.slots_BF,
            inputs.num_samples_1,
            bottom_BD,
            self._inputs_grad_BP,
            inputs.grad_BFD,
            self._bottom[-1].grad_BN if self._bottom else None,
        )
        self._queue_mlp_backward(launch, self._bottom, self._dense_BK, None)

    def _queue_mlp_backward(
        self,
        launch: Launch,
        layers: Sequence[_Layer],
        inputs_BN: torch.Tensor,
        inputs_grad_BN: torch.Tensor | None,
    ) -> None:
        """Queue the gradients of layers, from the last to the first."""
        for number in reversed(range(len(layers))):
            layer = layers[number]
            # The layer before has the inputs and takes their gradient; the first layer has the MLP's own.
            before = layers[number - 1] if number else None
            launch("relu_backward", layer.grad_BN, layer.outputs_BN, layer.partials_KN, layer.bias_grad_N)
            launch(
                _backward,
                layer,
                before.outputs_BN if before else inputs_BN,
                before.grad_BN if before else inputs_grad_BN,
                self._keeps_sums,
            )

    def _adopt_parameters(self, layers: Sequence[_Layer]) -> None:
        """Move the model's parameters into the vector, where it uses them."""
        self._parameters: list[tuple[torch.Tensor, slice, _Layer]] = []
        modules = [self._model.bottom, self._model.top]
        linears = [
            each for module in modules if module for each in module if isinstance(each, torch.nn.Linear)
        ]
        # Each parameter of the model becomes a view of its part, so checkpoints and exports see every step.
        for linear, layer in zip(linears, layers, strict=True):
            for parameter, place in ((linear.weight, layer.weight_place), (linear.bias, layer.bias_place)):
                view = self._view(self._weights_N, parameter, place, layer)
                view.copy_(parameter.detach())
                parameter.data = view
                self._parameters.append((parameter, place, layer))
        # The first products need the rounded weights before any step wrote them.
        if self._rounded_N is not None:
            self._rounded_N.copy_(self._weights_N)

    @staticmethod
    def _view(vector_N: torch.Tensor, parameter: torch.Tensor, place: slice, layer: _Layer) -> torch.Tensor:
        """The part of a parameter in a vector, in the model's shape."""
        part = vector_N[place]
        return part.view(-1, layer.num_inputs)[:, : parameter.shape[1]] if parameter.dim() == 2 else part

    def _adopt_states(self) -> torch.Tensor:
        """Copy torch's optimizer states, perhaps restored; keep theirs as views.

        Returns:
            (P,) the counts of steps of all parameters, none where steps do not count.
        """
        # The first step of this process: weights may have been restored, too.
        if self._rounded_N is not None:
            self._rounded_N.copy_(self._weights_N)
        is_counted = bool(_STATES[self.rule.name])
        counts_P = torch.zeros(len(self._parameters) if is_counted else 0, dtype=torch.float32, device="cpu")
        # The optimizer that holds the state of each parameter.
        owner = {
            parameter: optimizer
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        for parameter_number, (parameter, place, layer) in enumerate(self._parameters):
            state = owner[parameter].state[parameter]
            # A restored state is copied to its part; from then on torch's optimizer has a view of it.
            for number, name in enumerate(_STATES[self.rule.name]):
                view = self._view(self._states_KN[number], parameter, place, layer)
                if name in state:
                    view.copy_(state[name])
                state[name] = view
            # Torch keeps a step count for every parameter; here all are equal.
            if is_counted:
                counts_P[parameter_number] = float(state.get("step", 0.0))
                state["step"] = counts_P[parameter_number]
        return counts_P


@dataclass(frozen=True, slots=True)
class _Layer:
    """One linear layer, and what its passes leave."""

    num_inputs: int
    """Perhaps rounded up; the weights of those beyond the model's are zero."""
    weight_place: slice
    """In the vector of all parameters: outputs by inputs."""
    bias_place: slice
    weight_NM: torch.Tensor
    """(outputs, inputs) of the type of the products."""
    bias_N: torch.Tensor
    weight_grad_NM: torch.Tensor
    """float32."""
    bias_grad_N: torch.Tensor
    outputs_BN: torch.Tensor
    grad_BN: torch.Tensor
    partials_KN: torch.Tensor

    @classmethod
    def of(
        cls,
        start: int,
        num_inputs: int,
        num_outputs: int,
        weights_N: torch.Tensor,
        grads_N: torch.Tensor,
        batch_size: int,
    ) -> _Layer:
        middle = start + num_inputs * num_outputs
        weight_place, bias_place = slice(start, middle), slice(middle, middle + num_outputs)
        # What the layer leaves for the backward pass, with the memory of its gradients.
        outputs_BN = torch.zeros(batch_size, num_outputs, dtype=weights_N.dtype, device=weights_N.device)
        return cls(
            num_inputs,
            weight_place,
            bias_place,
            weights_N[weight_place].view(num_outputs, num_inputs),
            weights_N[bias_place],
            grads_N[weight_place].view(num_outputs, num_inputs),
            grads_N[bias_place],
            outputs_BN,
            torch.zeros_like(outputs_BN),
            torch.zeros(
                -(-batch_size // BIAS_BLOCK), num_outputs, device=weights_N.device, dtype=torch.float32
            ),
        )


def _rounded(num_inputs: int) -> int:
    return -(-num_inputs // _ROUNDED_TO) * _ROUNDED_TO


def _starts(shapes: Sequence[tuple[int, int]]) -> list[int]:
    """Return where the parameters of each layer begin in the vector."""
    stops = np.cumsum([(inputs + 1) * outputs for inputs, outputs in shapes])
    return [0, *stops[:-1].tolist()]


def _copy_dense(dense_BK: torch.Tensor, target_BK: torch.Tensor) -> None:
    """Copy dense values in the type of the products."""
    target_BK[:, : dense_BK.shape[1]] = dense_BK


def _forward(layer: _Layer, inputs_BM: torch.Tensor) -> None:
    """Write ``relu(inputs W^T + b)``; padding samples get what the bias makes of zeros."""
    # ReLU in the product's own pass over the outputs, as the libraries of a GPU have it.
    torch._addmm_activation(layer.bias_N, inputs_BM, layer.weight_NM.t(), out=layer.outputs_BN)


def _backward(
    layer: _Layer, inputs_BM: torch.Tensor, inputs_grad_BM: torch.Tensor | None, keeps_sums: bool
) -> None:
    """Write the gradients of the weights and, where wanted, of the inputs.

    Args:
        layer: whose gradient by its outputs is there.
        inputs_BM: of the layer.
        inputs_grad_BM: written.
        keeps_sums: see `keeps_float32_sums`.
    """
    grad_NB, target_NM = layer.grad_BN.t(), layer.weight_grad_NM
    if grad_NB.dtype == target_NM.dtype:
        torch.mm(grad_NB, inputs_BM, out=target_NM)
    elif keeps_sums:
        torch.mm(grad_NB, inputs_BM, out_dtype=target_NM.dtype, out=target_NM)
    else:
        target_NM.copy_(torch.mm(grad_NB, inputs_BM))
    if inputs_grad_BM is not None:
        torch.mm(layer.grad_BN, layer.weight_NM, out=inputs_grad_BM)


def keeps_float32_sums(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether products of ``dtype`` can leave sums in float32.

    Torch can on GPUs from 2.8 on; elsewhere sums are rounded to ``dtype`` once.
    """
    factor = torch.zeros(_ROUNDED_TO, _ROUNDED_TO, dtype=dtype, device=device)
    try:
        torch.mm(factor, factor, out_dtype=torch.float32, out=torch.empty_like(factor, dtype=torch.float32))
    except (RuntimeError, TypeError):
        return False
    return True


class FusedHostDense:
    """Runs the same kernels on embeddings looked up before, with equal bits.

    Args:
        fused: the dense layers.
        kernels: by name.
        plain: a step of the same model, which predicts.
        batch_size: samples of the largest batch.
    """

    def __init__(
        self,
        fused: FusedDlrm,
        kernels: Mapping[str, Callable[..., None]],
        plain: DenseStep,
        batch_size: int,
    ) -> None:
        self._fused = fused
        self._kernels = kernels
        self._plain = plain
        self._batch_size = batch_size
        self._rates_2 = torch.empty(2, device=fused.device, dtype=torch.float32)
        self._rates = self._rates_2.unbind()
        self.dtype: DenseDtype = plain.dtype
        self.objective: Objective | None = None

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        """Pass a batch forward and backward, as `DenseStep.train`."""
        # Numbers of the host are arguments of kernels: to copy them would wait for a GPU, and what the layers
        # queue could not be queued while the vectors of the batch are still on their way.
        (emb_BFD,) = embeddings
        num_samples, num_tables, dim = emb_BFD.shape
        num_lookups = num_samples * num_tables
        on = emb_BFD.device
        # The embeddings form a small tier with one slot for each lookup.
        slots_BF = torch.full((self._batch_size, num_tables), -1, dtype=torch.int32, device=on)
        slots_BF.view(-1)[:num_lookups] = torch.arange(num_lookups, dtype=torch.int32, device=on)
        inputs = DenseInputs(
            self._padded(batch.label_B.to(on)),
            self._padded(batch.dense_BK.to(on)),
            torch.full((1,), num_samples, dtype=torch.int32, device=on),
            emb_BFD.detach().reshape(num_lookups, dim),
            slots_BF,
            torch.empty(self._batch_size, num_tables, dim, device=on, dtype=torch.float32),
        )
        self._fused.queue_passes(self._run, inputs)
        emb_BFD.grad = inputs.grad_BFD[:num_samples]
        loss: torch.Tensor = self._fused.loss_1[0].clone()
        return loss

    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (B,) logits."""
        return self._plain.predict(batch, embeddings)

    def prepare(self, rate: float) -> None:
        """Set the learning rate of the step of the layers."""
        for place, number in zip(self._rates, self._fused.next_rates(rate).tolist(), strict=True):
            place.fill_(number)

    def step(self) -> None:
        """Take one step of the layers."""
        self._fused.queue_step(self._run, self._rates_2)

    def _run(self, kernel: str | Callable[..., object], *arguments: object) -> None:
        (self._kernels[kernel] if isinstance(kernel, str) else kernel)(*arguments)

    def _padded(self, values: torch.Tensor) -> torch.Tensor:
        padded = values.new_zeros(self._batch_size, *values.shape[1:])
        padded[: values.shape[0]] = values
        return padded
