"""Options become the codecs of each step, and errors of hot rows come back with their next gradients.

Dense gradients summed over ranks: the tree of one process, bit for bit. A rank without one adds nothing. Rows
of several table groups arrive at each rank by group, in the order of the ranks they come from.

"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.pipeline.errors import ConfigError
from hotset.stats.codecs import BoundedCodec, RowMessage, codec_of, shape_of
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train.config_parts import ChosenExchange, ExchangeOptions
from hotset.train.data.batch import EmbeddingTable
from hotset.train.model.gradients import add_tree
from hotset.train.ranked_run import SavedErrors
from hotset.train.ranks.messages import (
    EXACT,
    CodedExchange,
    Coding,
    Crossing,
    DenseSums,
    GroupErrors,
    GroupLayout,
    RowMessages,
    check_tables_of_bounds,
    chosen_by,
    codec_for,
    loosened,
    sum_partials,
)
from hotset.train.ranks.ranks import NotFiniteRowError, OneRank, Ranks
from hotset.train.rows.kernels import num_levels


@pytest.mark.parametrize("num_numbers", [1, 5, 4099])
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 6])
def test_the_sum_is_that_of_the_tree(num_ranks: int, num_numbers: int, rng: np.random.Generator) -> None:
    parts = [
        torch.from_numpy((rng.normal(size=num_numbers) * 10.0 ** rng.integers(-6, 6)).astype(np.float32))
        for _ in range(num_ranks)
    ]

    def work(ranks: Ranks) -> bytes:
        sums = DenseSums(ranks, CodedExchange(ranks.rank, 0), num_numbers)
        for _ in range(2):  # buffers are used again
            gradient = parts[ranks.rank].clone()
            loss = sums.add(gradient, 0.1 * ranks.rank)
        assert loss == add_tree([0.1 * rank for rank in range(num_ranks)])
        return gradient.numpy().tobytes()

    level = list(parts)
    while len(level) > 1:
        level = [sum(level[i : i + 2][1:], level[i]) for i in range(0, len(level), 2)]
    assert set(run_thread_ranks(num_ranks, work)) == {level[0].numpy().tobytes()}


def test_a_rank_without_samples_changes_no_sign() -> None:
    """Its gradient is -0: a zero would turn a -0 of another rank into 0."""

    def work(ranks: Ranks) -> bool:
        gradient = torch.full((5,), -0.0)
        DenseSums(ranks, CodedExchange(ranks.rank, 0), 5).add(gradient, 0.0)
        return bool(gradient.signbit().all())

    assert run_thread_ranks(3, work) == [True] * 3


@pytest.mark.parametrize(("name", "error", "ratio"), [("bf16", 2e-2, 2), ("int8", 5e-2, 3.9)])
def test_coded_sums_are_near_and_the_same_at_all_ranks(
    name: str, error: float, ratio: float, rng: np.random.Generator
) -> None:
    parts = torch.from_numpy(rng.normal(size=(3, 1500)).astype(np.float32))

    def work(ranks: Ranks) -> tuple[bytes, bytes, int]:
        coded = CodedExchange(ranks.rank, 0)
        coded.use(ChosenExchange(dense=name))
        found = []
        for step in (0, 1):
            coded.step = step
            gradient = parts[ranks.rank].clone()
            assert DenseSums(ranks, coded, 1500).add(gradient, 1.0) == 3.0
            torch.testing.assert_close(gradient, parts.sum(0), atol=3 * error, rtol=error)
            found.append(gradient.numpy().tobytes())
        return found[0], found[1], coded.counts.sent_bytes["dense"]

    found = run_thread_ranks(3, work)
    assert len({each[:2] for each in found}) == 1
    # Steps round by other bits; the bytes are known beforehand.
    assert found[0][0] != found[0][1]
    whole = 2 * 2 * 4 * 1536 * 2 / 3
    assert found[0][2] == pytest.approx(whole / ratio, rel=0.02)


def test_a_dense_gradient_that_is_not_finite_is_refused_by_its_step() -> None:
    def work(ranks: Ranks) -> None:
        coded = CodedExchange(ranks.rank, 0, step=6)
        coded.use(ChosenExchange(dense="bf16"))
        gradient = torch.ones(40)
        gradient[7] = float("nan")
        DenseSums(ranks, coded, 40).add(gradient, 1.0)

    with pytest.raises(NotFiniteRowError, match="gradient of the dense layers is not finite at step 7"):
        run_thread_ranks(2, work)


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8"])
def test_a_coded_sum_rounds_what_is_sent_and_then_the_sum(name: str, rng: np.random.Generator) -> None:
    """Bit for bit: a rank keeps its own slice as it is, blocks of 128 numbers have keys of their own."""
    # Two slices of two blocks, the last of them with 3 numbers.
    parts = (rng.normal(size=(2, 387)) * 10.0 ** rng.integers(-3, 3, (2, 387))).astype(np.float32)
    codecs = [CodedExchange(rank, 3, step=4) for rank in range(2)]
    for coded in codecs:
        coded.use(ChosenExchange(dense=name))

    def rounded(numbers: NDArray[np.float32], first_block: int, stream: int) -> NDArray[np.float32]:
        message = RowMessage.of(numbers.reshape(-1, 128), stream=stream)
        message = message._replace(keys_N=message.keys_N + first_block)
        codec = codec_of(name)
        data = np.empty(codec.num_bytes(shape_of(message)), np.uint8)
        codec.encode(message, data)
        found = np.empty_like(message.rows_ND)
        codec.decode(data, shape_of(message), found)
        return found.reshape(-1)

    filled = np.zeros((2, 2, 256), np.float32)
    filled.reshape(2, -1)[:, :387] = parts
    wanted = []
    for owner in range(2):
        other = 1 - owner
        arrived = rounded(filled[other, owner], 2 * owner, codecs[other].dense("partials")[1])
        total = filled[owner, owner] + arrived
        wanted.append(rounded(total, 0, codecs[owner].dense("sums")[1]))

    def work(ranks: Ranks) -> bytes:
        gradient = torch.from_numpy(parts[ranks.rank].copy())
        assert DenseSums(ranks, codecs[ranks.rank], 387).add(gradient, 0.5) == 1.0
        return gradient.numpy().tobytes()

    assert run_thread_ranks(2, work) == [np.concatenate(wanted)[:387].tobytes()] * 2
    # A slice to the other rank, and the sum of the own slice with the loss.
    slice_bytes = {"fp16": 512, "bf16": 512, "int8": 2 * 130}[name]
    assert [coded.counts.sent_bytes["dense"] for coded in codecs] == [2 * slice_bytes + 8] * 2


def test_saturated_numbers_of_dense_gradients_are_counted() -> None:
    def work(ranks: Ranks) -> int:
        coded = CodedExchange(ranks.rank, 0)
        coded.use(ChosenExchange(dense="fp16"))
        gradient = torch.zeros(512)
        # In the slice of rank 1: sent by rank 0, and again in the sum that rank 1 sends.
        gradient[300] = 1e6 if ranks.rank == 0 else 64.0
        DenseSums(ranks, coded, 512).add(gradient, 0.0)
        assert gradient[300] == 65_504 and gradient.count_nonzero() == 1
        return coded.counts.num_saturated

    assert run_thread_ranks(2, work) == [1, 1]


def test_one_rank_sends_nothing() -> None:
    coded = CodedExchange(0, 0)
    coded.use(ChosenExchange(dense="int8"))
    gradient = torch.tensor([1e-9, 2.0])
    assert DenseSums(OneRank(), coded, 2).add(gradient, 0.25) == 0.25
    assert gradient.tolist() == torch.tensor([1e-9, 2.0]).tolist() and not any(
        coded.counts.sent_bytes.values()
    )


def naive(parts: dict[int, NDArray[np.float32]], first: int, count: int) -> NDArray[np.float32] | None:
    """The sum over ranks from ``first`` on; None where none has a gradient."""
    if count == 1:
        return parts.get(first)
    left, right = (naive(parts, start, count // 2) for start in (first, first + count // 2))
    return right if left is None else left if right is None else left + right


def summed(places: NDArray[np.int32], partials: NDArray[np.float32]) -> NDArray[np.float32]:
    levels = num_levels(places.shape[1])
    sums = np.full((places.shape[0], partials.shape[1]), np.nan, np.float32)
    stack = np.full((levels, partials.shape[1]), np.nan, np.float32)
    sum_partials(places, partials, sums, stack, np.empty(levels, np.int64))
    return sums


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 6, 8, 13])
def test_gradients_are_added_by_the_tree(num_ranks: int, rng: np.random.Generator) -> None:
    has = rng.random((50, num_ranks)) < 0.6
    has[np.arange(50), rng.integers(0, num_ranks, 50)] = True
    places = np.where(has, np.cumsum(has).reshape(has.shape) - 1, -1).astype(np.int32)
    partials = rng.normal(size=(has.sum(), 5)).astype(np.float32)
    size = 1 << (num_ranks - 1).bit_length()
    for row, found in enumerate(summed(places, partials)):
        parts = {rank: partials[places[row, rank]] for rank in range(num_ranks) if has[row, rank]}
        np.testing.assert_array_equal(found, naive(parts, 0, size))


def test_a_rank_without_a_gradient_is_no_zero() -> None:
    """0 + -0 is 0: a zero in its place would turn the sign."""
    sums = summed(np.array([[-1, 0, -1]], np.int32), np.full((1, 4), -0.0, np.float32))
    assert np.signbit(sums).all()


COUNTS = np.array([[[0, 2, 1], [3, 0, 0], [1, 1, 0]], [[0, 1, 4], [0, 0, 2], [2, 0, 0]]])
"""(widths, sources, targets)."""


def rows(width: int, source: int, target: int, dim: int) -> NDArray[np.float32]:
    """Rows that no other message has."""
    rng = np.random.default_rng((width, source, target))
    return rng.normal(size=(COUNTS[width, source, target], dim)).astype(np.float32)


def crossing(width: int, rank: int, *, is_sent: bool) -> Crossing:
    """Rows 3, 5, … of a table of 8 rows and one behind it."""
    counts = COUNTS[width, rank] if is_sent else COUNTS[width, :, rank]
    keys = np.concatenate([3 + 2 * np.arange(count, dtype=np.int32) for count in counts])
    return Crossing(tuple(counts.tolist()), keys, np.arange(keys.size, dtype=np.int32))


def layout_of(dims: tuple[int, ...]) -> list[GroupLayout]:
    return [GroupLayout(dim, np.array([0, 8, 20]), (f"A{dim}", f"B{dim}")) for dim in dims]


@pytest.mark.parametrize("dims", [(3,), (2, 5)])
def test_rows_arrive_by_width_and_rank(dims: tuple[int, ...]) -> None:
    def work(ranks: Ranks) -> int:
        messages = RowMessages(ranks, layout_of(dims))
        own = ranks.rank
        for _ in range(2):
            under_way = messages.send(
                [np.concatenate([rows(n, own, to, dim) for to in range(3)]) for n, dim in enumerate(dims)],
                [crossing(width, own, is_sent=True) for width in range(len(dims))],
                [crossing(width, own, is_sent=False) for width in range(len(dims))],
                EXACT,
            )
            for width, found in enumerate(under_way()):
                wanted = np.concatenate([rows(width, source, own, dims[width]) for source in range(3)])
                np.testing.assert_array_equal(found, wanted)
        return messages.sent_bytes

    sent = sum(run_thread_ranks(3, work))
    num_floats = sum(dim * int(each.sum()) for dim, each in zip(dims, COUNTS, strict=False))
    assert sent == 4 * num_floats


def test_a_row_that_is_not_finite_is_named() -> None:
    def work(ranks: Ranks) -> None:
        messages = RowMessages(ranks, layout_of((4,)))
        sent = crossing(0, ranks.rank, is_sent=True)
        rows_ND = np.ones((sent.keys_N.size, 4), np.float32)
        # Of three rows that rank 1 sends to rank 0 the last one, key 7, and of rank 2 the first to rank 1.
        if ranks.rank == 1:
            rows_ND[2, 1] = np.inf
        received = crossing(0, ranks.rank, is_sent=False)
        messages.send([rows_ND], [sent], [received], Coding([codec_of("int8")], [None]))()

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
        for width, found in enumerate(under_way()):
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
            (found,) = under_way()
            assert set(found[:, 1].tolist()) == {max(min(number, 65_504.0), -65_504.0)}
            counts.append(messages.num_saturated)
        return counts

    # One of the two numbers of each row: ranks send 3, 3 and 2 rows.
    assert run_thread_ranks(3, work) == [[3, 3, 0], [3, 3, 0], [2, 2, 0]]


TABLES = [EmbeddingTable(f"C{n}", rows, 1, 4) for n, rows in enumerate((999, 1_000, 400_000, 400_001))]


def test_what_is_left_open_follows_from_the_options() -> None:
    assert chosen_by(ExchangeOptions(), 100).is_exact
    assert chosen_by(ExchangeOptions(exchange="auto"), 100) == ChosenExchange()
    bounded = chosen_by(ExchangeOptions(exchange="bounded:0.03"), 100)
    assert bounded == ChosenExchange("bounded:0.03", "int8", "bf16", 20)
    # Runs of earlier versions recorded more.
    assert ChosenExchange.of_json(bounded.to_json() | {"ranks": 2, "decay": "linear"}) == bounded
    assert chosen_by(ExchangeOptions(exchange="int8", exchange_feedback=True), 9).feedback


def test_bounds_go_by_table_and_step() -> None:
    by_size = codec_for("bounded:sizes,C1=0.2", TABLES)
    assert isinstance(by_size, BoundedCodec) and by_size.of_tables == {0: 0.05, 1: 0.2, 2: 0.03, 3: 0.01}
    codec = codec_for("bounded:0.3,C2=0.01", TABLES)
    looser = loosened(codec, 1.5)
    assert isinstance(looser, BoundedCodec)
    # A bound of half the range would say nothing.
    assert looser.of_tables == pytest.approx({0: 0.45, 1: 0.45, 2: 0.015, 3: 0.45})
    twice = loosened(codec, 2.0)
    assert isinstance(twice, BoundedCodec) and twice.bound == 0.49 == twice.of_tables[0]
    assert loosened(codec_for("int8", TABLES), 2.0).name == "int8"


def test_a_bound_of_no_table_is_refused() -> None:
    check_tables_of_bounds(ChosenExchange("bounded:0.1,C2=0.2"), TABLES)
    with pytest.raises(ConfigError, match="exchange: there is no table 'C4'"):
        check_tables_of_bounds(ChosenExchange("bounded:kaggle"), TABLES)


def of_dims(*dims: int) -> list[EmbeddingTable]:
    return [replace(table, embedding_dim=dim) for table, dim in zip(TABLES, dims, strict=True)]


def test_random_bits_change_with_seed_step_rank_and_width() -> None:
    def streams(rank: int, seed: int, step: int) -> list[int | None]:
        coded = CodedExchange(rank, seed, of_dims(4, 4, 8, 8), step)
        coded.use(ChosenExchange("int8", "int8"))
        assert list(coded.vectors().streams) == [None, None]
        return [*coded.gradients().streams, coded.dense("partials")[1], coded.dense("sums")[1]]

    found = [streams(*each) for each in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len({stream for each in found for stream in each}) == 16
    assert streams(0, 0, 0) == found[0]


def test_bounds_tighten_as_steps_are_done() -> None:
    coded = CodedExchange(0, 0, of_dims(4, 8, 8, 8))
    coded.use(ChosenExchange("bounded:0.1", "bounded:sizes", "none", 20))
    bounds = []
    for _ in range(22):
        vectors, gradients = coded.vectors().codecs, coded.gradients().codecs
        assert all(isinstance(codec, BoundedCodec) for codec in (*vectors, *gradients))
        first, second = vectors[0], gradients[1]
        assert isinstance(first, BoundedCodec) and isinstance(second, BoundedCodec)
        bounds.append(first.bound)
        # Each table by the same factor.
        factor = first.bound / 0.1
        assert second.of_tables == pytest.approx({0: 0.03 * factor, 1: 0.03 * factor, 2: 0.01 * factor})
        coded.note_step()
    # A twentieth less every step, and the bound itself from then on.
    assert bounds == pytest.approx([0.1 * (2 - step / 20) for step in range(20)] + [0.1, 0.1])
    assert coded.step == coded.counts.num_steps == 22
    # A run that is resumed goes on where it was.
    resumed = CodedExchange(0, 0, of_dims(4, 8, 8, 8), step=7)
    resumed.use(coded.chosen)
    (codec, _) = resumed.vectors().codecs
    assert isinstance(codec, BoundedCodec) and codec.bound == bounds[7]


def test_rows_cross_as_they_are_only_where_every_width_does() -> None:
    exact, coarse = codec_of("none"), codec_of("int8")
    assert EXACT.is_exact and Coding([exact, exact], [None, 5]).is_exact
    assert not Coding([exact, coarse], [None, None]).is_exact
    coded = CodedExchange(1, 2, TABLES)
    assert coded.vectors().is_exact and coded.gradients().is_exact and coded.dense("sums")[0].is_exact
    coded.use(ChosenExchange(gradients="bf16"))
    assert coded.vectors().is_exact and not coded.gradients().is_exact
    assert not coded.chosen.is_exact and coded.prediction is None
    with coded.clocked("gradients"):
        pass
    assert coded.counts.seconds == coded.counts.seconds_of["gradients"] > 0
    assert set(coded.counts.sent_bytes.values()) == {0}


@pytest.mark.parametrize(
    ("exchange", "wanted"),
    [
        ("none", ("none", "none", "none", 0)),
        ("fp16", ("fp16", "fp16", "fp16", 0)),
        ("bf16", ("bf16", "bf16", "bf16", 0)),
        ("int8", ("int8", "int8", "bf16", 0)),
        ("bounded:sizes", ("bounded:sizes", "int8", "bf16", 2)),
    ],
)
def test_codecs_of_each_way_follow_from_the_option(exchange: str, wanted: tuple[str | int, ...]) -> None:
    chosen = chosen_by(ExchangeOptions(exchange=exchange), 10)
    assert (chosen.vectors, chosen.gradients, chosen.dense, chosen.early_steps) == wanted


DIM = 6
HOT_TABLES = [
    EmbeddingTable("C1", 20, 4, DIM),
    EmbeddingTable("C2", 1, 0, DIM),
    EmbeddingTable("C3", 30, 5, DIM),
]
HOT = {*range(4), *range(21, 26)}
"""Keys of hot rows, table after table."""
LAYOUT = [GroupLayout(DIM, np.array([0, 20, 21, 51]), ("C1", "C2", "C3"))]


def steps_of(num_steps: int) -> list[tuple[NDArray[np.int32], NDArray[np.float32]]]:
    rng = np.random.default_rng(5)
    found = []
    for _ in range(num_steps):
        keys = np.flatnonzero(rng.random(51) < 0.5).astype(np.int32)
        found.append((keys, rng.normal(size=(keys.size, DIM)).astype(np.float32)))
    return found


def sent_to_first(ranks: Ranks, codec: str, errors: GroupErrors | None) -> list[NDArray[np.float32]]:
    """What rank 0 decodes of the gradients that rank 1 sends in each step."""
    messages = RowMessages(ranks, LAYOUT)
    none = Crossing((0, 0), np.empty(0, np.int32), np.empty(0, np.int32))
    arrived = []
    for step, (keys, rows) in enumerate(steps_of(12)):
        coding = Coding([codec_of(codec)], [step], None if errors is None else [errors])
        out = Crossing((keys.size, 0), keys, keys) if ranks.rank else none
        into = none if ranks.rank else Crossing((0, keys.size), keys, keys)
        given = rows.copy() if ranks.rank else rows[:0]
        (found,) = messages.send([given], [out], [into], coding)()
        assert given.tobytes() == (rows if ranks.rank else rows[:0]).tobytes()
        arrived.append(found)
    return arrived


@pytest.mark.parametrize("codec", ["int8", "bf16", "bounded:0.05"])
def test_gradients_carry_the_errors_of_those_before(codec: str) -> None:
    kept = [GroupErrors(HOT_TABLES) for _ in range(2)]
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
    def work(ranks: Ranks) -> GroupErrors:
        rng = np.random.default_rng(ranks.rank)
        widths = [GroupErrors(HOT_TABLES), GroupErrors([EmbeddingTable("C4", 7, 0, 2)])]
        widths[0].errors_HD[:] = rng.normal(size=(9, DIM))
        widths[0].errors_HD[3] = 0
        widths[0].errors_HD[4] = -0.0
        saved = SavedErrors(ranks, widths)
        saved.bring_together()
        states.append(dict(saved.state())) if ranks.rank == 0 else None
        assert ranks.rank == 0 or not saved.state()
        ranks.gather(torch.zeros(1))
        again = [GroupErrors(HOT_TABLES), GroupErrors([EmbeddingTable("C4", 7, 0, 2)])]
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
