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

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.batch import at_cache_line
from .gradients import ParameterViews, stored_inputs
from .interaction import dot_workspace, interact, interact_backward, vector_workspace
from .kernels import (
    Matrix,
    StepWeights,
    add_bias_relu,
    add_bias_relu_bf16,
    last_layer_gradients,
    logistic_loss,
    mask_by_relu,
    mask_by_relu_bf16,
)
from .shapes import DlrmShape, tables_by_dim

if TYPE_CHECKING:
    from .kernels import Targets


class Front:
    """Memory for the largest tile, of which smaller tiles use the front.

    Views are made again where the number of samples changes: each costs as much as a small product.

    Args:
        weights: of the step, which has the samples of the largest tile.
        width: numbers of a sample.
        dtype: float32, or bfloat16, whose array has its bits.
    """

    def __init__(self, weights: StepWeights, width: int, dtype: torch.dtype = torch.float32) -> None:
        # Inputs are stored with the zeros that fill them up; no pass writes there.
        self._whole = torch.zeros(weights.most_samples, width, dtype=dtype, device="cpu")
        self.cut(weights.most_samples)

    def cut(self, num_samples: int) -> None:
        """Cut the memory for a tile of so many samples."""
        self.tensor = self._whole[:num_samples]
        is_rounded = self.tensor.dtype == torch.bfloat16
        self.array: NDArray[Any] = (self.tensor.view(torch.uint16) if is_rounded else self.tensor).numpy()


class Mlp:
    """The layers of one MLP on the current tile; inputs, outputs and their gradients are float32.

    In bfloat16 numbers are rounded once on the way in, and stay so between layers.

    Args:
        name: of the MLP in the model, every other of whose modules is a ReLU.
        widths: from the inputs to the outputs, of one layer or more. Weights may be stored with more inputs,
            all zero.
        weights: of the model.
    """

    def __init__(self, name: str, widths: Sequence[int], weights: StepWeights) -> None:
        dtype = weights.dtype
        self._names = [f"{name}.{2 * number}" for number in range(len(widths) - 1)]
        self._matrices = [
            Matrix(f"{layer}.weight", weights, num_inputs)
            for layer, num_inputs in zip(self._names, widths, strict=False)
        ]
        self._biases_N = [weights.values.arrays[f"{layer}.bias"] for layer in self._names]
        self._outputs = [Front(weights, width, dtype) for width in widths[1:]]
        self._input_grads = [Front(weights, width, dtype) for width in widths[:-1]]
        self._inputs_TK = torch.empty(0, dtype=torch.float32, device="cpu")
        self._num_samples = weights.most_samples
        # What goes into an MLP in bfloat16 and comes out of it, both ways.
        self._is_rounded = weights.rounded is not None
        num_inputs, num_outputs = (widths[0], widths[-1]) if self._is_rounded else (0, 0)
        self._rounded_inputs = Front(weights, num_inputs, dtype)
        self._rounded_grads = Front(weights, num_outputs, dtype)
        self._float_outputs = Front(weights, num_outputs)
        self._float_input_grads = Front(weights, num_inputs)
        self._rows_N = [np.empty(width, np.uint32) for width in widths[1:]]

    def forward(self, inputs_TK: torch.Tensor) -> torch.Tensor:
        """Return the (T, N) outputs of the last layer; the next tile reuses their memory."""
        if inputs_TK.shape[0] != self._num_samples:
            self._cut(inputs_TK.shape[0])
        if self._is_rounded:
            inputs_TK = self._rounded_inputs.tensor.copy_(inputs_TK)
        self._inputs_TK = inputs_TK
        for number, (matrix, outputs) in enumerate(zip(self._matrices, self._outputs, strict=True)):
            product_TN = matrix.outputs(inputs_TK, outputs.tensor)
            if self._is_rounded:
                add_bias_relu_bf16(outputs.array, self._biases_N[number], self._rows_N[number])
            else:
                product = outputs.array if product_TN is outputs.tensor else product_TN.numpy()
                add_bias_relu(product, self._biases_N[number], outputs.array)
            inputs_TK = outputs.tensor
        return self._float_outputs.tensor.copy_(inputs_TK) if self._is_rounded else inputs_TK

    def backward(self, grad_TN: torch.Tensor, gradients: ParameterViews, *, to_inputs: bool) -> torch.Tensor:
        """Write the gradients of all parameters; return the (T, K) gradient by the inputs.

        Args:
            grad_TN: gradient by the outputs of the last forward pass, overwritten.
            gradients: where the gradient of each parameter goes, by name.
            to_inputs: whether the gradient by the inputs is computed; else nothing of use is returned.
        """
        if self._is_rounded:
            grad_TN = self._rounded_grads.tensor.copy_(grad_TN)
        # From the last layer to the first: through the ReLU, then to the weights, then to the inputs.
        for number in reversed(range(len(self._names))):
            bias_grad_N = gradients.arrays[f"{self._names[number]}.bias"]
            outputs = self._outputs[number].array
            if self._is_rounded:
                mask_by_relu_bf16(
                    grad_TN.view(torch.uint16).numpy(), outputs, bias_grad_N, self._rows_N[number]
                )
            else:
                mask_by_relu(grad_TN.numpy(), outputs, bias_grad_N)
            inputs_TK = self._outputs[number - 1].tensor if number else self._inputs_TK
            matrix = self._matrices[number]
            matrix.write_gradient(inputs_TK, grad_TN, gradients)
            # Nothing below the first layer needs a gradient where its inputs are data.
            if number == 0 and not to_inputs:
                return grad_TN
            grad_TN = matrix.input_gradient(grad_TN, self._input_grads[number].tensor)
        return self._float_input_grads.tensor.copy_(grad_TN) if self._is_rounded else grad_TN

    def _cut(self, num_samples: int) -> None:
        self._num_samples = num_samples
        rounded = self._rounded_inputs, self._rounded_grads, self._float_outputs, self._float_input_grads
        for memory in (*self._outputs, *self._input_grads, *rounded):
            memory.cut(num_samples)


class LastLayer:
    """The layer of a tile that gives the logits, in float32, and the loss.

    Args:
        name: of the layer.
        num_inputs: that are used.
        weights: of the model.
    """

    def __init__(self, name: str, num_inputs: int, weights: StepWeights) -> None:
        self._weight, self._bias = f"{name}.weight", f"{name}.bias"
        self._weight_N = weights.values[self._weight][:num_inputs, 0]
        self._weights = self._weight_N.numpy()
        self._bias_1 = weights.values[self._bias]
        self._logits = torch.empty(weights.most_samples, dtype=torch.float32, device="cpu")
        self._logit_grads = torch.empty(weights.most_samples, dtype=torch.float32, device="cpu").numpy()
        self._ones = np.ones(weights.most_samples, np.float32)
        self._input_grads = Front(weights, num_inputs)
        self._inputs_TN = torch.empty(0, dtype=torch.float32, device="cpu")

    def forward(self, inputs_TN: torch.Tensor) -> torch.Tensor:
        """Return (T,) logits; the next tile reuses their memory."""
        self._inputs_TN = inputs_TN
        logit_T = self._logits[: inputs_TN.shape[0]]
        torch.mv(inputs_TN, self._weight_N, out=logit_T)
        return logit_T.add_(self._bias_1)

    def backward(
        self, target: torch.Tensor | Targets, scale: float, gradients: ParameterViews
    ) -> tuple[float, torch.Tensor]:
        """Return the loss of the last tile, and its (T, N) gradient by the inputs."""
        num_samples = target.shape[0]
        # The gradient of the loss is computed with the loss, in one pass over the logits.
        logit_T, grads = self._logits[:num_samples], self._logit_grads[:num_samples]
        if isinstance(target, torch.Tensor):
            loss: float = logistic_loss(
                logit_T.numpy(), target.numpy(), self._ones[:num_samples], np.float32(scale), grads
            )
        else:
            loss = target.write_gradients(logit_T, scale, torch.from_numpy(grads))
        if num_samples != self._input_grads.tensor.shape[0]:
            self._input_grads.cut(num_samples)
        # With one output, the products are those of vectors.
        last_layer_gradients(
            grads,
            self._inputs_TN.numpy(),
            self._weights,
            gradients.arrays[self._weight].reshape(-1)[: self._weights.size],
            gradients.arrays[self._bias],
            self._input_grads.array,
        )
        return loss, self._input_grads.tensor


class LastLayers(LastLayer):
    """The layer of a tile that gives several logits of each sample, in float32, and the loss.

    Args:
        name: of the layer.
        num_inputs: that are used.
        weights: of the model.
    """

    def __init__(self, name: str, num_inputs: int, weights: StepWeights) -> None:
        super().__init__(name, num_inputs, weights)
        self._weight_NL = weights.values[self._weight][:num_inputs]
        self._logits = torch.empty(
            weights.most_samples, self._weight_NL.shape[1], dtype=torch.float32, device="cpu"
        )
        self._grads = torch.empty_like(self._logits)

    def forward(self, inputs_TN: torch.Tensor) -> torch.Tensor:
        """Return (T, L) logits; the next tile reuses their memory."""
        self._inputs_TN = inputs_TN
        logit_TL = self._logits[: inputs_TN.shape[0]]
        torch.mm(inputs_TN, self._weight_NL, out=logit_TL)
        return logit_TL.add_(self._bias_1)

    def backward(
        self, target: torch.Tensor | Targets, scale: float, gradients: ParameterViews
    ) -> tuple[float, torch.Tensor]:
        """Return the loss of the last tile, and its (T, N) gradient by the inputs."""
        assert not isinstance(target, torch.Tensor), "several labels have targets"
        num_samples = target.shape[0]
        grad_TL = self._grads[:num_samples]
        loss = target.write_gradients(self._logits[:num_samples], scale, grad_TL)
        if num_samples != self._input_grads.tensor.shape[0]:
            self._input_grads.cut(num_samples)
        weight_grad_NL = gradients[self._weight][: self._weight_NL.shape[0]]
        torch.mm(self._inputs_TN.t(), grad_TL, out=weight_grad_NL)
        torch.sum(grad_TL, 0, out=gradients[self._bias])
        torch.mm(grad_TL, self._weight_NL.t(), out=self._input_grads.tensor)
        return loss, self._input_grads.tensor


def build_last_layer(name: str, num_inputs: int, weights: StepWeights) -> LastLayer:
    """Build the layer of the name that gives the logits."""
    is_single = weights.values[f"{name}.bias"].numel() == 1
    return (LastLayer if is_single else LastLayers)(name, num_inputs, weights)


class DenseTile:
    """The memory of one tile, used by one thread at a time.

    Args:
        shape: sizes of the model.
        weights: of the model.
    """

    def __init__(self, shape: DlrmShape, weights: StepWeights) -> None:
        dim = shape.embedding_dim
        self._weights = weights.values
        self._widths = tables_by_dim(shape.table_dims) if shape.table_dims else {}
        self.bottom = Mlp("bottom", shape.bottom, weights) if shape.bottom else None
        # Only the inputs of the top MLP are filled up: the others are the batch's, or outputs of a layer.
        filled_up = stored_inputs(shape.top_inputs)
        widths = (filled_up, *shape.top_widths)
        self.top = Mlp("top", widths, weights) if shape.top_widths else None
        self._last = build_last_layer(f"top.{2 * len(shape.top_widths)}", widths[-1], weights)
        most_samples = weights.most_samples
        self._embeddings = torch.empty(
            most_samples if self._widths else 0, shape.num_tables, dim, dtype=torch.float32, device="cpu"
        )
        self._inputs = Front(weights, filled_up)
        self._bottom_grads = Front(weights, dim)
        self._nothing_TD = torch.empty(0, dim, dtype=torch.float32, device="cpu")
        # One sample's vectors, their gradients, and the dots of its pairs.
        self._vectors_RW = vector_workspace(shape.num_vectors, dim)
        self._vector_grads_RW = vector_workspace(shape.num_vectors, dim)
        self._dots_K = dot_workspace(shape.num_vectors)
        self._num_samples = most_samples

    def forward(self, dense_TK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (T,) logits, or (T, L); their memory is used again by the next tile.

        Args:
            dense_TK: dense features.
            embeddings: (T, F, d) for each table group.
        """
        if dense_TK.shape[0] != self._num_samples:
            self._num_samples = dense_TK.shape[0]
            self._inputs.cut(self._num_samples)
            self._bottom_grads.cut(self._num_samples)
        # Rows of other dims are projected to the common one first, so that all can interact.
        if self._widths:
            embeddings = [at_cache_line(emb_TFd) for emb_TFd in embeddings]
        emb_TFD = self._project(embeddings)
        bottom_TD = self.bottom.forward(at_cache_line(dense_TK)) if self.bottom else self._nothing_TD
        vectors = bottom_TD.numpy(), emb_TFD.numpy()
        interact(*vectors, self._vectors_RW, self._dots_K, self._inputs.array)
        # The gradients need what the layers saw: kept until the backward pass of the same tile.
        self._saved = vectors, embeddings
        inputs_TP = self._inputs.tensor
        return self._last.forward(self.top.forward(inputs_TP) if self.top else inputs_TP)

    def backward(
        self,
        target: torch.Tensor | Targets,
        scale: float,
        embedding_grads: Sequence[torch.Tensor],
        gradients: ParameterViews,
    ) -> float:
        """Write the last tile's gradients, times ``scale``; return its loss in nats.

        Args:
            target: labels, of a run with an objective its targets.
            scale: one over the nominal batch size.
            embedding_grads: (T, F, d) for each table group, written.
            gradients: where the tile's gradient of each parameter goes, by name.
        """
        vectors, embeddings = self._saved
        loss, inputs_grad_TP = self._last.backward(target, scale, gradients)
        # Backwards through the MLP above the interaction.
        if self.top:
            inputs_grad_TP = self.top.backward(inputs_grad_TP, gradients, to_inputs=True)

        # Without a projection, gradients of embeddings go straight to the caller's memory.
        emb_grad_TFD = embedding_grads[0] if not self._widths else self._embeddings[: target.shape[0]]
        interact_backward(
            inputs_grad_TP.numpy(),
            *vectors,
            self._vectors_RW,
            self._vector_grads_RW,
            self._bottom_grads.array if self.bottom else self._nothing_TD.numpy(),
            emb_grad_TFD.numpy(),
        )
        # The dense features are data: nothing flows back to them.
        if self.bottom:
            self.bottom.backward(self._bottom_grads.tensor, gradients, to_inputs=False)
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
