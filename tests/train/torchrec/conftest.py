"""Processes for runs on TorchRec, shared by the tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hotset.tests.support.processes.torchrec_ranks import RankPool


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPool]:
    """Ranks, which import the library once."""
    pool = RankPool()
    yield pool
    pool.close()
