"""DLRM without its tables, and what dense models are made of: interface, linear layers, dropout.

DLRM, DCN V2 and TBSM implement the interface, and a user's module is wrapped to do so. A step runs the model
forward and backward (`model.dense_step`); nothing else of a run depends on which model it is.

Dropout has the same mask on any device and in any thread: a function of (seed, step, layer, sample, unit).
Torch draws its masks one after the other, so that they depend on which part of a batch is drawn first. Here
each number is drawn by its place: a batch may be cut into tiles, micro-batches or ranks, a run may be
interrupted, and every placement draws the same.

The embeddings are given as one tensor, so the model knows nothing of tiers and placements. Shapes:
B samples, F tables, K dense features, D embedding_dim, V = F + 1 vectors that interact (F where K = 0),
P = V (V - 1) / 2 pairs.

Source:
    Naumov et al., Deep Learning Recommendation Model, arXiv 1906.00091; its initial values.
    Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting, JMLR 15 (2014), with
    outputs scaled up in training, as torch does, rather than down afterwards.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...stats.id_tables import mix64_pair
from ...stats.kernel import kernel
from .shapes import DlrmShape, tables_by_dim


class DenseModel(nn.Module):
    """The dense layers of a model; the gradients of its embeddings go to rows."""

    is_per_sample = True
    """Whether each logit depends on its own sample alone, by the same arithmetic in any batch: such a model
    can be computed in tiles on several threads. Not so with batch normalization or dropout."""

    is_plain = False
    """Whether it has linear layers and ReLU alone, which a specialised step computes."""

    num_logits = 1
    """Logits of a sample: one for each label."""

    histories: Mapping[str, int] = {}
    """List features whose elements it takes one by one, and the elements of the longest; see `logits`."""

    has_equal_histories = False
    """Whether the histories of a sample have one length."""

    @abstractmethod
    def logits(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (B,) logits, or (B, L) for several labels.

        Args:
            dense_BK: (B, K) float32; K is 0 without dense features. A model of histories also gets the
                elements of each in a sample, in the order of features; those of one where all are equal.
            embeddings: (B, F, d) float32 of each table group, widths in the order of their first table and
                tables of a width in theirs, as `tables_by_dim` lists them. A history of up to T elements has
                T of them: it ends with the last, and those that a shorter one lacks are zero.
        """


def as_logits(logit_BL: torch.Tensor) -> torch.Tensor:
    """Return the outputs of a last layer as logits: (B,) where it has one."""
    return logit_BL.squeeze(1) if logit_BL.shape[1] == 1 else logit_BL


_BITS = 24
"""Bits of a hash that are compared with the share."""


@kernel
def draw_mask(
    stream: np.uint64, first_sample: int, num_dropped: int, kept: np.float32, mask_TU: NDArray[np.float32]
) -> None:
    """Draw which outputs of a layer are kept.

    Args:
        stream: hash of (seed, step, layer).
        first_sample: position of the first sample in its batch.
        num_dropped: so many of ``2**24`` outputs are dropped.
        kept: value of those that are kept.
        mask_TU: (num_samples, num_units), written: ``kept`` or 0.
    """
    for sample in range(mask_TU.shape[0]):
        of_sample = mix64_pair(stream, np.uint64(first_sample + sample))
        for unit in range(mask_TU.shape[1]):
            bits = mix64_pair(of_sample, np.uint64(unit)) >> np.uint64(64 - _BITS)
            mask_TU[sample, unit] = kept if np.int64(bits) >= num_dropped else np.float32(0)


class _Place(threading.local):
    """Which samples the present thread passes."""

    stream: np.uint64 | None = None
    """Hash of (seed, step)."""
    first_sample: int = 0


_place = _Place()


@contextmanager
def drawing(seed: int, step: int, first_sample: int) -> Iterator[None]:
    """Set the step and the first sample that layers of this thread draw for."""
    _place.stream = np.uint64(mix64_pair(np.uint64(seed), np.uint64(step)))
    _place.first_sample = first_sample
    try:
        yield
    finally:
        _place.stream = None


class HashDropout(nn.Module):
    """Drops a share of its inputs in training, and scales the others up.

    Args:
        share: that is dropped, in (0, 1).
        layer: number of the layer in its model; layers draw apart.
    """

    def __init__(self, share: float, layer: int) -> None:
        super().__init__()
        self.share = share
        self._layer = np.uint64(layer)
        self._num_dropped = round(share * 2**_BITS)
        self._kept = np.float32(1 / (1 - share))

    def forward(self, inputs_TU: torch.Tensor) -> torch.Tensor:
        """Drop some of the (T, U) outputs of a layer."""
        if not self.training:
            return inputs_TU
        assert _place.stream is not None, "a step says which samples it passes: `drawing`"
        mask_TU = torch.empty(inputs_TU.shape, dtype=torch.float32, device="cpu")
        stream = np.uint64(mix64_pair(_place.stream, self._layer))
        draw_mask(stream, _place.first_sample, self._num_dropped, self._kept, mask_TU.numpy())
        return inputs_TU * mask_TU.to(inputs_TU.device, inputs_TU.dtype)


def build_mlp(
    widths: tuple[int, ...],
    generator: torch.Generator,
    *,
    relu_last: bool,
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Build linear layers with DLRM's initial values and ReLU in between.

    A ReLU may follow the last one too.

    Args:
        dropout: share of the outputs of each layer with ReLU that is dropped in training.
        batch_norm: whether they are normalized over the batch, before ReLU.

    Source:
        FuxiCTR 2.3, ``MLP_Block``, for the order: linear, normalization, ReLU, dropout.
    """
    layers: list[nn.Module] = []
    num_layers = len(widths) - 1
    for i in range(num_layers):
        layers.append(build_linear(widths[i], widths[i + 1], generator))
        if not relu_last and i == num_layers - 1:
            continue
        if batch_norm:
            layers.append(nn.BatchNorm1d(widths[i + 1]))
        layers.append(nn.ReLU())
        if dropout:
            layers.append(HashDropout(dropout, i))
    return nn.Sequential(*layers)


class _Linear(nn.Linear):
    """A layer that draws no initial values from torch's global generator.

    ``nn.utils.skip_init`` does the same and imports sympy for it, 0.4 s.
    """

    def reset_parameters(self) -> None:
        """Leave the values to `build_linear`."""


def build_linear(
    num_inputs: int, num_outputs: int, generator: torch.Generator, *, has_bias: bool = True
) -> nn.Linear:
    """Build a layer with DLRM's values: weights N(0, 2 / (m + n)), biases N(0, 1 / m)."""
    layer = _Linear(num_inputs, num_outputs, bias=has_bias)
    with torch.no_grad():
        layer.weight.normal_(0.0, math.sqrt(2 / (num_inputs + num_outputs)), generator=generator)
        if has_bias:
            layer.bias.normal_(0.0, math.sqrt(1 / num_outputs), generator=generator)
    return layer


class PairwiseDots(torch.autograd.Function):
    """Dot products of all pairs of vectors.

    They are the lower triangle of the Gram matrix, without its diagonal. Written out because the backward
    pass of indexing is a scatter with accumulation, slow on the CPU and in no fixed order on the GPU. Here
    both directions are one gather and one product.
    """

    @staticmethod
    def forward(
        ctx: Any, vectors_BVD: torch.Tensor, pairs_P: torch.Tensor, mirror_VV: torch.Tensor
    ) -> torch.Tensor:
        """Map (B, V, D) to (B, P); ``pairs_P`` and ``mirror_VV`` are those of ``pair_positions``."""
        ctx.save_for_backward(vectors_BVD, mirror_VV)
        gram_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
        return gram_BVV.flatten(1).index_select(1, pairs_P)

    @staticmethod
    def backward(ctx: Any, grad_BP: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the vectors' gradients: a symmetric matrix times the vectors.

        d(u.v) is v for u and u for v.
        """
        vectors_BVD, mirror_VV = ctx.saved_tensors
        # Each entry of the matrix gathers the gradient of its pair; those of the diagonal gather the zero
        # appended.
        padded = torch.nn.functional.pad(grad_BP, (0, 1))
        num_samples, num_vectors, _ = vectors_BVD.shape
        grad_BVV = padded.index_select(1, mirror_VV).view(num_samples, num_vectors, num_vectors)
        # Under autocast the gradient may be of bfloat16 and the vectors of float32; autocast is off here.
        return torch.bmm(grad_BVV, vectors_BVD.to(grad_BVV.dtype)), None, None


def pair_positions(num_vectors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions of pairs in a flat (V, V) matrix, and back.

    The second array has the pair of each entry.

    Returns:
        (P,) int64, the lower triangle row by row, and (V * V,) int64 in [0, P], P on the diagonal.
    """
    rows, columns = torch.tril_indices(num_vectors, num_vectors, offset=-1, dtype=torch.int64, device="cpu")
    num_pairs = rows.numel()
    mirror_VV = torch.full((num_vectors, num_vectors), num_pairs, dtype=torch.int64, device="cpu")
    mirror_VV[rows, columns] = torch.arange(num_pairs, dtype=torch.int64, device="cpu")
    mirror_VV[columns, rows] = torch.arange(num_pairs, dtype=torch.int64, device="cpu")
    return rows * num_vectors + columns, mirror_VV.flatten()


class Dlrm(DenseModel):
    """Logits from dense features and embeddings."""

    def __init__(self, shape: DlrmShape, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.num_logits = shape.num_logits
        self.is_plain = not (shape.dropout or shape.batch_norm)
        # One generator in a fixed order: with a seed the shape alone decides every initial value.
        generator = torch.Generator().manual_seed(seed)
        self.is_per_sample = not shape.batch_norm
        norm = {"batch_norm": shape.batch_norm}
        self.bottom = build_mlp(shape.bottom, generator, relu_last=True, **norm) if shape.bottom else None
        self.top = build_mlp(shape.top, generator, relu_last=False, dropout=shape.dropout, **norm)
        self.projections = Projections(shape, generator) if shape.table_dims else None
        pairs_P, mirror_VV = pair_positions(shape.num_vectors)
        self.pairs_P: torch.Tensor
        self.mirror_VV: torch.Tensor
        self.register_buffer("pairs_P", pairs_P, persistent=False)
        self.register_buffer("mirror_VV", mirror_VV, persistent=False)

    def logits(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        logit_B: torch.Tensor = self(dense_BK, self.join(embeddings))
        return logit_B

    def join(self, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the (B, F, D) embeddings of all tables from the groups'."""
        if self.projections is None:
            (emb_BFD,) = embeddings
            return emb_BFD
        joined_BFD: torch.Tensor = self.projections(embeddings)
        return joined_BFD

    def forward(self, dense_BK: torch.Tensor, emb_BFD: torch.Tensor) -> torch.Tensor:
        """Map (B, K) dense features and (B, F, D) embeddings to (B,) or (B, L) logits."""
        if self.bottom is None:
            return self._logit(self._dots(emb_BFD))
        bottom_BD = self.bottom(dense_BK)
        vectors_BVD = torch.cat([bottom_BD.unsqueeze(1), emb_BFD], dim=1)
        return self._logit(torch.cat([bottom_BD, self._dots(vectors_BVD)], dim=1))

    def _dots(self, vectors_BVD: torch.Tensor) -> torch.Tensor:
        dots_BP: torch.Tensor = PairwiseDots.apply(vectors_BVD, self.pairs_P, self.mirror_VV)  # type: ignore[no-untyped-call]
        return dots_BP

    def _logit(self, inputs: torch.Tensor) -> torch.Tensor:
        return as_logits(self.top(inputs))


class Projections(nn.Module):
    """Learned linear maps without bias from other row widths to the common one."""

    def __init__(self, shape: DlrmShape, generator: torch.Generator) -> None:
        super().__init__()
        self._widths = tables_by_dim(shape.table_dims)
        self._num_tables = shape.num_tables
        self.maps = nn.ParameterDict()
        # A projection for each width but the common one, drawn so that variances stay as they are.
        for dim, tables in self._widths.items():
            if dim != shape.embedding_dim:
                weight_FdD = torch.empty(
                    len(tables), dim, shape.embedding_dim, dtype=torch.float32, device="cpu"
                )
                weight_FdD.normal_(0.0, math.sqrt(2 / (dim + shape.embedding_dim)), generator=generator)
                self.maps[str(dim)] = nn.Parameter(weight_FdD)

    def forward(self, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Map (B, F, d) per group to (B, F, D), tables in order."""
        columns: dict[int, torch.Tensor] = {}
        for (dim, tables), emb_BFd in zip(self._widths.items(), embeddings, strict=True):
            emb_BFD = emb_BFd
            if str(dim) in self.maps:
                emb_BFD = torch.bmm(emb_BFd.transpose(0, 1), self.maps[str(dim)]).transpose(0, 1)
            for table, emb_BD in zip(tables, emb_BFD.unbind(1), strict=True):
                columns[table] = emb_BD
        return torch.stack([columns[table] for table in range(self._num_tables)], dim=1)
