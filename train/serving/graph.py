"""A run as one module from raw inputs to a probability, ready for export.

Inputs are numbers alone: dense values as they are in the log (NaN where missing), and of every categorical
feature the 64-bit category and whether it is missing. The graph finds rows by binary search among the sorted
categories, in as many steps as the longest table needs, for all one-hot features together.

Shapes: B samples, K dense features, F features, G one-hot features, L lookups of the longest bag of a batch,
D embedding_dim, N rows, C categories of all tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...pipeline.schema.schema import Schema
from ..model.dense_model import DenseModel
from ..model.shapes import tables_by_dim


class CategoryIndex(nn.Module):
    """Finds the row of each category.

    A table has the rows of its categories in their order, then that of unknown ones and that of missing ones.

    Args:
        categories: those of each table, ascending and distinct.
    """

    def __init__(self, categories: Sequence[NDArray[np.int64]]) -> None:
        super().__init__()
        # The categories of all tables concatenated. One more entry at the end: a search in an empty table
        # reads it, and finds nothing.
        sizes = [of_table.shape[0] for of_table in categories]
        stops = np.cumsum(sizes)
        joined = np.concatenate([*categories, np.zeros(1, np.int64)])
        # So many jumps reach every place of the longest table.
        self.num_steps = max(sizes, default=0).bit_length()
        self.register_buffer("categories_C", torch.from_numpy(joined.astype(np.int64)))
        self.register_buffer("starts_F", torch.from_numpy((stops - sizes).astype(np.int64)))
        self.register_buffer("stops_F", torch.from_numpy(stops.astype(np.int64)))
        self.categories_C: torch.Tensor
        self.starts_F: torch.Tensor
        self.stops_F: torch.Tensor

    def forward(
        self, categories_BX: torch.Tensor, is_missing_BX: torch.Tensor, features_X: torch.Tensor
    ) -> torch.Tensor:
        """Return (B, X) int64 rows of (B, X) categories.

        Args:
            is_missing_BX: bool.
            features_X: number of the feature of each column, or one number for all columns.
        """
        # The range of each feature in the list of categories.
        start_X = self.starts_F[features_X]
        stop_X = self.stops_F[features_X]
        # The last category that is not above the wanted one: try a jump of each power of two.
        place_BX = start_X.expand_as(categories_BX)
        for step in reversed(range(self.num_steps)):
            next_BX = place_BX + (1 << step)
            inside_BX = torch.minimum(next_BX, stop_X)
            is_ahead_BX = (next_BX < stop_X) & (self.categories_C[inside_BX] <= categories_BX)
            place_BX = torch.where(is_ahead_BX, next_BX, place_BX)
        # Categories that are not found get the row of unknown ones, missing values that of missing ones.
        is_found_BX = (place_BX < stop_X) & (self.categories_C[place_BX] == categories_BX)
        id_BX = torch.where(is_found_BX, place_BX, stop_X) - start_X
        return torch.where(is_missing_BX, stop_X + 1 - start_X, id_BX)


class RowTable(nn.Module):
    """The rows of one table.

    Args:
        packed_ND: rows as `pack_rows` returns them.
        scale_N2: least value and step of each row of int8; None for other types.
    """

    def __init__(self, packed_ND: torch.Tensor, scale_N2: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("rows_ND", packed_ND)
        self.register_buffer("scale_N2", scale_N2)
        self.rows_ND: torch.Tensor
        self.scale_N2: torch.Tensor | None

    def forward(self, id_BL: torch.Tensor) -> torch.Tensor:
        """Return (B, L, D) float32 rows of (B, L) ids."""
        # Rows of int8 are the least value of the row plus so many of its steps.
        rows_BLD = self.rows_ND[id_BL].float()
        if self.scale_N2 is None:
            return rows_BLD
        scale_BL2 = self.scale_N2[id_BL]
        return scale_BL2[..., :1] + rows_BLD * scale_BL2[..., 1:]


class DenseTransform(nn.Module):
    """Maps dense values of a log to those of shards.

    log1p(max(x, 0)) in float64, or x itself; 0 where missing.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        is_log = [name not in schema.untransformed for name in schema.dense]
        self.register_buffer("is_log_K", torch.tensor(is_log, dtype=torch.bool))
        self.is_log_K: torch.Tensor

    def forward(self, values_BK: torch.Tensor) -> torch.Tensor:
        """Map (B, K) float64, NaN where missing, to (B, K) float32."""
        # A missing value is 0 before the transform and after it, as in shards.
        there_BK = torch.where(values_BK.isnan(), torch.zeros_like(values_BK), values_BK)
        positive_BK = torch.maximum(there_BK, torch.zeros_like(there_BK))
        return torch.where(self.is_log_K, torch.log1p(positive_BK), there_BK).float()


class ServingGraph(nn.Module):
    """The whole model of a run.

    Args:
        model: its dense layers, in evaluation mode.
        index: finds rows.
        tables: the rows of each table.
        is_multi_hot: of each table.
        takes_mean: whether the rows of a bag become their mean instead of their sum.
        schema: that of the log.
        num_elements: of a history with its candidate, for a model that takes bags as histories; None for
            others.
    """

    def __init__(
        self,
        model: DenseModel,
        index: CategoryIndex,
        tables: Sequence[RowTable],
        is_multi_hot: Sequence[bool],
        schema: Schema,
        *,
        takes_mean: bool,
        num_elements: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.index = index
        self.tables = nn.ModuleList(tables)
        self.transform = DenseTransform(schema)
        self._one_hot = [number for number, is_multi in enumerate(is_multi_hot) if not is_multi]
        self._multi_hot = [number for number, is_multi in enumerate(is_multi_hot) if is_multi]
        self._takes_mean = takes_mean
        self._num_elements = num_elements
        dims = [int(table.rows_ND.shape[1]) for table in tables]
        self._widths = tables_by_dim(dims)
        self.register_buffer("one_hot_G", torch.tensor(self._one_hot, dtype=torch.int64))
        self.one_hot_G: torch.Tensor

    def forward(
        self,
        dense: torch.Tensor,
        categories: torch.Tensor,
        is_missing: torch.Tensor,
        bags: list[torch.Tensor],
        bag_is_missing: list[torch.Tensor],
        bag_lengths: list[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B,) probabilities and (B,) logits.

        Args:
            dense: (B, K) float64, NaN where missing.
            categories: (B, G) int64 of the one-hot features in the order of the schema.
            is_missing: (B, G) bool.
            bags: (B, L) int64 of each multi-hot feature; what follows the length of a bag does not count.
            bag_is_missing: (B, L) bool of each.
            bag_lengths: (B,) int64 of each.
        """
        # All one-hot features in one search, then each bag separately, as bags differ in length.
        found: dict[int, torch.Tensor] = {}
        if self._one_hot:
            id_BG = self.index(categories, is_missing, self.one_hot_G)
            for column, number in enumerate(self._one_hot):
                found[number] = self.tables[number](id_BG[:, column : column + 1])
        for bag, number in enumerate(self._multi_hot):
            feature = torch.tensor([number])
            id_BL = self.index(bags[bag], bag_is_missing[bag], feature)
            rows_BLD = self.tables[number](id_BL)
            if self._num_elements is None:
                found[number] = self._pooled(rows_BLD, bag_lengths[bag]).unsqueeze(1)
            else:
                found[number] = self._as_history(rows_BLD, bag_lengths[bag], self._num_elements)
        # Features by the width of their rows, as the model takes them.
        embeddings = [
            torch.cat([found[number] for number in numbers], dim=1) for numbers in self._widths.values()
        ]
        values_BK = self.transform(dense)
        if self._num_elements is not None:
            # A model of histories takes their length in addition to the dense features.
            length_B1 = bag_lengths[0].clamp(max=self._num_elements).unsqueeze(1)
            values_BK = torch.cat([values_BK, length_B1.to(values_BK.dtype)], dim=1)
        logit_B = self.model.logits(values_BK, embeddings)
        return torch.sigmoid(logit_B), logit_B

    def _as_history(self, rows_BLD: torch.Tensor, length_B: torch.Tensor, num_elements: int) -> torch.Tensor:
        """Return the last elements of each bag, (B, num_elements, D).

        They are at the end, with zeros before them.
        """
        place_BE = torch.arange(num_elements) - num_elements + length_B.unsqueeze(1)
        is_there_BE1 = (place_BE >= 0).unsqueeze(2)
        place_BE1 = place_BE.clamp(min=0).unsqueeze(2)
        found_BED = torch.gather(rows_BLD, 1, place_BE1.expand(-1, -1, rows_BLD.shape[2]))
        return torch.where(is_there_BE1, found_BED, torch.zeros_like(found_BED))

    def _pooled(self, rows_BLD: torch.Tensor, length_B: torch.Tensor) -> torch.Tensor:
        # What follows the length of a bag is left out, whatever it holds.
        places_L = torch.arange(rows_BLD.shape[1])
        is_there_BL1 = (places_L < length_B.unsqueeze(1)).unsqueeze(2)
        sum_BD = torch.where(is_there_BL1, rows_BLD, torch.zeros_like(rows_BLD)).sum(1)
        # The mean of an empty bag is zero, as its sum is.
        return sum_BD / length_B.clamp(min=1).unsqueeze(1) if self._takes_mean else sum_BD
