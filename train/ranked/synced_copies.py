"""Rows of which every rank holds a copy, synchronised every M steps: fewer bytes for older values.

Between two synchronisations a rank reads and updates its own copy, weights and optimizer state, by the
gradients of its own samples alone, so a copy lacks at most M - 1 steps of the others. With b the values that
all copies had after the last synchronisation and c_r those of rank r now, all become

    b + sum over the ranks r that used the row of (c_r - b)

in float32, added at the row's home by the binary tree over ranks, for weights and states alike. A state that
is a sum of squares (Adagrad's) stays one; moving averages cannot be added so. Rows cross as they are,
whatever the codecs: those that were used since, from each rank that used them to the home, then to all.

Evaluations, checkpoints and the weights of the run read the values that the copies would become, which the
homes put into their tiers (`publish`); the copies themselves stay as they are, so that how often a run is
evaluated changes none of its bits. Checkpoints are taken after a synchronisation, when the copies are these
values and need no room of their own, so a resumed run has the bits of an unbroken one.

Source:
    Erdogan et al., SCARS, arXiv 2411.01611, keeps the likeliest rows at each device; local steps between
    sums of differences are those of local SGD, Stich, ICLR 2019, arXiv 1805.09767.

Shapes: K rows with copies, N rows of a message, D floats of a row, S of its state, W ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.exchange.rank_masks import mask_type
from ..exchange.coded_exchange import CodedExchange
from ..exchange.partial_sums import sum_over_ranks
from ..exchange.width_exchange import ExchangeReader, WidthExchange
from ..execution.row_width import RowWidth
from ..ranks.ranks import Message, Ranks
from ..rows.row_optimizers import RowOptimizer
from ..rows.row_steps import step_with_numba

_FLOAT_BYTES = 4


class WidthCopies:
    """The copies that a rank holds of rows of one width.

    Args:
        width: with the tiers of the rows that live here.
        exchange: knows which rows have copies, and where each lives.
        ranks: all of them.
        optimizer: that of the rows.
    """

    def __init__(
        self, width: RowWidth, exchange: ExchangeReader, ranks: Ranks, optimizer: RowOptimizer
    ) -> None:
        self._width = width
        self._ranks = ranks
        self._optimizer = optimizer
        held = exchange.held
        keys_K = exchange.synced_keys
        self._homes_K = held.homes_K[keys_K]
        # The rows that live here, as the tiers number them.
        self._tables_K = np.searchsorted(held.first_key_F1, keys_K, side="right") - 1
        self._ids_K = np.full(keys_K.size, -1, np.int64)
        is_here_K = self._homes_K == ranks.rank
        self._ids_K[is_here_K] = held.local_ids(self._tables_K[is_here_K], keys_K[is_here_K])

        dim = width.embedding_dim
        state = optimizer.state_width(dim)
        self.weights_KD = np.zeros((keys_K.size, dim), np.float32)
        self._state_KS = np.zeros((keys_K.size, state), np.float32)
        self._base_KN = np.zeros((keys_K.size, dim + state), np.float32)
        """Weights and state that all copies had after the last synchronisation."""
        self._users_K = np.zeros(keys_K.size, mask_type(ranks.num_ranks))
        """The ranks that have used each row since."""
        self._is_newer_K = np.zeros(keys_K.size, np.bool_)
        """Whether the tiers of its home have an older value."""
        self.sent_bytes = 0
        """Bytes of the last synchronisation."""

    def begin(self) -> None:
        """Take the values that rows have at their homes, before the first step."""
        here = np.flatnonzero(self._homes_K == self._ranks.rank)
        weights_ND = torch.empty(here.size, self.weights_KD.shape[1])
        state_NS = torch.empty(here.size, self._state_KS.shape[1])
        executor = self._width.executor
        executor.copy_newest(
            self._tables_K[here], self._ids_K[here], executor.staged.by_row(), weights_ND, state_NS
        )
        every_K = np.ones(self._homes_K.size, np.bool_)
        self._give_to_all(every_K, here, np.concatenate([weights_ND.numpy(), state_NS.numpy()], axis=1))

    def step(self, exchange: WidthExchange, sums_OD: NDArray[np.float32], rate: float | None) -> None:
        """Take one optimizer step on the copies that this rank has looked up.

        Args:
            exchange: of the step.
            sums_OD: gradients of the rank's rows.
            rate: learning rate of the step; None: that of the optimizer.
        """
        copied = exchange.copied
        sums_ND = np.ascontiguousarray(sums_OD[copied.own])
        step_with_numba(self._optimizer, self.weights_KD, self._state_KS, copied.slots, sums_ND, rate)
        # Other ranks have used rows of the step that this one has not.
        self._users_K[copied.used] |= copied.masks
        self._is_newer_K[copied.used] = True

    def synchronise(self) -> None:
        """Let all copies have the same values again; every rank calls this after the same step."""
        self.sent_bytes = 0
        here, values_NN = self._summed()
        self._give_to_all(self._users_K != 0, here, values_NN)
        self._users_K[:] = 0

    def publish(self) -> None:
        """Put the values that the copies would have into the tiers of their homes; every rank calls this.

        Valid while no transfer runs.
        """
        here, values_NN = self._summed()
        # Rows that nobody has used since the last synchronisation have the values of that one.
        newest_KN = self._base_KN.copy()
        newest_KN[here] = values_NN
        newer = np.flatnonzero(self._is_newer_K & (self._homes_K == self._ranks.rank))
        dim = self.weights_KD.shape[1]
        self._width.executor.set_newest(
            self._tables_K[newer],
            self._ids_K[newer],
            np.ascontiguousarray(newest_KN[newer, :dim]),
            np.ascontiguousarray(newest_KN[newer, dim:]),
        )
        changed = self._width.changed
        if changed is not None:
            rows_N = changed.layout.slots_of_rows(self._tables_K[newer], self._ids_K[newer])
            changed.mark_rows(rows_N, is_saved=False)
        # Rows change by uses alone: a synchronisation gives them the values that were published now.
        self._is_newer_K[:] = False

    def _summed(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the used rows that live here, and their values with the steps of all ranks."""
        ranks = self._ranks
        rank = self._ranks.rank
        used = np.flatnonzero(self._users_K)
        homes_N = self._homes_K[used]
        is_user_NW = (
            self._users_K[used, None] >> np.arange(ranks.num_ranks, dtype=self._users_K.dtype)
        ) & 1 > 0
        here = used[homes_N == rank]
        # Differences of rows that live elsewhere go to their homes, in the order of keys.
        parts = [used[(homes_N == other) & is_user_NW[:, rank]] for other in range(ranks.num_ranks)]
        parts[rank] = here[:0]
        is_user_here_NW = is_user_NW[homes_N == rank]
        counts = [int(is_user_here_NW[:, other].sum()) * (other != rank) for other in range(ranks.num_ranks)]
        sent = [self._differences(part) for part in parts]
        received_NN = self._exchanged(sent, counts)
        # A list of rows by source says where the difference of each rank is; the home's own come last.
        sources_NW = is_user_here_NW.copy()
        sources_NW[:, rank] = False
        places_NW = np.full(sources_NW.shape, -1, np.int32)
        places_NW.T[sources_NW.T] = np.arange(received_NN.shape[0])
        own = here[is_user_here_NW[:, rank]]
        places_NW[is_user_here_NW[:, rank], rank] = received_NN.shape[0] + np.arange(own.size)
        sums_NN = sum_over_ranks(places_NW, np.concatenate([received_NN, self._differences(own)]))
        return here, self._base_KN[here] + sums_NN

    def _differences(self, slots_N: NDArray[np.int64]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = (
            np.concatenate([self.weights_KD[slots_N], self._state_KS[slots_N]], axis=1)
            - self._base_KN[slots_N]
        )
        return found

    def _give_to_all(
        self, is_given_K: NDArray[np.bool_], here: NDArray[np.int64], values_NN: NDArray[np.float32]
    ) -> None:
        """Set some rows at all ranks: those that live here, ``here``, to values, and others to those of
        their homes."""
        ranks = self._ranks
        given = [np.flatnonzero(is_given_K & (self._homes_K == other)) for other in range(ranks.num_ranks)]
        sent = [values_NN[: 0 if other == ranks.rank else here.size] for other in range(ranks.num_ranks)]
        counts = [part.size * (other != ranks.rank) for other, part in enumerate(given)]
        received_NN = self._exchanged(sent, counts)
        self._set(here, values_NN)
        others = [part for other, part in enumerate(given) if other != ranks.rank]
        self._set(np.concatenate([here[:0], *others]), received_NN)

    def _set(self, slots_N: NDArray[np.int64], values_NN: NDArray[np.float32]) -> None:
        dim = self.weights_KD.shape[1]
        self.weights_KD[slots_N] = values_NN[:, :dim]
        self._state_KS[slots_N] = values_NN[:, dim:]
        self._base_KN[slots_N] = values_NN

    def _exchanged(self, sent: Sequence[NDArray[np.float32]], counts: Sequence[int]) -> NDArray[np.float32]:
        """Send rows to each rank and return those received, (N, D + S), those of rank r behind r - 1's."""
        num_floats = self._base_KN.shape[1]
        data = torch.from_numpy(np.concatenate(sent).reshape(-1).view(np.uint8))
        received = Message.unset([_FLOAT_BYTES * num_floats * count for count in counts])
        self._ranks.exchange(Message(data, tuple(part.nbytes for part in sent)), received).wait()
        self.sent_bytes += data.numel()
        return received.data.numpy().view(np.float32).reshape(-1, num_floats)


class SyncedCopies:
    """The copies of all widths, and when they are synchronised.

    Args:
        widths: those with copies.
        coded: counts steps and bytes.
        every: steps from one synchronisation to the next; None: there are no copies.
    """

    def __init__(self, widths: Sequence[WidthCopies], coded: CodedExchange, every: int | None) -> None:
        self.widths = tuple(widths)
        self._coded = coded
        self._every = every
        self._published_step = coded.step
        """The step whose values the tiers of homes have."""

    @property
    def agree(self) -> bool:
        """Whether the copies of all ranks are the same now."""
        return self._every is None or self._coded.step % self._every == 0

    def begin(self) -> None:
        """Take the values that rows have at their homes, before the first step."""
        for width in self.widths:
            width.begin()

    def step(
        self, exchanges: Sequence[WidthExchange], sums: Sequence[NDArray[np.float32]], rate: float | None
    ) -> None:
        """Take one optimizer step on the copies of this rank."""
        if self.widths:
            for width, exchange, sums_OD in zip(self.widths, exchanges, sums, strict=True):
                width.step(exchange, sums_OD, rate)

    def end_step(self) -> None:
        """Synchronise the copies where it is time, once a step is counted."""
        if not self.widths or not self.agree:
            return
        with self._coded.clocked("synced"):
            for width in self.widths:
                width.synchronise()
                self._coded.counts.sent_bytes["synced"] += width.sent_bytes

    def publish(self) -> None:
        """Put the newest values of all copies into the tiers of their homes."""
        # Weights that a run has taken from elsewhere since, its best ones, stay.
        if self._published_step == self._coded.step:
            return
        for width in self.widths:
            width.publish()
        self._published_step = self._coded.step
