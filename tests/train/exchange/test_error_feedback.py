"""Errors of hot rows come back with their next gradients, against a naive twin; tests `saved_errors`, too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.stats.codecs import codec_of
from hotset.stats.plain_codecs import RowMessage, shape_of
from hotset.train.data.batch import EmbeddingTable
from hotset.train.exchange.coded_exchange import Coding
from hotset.train.exchange.error_feedback import WidthErrors
from hotset.train.exchange.row_messages import CrossingRows, RowMessages, WidthLayout
from hotset.train.ranks.ranks import Ranks
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.train.resuming.saved_errors import SavedErrors

DIM = 6
TABLES = [EmbeddingTable("C1", 20, 4, DIM), EmbeddingTable("C2", 1, 0, DIM), EmbeddingTable("C3", 30, 5, DIM)]
HOT = {*range(4), *range(21, 26)}
"""Keys of hot rows, table after table."""
LAYOUT = [WidthLayout(DIM, np.array([0, 20, 21, 51]), ("C1", "C2", "C3"))]


def steps_of(num_steps: int) -> list[tuple[NDArray[np.int32], NDArray[np.float32]]]:
    rng = np.random.default_rng(5)
    found = []
    for _ in range(num_steps):
        keys = np.flatnonzero(rng.random(51) < 0.5).astype(np.int32)
        found.append((keys, rng.normal(size=(keys.size, DIM)).astype(np.float32)))
    return found


def sent_to_first(ranks: Ranks, codec: str, errors: WidthErrors | None) -> list[NDArray[np.float32]]:
    """What rank 0 decodes of the gradients that rank 1 sends in each step."""
    messages = RowMessages(ranks, LAYOUT)
    none = CrossingRows((0, 0), np.empty(0, np.int32))
    arrived = []
    for step, (keys, rows) in enumerate(steps_of(12)):
        coding = Coding([codec_of(codec)], [step], None if errors is None else [errors])
        out = CrossingRows((keys.size, 0), keys) if ranks.rank else none
        into = none if ranks.rank else CrossingRows((0, keys.size), keys)
        given = rows.copy() if ranks.rank else rows[:0]
        (found,) = messages.send([given], [out], [into], coding).wait()
        assert given.tobytes() == (rows if ranks.rank else rows[:0]).tobytes()
        arrived.append(found)
    return arrived


@pytest.mark.parametrize("codec", ["int8", "bf16", "bounded:0.05"])
def test_gradients_carry_the_errors_of_those_before(codec: str) -> None:
    kept = [WidthErrors(TABLES) for _ in range(2)]
    arrived = run_thread_ranks(2, lambda ranks: sent_to_first(ranks, codec, kept[ranks.rank]), 20)[0]
    # The same row by row, with a dict of errors.
    errors: dict[int, NDArray[np.float32]] = {}
    given = np.zeros((51, DIM))
    received = np.zeros((51, DIM))
    for step, (keys, rows) in enumerate(steps_of(12)):
        with_errors = rows.copy()
        for row, key in enumerate(keys.tolist()):
            if key in errors:
                with_errors[row] = rows[row] + errors[key]
        starts = np.searchsorted(keys, [0, 20, 21, 51])
        message = RowMessage(with_errors, starts, keys.astype(np.int64), step)
        data = np.empty(codec_of(codec).num_bytes(shape_of(message)), np.uint8)
        codec_of(codec).encode(message, data)
        decoded = np.empty_like(rows)
        codec_of(codec).decode(data, shape_of(message), decoded)
        errors |= {key: with_errors[n] - decoded[n] for n, key in enumerate(keys.tolist()) if key in HOT}
        assert arrived[step].tobytes() == decoded.tobytes()
        given[keys] += rows
        received[keys] += decoded
    assert len(errors) == 9 and not kept[0].errors_HD.any()
    hot = sorted(HOT)
    assert kept[1].errors_HD.tobytes() == np.stack([errors[key] for key in hot]).tobytes()
    # Nothing is lost but the last error.
    assert (received + 0)[hot] == pytest.approx(given[hot] - kept[1].errors_HD, abs=1e-4)
    plain = run_thread_ranks(2, lambda ranks: sent_to_first(ranks, codec, None), 20)[0]
    lost = sum(
        np.abs(
            sum(
                np.where(keys[:, None] == key, each, 0).sum(axis=0)
                for (keys, _), each in zip(steps_of(12), plain, strict=True)
            )
            - given[key]
        ).sum()
        for key in hot
    )
    assert np.abs(received[hot] - given[hot]).sum() < lost


def test_errors_of_all_ranks_are_saved_at_the_first() -> None:
    def work(ranks: Ranks) -> WidthErrors:
        rng = np.random.default_rng(ranks.rank)
        widths = [WidthErrors(TABLES), WidthErrors([EmbeddingTable("C4", 7, 0, 2)])]
        widths[0].errors_HD[:] = rng.normal(size=(9, DIM))
        widths[0].errors_HD[3] = 0
        widths[0].errors_HD[4] = -0.0
        saved = SavedErrors(ranks, widths)
        saved.bring_together()
        states.append(dict(saved.state())) if ranks.rank == 0 else None
        assert ranks.rank == 0 or not saved.state()
        ranks.gather(torch.zeros(1))
        again = [WidthErrors(TABLES), WidthErrors([EmbeddingTable("C4", 7, 0, 2)])]
        SavedErrors(ranks, again).restore(states[0])
        assert again[0].errors_HD.tobytes() == widths[0].errors_HD.tobytes()
        # A damaged state is refused before a row is written.
        name = f"rank {ranks.rank} width 0 "
        for change in (
            {name + "rows": torch.full((8,), 9)},
            {name + "rows": torch.zeros(8)},
            {name + "errors": torch.zeros(8, 5)},
        ):
            with pytest.raises(ValueError, match=r"rows|row 9"):
                SavedErrors(ranks, again).restore({**states[0], **change})
        return again[0]

    states: list[dict[str, torch.Tensor]] = []
    found = run_thread_ranks(3, work, 20)
    assert len({each.errors_HD.tobytes() for each in found}) == 3
    assert states[0]["rank 2 width 0 rows"].tolist() == [0, 1, 2, 4, 5, 6, 7, 8]
