"""TBSM without its tables: DLRM per element of a history, and attention.

Shapes: B samples, K dense features, F tables, D embedding_dim, T elements of a history before the candidate,
L = T + 1 with it, V width of the vector of an element.

Source:
    Ishkhanov et al., Time-based Sequence Model for Personalization and Recommendation Systems, arXiv
    2008.11922, with the layer that its released code calls ``tsl`` with ``tsl_inner=def`` and one head: the
    workload RMC1 of FAE (Adnan et al., PVLDB 15(1), table 1). Padding is ours: the released code trains on
    the row of item 0 where a history is short, here such an element has no part in the sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import normalize

from ...pipeline.errors import ShardError
from ..config_parts import ModelConfig
from .dlrm import DenseModel, PairwiseDots, as_logits, build_mlp, pair_positions
from .shapes import tables_by_dim


@dataclass(frozen=True, slots=True)
class TbsmShape:
    """Sizes of a TBSM; with a seed they decide its initial values."""

    num_dense: int
    """Number of dense features, K."""
    embedding_dim: int
    """Width of the embeddings that interact, D."""
    table_dims: tuple[int, ...]
    """Row width of each table."""
    are_histories: tuple[bool, ...]
    """Whether each feature is list-valued; the others are the same for every element."""
    config: ModelConfig
    """Layers, and the length of histories."""
    num_logits: int = 1
    """Logits of a sample, one for each label."""

    @property
    def num_elements(self) -> int:
        """Elements of a sample with the candidate, L."""
        return self.config.history_length + 1

    @property
    def vector_width(self) -> int:
        """Width of the vector of an element, V."""
        return self.config.top_widths[-1]

    @property
    def top(self) -> tuple[int, ...]:
        """Widths of the top MLP of an element, from its inputs to its vector."""
        num_vectors = len(self.table_dims) + 1
        pairs = num_vectors * (num_vectors - 1) // 2
        return (self.embedding_dim + pairs, *self.config.top_widths)


class Tbsm(DenseModel):
    """Logits from dense features and the embeddings of every element.

    With ``e_1 ... e_L`` the embeddings of the elements and ``t/L`` the time of element t (from 0), which is
    one more dense feature of it:

        v_t = dlrm(dense, t/L, e_t) / |dlrm(dense, t/L, e_t)|      ReLU after every layer
        h_t = v_t for t < L, or 0 where the history is shorter;  w = v_L, the candidate
        a_t = h_t' A'A w
        c   = sum over t of sigmoid(attention(a))_t h_t
        logit = last([c, w])

    Args:
        shape: sizes of the model.
        seed: of the initial values.

    Raises:
        ShardError: the shards have no list-valued feature.
    """

    has_equal_histories = True

    def __init__(self, shape: TbsmShape, seed: int) -> None:
        super().__init__()
        if not any(shape.are_histories):
            raise ShardError(
                "the shards have no list-valued feature, and tbsm is a model of histories",
                hint="use --model dlrm, or describe the histories as lists in the schema",
            )
        self.shape = shape
        self.num_logits = shape.num_logits
        config = shape.config
        # One generator in a fixed order: with a seed the shape alone decides every initial value.
        generator = torch.Generator().manual_seed(seed)
        bottom = (shape.num_dense + 1, *config.bottom_widths, shape.embedding_dim)
        self.bottom = build_mlp(bottom, generator, relu_last=True)
        self.top = build_mlp(shape.top, generator, relu_last=True)
        width = shape.vector_width
        length = config.history_length
        form_VV = torch.empty(width, width, dtype=torch.float32, device="cpu").normal_(
            0.0, math.sqrt(1 / width), generator=generator
        )
        self.form_VV = nn.Parameter(form_VV)
        self.attention = build_mlp((length, *config.attention_widths, length), generator, relu_last=False)
        self.last = build_mlp((2 * width, *config.last_widths, shape.num_logits), generator, relu_last=False)
        self.maps = nn.ParameterDict()
        for table, dim in enumerate(shape.table_dims):
            if dim != shape.embedding_dim:
                map_dD = torch.empty(dim, shape.embedding_dim, dtype=torch.float32, device="cpu")
                map_dD.normal_(0.0, math.sqrt(2 / (dim + shape.embedding_dim)), generator=generator)
                self.maps[str(table)] = nn.Parameter(map_dD)
        # What follows from the sizes is in no checkpoint.
        pairs_P, mirror_VV = pair_positions(len(shape.table_dims) + 1)
        elements_L = torch.arange(shape.num_elements, dtype=torch.int64, device="cpu")
        self.pairs_P: torch.Tensor
        self.mirror_VV: torch.Tensor
        self.elements_L: torch.Tensor
        for name, values in (("pairs_P", pairs_P), ("mirror_VV", mirror_VV), ("elements_L", elements_L)):
            self.register_buffer(name, values, persistent=False)

    def logits(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (B,) or (B, L) logits.

        Args:
            dense_BK: (B, K + 1) float32; dense features, then how many elements the sample has.
            embeddings: (B, S, d) of each table group: for each of its tables the L embeddings of a history,
                the last of them that of the candidate, or one embedding.
        """
        length = self.shape.config.history_length
        vectors_BLV = self._vectors(dense_BK[:, :-1], self._by_element(embeddings))
        # An element that a short history lacks stands before all others, and is a vector of zeros.
        first_B1 = self.shape.num_elements - dense_BK[:, -1:]
        is_there_BT1 = (self.elements_L[:length] >= first_B1).unsqueeze(2)
        history_BTV = vectors_BLV[:, :length]
        history_BTV = torch.where(is_there_BT1, history_BTV, torch.zeros_like(history_BTV))
        candidate_BV = vectors_BLV[:, length]
        # Similarities to the candidate under A'A become weights, and these the context.
        formed_BV = candidate_BV @ self.form_VV.t() @ self.form_VV
        similarity_BT = torch.bmm(history_BTV, formed_BV.unsqueeze(2)).squeeze(2)
        weight_BT = torch.sigmoid(self.attention(similarity_BT))
        context_BV = torch.bmm(weight_BT.unsqueeze(1), history_BTV).squeeze(1)
        return as_logits(self.last(torch.cat([context_BV, candidate_BV], dim=1)))

    def _by_element(self, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the (B, L, F, D) embeddings of all tables, by element."""
        tables_BLD: dict[int, torch.Tensor] = {}
        num_elements = self.shape.num_elements
        widths = tables_by_dim(self.shape.table_dims)
        for tables, emb_BSd in zip(widths.values(), embeddings, strict=True):
            counts = [num_elements if self.shape.are_histories[table] else 1 for table in tables]
            for table, part in zip(tables, torch.split(emb_BSd, counts, dim=1), strict=True):
                if str(table) in self.maps:
                    part = part @ self.maps[str(table)]
                tables_BLD[table] = part.expand(-1, num_elements, -1)
        return torch.stack([tables_BLD[table] for table in range(len(tables_BLD))], dim=2)

    def _vectors(self, dense_BK: torch.Tensor, emb_BLFD: torch.Tensor) -> torch.Tensor:
        """(B, L, V) vectors of length 1: DLRM of each element, the candidate too."""
        num_samples, num_elements = emb_BLFD.shape[:2]
        time_L = self.elements_L.to(dense_BK.dtype) / num_elements
        repeated_BLK = dense_BK.unsqueeze(1).expand(-1, num_elements, -1)
        time_BL1 = time_L.expand(num_samples, -1).unsqueeze(2)
        # All elements of all samples are the samples of one DLRM.
        bottom_ND = self.bottom(torch.cat([repeated_BLK, time_BL1], dim=2).flatten(0, 1))
        vectors_NFD = torch.cat([bottom_ND.unsqueeze(1), emb_BLFD.flatten(0, 1)], dim=1)
        dots_NP = PairwiseDots.apply(vectors_NFD, self.pairs_P, self.mirror_VV)  # type: ignore[no-untyped-call]
        vectors_NV = normalize(self.top(torch.cat([bottom_ND, dots_NP], dim=1)), dim=1)
        return vectors_NV.view(num_samples, num_elements, vectors_NV.shape[1])
