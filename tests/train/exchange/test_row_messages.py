"""Rows of several widths arrive at each rank by width, in the order of the ranks they come from."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.codecs import codec_of
from hotset.stats.plain_codecs import RowMessage, shape_of
from hotset.train.exchange.coded_exchange import EXACT, Coding
from hotset.train.exchange.row_messages import CrossingRows, NotFiniteRowError, RowMessages, WidthLayout
from hotset.train.ranks.ranks import Ranks
from hotset.train.ranks.thread_ranks import run_thread_ranks

COUNTS = np.array([[[0, 2, 1], [3, 0, 0], [1, 1, 0]], [[0, 1, 4], [0, 0, 2], [2, 0, 0]]])
"""(widths, sources, targets)."""


def rows(width: int, source: int, target: int, dim: int) -> NDArray[np.float32]:
    """Rows that no other message has."""
    rng = np.random.default_rng((width, source, target))
    return rng.normal(size=(COUNTS[width, source, target], dim)).astype(np.float32)


def crossing(width: int, rank: int, *, is_sent: bool) -> CrossingRows:
    """Rows 3, 5, … of a table of 8 rows and one behind it."""
    counts = COUNTS[width, rank] if is_sent else COUNTS[width, :, rank]
    return CrossingRows(
        tuple(counts.tolist()), np.concatenate([3 + 2 * np.arange(count, dtype=np.int32) for count in counts])
    )


def layout_of(dims: tuple[int, ...]) -> list[WidthLayout]:
    return [WidthLayout(dim, np.array([0, 8, 20]), (f"A{dim}", f"B{dim}")) for dim in dims]


@pytest.mark.parametrize("names", [None, ("int8", "bounded:0.01"), ("bf16", "int8")])
@pytest.mark.parametrize("dims", [(3,), (2, 5)])
def test_rows_arrive_by_width_and_rank(dims: tuple[int, ...], names: tuple[str, str] | None) -> None:
    codecs = [codec_of(name) for name in (names or ())[: len(dims)]]
    coding = Coding(codecs, [None] * len(codecs)) if names else EXACT

    def work(ranks: Ranks) -> int:
        messages = RowMessages(ranks, layout_of(dims))
        own = ranks.rank
        for _ in range(2):
            under_way = messages.send(
                [np.concatenate([rows(n, own, to, dim) for to in range(3)]) for n, dim in enumerate(dims)],
                [crossing(width, own, is_sent=True) for width in range(len(dims))],
                [crossing(width, own, is_sent=False) for width in range(len(dims))],
                coding,
            )
            for width, found in enumerate(under_way.wait()):
                wanted = np.concatenate([rows(width, source, own, dims[width]) for source in range(3)])
                if names is None:
                    np.testing.assert_array_equal(found, wanted)
                else:
                    # Within the error of int8; rows of other messages are farther away.
                    np.testing.assert_allclose(found, wanted, atol=0.2)
        return messages.sent_bytes

    sent = sum(run_thread_ranks(3, work))
    num_floats = sum(dim * int(each.sum()) for dim, each in zip(dims, COUNTS, strict=False))
    assert sent == 4 * num_floats if names is None else 0 < sent < 4 * num_floats + 16 * 9


def test_a_row_that_is_not_finite_is_named() -> None:
    def work(ranks: Ranks) -> None:
        messages = RowMessages(ranks, layout_of((4,)))
        sent = crossing(0, ranks.rank, is_sent=True)
        rows_ND = np.ones((sent.keys_N.size, 4), np.float32)
        # Of three rows that rank 1 sends to rank 0 the last one, key 7, and of rank 2 the first to rank 1.
        if ranks.rank == 1:
            rows_ND[2, 1] = np.inf
        received = crossing(0, ranks.rank, is_sent=False)
        messages.send([rows_ND], [sent], [received], Coding([codec_of("int8")], [None])).wait()

    with pytest.raises(NotFiniteRowError, match="row 7 of table A4, sent to rank 0, is not finite"):
        run_thread_ranks(3, work)
    assert layout_of((4,))[0].name_of(8) == "row 0 of table B4"


@pytest.mark.parametrize("names", [("int8", "bounded:0.1"), ("fp16", "none"), ("int8", "bf16")])
def test_each_part_is_what_its_codec_makes_of_it_alone(names: tuple[str, str]) -> None:
    """Rows of one width, to one rank, with the streams of the sender: no byte of another part matters."""
    dims = (3, 5)
    codecs = [codec_of(name) for name in names]

    def streams(rank: int) -> list[int | None]:
        # The second width is rounded to nearest.
        return [100 + rank, None]

    def alone(width: int, source: int, target: int) -> tuple[NDArray[np.float32], int]:
        """The rows as they arrive, and their bytes with those up to the next part."""
        rows_ND = rows(width, source, target, dims[width])
        keys = 3 + 2 * np.arange(rows_ND.shape[0])
        # Keys below 8 are of the first table; no key is behind the second one.
        starts = np.array([0, np.count_nonzero(keys < 8), keys.size])
        message = RowMessage(rows_ND, starts, keys, streams(source)[width])
        codec = codecs[width]
        data = np.empty(codec.num_bytes(shape_of(message)), np.uint8)
        codec.encode(message, data)
        found = np.empty_like(rows_ND)
        codec.decode(data, shape_of(message), found)
        return found, -(-data.size // 4) * 4 * bool(keys.size)

    def work(ranks: Ranks) -> int:
        messages = RowMessages(ranks, layout_of(dims))
        own = ranks.rank
        # A receiver needs no stream.
        under_way = messages.send(
            [np.concatenate([rows(n, own, to, dim) for to in range(3)]) for n, dim in enumerate(dims)],
            [crossing(width, own, is_sent=True) for width in range(2)],
            [crossing(width, own, is_sent=False) for width in range(2)],
            Coding(codecs, streams(own)),
        )
        for width, found in enumerate(under_way.wait()):
            wanted = np.concatenate([alone(width, source, own)[0] for source in range(3)])
            assert found.tobytes() == wanted.tobytes()
        assert messages.sent_bytes == sum(alone(n, own, to)[1] for n in range(2) for to in range(3))
        return messages.num_saturated

    assert run_thread_ranks(3, work) == [0] * 3


def test_numbers_that_saturate_are_counted_in_each_exchange_anew() -> None:
    def work(ranks: Ranks) -> list[int]:
        messages = RowMessages(ranks, layout_of((2,)))
        sent, received = (crossing(0, ranks.rank, is_sent=is_sent) for is_sent in (True, False))
        rows_ND = np.zeros((sent.keys_N.size, 2), np.float32)
        counts = []
        for number in (1e5, -1e5, 1.0):
            rows_ND[:, 1] = number
            under_way = messages.send([rows_ND], [sent], [received], Coding([codec_of("fp16")], [None]))
            (found,) = under_way.wait()
            assert set(found[:, 1].tolist()) == {max(min(number, 65_504.0), -65_504.0)}
            counts.append(messages.num_saturated)
        return counts

    # One of the two numbers of each row: ranks send 3, 3 and 2 rows.
    assert run_thread_ranks(3, work) == [[3, 3, 0], [3, 3, 0], [2, 2, 0]]
