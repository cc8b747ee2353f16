"""Copies that are synchronised every few steps, against naive twins; tests `choose_synced`, too."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.exchange.choose_synced import choose_synced
from hotset.train.exchange.chosen_exchange import ChosenExchange
from hotset.train.exchange.rank_reader import RankReader
from hotset.train.execution.executor import Executor
from hotset.train.ranked.ranked_embeddings import RankedEmbeddings
from hotset.train.ranked.ranked_width import RankedWidth
from hotset.train.ranked.synced_copies import WidthCopies
from hotset.train.ranks.ranks import OneRank, Ranks
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.train.trainer import Trainer, run_steps
from hotset.train.trainer_building.build_trainer import build_trainer

SPEC = ShardSpec(
    num_rows=(60, 1, 90),
    num_hot=(3, 1, 5),
    num_hot_only=20,
    num_mixed=80,
    skew=1.2,
    batch_size=20,
    num_dense=2,
)
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("hybrid", "hybrid-dedup", "lookahead")]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return Shards.open(write_shards(tmp_path_factory.mktemp("synced") / "shards", SPEC))


def built(
    shards: Shards, ranks: Ranks, every: int | None, rows: int = 12, **fields: Any
) -> tuple[Trainer, RankedEmbeddings]:
    torch.set_num_threads(1)
    defaults: dict[str, Any] = {"placement": "all-fast", "embedding_optimizer": "adagrad", "shares": 4}
    config = TrainConfig(threads=1, **(defaults | fields))
    exchange = ChosenExchange(sync_rows=rows, sync_every=every) if every else ChosenExchange()
    trainer = build_trainer(shards, config, ranks=ranks, exchange=exchange)
    assert isinstance(trainer.embeddings, RankedEmbeddings)
    return trainer, trainer.embeddings


def result(shards: Shards, ranks: Ranks, every: int | None, *, evaluates: bool = False, **fields: Any) -> Any:
    """Losses, AUC, the bytes of weights and states at rank 0, and the bytes sent."""
    trainer, embeddings = built(shards, ranks, every, **fields)
    losses: list[float] = []

    def note(trainer: Trainer, _: Any, loss: torch.Tensor) -> None:
        losses.append(float(loss))
        if evaluates and trainer.step % 2:
            trainer.predictor.score()

    run_steps(trainer, note)
    auc = trainer.predictor.score_run().auc
    tables = range(len(shards.tables))
    found = [embeddings.table(n, state=state).numpy().tobytes() for n in tables for state in (False, True)]
    return losses, auc, found, dict(trainer.coded.counts.sent_bytes)


@pytest.mark.parametrize("homes", ["striped", "by-use"])
@pytest.mark.parametrize(("num_ranks", "optimizer"), [(2, "adagrad"), (4, "rowwise-adagrad"), (3, "sgd")])
def test_copies_become_the_base_and_the_changes_of_all_ranks(
    homes: Any, num_ranks: int, optimizer: str, shards: Shards
) -> None:
    rng = np.random.default_rng(3)
    shape = (num_ranks, 12, 4)
    changes = rng.normal(size=shape).astype(np.float32)
    users = rng.random(shape[:2]) < 0.6

    def work(ranks: Ranks) -> Any:
        _, embeddings = built(shards, ranks, 5, embedding_optimizer=optimizer, shares=num_ranks)
        (copies,) = embeddings.copies.widths
        base = copies.weights_KD.copy()
        states = copies._state_KS.shape[1]
        assert states == {"sgd": 0, "adagrad": 4, "rowwise-adagrad": 1}[optimizer]
        # As if each rank had taken steps on the rows that it uses.
        copies.weights_KD[users[ranks.rank]] += changes[ranks.rank][users[ranks.rank]]
        copies._state_KS[users[ranks.rank]] += np.abs(changes[ranks.rank][users[ranks.rank]][:, :states])
        mine = copies.weights_KD.copy(), copies._state_KS.copy()
        copies._users_K[:] = sum(users[rank] * (1 << rank) for rank in range(num_ranks))
        copies._is_newer_K[:] = copies._users_K != 0
        copies.publish()
        # A publication leaves the copies alone.
        assert copies.weights_KD.tolist() == mine[0].tolist()
        tables = [embeddings.table(n).numpy() for n in range(3)]
        copies.synchronise()
        assert not copies._users_K.any()
        return base, mine, copies.weights_KD.copy(), copies._state_KS.copy(), tables, copies.sent_bytes

    found = run_thread_ranks(num_ranks, work, 20)
    base = found[0][0]
    wanted = naive_sum(base, [each[1][0] for each in found], users)
    states = naive_sum(np.zeros_like(found[0][3]), [each[1][1] for each in found], users)
    for each in found:
        assert each[0].tolist() == base.tolist()
        assert each[2].tobytes() == wanted.tobytes() and each[3].tobytes() == states.tobytes()
    # The homes had published the same values, and left other rows alone.
    rows = np.concatenate(found[0][4])
    (keys,) = choose_synced(shards, [(0, 1, 2)], num_ranks, num_ranks, 12)
    assert rows[keys].tobytes() == wanted.tobytes()


def naive_sum(
    base: NDArray[np.float32], copies: list[NDArray[np.float32]], users: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Base and changes, added in pairs of neighbouring ranks; one that has not used a row is passed over."""
    found = base.copy()
    for row in range(base.shape[0]):
        parts = [
            copy[row] - base[row] if used else None for copy, used in zip(copies, users[:, row], strict=True)
        ]
        while len(parts) > 1:
            joined = []
            for left, right in zip(parts[::2], [*parts[1::2], None][: len(parts[::2])], strict=True):
                joined.append(
                    left + right
                    if left is not None and right is not None
                    else left
                    if right is None
                    else right
                )
            parts = joined
        if parts[0] is not None:
            found[row] = base[row] + parts[0]
    return found


def test_synchronising_every_step_is_nearly_the_exact_run(shards: Shards) -> None:
    # With SGD the steps of ranks add up to that of the sum, but for rounding.
    fields: dict[str, Any] = {"embedding_optimizer": "sgd", "embedding_lr": 1.0}
    exact = run_thread_ranks(2, lambda ranks: result(shards, ranks, None, **fields), 20)[0]
    found = run_thread_ranks(2, lambda ranks: result(shards, ranks, 1, **fields), 20)[0]
    late = run_thread_ranks(2, lambda ranks: result(shards, ranks, 4, **fields), 20)[0]
    assert found[0] == pytest.approx(exact[0], rel=1e-4) and found[2] != exact[2]
    assert late[0] != pytest.approx(exact[0], rel=1e-4)
    assert late[0] == pytest.approx(exact[0], rel=0.1)
    # Half of the work is saved at least, and nothing is without copies.
    assert late[3]["synced"] < found[3]["synced"] and exact[3]["synced"] == 0
    assert late[3]["vectors"] < exact[3]["vectors"] / 2


@pytest.mark.parametrize("placement", ["cache", *SLOW])
def test_placements_and_evaluations_change_no_bit(placement: str, shards: Shards) -> None:
    wanted = run_thread_ranks(2, lambda ranks: result(shards, ranks, 3), 20)
    assert wanted[0][:2] == wanted[1][:2]
    fields: dict[str, Any] = {"placement": placement, "evaluates": placement == "cache"}
    if placement in ("cache", "lookahead"):
        fields["staging_bytes"] = 2_000
    assert run_thread_ranks(2, lambda ranks: result(shards, ranks, 3, **fields), 20)[0] == wanted[0]


def test_hot_rows_of_fae_are_copies_too(shards: Shards) -> None:
    first, second = (
        run_thread_ranks(2, lambda ranks: result(shards, ranks, 3, placement="fae"), 20) for _ in range(2)
    )
    assert first == second


def test_bytes_are_those_that_lookups_predict(shards: Shards) -> None:
    num_ranks, every, rows = 4, 3, 12

    def work(ranks: Ranks) -> Any:
        trainer, _ = built(shards, ranks, every, rows)
        run_steps(trainer, lambda *_: None)
        (width,) = trainer.embeddings.widths
        assert isinstance(width, RankedWidth)
        return trainer.numbers, width.exchange.held.homes_K, trainer.coded.counts.sent_bytes["synced"]

    found = run_thread_ranks(num_ranks, work, 20)
    numbers, homes, _ = found[0]
    reader = RankReader(shards, (0, 1, 2), num_ranks)
    keys = set(choose_synced(shards, [(0, 1, 2)], num_ranks, num_ranks, rows)[0].tolist())
    messages = Counter[int]()
    users: dict[int, set[int]] = {}
    for step, number in enumerate(numbers, 1):
        batch = reader.read(number)
        for key, mask in zip(batch.keys_U.tolist(), batch.masks_U.tolist(), strict=True):
            if key in keys:
                users.setdefault(key, set()).update(rank for rank in range(num_ranks) if mask >> rank & 1)
        if step % every == 0:
            for key, ranks in users.items():
                for rank in ranks - {int(homes[key])}:
                    messages[rank] += 1
                messages[int(homes[key])] += num_ranks - 1
            users = {}
    # Four floats and as many of Adagrad's state.
    assert [each[2] for each in found] == [32 * messages[rank] for rank in range(num_ranks)]


def test_the_rows_with_the_most_uses_have_copies(shards: Shards) -> None:
    uses = Counter[tuple[int, int]]()
    widths = [(0, 2), (1,)]
    for number, width in enumerate(widths):
        reader = RankReader(shards, width, 2, 4)
        for batch in range(shards.num_training_batches):
            read = reader.read(batch)
            for key, mask in zip(read.keys_U.tolist(), read.masks_U.tolist(), strict=True):
                uses[number, key] += mask.bit_count()
    for most in (1, 7, 1_000):
        best = sorted(uses, key=lambda row: (-uses[row], row))[:most]
        found = choose_synced(shards, widths, 2, 4, most)
        assert [each.tolist() for each in found] == [sorted(key for n, key in best if n == w) for w in (0, 1)]


def test_other_sums_and_forgotten_users_are_found(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(**fields: Any) -> Any:
        return run_thread_ranks(2, lambda ranks: result(shards, ranks, 3, **fields), 20)[0]

    wanted = run()
    # Rows that are staged in the cache would be written back with older values.
    staged = {"placement": "cache", "staging_bytes": 4_000}
    with monkeypatch.context() as patch:
        patch.setattr(Executor, "set_newest", Executor.restore)
        assert run(evaluates=True, **staged) != wanted
    # Copies that are changed by an evaluation.
    publish = WidthCopies.publish

    def publish_and_forget(self: WidthCopies) -> None:
        publish(self)
        self._users_K[:] = 0

    monkeypatch.setattr(WidthCopies, "publish", publish_and_forget)
    assert run(evaluates=True) != wanted


def test_a_rank_by_itself_has_no_copies(shards: Shards) -> None:
    trainer = build_trainer(shards, TrainConfig(threads=1, placement="all-fast"), ranks=OneRank())
    assert trainer.embeddings.can_be_saved
