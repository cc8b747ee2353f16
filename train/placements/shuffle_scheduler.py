"""FAE's shuffle scheduler: how long to stay with one kind of batches, from test loss.

R(r) runs r% of the epoch's mixed batches, at least one, then the same share of its hot-only ones. R(100)
switches once an epoch, R(1) about a hundred times. The paper's rule is taken in prose, its typeset
equation swaps min and max.

Source:
    Adnan et al., Accelerating Recommendation System Training by Leveraging Popular Choices (FAE),
    PVLDB 15 (2021), section 4.4.
"""

from __future__ import annotations

from collections.abc import Iterator

START_RATE = 50.0
LEAST_RATE = 1.0
MOST_RATE = 100.0
FALLS_TO_DOUBLE = 4
"""Falls of the test loss in a row that double the rate; u in the paper."""
TEST_SAMPLES = 32_768
"""Samples of the evaluation part, from its front, whose mean loss is the test loss."""


class ShuffleScheduler:
    """The rate r in percent, and the turns into which it divides an epoch."""

    def __init__(self, *, rate: float = START_RATE, is_adaptive: bool = True) -> None:
        self.rate = rate
        self.is_adaptive = is_adaptive
        """Whether the rate follows test losses at all."""
        self.losses: list[float] = []
        """Test loss after each switch, nats per sample."""
        self._num_falls = 0

    @classmethod
    def variant(cls, name: str) -> ShuffleScheduler:
        """Build the scheduler of the ``paper``, R(50) and adaptive, or of its released ``code``, R(100)
        throughout."""
        if name == "code":
            return cls(rate=MOST_RATE, is_adaptive=False)
        return cls()

    def observe(self, loss: float) -> None:
        """Adapt the rate to the test loss after a switch.

        A rise halves it; after ``FALLS_TO_DOUBLE`` falls in a row it doubles, and falls are counted from 0
        again.
        """
        previous = self.losses[-1] if self.losses else loss
        self.losses.append(loss)
        self._num_falls = self._num_falls + 1 if loss < previous else 0
        if loss > previous:
            self.rate = max(self.rate / 2, LEAST_RATE)
        elif self._num_falls == FALLS_TO_DOUBLE:
            self.rate = min(2 * self.rate, MOST_RATE)
            self._num_falls = 0

    def turns(self, num_mixed: int, num_hot_only: int) -> Iterator[tuple[int, int]]:
        """The numbers of mixed and of hot-only batches that each turn of an epoch runs, in this order.

        The rate is read again for each turn. Shares are cumulative, so every batch runs once.
        """
        # Without mixed batches there is nothing to switch between.
        if num_mixed == 0:
            yield 0, num_hot_only
            return
        mixed_done = 0
        hot_done = 0
        while mixed_done < num_mixed:
            count = max(1, round(self.rate / 100 * num_mixed))
            # The same share of each kind, so that both run out in the last turn.
            mixed_until = min(mixed_done + count, num_mixed)
            hot_until = mixed_until * num_hot_only // num_mixed
            yield mixed_until - mixed_done, hot_until - hot_done
            mixed_done = mixed_until
            hot_done = hot_until
