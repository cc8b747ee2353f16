"""Forward and backward pass of the dense part of DLRM on one tile of a batch, written out, without a graph.

T samples of a tile, K dense features, F tables, D embedding_dim, V = F + 1 vectors that interact (F where K =
0), P inputs of the top MLP, d the width of rows before their projection. The interaction and the last layer
are computed in float32 whatever the type of the other layers: they are 6 % of the operations, and the logit
would lose most by rounding.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.batch import at_cache_line
from .dense_kernels import last_layer_gradients, logistic_loss
from .dlrm_shape import DlrmShape, tables_by_width
from .flat_parameters import ParameterViews, stored_inputs
from .interaction_kernels import dot_workspace, interact, interact_backward, vector_workspace
from .mlp_tiles import Layer, MlpTiles, mlp_layers

BuildMlp = Callable[[Sequence[Layer]], MlpTiles]


@dataclass(frozen=True, slots=True)
class _TileMemory:
    """The memory that passes write for tiles of one number of samples, as tensors and as arrays."""

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
    """The memory of one tile at a time, used by one thread at a time.

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
        # Tables of other widths are brought to the common one first, so that all can interact.
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
        """Write the gradients of the tile last passed forward; return its loss, as `StepTile.backward`."""
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

        # Gradients of embeddings go straight to the caller's memory where no projection stands in between.
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
        """Return the (T, F, D) embeddings of all tables in their order, those of other widths projected."""
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
