"""Where a batch is cut into shares, the equal parts of it that are added up by themselves.

Sample i of a batch of nominally B samples is in share ``i * G // B``, and rank r of W computes the shares
from ``r * G / W`` to before ``(r + 1) * G / W``. A batch with fewer samples leaves its last shares short or
empty. Sums of shares are added by a binary tree over their numbers: shares 2s and 2s + 1 first, then the
sums of such pairs, and so on; a share without samples adds nothing. The shares of a rank are a subtree, since
G / W is a power of two: a rank adds up its own, and the sums of ranks are added by the rest of the tree. So
the number of ranks changes no bit, that of shares does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...pipeline.errors import ConfigError
from .batch import Batch


@dataclass(frozen=True, slots=True)
class BatchShares:
    """The shares that one rank computes.

    Raises:
        ConfigError: the shares cannot be divided among the ranks, or a batch among the shares.
    """

    batch_size: int
    """Samples of a whole batch, B."""
    num_shares: int = 1
    """G."""
    rank: int = 0
    num_ranks: int = 1
    """W."""

    def __post_init__(self) -> None:
        # Each share of a whole batch has samples, so those of a short one are the first ones.
        if self.num_shares > max(self.batch_size, 1):
            raise ConfigError(
                f"a batch of {self.batch_size} samples cannot be cut into {self.num_shares} shares",
                hint="preprocess with a larger --batch-size, or use fewer shares or ranks",
            )
        per_rank, left = divmod(self.num_shares, self.num_ranks)
        is_subtree = self.num_ranks == 1 or (per_rank and not per_rank & (per_rank - 1))
        if left or not is_subtree:
            raise ConfigError(
                f"{self.num_shares} shares cannot be divided among {self.num_ranks} ranks: each takes "
                "1, 2, 4 or another power of two",
                hint=f"--micro-batches {self.num_ranks} gives each rank one",
            )

    @property
    def first_sample(self) -> int:
        """The first sample of this rank in a whole batch."""
        return self._start(self.rank * (self.num_shares // self.num_ranks))

    def own_part(self, num_samples: int) -> tuple[int, int]:
        """Return the first and the last-plus-one sample of this rank in a batch of so many samples."""
        if self.num_ranks == 1:
            return 0, num_samples
        per_rank = self.num_shares // self.num_ranks
        first, stop = (self._start(share * per_rank) for share in (self.rank, self.rank + 1))
        return min(first, num_samples), min(stop, num_samples)

    def cut(self, batch: Batch) -> Batch:
        """Return the samples of this rank."""
        return batch.cut(*self.own_part(batch.num_samples))

    def bounds(self, num_samples: int) -> list[tuple[int, int]]:
        """Return the first and the last-plus-one sample of each share that is not empty.

        Args:
            num_samples: those of this rank, whose first one is sample 0 here.
        """
        if self.num_shares == 1:
            return [(0, num_samples)]
        per_rank = self.num_shares // self.num_ranks
        starts = [self._start(self.rank * per_rank + share) for share in range(per_rank + 1)]
        stops = [min(start - starts[0], num_samples) for start in starts[1:]]
        return [(first, stop) for first, stop in zip([0, *stops], stops, strict=False) if first < stop]

    def _start(self, share: int) -> int:
        return -(-share * self.batch_size // self.num_shares)
