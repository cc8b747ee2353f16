"""The passes of an MLP and of DLRM on one tile.

One object holds the activations of one tile and is used by one thread at a time. Layers are products into
memory that is kept, with fused kernels in between. In bfloat16 inputs, weights and gradients are rounded
before each product, which sums in float32 and rounds its result once; the gradients of weights are widened
right after, so that all sums over tiles are in float32. The interaction and the last layer are computed in
float32 whatever the type of the other layers: they are 6 % of the operations, and the logit would lose most
by rounding.

T samples of a tile, K dense features, F tables, D embedding_dim, V = F + 1 vectors that interact (F where K =
0), P inputs of the top MLP, d the dimension of rows before their projection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.batch import at_cache_line
from ..model.shapes import DlrmShape, tables_by_width
from .gradients import ParameterViews, stored_inputs
from .interaction import dot_workspace, interact, interact_backward, vector_workspace
from .kernels import (
    add_bias_relu,
    add_bias_relu_bf16,
    last_layer_gradients,
    logistic_loss,
    mask_by_relu,
    mask_by_relu_bf16,
)
from .linear import Library, is_wide, multiply

# ruff: noqa: N815  (tensors carry shape suffixes)


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer followed by ReLU, by the names of its parameters."""

    weight: str
    bias: str
    num_inputs: int
    """Numbers of a sample that it is given; the weight may be stored with more, all zero."""
    num_outputs: int


class MlpTiles(Protocol):
    """The layers of one MLP on the current tile."""

    def forward(self, inputs_TK: torch.Tensor) -> torch.Tensor:
        """Return the (T, N) outputs of the last layer.

        The next tile reuses their memory.
        """

    def backward(
        self, grad_TN: torch.Tensor, gradients: ParameterViews, *, to_inputs: bool
    ) -> torch.Tensor | None:
        """Write the gradients of all parameters.

        Args:
            grad_TN: gradient by the outputs of the last forward pass, overwritten.
            gradients: where the gradient of each parameter goes, by name.
            to_inputs: whether the (T, K) gradient by the inputs is wanted.
        """


class ProductTiles(Protocol):
    """The product of the current tile with one weight."""

    def forward(self, inputs_TK: torch.Tensor, outputs_TN: torch.Tensor) -> None:
        """Write the product.

        Args:
            inputs_TK: float32, as wide as the weight is stored.
            outputs_TN: float32, perhaps wider than the product; what is beyond is left as it is.
        """

    def backward(
        self,
        inputs_TK: torch.Tensor,
        grad_TN: torch.Tensor,
        gradients: ParameterViews,
        input_grad_TK: torch.Tensor,
        *,
        is_added: bool,
    ) -> None:
        """Write the gradient of the weight.

        Args:
            inputs_TK: those of the last forward pass.
            grad_TN: gradient by its outputs, as wide.
            gradients: where the gradient of each parameter goes, by name.
            input_grad_TK: gradient by the inputs, written.
            is_added: whether it is added to what is there.
        """


@dataclass(frozen=True, slots=True)
class _LayerMemory:
    """One layer's outputs and input gradients, for tiles of one size."""

    outputs_TN: torch.Tensor
    outputs_NT: torch.Tensor
    outputs: NDArray[np.float32]
    input_grad_TK: torch.Tensor


class Fp32Mlp:
    """An MLP in float32.

    Args:
        layers: from the inputs to the outputs, at least one.
        weights: parameters by name, as `FlatParameters` stores them.
        most_samples: samples of the largest tile.
        library: multiplies wide layers.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        weights: Mapping[str, torch.Tensor],
        most_samples: int,
        library: Library,
    ) -> None:
        self._layers = layers
        self._by_onednn = [
            library == "oneDNN" and is_wide(layer.num_inputs, layer.num_outputs) for layer in layers
        ]
        self._weights_KN = [weights[layer.weight][: layer.num_inputs] for layer in layers]
        # Transposed views for the backward pass: they are multiplied without a copy.
        self._weights_NK = [weight_KN.t() for weight_KN in self._weights_KN]
        self._biases_N = [weights[layer.bias].numpy() for layer in layers]
        # Memory for the largest tile, of which smaller tiles use the front.
        self._outputs = [torch.empty(most_samples, layer.num_outputs) for layer in layers]
        self._input_grads = [torch.empty(most_samples, layer.num_inputs) for layer in layers]
        self._memory = self._memory_for(most_samples)
        self._num_samples = most_samples
        self._inputs_TK = torch.empty(0)
        self._inputs_KT = self._inputs_TK

    def _memory_for(self, num_samples: int) -> list[_LayerMemory]:
        return [
            _LayerMemory(
                outputs[:num_samples],
                outputs[:num_samples].t(),
                outputs[:num_samples].numpy(),
                input_grads[:num_samples],
            )
            for outputs, input_grads in zip(self._outputs, self._input_grads, strict=True)
        ]

    def forward(self, inputs_TK: torch.Tensor) -> torch.Tensor:
        if inputs_TK is not self._inputs_TK:
            self._inputs_TK = inputs_TK
            self._inputs_KT = inputs_TK.t()
        # Views are made again where the number of samples changes: each costs as much as a small product.
        if inputs_TK.shape[0] != self._num_samples:
            self._num_samples = inputs_TK.shape[0]
            self._memory = self._memory_for(self._num_samples)
        for number, memory in enumerate(self._memory):
            product_TN = multiply(
                inputs_TK, self._weights_KN[number], memory.outputs_TN, by_onednn=self._by_onednn[number]
            )
            add_bias_relu(product_TN.numpy(), self._biases_N[number], memory.outputs)
            inputs_TK = memory.outputs_TN
        return inputs_TK

    def backward(
        self, grad_TN: torch.Tensor, gradients: ParameterViews, *, to_inputs: bool
    ) -> torch.Tensor | None:
        # From the last layer to the first: through the ReLU, then to the weights, then to the inputs.
        for number in reversed(range(len(self._layers))):
            layer, memory, by_onednn = self._layers[number], self._memory[number], self._by_onednn[number]
            mask_by_relu(grad_TN.numpy(), memory.outputs, gradients.arrays[layer.bias])
            inputs_KT = self._memory[number - 1].outputs_NT if number else self._inputs_KT
            target_KN = gradients[layer.weight]
            if target_KN.shape[0] != layer.num_inputs:
                target_KN = target_KN[: layer.num_inputs]
            weight_grad_KN = multiply(inputs_KT, grad_TN, target_KN, by_onednn=by_onednn)
            if weight_grad_KN is not target_KN:
                target_KN.copy_(weight_grad_KN)
            # Nothing below the first layer needs a gradient where its inputs are data.
            if number == 0 and not to_inputs:
                return None
            grad_TN = multiply(grad_TN, self._weights_NK[number], memory.input_grad_TK, by_onednn=by_onednn)
        return grad_TN


class Bf16Mlp:
    """An MLP whose products are in bfloat16.

    Inputs, outputs and their gradients are in float32.

    Args:
        layers: from the inputs to the outputs, at least one.
        weights: parameters by name, as `FlatParameters` stores them; of these the biases are used.
        rounded: the same in bfloat16; of these the matrices are used.
        most_samples: samples of the largest tile.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        weights: Mapping[str, torch.Tensor],
        rounded: Mapping[str, torch.Tensor],
        most_samples: int,
    ) -> None:
        def buffers(widths: Sequence[int]) -> list[torch.Tensor]:
            return [torch.empty(most_samples, width, dtype=torch.bfloat16) for width in widths]

        self._layers = layers
        self._weights_KN = [rounded[layer.weight][: layer.num_inputs] for layer in layers]
        self._biases_N = [weights[layer.bias].numpy() for layer in layers]
        self._activations = buffers([layers[0].num_inputs, *(layer.num_outputs for layer in layers)])
        self._gradients = buffers([layers[0].num_inputs, *(layer.num_outputs for layer in layers)])
        # Products in bf16 are kept apart, because the gradients themselves are float32.
        self._weight_grads = [torch.empty_like(weight_KN) for weight_KN in self._weights_KN]
        self._rows_N = [np.empty(layer.num_outputs, np.uint32) for layer in layers]
        self._outputs = torch.empty(most_samples, layers[-1].num_outputs)
        self._input_grads = torch.empty(most_samples, layers[0].num_inputs)

    def forward(self, inputs_TK: torch.Tensor) -> torch.Tensor:
        num_samples = inputs_TK.shape[0]
        # Rounded once on the way in; between layers the numbers stay in bf16.
        current_TK = self._activations[0][:num_samples]
        current_TK.copy_(inputs_TK)
        for number, weight_KN in enumerate(self._weights_KN):
            outputs_TN = self._activations[number + 1][:num_samples]
            torch.mm(current_TK, weight_KN, out=outputs_TN)
            add_bias_relu_bf16(_bits(outputs_TN), self._biases_N[number], self._rows_N[number])
            current_TK = outputs_TN
        outputs = self._outputs[:num_samples]
        outputs.copy_(current_TK)
        return outputs

    def backward(
        self, grad_TN: torch.Tensor, gradients: ParameterViews, *, to_inputs: bool
    ) -> torch.Tensor | None:
        num_samples = grad_TN.shape[0]
        current_TN = self._gradients[-1][:num_samples]
        current_TN.copy_(grad_TN)
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            mask_by_relu_bf16(
                _bits(current_TN),
                _bits(self._activations[number + 1][:num_samples]),
                gradients.arrays[layer.bias],
                self._rows_N[number],
            )
            weight_grad_KN = self._weight_grads[number]
            torch.mm(self._activations[number][:num_samples].t(), current_TN, out=weight_grad_KN)
            gradients[layer.weight][: layer.num_inputs].copy_(weight_grad_KN)
            if number == 0 and not to_inputs:
                return None
            input_grad_TK = self._gradients[number][:num_samples]
            torch.mm(current_TN, self._weights_KN[number].t(), out=input_grad_TK)
            current_TN = input_grad_TK
        input_grads = self._input_grads[:num_samples]
        input_grads.copy_(current_TN)
        return input_grads


class Fp32Product:
    """A product in float32.

    Args:
        name: of the weight.
        weights: parameters by name, as `FlatParameters` stores them.
        library: multiplies wide layers.
    """

    def __init__(self, name: str, weights: Mapping[str, torch.Tensor], library: Library) -> None:
        self._name = name
        self._weight_KN = weights[name]
        self._weight_NK = self._weight_KN.t()
        self._num_outputs = self._weight_KN.shape[1]
        self._by_onednn = library == "oneDNN" and is_wide(*self._weight_KN.shape)

    def forward(self, inputs_TK: torch.Tensor, outputs_TN: torch.Tensor) -> None:
        target_TN = outputs_TN[:, : self._num_outputs]
        product_TN = multiply(inputs_TK, self._weight_KN, target_TN, by_onednn=self._by_onednn)
        if product_TN is not target_TN:
            target_TN.copy_(product_TN)

    def backward(
        self,
        inputs_TK: torch.Tensor,
        grad_TN: torch.Tensor,
        gradients: ParameterViews,
        input_grad_TK: torch.Tensor,
        *,
        is_added: bool,
    ) -> None:
        used_TN = grad_TN[:, : self._num_outputs]
        target_KN = gradients[self._name]
        weight_grad_KN = multiply(inputs_TK.t(), used_TN, target_KN, by_onednn=self._by_onednn)
        if weight_grad_KN is not target_KN:
            target_KN.copy_(weight_grad_KN)
        found_TK = multiply(
            used_TN, self._weight_NK, input_grad_TK, by_onednn=self._by_onednn, is_added=is_added
        )
        if found_TK is not input_grad_TK:
            input_grad_TK.copy_(found_TK)


class Bf16Product:
    """A product in bfloat16 with inputs and outputs in float32.

    Args:
        name: of the weight.
        rounded: parameters by name in bfloat16, as `FlatParameters` stores them.
        most_samples: samples of the largest tile.
    """

    def __init__(self, name: str, rounded: Mapping[str, torch.Tensor], most_samples: int) -> None:
        self._name = name
        self._weight_KN = rounded[name]
        num_inputs, num_outputs = self._weight_KN.shape

        def buffer(width: int) -> torch.Tensor:
            return torch.empty(most_samples, width, dtype=torch.bfloat16)

        # The rounded inputs are kept for the gradient of the weight.
        self._inputs, self._input_grads = buffer(num_inputs), buffer(num_inputs)
        self._outputs, self._grads = buffer(num_outputs), buffer(num_outputs)
        self._weight_grad_KN = torch.empty_like(self._weight_KN)

    def forward(self, inputs_TK: torch.Tensor, outputs_TN: torch.Tensor) -> None:
        num_samples = inputs_TK.shape[0]
        rounded_TK = self._inputs[:num_samples]
        rounded_TK.copy_(inputs_TK)
        product_TN = self._outputs[:num_samples]
        torch.mm(rounded_TK, self._weight_KN, out=product_TN)
        outputs_TN[:, : product_TN.shape[1]].copy_(product_TN)

    def backward(
        self,
        inputs_TK: torch.Tensor,
        grad_TN: torch.Tensor,
        gradients: ParameterViews,
        input_grad_TK: torch.Tensor,
        *,
        is_added: bool,
    ) -> None:
        num_samples = inputs_TK.shape[0]
        rounded_TN = self._grads[:num_samples]
        rounded_TN.copy_(grad_TN[:, : rounded_TN.shape[1]])
        torch.mm(self._inputs[:num_samples].t(), rounded_TN, out=self._weight_grad_KN)
        gradients[self._name].copy_(self._weight_grad_KN)
        product_TK = self._input_grads[:num_samples]
        torch.mm(rounded_TN, self._weight_KN.t(), out=product_TK)
        if is_added:
            input_grad_TK.add_(product_TK)
        else:
            input_grad_TK.copy_(product_TK)


def mlp_layers(name: str, widths: Sequence[int]) -> list[Layer]:
    """Name the layers of an MLP as models do.

    Every other of its modules is a ReLU.
    """
    return [
        Layer(f"{name}.{2 * number}.weight", f"{name}.{2 * number}.bias", inputs, outputs)
        for number, (inputs, outputs) in enumerate(pairwise(widths))
    ]


def _bits(values: torch.Tensor) -> NDArray[np.uint16]:
    bits: NDArray[np.uint16] = values.view(torch.uint16).numpy()
    return bits


# ruff: noqa: N815  (tensors carry shape suffixes)


BuildMlp = Callable[[Sequence[Layer]], MlpTiles]


@dataclass(frozen=True, slots=True)
class _TileMemory:
    """The memory of passes for tiles of one size, as tensors and arrays."""

    inputs_TP: torch.Tensor
    inputs: NDArray[np.float32]
    logit_T: torch.Tensor
    logits: NDArray[np.float32]
    logit_grads: NDArray[np.float32]
    hidden_grad_TN: torch.Tensor
    hidden_grads: NDArray[np.float32]
    bottom_grad_TD: torch.Tensor
    bottom_grads: NDArray[np.float32]


class DenseTile:
    """The memory of one tile, used by one thread at a time.

    Args:
        shape: sizes of the model.
        weights: its parameters by name, float32.
        build_mlp: makes the hidden layers of an MLP.
        most_samples: samples of the largest tile.
    """

    def __init__(
        self,
        shape: DlrmShape,
        weights: Mapping[str, torch.Tensor],
        build_mlp: BuildMlp,
        most_samples: int,
    ) -> None:
        dim = shape.embedding_dim
        vectors = shape.num_vectors
        self._weights = weights
        self._widths = tables_by_width(shape.table_dims) if shape.table_dims else {}
        self.bottom = build_mlp(mlp_layers("bottom", shape.bottom)) if shape.bottom else None
        # Only the inputs of the top MLP are filled up: the others are the batch's, or outputs of a layer.
        filled_up = stored_inputs(shape.top_inputs)
        hidden = mlp_layers("top", (filled_up, *shape.top_widths))
        self.top = build_mlp(hidden) if hidden else None
        self._last = f"top.{2 * len(hidden)}"
        num_last = hidden[-1].num_outputs if hidden else filled_up
        self._last_weight_N = weights[f"{self._last}.weight"][:num_last, 0]
        self._last_weights = self._last_weight_N.numpy()
        self._last_bias_1 = weights[f"{self._last}.bias"]
        self._embeddings = torch.empty(most_samples if self._widths else 0, shape.num_tables, dim)
        # Inputs are stored with the zeros that fill them up; no pass writes there.
        self._inputs = torch.zeros(most_samples, filled_up)
        self._logits = torch.empty(most_samples)
        self._logit_grads = torch.empty(most_samples)
        self._hidden_grads = torch.empty(most_samples, self._last_weight_N.numel())
        self._bottom_grads = torch.empty(most_samples if self.bottom else 0, dim)
        self._no_bottom = torch.empty(0, dim)
        # One sample's vectors, their gradients, and the dots of its pairs.
        self._vectors_RW = vector_workspace(vectors, dim)
        self._vector_grads_RW = vector_workspace(vectors, dim)
        self._dots_K = dot_workspace(vectors)
        self._num_samples = most_samples
        self._memory = self._memory_for(most_samples)

    def _memory_for(self, num_samples: int) -> _TileMemory:
        inputs_TP = self._inputs[:num_samples]
        logit_T = self._logits[:num_samples]
        hidden_grad_TN = self._hidden_grads[:num_samples]
        bottom_grad_TD = self._bottom_grads[:num_samples]
        return _TileMemory(
            inputs_TP,
            inputs_TP.numpy(),
            logit_T,
            logit_T.numpy(),
            self._logit_grads[:num_samples].numpy(),
            hidden_grad_TN,
            hidden_grad_TN.numpy(),
            bottom_grad_TD,
            bottom_grad_TD.numpy(),
        )

    def forward(self, dense_TK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (T,) logits, as `StepTile.forward`."""
        # Views are made again where the number of samples changes.
        if dense_TK.shape[0] != self._num_samples:
            self._num_samples = dense_TK.shape[0]
            self._memory = self._memory_for(self._num_samples)
        memory = self._memory
        # Rows of other dims are projected to the common one first, so that all can interact.
        if self._widths:
            embeddings = [at_cache_line(emb_TFd) for emb_TFd in embeddings]
        emb_TFD = self._project(embeddings)
        bottom_TD = self.bottom.forward(at_cache_line(dense_TK)) if self.bottom else self._no_bottom
        vectors = bottom_TD.numpy(), emb_TFD.numpy()
        interact(*vectors, self._vectors_RW, self._dots_K, memory.inputs)

        hidden_TN = self.top.forward(memory.inputs_TP) if self.top else memory.inputs_TP
        # The gradients need what the layers saw: kept until the backward pass of the same tile.
        self._saved = vectors, embeddings, hidden_TN
        torch.mv(hidden_TN, self._last_weight_N, out=memory.logit_T)
        memory.logit_T.add_(self._last_bias_1)
        return memory.logit_T

    def backward(
        self,
        label_T: torch.Tensor,
        scale: float,
        embedding_grads: Sequence[torch.Tensor],
        gradients: ParameterViews,
    ) -> float:
        """Write the gradients of the last tile; return its loss, as `StepTile.backward`."""
        num_samples = label_T.shape[0]
        memory = self._memory
        vectors, embeddings, hidden_TN = self._saved
        # The gradient of the loss is computed with the loss, in one pass over the logits.
        grad_T = memory.logit_grads
        loss: float = logistic_loss(memory.logits, label_T.numpy(), np.float32(scale), grad_T)

        # The last layer has one output, so its products are those of vectors.
        last_layer_gradients(
            grad_T,
            hidden_TN.numpy(),
            self._last_weights,
            gradients.arrays[f"{self._last}.weight"].reshape(-1)[: self._last_weights.size],
            gradients.arrays[f"{self._last}.bias"],
            memory.hidden_grads,
        )
        inputs_grad_TP = memory.hidden_grad_TN
        # Backwards through the MLP above the interaction.
        if self.top:
            found = self.top.backward(inputs_grad_TP, gradients, to_inputs=True)
            assert found is not None
            inputs_grad_TP = found

        # Without a projection, gradients of embeddings go straight to the caller's memory.
        emb_grad_TFD = embedding_grads[0] if not self._widths else self._embeddings[:num_samples]
        interact_backward(
            inputs_grad_TP.numpy(),
            *vectors,
            self._vectors_RW,
            self._vector_grads_RW,
            memory.bottom_grads,
            emb_grad_TFD.numpy(),
        )
        # The dense features are data: nothing flows back to them.
        if self.bottom:
            self.bottom.backward(memory.bottom_grad_TD, gradients, to_inputs=False)
        if self._widths:
            self._project_backward(emb_grad_TFD, embeddings, embedding_grads, gradients)
        return loss

    def _project(self, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the (T, F, D) embeddings of all tables, projected where needed."""
        # With one width for all tables there is nothing to project, and nothing is copied.
        if not self._widths:
            (emb_TFD,) = embeddings
            return emb_TFD
        joined_TFD = self._embeddings[: embeddings[0].shape[0]]
        # The tables of one width form a batch of matrices, so one product serves them all.
        for (dim, tables), emb_TFd in zip(self._widths.items(), embeddings, strict=True):
            map_FdD = self._map(dim, self._weights)
            emb_TFD = emb_TFd
            if map_FdD is not None:
                emb_TFD = torch.bmm(emb_TFd.transpose(0, 1), map_FdD).transpose(0, 1)
            joined_TFD[:, list(tables)] = emb_TFD
        return joined_TFD

    def _project_backward(
        self,
        emb_grad_TFD: torch.Tensor,
        embeddings: Sequence[torch.Tensor],
        embedding_grads: Sequence[torch.Tensor],
        gradients: ParameterViews,
    ) -> None:
        """Write the gradients of the projections and of the embeddings before them."""
        for (dim, tables), emb_TFd, grad_TFd in zip(
            self._widths.items(), embeddings, embedding_grads, strict=True
        ):
            # The tables of one width form a batch of matrices, so one product serves them all.
            grad_FTD = emb_grad_TFD[:, list(tables)].transpose(0, 1)
            map_FdD = self._map(dim, self._weights)
            # Tables of the common width have no projection: their gradient is that of the interaction.
            if map_FdD is None:
                grad_TFd.copy_(grad_FTD.transpose(0, 1))
                continue
            map_grad_FdD = self._map(dim, gradients)
            assert map_grad_FdD is not None
            torch.bmm(emb_TFd.permute(1, 2, 0), grad_FTD, out=map_grad_FdD)
            grad_TFd.copy_(torch.bmm(grad_FTD, map_FdD.transpose(1, 2)).transpose(0, 1))

    @staticmethod
    def _map(dim: int, by_name: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        return by_name.get(f"projections.maps.{dim}")
