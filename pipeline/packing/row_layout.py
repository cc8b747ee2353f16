"""Where the parts of a packed sample stand: a row of int32 words, floats by their bits."""

from __future__ import annotations

from dataclasses import dataclass

TAG = 0
"""Word of the tag: 1 where all lookups of the sample hit hot rows."""
LABEL = 1
"""Word of the label, bits of float32; 0 where samples have none."""
_FIRST_DENSE = 2


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The words of a row: tag, label, dense values, lengths of bags, ids of one-hot tables."""

    num_dense: int
    """Dense features."""
    num_lists: int
    """Multi-hot tables, whose ids lie outside the rows."""
    num_one_hot: int
    """Tables that every sample looks up once."""

    @property
    def dense(self) -> slice:
        """Words of the dense values, bits of float32."""
        return slice(_FIRST_DENSE, _FIRST_DENSE + self.num_dense)

    @property
    def lengths(self) -> slice:
        """Words of the lengths of bags, one for each multi-hot table."""
        return slice(self.dense.stop, self.dense.stop + self.num_lists)

    @property
    def ids(self) -> slice:
        """Words of the ids of one-hot tables."""
        return slice(self.lengths.stop, self.lengths.stop + self.num_one_hot)

    @property
    def width(self) -> int:
        """Words of a row."""
        return int(self.ids.stop)
