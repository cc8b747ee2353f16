"""Record batches of shards from the rows of one file, as `scatter_samples` collected them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.shuffle import gather_bags, gather_rows
from ..errors import ConfigError
from ..formats.arrow_files import as_fixed_lists
from ..formats.tables import as_lists
from ..runtime.thread_buffers import thread_buffer
from .pack_inputs import PackInputs


@dataclass(frozen=True)
class ShardBatches:
    """The batches of one output file, built one by one."""

    inputs: PackInputs
    rows: NDArray[np.int32]
    """(num_rows, width), see `RowLayout`."""
    bag_starts: NDArray[np.int64]
    """(num_rows,), where a row's bags begin in ``bags``; (0,) where no table is multi-hot."""
    bags: NDArray[np.int32]
    """(num_lookups,)."""
    is_tagged: bool
    """Whether batches have the column ``is_hot``."""

    @cached_property
    def schema(self) -> Any:
        """Columns of the file."""
        # The order of columns is part of the format; `batch` appends its arrays in the same order.
        fields = [pa.field("label", pa.float32())] if self.inputs.has_label else []
        fields.append(pa.field("dense", pa.list_(pa.float32(), len(self.inputs.dense))))
        fields.append(pa.field("ids", pa.list_(pa.int32(), self.inputs.num_one_hot)))
        fields += [pa.field(name, pa.list_(pa.int32())) for name in self.inputs.lists]
        return pa.schema(fields + ([pa.field("is_hot", pa.uint8())] if self.is_tagged else []))

    def batch(self, order: NDArray[np.int64]) -> Any:
        """Gather the rows at ``order``, (num_samples,); valid until the thread gathers its next batch."""
        num_samples = order.shape[0]
        layout = self.inputs.layout
        label, is_hot = (thread_buffer(name, (num_samples,), np.int32) for name in ("label", "is_hot"))
        # Lengths of bags follow the dense values in a row, and the kernel copies them as if they were such.
        dense = thread_buffer("dense", (num_samples, layout.num_dense + layout.num_lists), np.int32)
        ids = thread_buffer("ids", (num_samples, layout.num_one_hot), np.int32)
        gather_rows(self.rows, order, label, dense, ids, is_hot)
        # Words are reinterpreted, not converted: floats travelled through the shuffle by their bits.
        columns = [pa.array(label.view(np.float32))] if self.inputs.has_label else []
        columns += [as_fixed_lists(dense[:, : layout.num_dense].view(np.float32)), as_fixed_lists(ids)]
        columns += self._bags(order, dense[:, layout.num_dense :])
        if self.is_tagged:
            columns.append(pa.array(is_hot.astype(np.uint8)))
        return pa.record_batch(columns, schema=self.schema)

    def _bags(self, order: NDArray[np.int64], lengths: NDArray[np.int32]) -> list[Any]:
        """Build a list array for each multi-hot table; ``lengths``: (num_samples, num_tables)."""
        # The kernel moves each start on to the bag of the next table.
        starts = self.bag_starts[order] if lengths.shape[1] else order
        arrays = []
        for of_table in lengths.T:
            # Offsets of lists are 32 bits wide.
            if int(of_table.sum(dtype=np.int64)) >= 2**31:
                raise ConfigError("a batch has 2**31 lookups in one table", hint="lower --batch-size")
            offsets = np.zeros(order.shape[0] + 1, np.int32)
            np.cumsum(of_table, out=offsets[1:])
            found = np.empty(offsets[-1], np.int32)
            gather_bags(self.bags, starts, offsets, found)
            arrays.append(as_lists(offsets, found))
        return arrays
