"""Hashes the evaluation shards in the background, during the first steps.

Runs on large shards begin without hashing them, since each batch is verified when it is read. Evaluation
batches may be read only at the end of days of training, so damage among them is looked for at once. Each rank
hashes a part of the files.
"""

from __future__ import annotations

import threading

from ...pipeline.errors import HotsetError, ShardError
from ..data.shards import Shards
from ..ranks.ranks import Ranks, wait_for_all


class EvaluationCheck:
    """The thread that hashes evaluation shards; it ends with the process.

    Args:
        shards: with these files.
        ranks: they share the work.
    """

    def __init__(self, shards: Shards, ranks: Ranks) -> None:
        self._ranks = ranks
        self._files = shards.hashing(["evaluation"], slice(ranks.rank, None, ranks.num_ranks), workers=1)
        self._is_closed = False
        self._is_over = False
        self.fault: ShardError | None = None
        """What is wrong with a file, as far as it is known."""
        self._thread = threading.Thread(target=self._work, name="evaluation shards", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the last file; raises what is wrong, at every rank. All ranks call this."""
        if self._is_over:
            return
        # Ranks may need minutes longer than others for their part.
        wait_for_all(self._ranks, self._wait)
        self._is_over = True

    def _wait(self) -> None:
        self._thread.join()
        if self.fault is not None:
            raise self.fault

    def close(self) -> None:
        """Leave the files that are not hashed yet, once that of the moment is."""
        self._is_closed = True
        self._thread.join()

    def _work(self) -> None:
        try:
            for _ in self._files:
                if self._is_closed:
                    return
        except ShardError as error:
            self.fault = error
        except HotsetError as error:  # of the system: ranks stop for it as for a damaged file
            self.fault = ShardError(str(error), hint=error.hint)
