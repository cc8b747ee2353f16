"""``--exchange auto`` chooses by the link, is recorded, and is kept by a run that is resumed.

A run on several ranks is saved, and goes on with any number of ranks to the same bits.

Ranks that do not write the folder of a run take part where rank 0 collects rows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hotset.pipeline.errors import HotsetError
from hotset.tests.support.processes.ranked_runs import train_on_ranks
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.thread_ranks import ThreadRanks, run_thread_ranks
from hotset.train import ranked_run as module
from hotset.train import run as begin_run
from hotset.train.build import build_trainer
from hotset.train.checkpoints import writer
from hotset.train.checkpoints.files import CheckpointRecord, newest_whole, write_part, write_record
from hotset.train.checkpoints.resume import Checkpoint, RunCheckpoints, restore, table_sizes
from hotset.train.config import TrainConfig
from hotset.train.config_parts import CheckpointSettings, ChosenExchange, ExchangeOptions, ExchangePrediction
from hotset.train.data.batch import Batch
from hotset.train.data.shards import ShardSet
from hotset.train.loop import Trainer, run_steps
from hotset.train.ranked_run import SAVED_ERRORS, RankCheckpoints, SavedErrors
from hotset.train.ranks.messages import CodedExchange, chosen_by
from hotset.train.ranks.ranks import LinkSpeed, OneRank, RankError, Ranks
from hotset.train.rows.embeddings import RowsPart
from hotset.train.run_folder.files import RunFolder
from hotset.train.run_folder.weights import Weights
from hotset.train.run_log import TrainSummary

SLOW_LINK, FAST_LINK = LinkSpeed(1e-3, 1e3), LinkSpeed(1e-3, 1e15)
SPEC = ShardSpec(num_rows=(60, 1, 900), num_hot=(3, 1, 5), num_mixed=220, batch_size=20)
CONFIG = TrainConfig(threads=1, placement="all-fast", embedding_optimizer="adagrad")


def _kept(measure: Callable[..., Any], kept: dict[int, Any], trainer: Any) -> Any:
    """What a rank finds, and a note of it."""
    kept[trainer.ranks.rank] = measure(trainer)
    return kept[trainer.ranks.rank]


class _KilledError(Exception):
    """The process is gone."""


@pytest.fixture
def train_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainSummary]:
    """Train on so many ranks, each a thread, to a folder of ``tmp_path``; killed after some samples."""
    write_shards(tmp_path / "shards", SPEC)

    def train(
        out: str,
        num_ranks: int,
        killed_after: int | None = None,
        of_last: dict[str, Any] | None = None,
        **options: Any,
    ) -> TrainSummary:
        def progress(kind: str, done: int, *_: object) -> None:
            if kind == "train" and killed_after is not None and done >= killed_after:
                raise _KilledError

        of_others = {"exchange": ExchangeOptions(**options | (of_last or {}))}
        run_options: dict[str, Any] = {"exchange": ExchangeOptions(**options), "progress": progress}
        run_options |= {"checkpoints": CheckpointSettings(checkpoint_every=2)}
        folders = tmp_path / "shards", CONFIG, tmp_path / out
        return train_on_ranks(num_ranks, monkeypatch, *folders, of_others, **run_options)

    return train


def test_a_slow_link_gets_small_codecs_and_a_fast_one_none(
    train_on: Callable[..., TrainSummary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "measure_link", lambda ranks: SLOW_LINK)
    looked_at: dict[int, Any] = {}
    monkeypatch.setattr(module, "_volumes", partial(_kept, module._volumes, looked_at))
    slow = train_on("slow", 2, exchange="auto").exchange
    # A row that one of two ranks sends, the other one receives; each vector has its gradient.
    for kind in ("vectors", "gradients"):
        (first,), (second,) = looked_at[0][kind], looked_at[1][kind]
        assert first.num_sent == second.num_received > 0 and first.num_received == second.num_sent > 0
        assert first.embedding_dim == second.embedding_dim
    assert looked_at[0]["vectors"][0].num_sent == looked_at[0]["gradients"][0].num_received
    # Of each dense number half is sent to the other rank, as a gradient and as a sum.
    weights = load_file(tmp_path / "slow" / "weights.safetensors")
    num_dense = sum(each.numel() for name, each in weights.items() if "." in name)
    assert looked_at[0]["dense"] == [(128, num_dense / 128, num_dense / 128)] == looked_at[1]["dense"]
    assert slow is not None and slow.prediction is not None and not slow.has_equal_bits
    assert slow.codecs == {"vectors": "int8", "gradients": "int8", "dense": "bf16"}
    # Prediction and outcome, both of a step.
    assert slow.prediction.seconds_per_step > 4e-3 and slow.seconds_per_step > 0
    assert [sum(each.values()) > 0 for each in slow.bytes_by_rank] == [True, True]
    recorded = json.loads((tmp_path / "slow" / "config.json").read_text())["exchange"]
    assert recorded["vectors"] == "int8" and recorded["ranks"] == 2

    monkeypatch.setattr(module, "measure_link", lambda ranks: FAST_LINK)
    fast = train_on("fast", 2, exchange="auto").exchange
    assert fast is not None and fast.has_equal_bits and set(fast.codecs.values()) == {"none"}
    train_on("exact", 2)
    files = [(tmp_path / out / "weights.safetensors").read_bytes() for out in ("fast", "exact", "slow")]
    assert files[0] == files[1] != files[2]
    assert "exchange" not in json.loads((tmp_path / "exact" / "config.json").read_text())


def test_a_resumed_run_keeps_its_codecs_and_ends_with_the_bits_of_an_unbroken_one(
    train_on: Callable[..., TrainSummary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "measure_link", lambda ranks: SLOW_LINK)
    train_on("unbroken", 2, exchange="auto")
    with suppress(_KilledError):
        train_on("killed", 2, killed_after=150, exchange="auto")
    # Nothing is measured any more: the link may be another one by now.
    monkeypatch.setattr(module, "measure_link", lambda ranks: FAST_LINK)
    for num_ranks, options, found in (
        (2, {"exchange": "fp16"}, "exchange.vectors is 'int8', here 'fp16'"),
        (1, {"exchange": "auto"}, "exchange is {'vectors': 'int8'.*here None"),
    ):
        with pytest.raises(HotsetError, match=found):
            train_on("killed", num_ranks, **options)
    train_on("killed", 2, exchange="auto")
    files = [(tmp_path / out / "weights.safetensors").read_bytes() for out in ("unbroken", "killed")]
    assert files[0] == files[1]


def test_ranks_with_other_codecs_are_refused_by_name(train_on: Callable[..., TrainSummary]) -> None:
    for own, other, name in (
        ({"exchange": "auto"}, {"exchange": "none"}, "exchange"),
        ({"exchange": "int8"}, {"exchange_feedback": True}, "exchange_feedback"),
    ):
        with pytest.raises(RankError, match=f"rank 1 differs from rank 0 in {name}\n"):
            train_on("run", 2, of_last=other, **own)


def test_rows_that_are_not_finite_stop_the_run_by_name(
    train_on: Callable[..., TrainSummary], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_an_infinity(*arguments: Any, **named: Any) -> Any:
        trainer = build_trainer(*arguments, **named)
        for width in trainer.embeddings.groups:
            width.fast.weights_SD[:] = float("inf")
        return trainer

    monkeypatch.setattr(begin_run, "build_trainer", with_an_infinity)
    with pytest.raises(HotsetError, match=r"the \w+ of (row \d+ of table|the) .* not finite"):
        train_on("run", 2, exchange="int8")


VOLUMES = (
    {
        "vectors": [(4, 100.0, 50.0), (16, 10.0, 10.0)],
        "gradients": [(4, 50.0, 100.0), (16, 0.0, 0.0)],
        "dense": [(128, 8.0, 8.0)],
    },
    {
        "vectors": [(4, 20.0, 200.0), (16, 40.0, 0.0)],
        "gradients": [(4, 200.0, 20.0), (16, 0.0, 30_000.0)],
        "dense": [(128, 8.0, 8.0)],
    },
)
"""Width, and rows that are sent and received, of each rank."""


def chosen_on(
    monkeypatch: pytest.MonkeyPatch, link: LinkSpeed, seconds: dict[str, float], options: ExchangeOptions
) -> tuple[ChosenExchange, ExchangePrediction]:
    """The choice of two ranks where coding and decoding any message take so many seconds."""
    tried = set()

    def seconds_of(work: partial[Any]) -> float:
        work()
        tried.add(work.func.__self__.name)  # type: ignore[attr-defined]
        return seconds[work.func.__self__.name]  # type: ignore[attr-defined]

    def volumes_of(trainer: Any) -> Any:
        found = VOLUMES[trainer.ranks.rank]
        return {kind: [module._Volume(*each) for each in widths] for kind, widths in found.items()}

    monkeypatch.setattr(module, "_MOST_ROWS", 1_000)
    monkeypatch.setattr(module, "measure_link", lambda ranks: link)
    monkeypatch.setattr(module, "_volumes", volumes_of)
    monkeypatch.setattr(module, "_least_seconds", seconds_of)

    def work(ranks: Ranks) -> tuple[ChosenExchange, ExchangePrediction | None]:
        coded = CodedExchange(ranks.rank, 0)
        coded.use(chosen_by(options, 10))
        trainer: Any = SimpleNamespace(ranks=ranks, rank_codecs=coded, config=SimpleNamespace(seed=0))
        found = module.choose_exchange(trainer, options)
        # The run goes on by what is returned, not by itself.
        assert coded.chosen == chosen_by(options, 10)
        return found, coded.prediction

    (chosen, prediction), other = run_thread_ranks(2, work)
    assert other == (chosen, prediction) and prediction is not None
    assert "none" not in tried
    return chosen, prediction


def test_the_choice_is_by_bytes_and_work_of_the_slowest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"bf16": 1e-6, "int8": 5e-6}
    auto = ExchangeOptions(exchange="auto")
    chosen, prediction = chosen_on(monkeypatch, LinkSpeed(0.25, 1e6), seconds, auto)
    assert chosen == ChosenExchange("int8", "int8", "bf16")
    # Bytes: of the larger direction, at the rank with more of them.
    vectors = {"none": 16 * 200 + 64 * 40, "bf16": 8 * 200 + 32 * 40, "int8": 6 * 200 + 18 * 40}
    # Work: a message's seconds for as many rows as were tried, which are those of the larger direction.
    work = max(150 / 100 + 20 / 10, 220 / 200 + 40 / 40)
    found = prediction.seconds_by_codec
    assert found["vectors"] == pytest.approx(
        {name: vectors[name] / 1e6 + seconds.get(name, 0) * work for name in vectors}
    )
    # A rank that receives more rows than are tried takes as much longer.
    gradients = {"none": 16 * 200 + 64 * 30_000, "bf16": 8 * 200 + 32 * 30_000, "int8": 6 * 200 + 18 * 30_000}
    work = max(150 / 100, 220 / 200 + 30)
    assert found["gradients"] == pytest.approx(
        {name: gradients[name] / 1e6 + seconds.get(name, 0) * work for name in gradients}
    )
    assert found["dense"] == pytest.approx({"none": 4096 / 1e6, "bf16": 2048 / 1e6 + 2 * 1e-6})
    taken = found["vectors"]["int8"] + found["gradients"]["int8"] + found["dense"]["bf16"]
    assert prediction.seconds_per_step == pytest.approx(4 * 0.25 + taken)
    assert prediction.delay_seconds == 0.25 and prediction.bytes_per_second == 1e6


def test_work_that_the_link_does_not_repay_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    auto = ExchangeOptions(exchange="auto")
    slow_int8 = {"bf16": 1e-6, "int8": 1.0}
    assert chosen_on(monkeypatch, LinkSpeed(0, 1e6), slow_int8, auto)[0] == ChosenExchange(
        "bf16", "bf16", "bf16"
    )
    both_slow = {"bf16": 1.0, "int8": 1.0}
    chosen, prediction = chosen_on(monkeypatch, LinkSpeed(0, 1e6), both_slow, auto)
    assert chosen == ChosenExchange()
    assert prediction.seconds_per_step == pytest.approx(
        sum(each["none"] for each in prediction.seconds_by_codec.values())
    )


def fixed_seconds(link: LinkSpeed, seconds: dict[str, float]) -> dict[tuple[str, ...], float]:
    """The seconds of a step in each codec of vectors, gradients and dense numbers, by bytes and work."""
    bytes_of_row = {"none": (16, 64), "bf16": (8, 32), "int8": (6, 18)}
    # Rows of each width at the rank with the larger direction, and messages of what is tried that are worked.
    rows = {"vectors": (200, 40), "gradients": (200, 30_000)}
    work = {"vectors": max(150 / 100 + 20 / 10, 220 / 200 + 40 / 40), "gradients": max(1.5, 220 / 200 + 30)}

    def of_rows(kind: str, codec: str) -> float:
        pairs = zip(bytes_of_row[codec], rows[kind], strict=True)
        num_bytes = sum(size * count for size, count in pairs)
        return num_bytes / link.bytes_per_second + seconds.get(codec, 0) * work[kind]

    of_dense = {
        codec: num_bytes / link.bytes_per_second + 2 * seconds.get(codec, 0)
        for codec, num_bytes in (("none", 4096), ("bf16", 2048))
    }
    return {
        (there, back, dense): 4 * link.delay_seconds
        + of_rows("vectors", there)
        + of_rows("gradients", back)
        + of_dense[dense]
        for there, back, dense in product(bytes_of_row, bytes_of_row, of_dense)
    }


@pytest.mark.parametrize("seed", range(24))
def test_the_choice_is_within_a_twentieth_of_the_best_codec(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    link = LinkSpeed(float(rng.choice([0, 1e-3])), 10 ** rng.uniform(4, 11))
    transfer = 30_000 * 64 / link.bytes_per_second
    # Work of codecs from far below the time of the link to far above it; or such that they save or cost up to
    # a fifth of it, about where they begin to pay.
    saved = {"bf16": 1 / 2, "int8": 1 - 18 / 64}
    if seed % 2:
        seconds = {name: transfer * (share + rng.uniform(-0.2, 0.2)) / 31 for name, share in saved.items()}
    else:
        seconds = {name: transfer * 10 ** rng.uniform(-4, 0.5) / 31 for name in saved}
    chosen, prediction = chosen_on(monkeypatch, link, seconds, ExchangeOptions(exchange="auto"))
    fixed = fixed_seconds(link, seconds)
    assert prediction.seconds_per_step <= 1.05 * min(fixed.values())
    # What is predicted is the model's time of what was chosen.
    taken = fixed[chosen.vectors, chosen.gradients, chosen.dense]
    assert prediction.seconds_per_step == pytest.approx(taken)


SETTINGS = replace(CheckpointSettings(), checkpoint_every=2)
SAVED = ShardSpec(
    num_rows=(60, 1, 90),
    num_hot=(3, 1, 5),
    num_hot_only=26,
    num_mixed=110,
    skew=1.2,
    batch_size=20,
    table_dims=(4, 2, 4),
)


def train(
    shards: ShardSet,
    folder: Path,
    fields: dict[str, Any],
    ranks: Ranks,
    *,
    stop_after: int | None = None,
    exchange: ChosenExchange | None = None,
) -> dict[str, bytes]:
    """Go on from the last checkpoint, and save the run every two steps; return weights and states."""
    torch.set_num_threads(1)
    config = TrainConfig(threads=1, micro_batches=4, embedding_optimizer="adagrad", **fields)
    record = newest_whole(folder)
    checkpoint = Checkpoint.open(folder, record, table_sizes(shards, config)) if record else None
    start = checkpoint.start if checkpoint else None
    trainer = build_trainer(shards, config, start=start, tracks_changes=True, ranks=ranks, exchange=exchange)
    if trainer.rank_codecs is not None and trainer.rank_codecs.errors is not None:
        trainer.resumables[SAVED_ERRORS] = SavedErrors(ranks, trainer.rank_codecs.errors)
    if checkpoint:
        restore(trainer, checkpoint)
    kind = RunCheckpoints if ranks.num_ranks == 1 else RankCheckpoints
    saved = kind(trainer, folder, "run", SETTINGS, record)

    def after_step(trainer: Trainer, _: Batch, __: torch.Tensor) -> None:
        if saved.is_due(trainer.step):
            saved.take([])
            saved.settle(wait=True)
        if trainer.step == stop_after:
            raise _KilledError

    try:
        run_steps(trainer, after_step)
    finally:
        saved.close()
    weights = trainer.weights()
    found = {name: weights[name].numpy().tobytes() for name in sorted(weights)}
    for number, table in enumerate(shards.tables):
        found[f"{table.name} state"] = trainer.embeddings.table(number, state=True).numpy().tobytes()
    return found


def on_ranks(shards: ShardSet, folder: Path, fields: dict[str, Any], num_ranks: int, **options: Any) -> Any:
    if num_ranks == 1:
        return train(shards, folder, fields, OneRank(), **options)
    return run_thread_ranks(num_ranks, lambda ranks: train(shards, folder, fields, ranks, **options), 20)[0]


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("all-fast", "fae", "cache", "hybrid")]


@pytest.mark.parametrize("placement", ["lookahead", *SLOW])
def test_a_run_goes_on_with_another_number_of_ranks(placement: str, tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", SAVED))
    staged = placement in ("lookahead", "cache")
    fields = {"placement": placement, "epochs": 2, "staging_bytes": 1_000 if staged else None}
    wanted = on_ranks(shards, tmp_path / "unbroken", fields, 1)
    folder = tmp_path / "saved"
    for num_ranks, stop_after in ((2, 5), (4, 9), (1, 11)):
        with suppress(_KilledError):
            on_ranks(shards, folder, fields, num_ranks, stop_after=stop_after)
        record = newest_whole(folder)
        assert record is not None and stop_after - 2 < record.state.step <= stop_after
    assert on_ranks(shards, folder, fields, 4) == wanted


def test_ranks_that_begin_with_the_rows_of_another_have_the_bits_of_one(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", replace(SAVED, embedding_optimizer="adagrad")))
    with suppress(_KilledError):
        on_ranks(shards, tmp_path / "first", {"placement": "all-fast"}, 2, stop_after=5)

    def train_on(ranks: Ranks) -> list[bytes]:
        torch.set_num_threads(1)
        config = TrainConfig(threads=1, micro_batches=4, embedding_optimizer="adagrad", placement="all-fast")
        record = newest_whole(tmp_path / "first")
        assert record is not None
        checkpoint = Checkpoint.open(tmp_path / "first", record, table_sizes(shards, config))
        start = replace(checkpoint.start, done=None, is_fresh=False)
        trainer = build_trainer(shards, config, start=start, ranks=ranks)
        run_steps(trainer, lambda *_: None)
        return [trainer.embeddings.table(n).numpy().tobytes() for n in range(len(shards.tables))]

    wanted = run_thread_ranks(2, train_on, 20)
    assert wanted[0] == train_on(OneRank())


def test_errors_of_gradients_are_saved_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", SAVED))
    fields = {"placement": "all-fast"}
    coded = ChosenExchange("none", "int8", feedback=True)
    wanted = on_ranks(shards, tmp_path / "unbroken", fields, 2, exchange=coded)
    assert (
        on_ranks(shards, tmp_path / "without", fields, 2, exchange=replace(coded, feedback=False)) != wanted
    )

    def resumed(folder: Path) -> Any:
        with suppress(_KilledError):
            on_ranks(shards, folder, fields, 2, stop_after=5, exchange=coded)
        return on_ranks(shards, folder, fields, 2, exchange=coded)

    assert resumed(tmp_path / "saved") == wanted
    # Errors that are forgotten are missed.
    monkeypatch.setattr(SavedErrors, "restore", lambda *_: None)
    assert resumed(tmp_path / "forgotten") != wanted


def test_rows_of_a_lost_checkpoint_are_saved_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", SAVED))
    fields = {"placement": "all-fast"}
    wanted = on_ranks(shards, tmp_path / "unbroken", fields, 1)

    def write_but_one(folder: Path, record: CheckpointRecord) -> None:
        if record.state.step == 4:
            raise OSError(28, "No space left on device")
        write_record(folder, record)

    monkeypatch.setattr(writer, "write_record", write_but_one)
    folder = tmp_path / "saved"
    with suppress(_KilledError):
        on_ranks(shards, folder, fields, 2, stop_after=7)
    assert on_ranks(shards, folder, fields, 4) == wanted


def test_ranks_wait_for_a_checkpoint_that_takes_longer_than_they_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", SAVED))
    fields = {"placement": "all-fast"}
    wanted = on_ranks(shards, tmp_path / "unbroken", fields, 1)
    # The disk takes no byte until the ranks have waited for it several times.
    num_signs = 0
    is_patient = threading.Event()

    def gather(self: ThreadRanks, part: torch.Tensor) -> list[torch.Tensor]:
        nonlocal num_signs
        found = gathered(self, part)
        num_signs += self.rank == 1 and found[0].tolist() == [-1]
        if num_signs > 2:
            is_patient.set()
        return found

    def write(path: Path, part: RowsPart) -> tuple[int, str]:
        assert is_patient.wait(60), "nobody waited"
        return write_part(path, part)

    gathered = ThreadRanks.gather
    monkeypatch.setattr(ThreadRanks, "gather", gather)
    monkeypatch.setattr(writer, "write_part", write)
    assert on_ranks(shards, tmp_path / "saved", fields, 2) == wanted


def test_every_part_is_asked_for_in_the_order_of_the_file_and_nothing_is_written(tmp_path: Path) -> None:
    asked: list[str] = []

    def parts_of(name: str) -> Iterator[torch.Tensor]:
        for number in range(2):
            asked.append(f"{name}{number}")
            yield torch.empty(0, 2)

    folder = RunFolder(tmp_path / "run", is_first=False)
    weights = Weights({"b": (4, 2), "a": (4, 2)}, parts_of)
    folder.save_weights(weights)
    folder.save_states(weights)
    folder.log({"step": 1})
    folder.save_batch_order([0])
    folder.finish({})
    assert asked == ["a0", "a1", "b0", "b1"] * 2
    assert list(tmp_path.iterdir()) == []
