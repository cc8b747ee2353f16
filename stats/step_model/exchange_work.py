"""The rows and bytes that one rank sends in a step, expected from access rates alone.

A row is used by the ranks whose part of a batch looks it up. Its vector crosses to each user that is not its
home, but for the first use, whose initial values every rank computes; a gradient crosses back from each. A
row's home is striped by its id, or the rank that uses it most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..codecs.codec_names import codec_of
from ..codecs.row_codec import MessageShape
from ..prediction.access_rates import AccessRates
from ..prediction.row_loads import EpochUses
from .step_work import StepWork

_DRAWS = 4000
_EXACT_USES = 64
"""Up to so many uses the largest share of a rank is drawn; beyond, the limit of a normal law is taken."""


@dataclass(frozen=True, slots=True)
class ExchangedRows:
    """Rows that one rank receives or sends in a step, the mean over ranks and steps."""

    vectors: float
    gradients: float


def exchanged_rows(
    rates: AccessRates, num_samples: float, rank_batch: int, num_ranks: int, *, is_striped: bool
) -> ExchangedRows:
    """Return the expected rows that cross for one rank in one step.

    Args:
        rates: of all rows.
        num_samples: samples of the epoch, those of all ranks.
        rank_batch: samples that a rank computes in a step.
        num_ranks: 1 or more.
        is_striped: whether homes follow from ids alone, instead of the most uses.
    """
    if num_ranks == 1:
        return ExchangedRows(0.0, 0.0)
    # Each rank's part of a batch is a batch of its own here: a use is one of them that has the row.
    uses = EpochUses.of_rates(rates, num_samples, rank_batch)
    # Uses at the row's own home send nothing; a striped home has the same share of them as any rank.
    home_share = np.full(uses.num_uses.shape, 1 / num_ranks)
    if not is_striped:
        home_share = most_uses_share(uses.num_uses, num_ranks, uses.num_batches)
    remote = float((uses.num_uses * (1 - home_share)) @ uses.num_rows)
    # A row that is used often is used by several ranks in its first step.
    used = np.minimum(uses.num_uses / uses.num_batches, 1.0)
    # Each rank uses it with that probability, and one at least does.
    first_users = num_ranks * used / (1 - (1 - used) ** num_ranks)
    first = float((first_users * (1 - home_share)) @ uses.num_rows)
    # Every rank computes initial values, so in the first step of a row gradients cross, but no vectors.
    return ExchangedRows((remote - first) / uses.num_batches, remote / uses.num_batches)


def most_uses_share(num_uses: NDArray[np.float64], num_ranks: int, most_uses: float) -> NDArray[np.float64]:
    """Return the share of a row's uses that the rank with the most of them has, expected.

    Args:
        num_uses: (num_classes,), uses of a row, 1 or more, each by any rank alike.
        num_ranks: 2 or more.
        most_uses: those of a row that every rank uses in every step.

    Error:
        The mean of 4,000 draws for up to 64 uses, which is within 0.01; beyond, ``1 / W`` and the largest of
        W normal deviations.
    """
    # Expected uses are rarely whole: shares of the two whole numbers around them are interpolated.
    table = _drawn_shares(num_ranks)
    low = np.clip(np.floor(num_uses).astype(np.int64), 1, _EXACT_USES)
    high = np.minimum(low + 1, _EXACT_USES)
    part = np.clip(num_uses - low, 0.0, 1.0)
    few = table[low] * (1 - part) + table[high] * part
    # The deviation of the largest share falls with the root of the number of uses.
    deviation = (table[_EXACT_USES] - 1 / num_ranks) * np.sqrt(_EXACT_USES / np.maximum(num_uses, 1.0))
    drawn = np.where(num_uses <= _EXACT_USES, few - 1 / num_ranks, deviation)
    # A rank uses a row once in a step, so shares of rows that are used nearly always are nearly equal.
    left = np.maximum(most_uses - num_uses, 0.0) / max(most_uses - 1, 1.0)
    shares: NDArray[np.float64] = 1 / num_ranks + drawn * np.sqrt(left)
    return shares


@lru_cache
def _drawn_shares(num_ranks: int) -> NDArray[np.float64]:
    # The seed is fixed, so that equal questions get equal answers.
    rng = np.random.default_rng(0)
    shares = np.ones(_EXACT_USES + 1)
    for uses in range(1, _EXACT_USES + 1):
        drawn = rng.multinomial(uses, np.full(num_ranks, 1 / num_ranks), _DRAWS)
        shares[uses] = float(drawn.max(axis=1).mean()) / uses
    return shares


def codec_bytes(num_rows: float, embedding_dim: int, codec: str) -> float:
    """Return the bytes of so many rows in messages of a codec, as large messages have them.

    Raises:
        ValueError: there is no such codec.
    """
    # In a large message the bytes that it has once, whatever its rows, hardly count.
    many = 1 << 16
    shape = MessageShape(np.array([0, many]), embedding_dim)
    return num_rows * codec_of(codec).num_bytes(shape) / many


def with_exchange(
    work: StepWork,
    rates: AccessRates,
    num_samples: float,
    num_ranks: int,
    *,
    codec: str,
    is_striped: bool = False,
) -> StepWork:
    """Return the work of one of several ranks with what it sends to the others.

    Args:
        work: of this rank, without the exchange.
        rates: of the rows of all ranks.
        num_samples: samples of the epoch, those of all ranks.
        num_ranks: 2 or more.
        codec: of vectors and gradients of rows.
        is_striped: whether homes follow from ids alone, instead of the most uses.
    """
    rows = exchanged_rows(rates, num_samples, work.batch_size, num_ranks, is_striped=is_striped)
    sent = rows.vectors + rows.gradients
    return replace(
        work,
        num_ranks=num_ranks,
        exchanged_rows=sent,
        exchanged_bytes=codec_bytes(sent, work.embedding_dim, codec),
        codec=codec,
        reduced_bytes=reduced_bytes(work.num_weights, num_ranks),
    )


def reduced_bytes(num_weights: int, num_ranks: int) -> float:
    """Return the bytes that one rank sends to add up float32 gradients and hand the sums back; exact."""
    return 2 * (num_ranks - 1) / num_ranks * 4 * num_weights
