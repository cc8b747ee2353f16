"""Rows between ranks, of few samples and of the real ones; `test_stats_command` has a generated log."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.inspect import exchange_series as module
from hotset.pipeline.inspect.exchange_series import exchange_of_ranks
from hotset.pipeline.inspect.inspected_folder import Inspected
from hotset.pipeline.inspect.training_trace import Trace
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.stages.preprocess import preprocess
from hotset.tests.support.naive.naive_exchange import least_messages
from hotset.workflows.recipes import recipe_for


@pytest.mark.slow
def test_the_theory_is_within_a_tenth_on_the_real_sample(real_data: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_bytes(gzip.decompress((real_data / "criteo_kaggle_uniform_110k.tsv.gz").read_bytes()))
    recipe = recipe_for("criteo-kaggle")
    preprocess([log], replace(recipe, pack=replace(recipe.pack, batch_size=2048)), tmp_path / "data")
    for row in exchange_of_ranks(Inspected.open(tmp_path / "data"), (2, 4, 8))["ranks"]:
        for each in row["schemes"]:
            if each["expected"] is not None:
                assert each["expected"] == pytest.approx(each["counted"], rel=0.1), each["scheme"]


class _Unread:
    """A folder of which only the sizes are looked at."""

    def __init__(self, *num_rows: int) -> None:
        self.folder = Path("data")
        self.tables = [SimpleNamespace(num_rows=each) for each in num_rows]
        self.counts = [np.full(each, 2) for each in num_rows if each < 100]
        self.samples = self.plan = None
        self.num_train = 10
        self.resources = Resources()


def opened(
    monkeypatch: pytest.MonkeyPatch, trace: Trace, batch_size: int | None, *num_rows: int
) -> Inspected:
    """A folder of tables with so many rows, whose samples are a trace."""
    monkeypatch.setattr(module, "draw_trace", lambda *arguments: trace)
    monkeypatch.setattr(module, "packed_batch_size", lambda folder: batch_size)
    return cast(Inspected, _Unread(*num_rows))


def test_rows_between_ranks_are_those_of_sets_of_users(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    # Ten samples of no to three lookups, in steps of 4, 4 and 2 samples: the last is of the first ranks.
    lengths = rng.integers(0, 4, 10)
    rows = rng.integers(0, 9, lengths.sum())
    trace = Trace(rows, np.concatenate([[0], np.cumsum(lengths)]))
    found = exchange_of_ranks(opened(monkeypatch, trace, 4, 5, 4), (2, 4))
    assert (found["batch_size"], found["num_samples"], found["num_train_samples"]) == (4, 10, 10)
    samples = np.split(rows, np.cumsum(lengths)[:-1])
    for row, num_ranks in zip(found["ranks"], (2, 4), strict=True):
        assert row["ranks"] == num_ranks and row["rank_samples"] == pytest.approx(10 / 3 / num_ranks)
        remote = 0
        uses: dict[int, list[set[int]]] = {key: [] for key in range(9)}
        for first in (0, 4, 8):
            users: dict[int, set[int]] = {}
            for i, keys in enumerate(samples[first : first + 4]):
                rank = i * num_ranks // 4
                for key in keys.tolist():
                    remote += key % num_ranks != rank
                    users.setdefault(key, set()).add(rank)
            for key, ranks in users.items():
                uses[key].append(ranks)
        away = {key: [len(ranks - {key % num_ranks}) for ranks in steps] for key, steps in uses.items()}
        gradients = sum(sum(each) for each in away.values())
        wanted = {
            "every lookup": 2 * remote,
            "deduplicated": 2 * gradients,
            "first uses computed": gradients + sum(sum(each[1:]) for each in away.values()),
            "least possible": sum(
                least_messages([frozenset(each) for each in steps]) for steps in uses.values()
            ),
        }
        schemes = {each["scheme"]: each for each in row["schemes"]}
        # Of each rank and step.
        for name, number in wanted.items():
            assert schemes[name]["counted"] == pytest.approx(number / num_ranks / 3), name
        least, by_use = (schemes[name]["expected"] for name in ("least possible", "homes by use"))
        assert least is not None and by_use is not None and 0 < least <= by_use
        remote_share = (num_ranks - 1) / num_ranks / (num_ranks * 3)
        # The whole epoch has two lookups of each of nine rows.
        assert schemes["every lookup"]["expected_of_epoch"] == pytest.approx(2 * 18 * remote_share)
        assert schemes["every lookup"]["expected"] == pytest.approx(2 * rows.size * remote_share)


@pytest.mark.parametrize(
    ("batch_size", "num_rows", "ranks", "message"),
    [
        (3, (5,), (2, 4), "--ranks: want 2 to 3 ranks for batches of 3, got 4"),
        (128, (5,), (1,), "--ranks: want 2 to 64 ranks for batches of 128, got 1"),
        (None, (5,), (65,), "--ranks: want 2 to 64 ranks for batches of 2048, got 65"),
        (8, (2**31 - 1, 1), (2,), "--ranks: 2,147,483,648 rows, at most 2,147,483,647 can be numbered"),
        (8, (2**31 - 1,), (2,), "--ranks: the log has no training samples"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    batch_size: int | None,
    num_rows: tuple[int, ...],
    ranks: tuple[int, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = Trace(np.empty(0, np.int64), np.zeros(1, np.int64))
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        exchange_of_ranks(opened(monkeypatch, nothing, batch_size, *num_rows), ranks)
