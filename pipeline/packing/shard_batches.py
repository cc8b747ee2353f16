"""Record batches of shards from the rows of one file, as `deal` collected them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.batches.bag_shuffle import gather_bags
from ...stats.batches.sample_shuffle import gather_rows
from ..errors import ConfigError
from ..formats.arrow_files import as_fixed_lists
from ..formats.tables import as_lists
from ..runtime.thread_buffers import scratch
from .pack_inputs import PackInputs


@dataclass(frozen=True, slots=True)
class ShardBatches:
    """Makes the batches of one output file."""

    inputs: PackInputs
    rows: NDArray[np.int32]
    """(num_rows, width): tag, label, dense, lengths of bags, ids of one-hot tables."""
    bag_places: NDArray[np.int64]
    """(num_rows,), where a row's bags begin in ``bags``; (0,) where no table is multi-hot."""
    bags: NDArray[np.int32]
    """(num_lookups,)."""
    is_tagged: bool
    """Whether batches have the column ``is_hot``."""

    @property
    def schema(self) -> Any:
        """Columns of the file."""
        fields = [pa.field("label", pa.float32())] if self.inputs.has_label else []
        fields.append(pa.field("dense", pa.list_(pa.float32(), len(self.inputs.dense))))
        fields.append(pa.field("ids", pa.list_(pa.int32(), self.inputs.num_one_hot)))
        fields += [pa.field(name, pa.list_(pa.int32())) for name in self.inputs.lists]
        return pa.schema(fields + ([pa.field("is_hot", pa.uint8())] if self.is_tagged else []))

    def batch(self, order: NDArray[np.int64]) -> Any:
        """The rows at ``order``, (num_samples,); valid until the thread makes its next batch."""
        num_samples, num_dense = order.shape[0], len(self.inputs.dense)
        label, is_hot = (scratch(name, (num_samples,), np.int32) for name in ("label", "is_hot"))
        dense = scratch("dense", (num_samples, num_dense + len(self.inputs.lists)), np.int32)
        ids = scratch("ids", (num_samples, self.inputs.num_one_hot), np.int32)
        gather_rows(self.rows, order, label, dense, ids, is_hot)
        columns = [pa.array(label.view(np.float32))] if self.inputs.has_label else []
        columns += [as_fixed_lists(dense[:, :num_dense].view(np.float32)), as_fixed_lists(ids)]
        columns += self._bags(order, dense[:, num_dense:])
        if self.is_tagged:
            columns.append(pa.array(is_hot.astype(np.uint8)))
        return pa.record_batch(columns, schema=self.schema)

    def _bags(self, order: NDArray[np.int64], lengths: NDArray[np.int32]) -> list[Any]:
        """A list array for each multi-hot table; ``lengths``: (num_samples, num_tables)."""
        places = self.bag_places[order] if lengths.shape[1] else order
        arrays = []
        for of_table in lengths.T:
            if int(of_table.sum(dtype=np.int64)) >= 2**31:
                raise ConfigError("a batch has 2**31 look-ups in one table", hint="lower --batch-size")
            offsets = np.zeros(order.shape[0] + 1, np.int32)
            np.cumsum(of_table, out=offsets[1:])
            found = np.empty(offsets[-1], np.int32)
            gather_bags(self.bags, places, offsets, found)
            arrays.append(as_lists(offsets, found))
        return arrays
