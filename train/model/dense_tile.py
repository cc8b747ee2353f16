"""Forward and backward pass of the dense part of DLRM on one tile of a batch, written out, without a graph.

T samples of a tile, K dense features, F tables, D embedding_dim, V = F + 1 vectors that interact (F where K =
0), P inputs of the top MLP, d the width of rows before their projection. The interaction and the last layer
are computed in float32 whatever the type of the other layers: they are 6 % of the operations, and the logit
would lose most by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from .dense_kernels import logistic_loss, pack_pairs, unpack_pairs
from .dlrm_shape import DlrmShape, tables_by_width
from .flat_parameters import stored_inputs
from .mlp_tiles import Layer, MlpTiles

BuildMlp = Callable[[Sequence[Layer]], MlpTiles]


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
        self.bottom = build_mlp(_layers("bottom", shape.bottom)) if shape.bottom else None
        hidden = _layers("top", shape.top[:-1])
        self.top = build_mlp(hidden) if hidden else None
        self._last = f"top.{2 * len(hidden)}"
        self._last_weight_N = weights[f"{self._last}.weight"][:, 0]
        self._dim = dim
        self._first_table = int(bool(shape.bottom))
        self._first_pair = dim if shape.bottom else 0
        self._embeddings = torch.empty(most_samples if self._widths else 0, shape.num_tables, dim)
        self._vectors = torch.empty(most_samples, vectors, dim)
        self._gram = torch.empty(most_samples, vectors, vectors)
        # Inputs are stored with the zeros that fill them up; no pass writes there.
        self._inputs = torch.zeros(most_samples, stored_inputs(shape.top_inputs))
        self._logits = torch.empty(most_samples)
        self._logit_grads = torch.empty(most_samples)
        self._hidden_grads = torch.empty(most_samples, self._last_weight_N.numel())
        self._bottom_grads = torch.empty(most_samples, 1, dim)
        self._pair_of_entry = _pair_of_entry(vectors, self._first_pair)

    def forward(self, dense_TK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (T,) logits; their memory is used again by the next tile.

        Args:
            dense_TK: dense features.
            embeddings: (T, F, d) for each row width.
        """
        num_samples = dense_TK.shape[0]
        emb_TFD = self._project(embeddings)
        inputs_TP = self._inputs[:num_samples]
        vectors_TVD = self._join_bottom(dense_TK, emb_TFD, inputs_TP)

        gram_TVV = self._gram[:num_samples]
        torch.bmm(vectors_TVD, vectors_TVD.transpose(1, 2), out=gram_TVV)
        pack_pairs(gram_TVV.numpy(), self._first_pair, inputs_TP.numpy())

        hidden_TN = self.top.forward(inputs_TP) if self.top else inputs_TP
        self._saved = vectors_TVD, hidden_TN
        logit_T = self._logits[:num_samples]
        torch.mv(hidden_TN, self._last_weight_N, out=logit_T)
        logit_T += self._weights[f"{self._last}.bias"]
        return logit_T

    def backward(
        self,
        label_T: torch.Tensor,
        scale: float,
        embeddings: Sequence[torch.Tensor],
        embedding_grads: Sequence[torch.Tensor],
        gradients: Mapping[str, torch.Tensor],
    ) -> float:
        """Write the gradients of the tile last passed forward, times ``scale``; return its loss in nats.

        Args:
            label_T: labels.
            scale: one over the nominal batch size.
            embeddings: those of the forward pass.
            embedding_grads: (T, F, d) for each row width, written.
            gradients: where the tile's gradient of each parameter goes, by name.
        """
        num_samples = label_T.shape[0]
        vectors_TVD, hidden_TN = self._saved
        grad_T = self._logit_grads[:num_samples]
        logits = self._logits[:num_samples]
        loss: float = logistic_loss(logits.numpy(), label_T.numpy(), np.float32(scale), grad_T.numpy())

        # The last layer has one output, so its products are those of vectors.
        torch.mv(hidden_TN.t(), grad_T, out=gradients[f"{self._last}.weight"][:, 0])
        torch.sum(grad_T, dim=0, keepdim=True, out=gradients[f"{self._last}.bias"])
        hidden_grad_TN = self._hidden_grads[:num_samples]
        torch.outer(grad_T, self._last_weight_N, out=hidden_grad_TN)
        inputs_grad_TP = hidden_grad_TN
        if self.top:
            found = self.top.backward(hidden_grad_TN, gradients, to_inputs=True)
            assert found is not None
            inputs_grad_TP = found

        # The symmetric matrix of the pairs' gradients times the vectors; it takes the place of the dots.
        gram_grad_TVV = self._gram[:num_samples]
        unpack_pairs(inputs_grad_TP.numpy(), self._pair_of_entry, gram_grad_TVV.numpy())
        first = self._first_table
        emb_grad_TFD = embedding_grads[0] if not self._widths else self._embeddings[:num_samples]
        torch.bmm(gram_grad_TVV[:, first:], vectors_TVD, out=emb_grad_TFD)
        if self.bottom:
            bottom_grad_T1D = self._bottom_grads[:num_samples]
            torch.bmm(gram_grad_TVV[:, :1], vectors_TVD, out=bottom_grad_T1D)
            bottom_grad_TD = bottom_grad_T1D.squeeze(1)
            bottom_grad_TD += inputs_grad_TP[:, : self._dim]
            self.bottom.backward(bottom_grad_TD, gradients, to_inputs=False)
        if self._widths:
            self._project_backward(emb_grad_TFD, embeddings, embedding_grads, gradients)
        return loss

    def _join_bottom(
        self, dense_TK: torch.Tensor, emb_TFD: torch.Tensor, inputs_TP: torch.Tensor
    ) -> torch.Tensor:
        """Return the (T, V, D) vectors that interact, the output of the bottom MLP first; write that to the
        inputs of the top MLP, too."""
        if self.bottom is None:
            return emb_TFD
        bottom_TD = self.bottom.forward(dense_TK)
        vectors_TVD = self._vectors[: emb_TFD.shape[0]]
        vectors_TVD[:, 0] = bottom_TD
        vectors_TVD[:, 1:] = emb_TFD
        inputs_TP[:, : self._dim] = bottom_TD
        return vectors_TVD

    def _project(self, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the (T, F, D) embeddings of all tables in their order, those of other widths projected."""
        if not self._widths:
            (emb_TFD,) = embeddings
            return emb_TFD
        joined_TFD = self._embeddings[: embeddings[0].shape[0]]
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
        gradients: Mapping[str, torch.Tensor],
    ) -> None:
        """Write the gradients of the projections and of the embeddings before them."""
        for (dim, tables), emb_TFd, grad_TFd in zip(
            self._widths.items(), embeddings, embedding_grads, strict=True
        ):
            grad_FTD = emb_grad_TFD[:, list(tables)].transpose(0, 1)
            map_FdD = self._map(dim, self._weights)
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


def _layers(name: str, widths: Sequence[int]) -> list[Layer]:
    """Name the layers of an MLP as `Dlrm` does: every other of its modules is a ReLU."""
    return [
        Layer(f"{name}.{2 * number}.weight", f"{name}.{2 * number}.bias", stored_inputs(inputs), outputs)
        for number, (inputs, outputs) in enumerate(pairwise(widths))
    ]


def _pair_of_entry(num_vectors: int, first_pair: int) -> NDArray[np.uint32]:
    """Return (V * V,) the column of the pair of each entry of a symmetric matrix; any on the diagonal."""
    rows, columns = np.tril_indices(num_vectors, -1)
    column_VV = np.full((num_vectors, num_vectors), first_pair, np.uint32)
    column_VV[rows, columns] = np.arange(rows.size) + first_pair
    column_VV[columns, rows] = column_VV[rows, columns]
    return column_VV.reshape(-1)
