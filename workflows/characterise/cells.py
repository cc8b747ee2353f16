"""Cells of a sweep: the models made on the spot, one factor at a time and then pairs of factors."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from ...pipeline.folders.json_record import JsonRecord, RecordError, require_range
from ...stats.codecs.codec_names import codec_of
from ...stats.ranking.row_bytes import row_bytes

BUDGETED = ("cache", "lookahead")
"""Placements that have slots in a part of the fast memory."""
HOLDING = (*BUDGETED, "fae")
"""Placements to which it matters how large that part is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell(JsonRecord):
    """A model, a log and a placement; the factors of a sweep."""

    preset: str = ""
    """Model of the literature that the cell scales down; empty where there is none."""
    row_scale: float = 1.0
    """Rows over those of the preset."""
    batch_size: int = 2048
    """Samples per step."""
    num_dense: int = 64
    """Dense features."""
    num_tables: int = 16
    """Embedding tables, all alike."""
    rows_of_table: int = 20_000
    """Rows of each."""
    pooling: int = 1
    """Lookups of a sample in each table."""
    embedding_dim: int = 16
    """Floats of a row."""
    skew: float = 1.05
    """Exponent of Zipf's law of the lookups; 0: rows are alike."""
    bottom_mlp: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers of the bottom MLP."""
    top_mlp: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers of the top MLP."""
    placement: str = "all-fast"
    """Where rows live."""
    optimizer: str = "rowwise-adagrad"
    """Optimizer of the rows."""
    fast_share: float = 0.25
    """Share of all bytes of rows that the placement may keep on the fast tier, where it keeps any."""
    ranks: int = 1
    """Ranks that share a batch."""
    codec: str = "none"
    """Codec in which ranks send vectors and gradients of rows to each other."""

    def refuse_nonsense(self, where: str) -> None:
        for name in ("batch_size", "num_tables", "rows_of_table", "pooling", "embedding_dim"):
            require_range(f"{where}{name}", getattr(self, name), 1)
        require_range(f"{where}ranks", self.ranks, 1)
        try:
            codec_of(self.codec)
        except ValueError as error:
            raise RecordError(f"{where}codec: {error}") from None
        for name in ("bottom_mlp", "top_mlp"):
            for width in getattr(self, name):
                require_range(f"{where}{name}", width, 1)
        if not (self.skew >= 0 and 0 < self.fast_share <= 1):
            raise RecordError(f"{where}skew is {self.skew}, and fast_share {self.fast_share}")

    @property
    def key(self) -> str:
        """A name for the configuration: equal for repetitions, and as good as random otherwise."""
        factors = asdict(self)
        # Cells that were measured before there were codecs keep their names, and so their halves.
        if self.codec == "none":
            del factors["codec"]
        text = json.dumps(factors, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def is_held_out(self) -> bool:
        """Whether constants are fitted without it, so that their error can be told by it.

        Cells that train the same steps are on one side, whatever they are called.
        """
        share = self.fast_share if self.placement in HOLDING else Cell().fast_share
        same = replace(self, preset="", row_scale=1.0, fast_share=share)
        return int(same.key, 16) % 2 == 1

    @property
    def num_hot(self) -> int:
        """Rows of each table that both tiers hold; none but where the placement is fae."""
        return max(int(self.fast_share * self.rows_of_table), 1) if self.placement == "fae" else 0

    @property
    def lookups(self) -> int:
        """Lookups of a step."""
        return self.batch_size * self.num_tables * self.pooling

    @property
    def bytes_of_rows(self) -> int:
        """Bytes of all rows with their optimizer state."""
        return self.num_tables * self.rows_of_table * row_bytes(self.embedding_dim, self.optimizer)
