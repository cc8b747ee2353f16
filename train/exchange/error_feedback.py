"""Error feedback: what a coded gradient of a hot row has lost is added to the row's next one.

A rank keeps for each hot row of the shards the error of the last gradient that it sent, ``e = v - v'``, where
``v`` is the gradient with the error before it and ``v'`` what the home decodes. So the sum of all that a home
receives is the sum of the gradients but for the last error, whatever the codec. Cold rows come too rarely for
an error to be of use, and have none. The errors take 4 bytes a number of each hot row, on every rank.

Source:
    Seide et al., 1-bit stochastic gradient descent, Interspeech 2014; Karimireddy et al., Error feedback
    fixes SignSGD, ICML 2019, arXiv 1901.09847.

Shapes: N rows of a message, H hot rows, F tables of a width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..data.batch import EmbeddingTable


class WidthErrors:
    """The errors of the hot rows of one width that a rank has sent.

    Args:
        tables: of the width, as the shards have them.
    """

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        self._first_key_F1 = np.cumsum([0, *(table.num_rows for table in tables)])
        self._num_hot_F = np.array([table.num_hot for table in tables])
        self._first_hot_F1 = np.cumsum([0, *self._num_hot_F])
        dim = tables[0].embedding_dim if tables else 0
        self.errors_HD = np.zeros((int(self._first_hot_F1[-1]), dim), np.float32)
        """Zeros take no memory until they are written, so rows that live here take none."""

    def added(self, rows_ND: NDArray[np.float32], keys_N: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return gradients with the errors of those before them; keys are distinct."""
        hot, numbers = self._hot(keys_N)
        found = rows_ND.copy()
        found[hot] += self.errors_HD[numbers]
        return found

    def keep(
        self, sent_ND: NDArray[np.float32], arrived_ND: NDArray[np.float32], keys_N: NDArray[np.int32]
    ) -> None:
        """Keep the errors of gradients, as they were to be sent and as they are decoded."""
        hot, numbers = self._hot(keys_N)
        self.errors_HD[numbers] = sent_ND[hot] - arrived_ND[hot]

    def _hot(self, keys_N: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which rows are hot, and their numbers among all hot rows."""
        tables_N = np.searchsorted(self._first_key_F1, keys_N, side="right") - 1
        ids_N = keys_N - self._first_key_F1[tables_N]
        hot = np.flatnonzero(ids_N < self._num_hot_F[tables_N])
        return hot, self._first_hot_F1[tables_N[hot]] + ids_N[hot]
