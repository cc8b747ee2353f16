"""Kernels over rows give the bits of the host's, and those of dense layers its values, in torch and Triton.

Tests `dense_kernels`, `batch_kernels` and `row_kernels`, too.
"""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.pipeline.errors import ConfigError
from hotset.stats.batch_rows import LONG_LOOKUPS
from hotset.stats.row_bytes import OPTIMIZERS
from hotset.tests.support.gpu.device_batches import DrawnBatch, Kernels, draw_ids, is_guarded, poisoned
from hotset.train.gpu import twins
from hotset.train.gpu.packed_batch import BatchRoom, RowMoves, RowTensors, SeedTables, SlotLayout
from hotset.train.gpu.twins import (
    BIAS_BLOCK,
    KERNELS,
    LOSS_BLOCK,
    DenseOptimizerName,
    DenseRule,
    choose_kernels,
)
from hotset.train.model import kernels as dense_kernels
from hotset.train.rows import kernels as row_kernels
from hotset.train.rows.backends import RowOptimizer, step_with_numba
from hotset.train.rows.kernels import BLOCK_SAMPLES
from hotset.train.rows.tiers import InitialValues, Layout

F32 = np.float32
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Tolerance of the norm."""


def assert_near(found: torch.Tensor, wanted: NDArray[np.float64], tolerance: float) -> None:
    difference = np.linalg.norm(found.cpu().double().numpy() - wanted)
    assert difference <= tolerance * np.linalg.norm(wanted)


def naive_vectors(
    weights: torch.Tensor, slots_BF: torch.Tensor, bottom: torch.Tensor | None, dtype: torch.dtype
) -> NDArray[np.float64]:
    """(B, V, D) vectors, rounded to a type."""
    rows = weights.cpu()[slots_BF.cpu().long().clamp(min=0)].clone()
    rows[slots_BF.cpu() < 0] = 0
    vectors = rows.to(dtype).double()
    if bottom is not None:
        vectors = torch.cat([bottom.cpu().double().unsqueeze(1), vectors], 1)
    return vectors.numpy()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("num_samples", "num_padding", "num_tables", "dim", "has_bottom"),
    [(5, 2, 26, 16, True), (3, 0, 4, 10, True), (2, 1, 17, 64, False), (1, 0, 26, 128, True)],
)
def test_dots_of_all_pairs_and_their_gradients(
    num_samples: int,
    num_padding: int,
    num_tables: int,
    dim: int,
    has_bottom: bool,
    dtype: torch.dtype,
    on: Kernels,
) -> None:
    if dtype == torch.bfloat16 and on.engine == "triton" and on.device.type == "cpu":
        pytest.skip("Triton's interpreter multiplies bfloat16 wrongly")
    room = num_samples + num_padding
    weights = on.normal(50, dim)
    slots_BF = torch.from_numpy(on.rng.integers(-1, 50, (room, num_tables)).astype(np.int32)).to(on.device)
    bottom = on.normal(room, dim, dtype=dtype) if has_bottom else None
    if bottom is not None:
        bottom[num_samples:] = float("nan")
    num_samples_1 = on.count(num_samples)
    num_passed = dim if has_bottom else 0
    num_vectors = num_tables + has_bottom
    num_inputs = num_passed + num_vectors * (num_vectors - 1) // 2
    padded = -(-num_inputs // 16) * 16
    inputs = on.empty(room, padded, dtype=dtype)
    on.run("gather_dots", weights, slots_BF, num_samples_1, bottom, inputs)

    vectors = naive_vectors(weights, slots_BF, bottom, dtype)[:num_samples]
    rows, columns = np.tril_indices(num_vectors, -1)
    dots = np.einsum("bvd,bwd->bvw", vectors, vectors)[:, rows, columns]
    assert_near(inputs[:num_samples, num_passed:num_inputs], dots, TOLERANCE[dtype])
    if bottom is not None:
        assert torch.equal(inputs[:num_samples, :dim], bottom[:num_samples])
    assert not inputs[num_samples:].any() and not inputs[:, num_inputs:].any()

    grad_BP = on.normal(room, padded, dtype=dtype)
    grad_BP[num_samples:] = float("nan")
    grad_BFD = on.empty(room, num_tables, dim)
    bottom_grad = None if bottom is None else poisoned(torch.empty_like(bottom))
    on.run("gather_dots_backward", weights, slots_BF, num_samples_1, bottom, grad_BP, grad_BFD, bottom_grad)
    grads = grad_BP[:num_samples].cpu().double().numpy()
    symmetric = np.zeros((num_samples, num_vectors, num_vectors))
    symmetric[:, rows, columns] = grads[:, num_passed:num_inputs]
    wanted = (symmetric + symmetric.transpose(0, 2, 1)) @ vectors
    assert_near(grad_BFD[:num_samples], wanted[:, num_vectors - num_tables :], TOLERANCE[dtype])
    if bottom_grad is not None:
        assert_near(bottom_grad[:num_samples], wanted[:, 0] + grads[:, :dim], TOLERANCE[dtype])
        assert not bottom_grad[num_samples:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("num_samples", "num_padding", "num_inputs"), [(1, 0, 1), (300, 3, 40), (LOSS_BLOCK, 0, 256)]
)
def test_the_last_layer_passes_the_loss_and_its_gradients(
    num_samples: int, num_padding: int, num_inputs: int, dtype: torch.dtype, on: Kernels
) -> None:
    room = num_samples + num_padding
    hidden = on.normal(room, num_inputs, dtype=dtype)
    weights = on.normal(num_inputs + 1) * 3
    labels = torch.from_numpy((on.rng.random(room) < 0.3).astype(np.uint8)).to(on.device)
    hidden[num_samples:], labels[num_samples:] = float("nan"), 255
    hidden_grad = poisoned(torch.empty_like(hidden))
    num_blocks = -(-room // LOSS_BLOCK)
    partials = on.empty(num_blocks, num_inputs + 1)
    losses = on.empty(num_blocks, dtype=torch.float64)
    grad = poisoned(torch.empty_like(weights))
    loss_1 = on.empty(1, dtype=torch.float64)
    count_1 = on.count(num_samples)
    arrays = (hidden, weights, labels, count_1, 1 / 2048, hidden_grad, partials, losses, grad, loss_1)
    on.run("last_layer", *arrays)

    inputs = hidden[:num_samples].cpu().double().numpy()
    weight = weights.cpu().double().numpy()
    logits = inputs @ weight[:-1] + weight[-1]
    # The loss and the gradient by the logits are those of the host.
    wanted = np.empty(num_samples, F32)
    label, ones = labels[:num_samples].cpu().float().numpy(), np.ones(num_samples, F32)
    wanted_loss = dense_kernels.logistic_loss(logits.astype(F32), label, ones, F32(1 / 2048), wanted)
    np.testing.assert_allclose(loss_1.cpu().numpy(), [wanted_loss], rtol=1e-6)
    assert_near(hidden_grad[:num_samples], wanted[:, None] * weight[None, :-1], TOLERANCE[dtype] * 2)
    assert not hidden_grad[num_samples:].any()
    assert_near(grad, np.append(wanted @ inputs, wanted.sum(dtype=np.float64)), 5e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("num_samples", "num_outputs"), [(1, 1), (300, 70), (513, 64)])
def test_gradients_pass_where_relu_did(
    num_samples: int, num_outputs: int, dtype: torch.dtype, on: Kernels
) -> None:
    outputs = on.normal(num_samples, num_outputs, dtype=dtype).clamp(min=0)
    grad = on.normal(num_samples, num_outputs, dtype=dtype)
    wanted = torch.where(outputs > 0, grad, 0.0)
    bias_grad = on.empty(num_outputs)
    partials = on.empty(-(-num_samples // BIAS_BLOCK), num_outputs)
    on.run("relu_backward", grad, outputs, partials, bias_grad)
    assert torch.equal(grad, wanted)
    assert_near(bias_grad, wanted.cpu().double().numpy().sum(0), 1e-6)


def naive_step(
    rule: DenseRule, rates: NDArray[F32], weights: NDArray[F32], grad: NDArray[F32], states: NDArray[F32]
) -> NDArray[F32]:
    """The new weights; states are updated."""
    new: NDArray[F32]
    if rule.decay:
        grad = grad + weights * F32(rule.decay)
    if rule.name == "sgd":
        new = weights - grad * rates[0]
        return new
    if rule.name == "adagrad":
        states[0] += grad * grad
        new = weights - grad * rates[0] / (np.sqrt(states[0]) + F32(rule.eps))
        return new
    for state, keep, take, value in zip(states, rule.keep, rule.take, (grad, grad * grad), strict=True):
        state[:] = state * F32(keep) + value * F32(take)
    new = weights - states[0] * rates[0] / (np.sqrt(states[1]) / rates[1] + F32(rule.eps))
    return new


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_a_step_of_all_dense_parameters_rounds_every_operation(
    name: DenseOptimizerName, decay: float, on: Kernels
) -> None:
    rule = DenseRule(name, decay)
    weights = on.normal(2500)
    states = torch.zeros(rule.num_states, 2500, device=on.device)
    rounded = on.empty(2500, dtype=torch.bfloat16)
    wanted, wanted_states = weights.cpu().numpy().copy(), states.cpu().numpy().copy()
    module = torch.nn.Parameter(weights.cpu().clone())
    kinds = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
    peer = kinds[name]([module], lr=0.02, weight_decay=decay)
    for step in (1, 2, 3):
        grad = on.normal(2500)
        rates = rule.rates(0.02, step)
        numbers = torch.from_numpy(rates).to(on.device)
        on.run("step_dense", rule, numbers, weights, grad, states, rounded)
        wanted = naive_step(rule, rates, wanted, grad.cpu().numpy(), wanted_states)
        module.grad = grad.cpu()
        peer.step()
    np.testing.assert_array_equal(weights.cpu().numpy(), wanted)
    np.testing.assert_array_equal(states.cpu().numpy(), wanted_states)
    # Triton's interpreter cuts off what it should round.
    most_off = 1 if on.engine == "triton" and on.device.type == "cpu" else 0
    bits = (rounded.view(torch.int16).int() - weights.bfloat16().view(torch.int16).int()).abs()
    assert int(bits.max()) <= most_off
    # Torch's own optimizer is the same formula in another order of operations.
    np.testing.assert_allclose(wanted, module.detach().numpy(), rtol=1e-4, atol=1e-6)


HOST = torch.device("cpu")


def test_the_host_has_the_twins() -> None:
    kernels = choose_kernels(HOST)
    assert kernels.keys() == KERNELS.keys()
    assert kernels["sum_and_step"] is twins.sum_and_step
    assert choose_kernels(HOST, "torch:gather_dots, torch")["gather_dots"] is twins.gather_dots


@pytest.mark.parametrize("wanted", ["cuda:gather_dots", "torch:dots", "gather_dots", "torch:gather_dots,"])
def test_a_kernel_that_is_not_there_is_refused(wanted: str) -> None:
    with pytest.raises(ConfigError, match="no kernel"):
        choose_kernels(HOST, wanted)


def test_triton_on_the_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="needs a GPU and the package triton"):
        choose_kernels(HOST, "triton:gather_dots")


NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python names from 3.13."""
SHAPES = [(37, 3, 5), (1, 1, 0), (130, 2, 6)]
"""Samples, tables and samples of padding."""


def drawn(shape: tuple[int, int, int], on: Kernels) -> DrawnBatch:
    num_samples, num_tables, num_padding = shape
    ids_BF = draw_ids(num_samples, num_tables, 50, on.rng)
    return on.batch(ids_BF, [8] * num_tables, num_padding=num_padding)


def numba_sums(
    batch: DrawnBatch, grad_BFD: torch.Tensor, slots_U: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Sums of the rows that have a slot, and their slots."""
    num_samples, num_tables = batch.ids_BF.shape
    grad_PD = grad_BFD.cpu().numpy()[:num_samples].reshape(num_samples * num_tables, -1)
    sums = np.empty((slots_U.size + 1, grad_PD.shape[1]), np.float32)
    slots = np.empty(slots_U.size, np.int64)
    block = BLOCK_SAMPLES * num_tables
    ends, shares = np.array([grad_PD.shape[0]]), np.empty(1, np.int64)
    count = row_kernels.sum_gradients(
        grad_PD, batch.by_row, slots_U, block, ends, 0, slots_U.size, sums, slots, shares
    )
    return sums[:count], slots[:count]


def assert_steps_as_numba(batch: DrawnBatch, dim: int, optimizer: RowOptimizer, on: Kernels) -> None:
    rows = on.rows(optimizer, batch.num_slots, dim)
    weights, state = (each.cpu().numpy().copy() for each in rows)
    grad_BFD = on.gradients(batch, dim)
    on.step(batch, grad_BFD, optimizer, rows)
    sums, slots = numba_sums(batch, grad_BFD, batch.slots_U)
    step_with_numba(optimizer, weights, state, slots, sums)
    np.testing.assert_array_equal(rows.weights_SD.cpu().numpy(), weights)
    np.testing.assert_array_equal(rows.state_SW.cpu().numpy(), state)
    assert is_guarded(rows)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decoding_finds_the_slot_of_every_lookup(shape: tuple[int, int, int], on: Kernels) -> None:
    batch = drawn(shape, on)
    num_samples, num_rows = shape[0], batch.by_row.num_rows
    starts = np.concatenate([[0], np.cumsum(batch.by_row.counts_U)])
    np.testing.assert_array_equal(batch.decoded.slots_BF[:num_samples].cpu(), batch.slots_BF)
    assert bool((batch.decoded.slots_BF[num_samples:] == -1).all())
    np.testing.assert_array_equal(batch.decoded.slots_U[:num_rows].cpu(), batch.slots_U)
    np.testing.assert_array_equal(batch.decoded.starts_U1[: num_rows + 1].cpu(), starts)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_gathered_by_their_slots(shape: tuple[int, int, int], on: Kernels) -> None:
    batch = drawn(shape, on)
    weights = on.rows(RowOptimizer("sgd", 0.1), batch.num_slots, 10).weights_SD
    batch.decoded.slots_BF[shape[0] :] = 0
    vectors_BFD = on.empty(batch.room.num_samples, shape[1], 10)
    on.run("gather_rows", weights, batch.decoded.slots_BF, batch.lists.num_samples_1, vectors_BFD)
    wanted = np.zeros(vectors_BFD.shape, np.float32)
    is_here = batch.slots_BF >= 0
    wanted[: shape[0]][is_here] = weights.cpu().numpy()[batch.slots_BF[is_here]]
    np.testing.assert_array_equal(vectors_BFD.cpu(), wanted)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, SHAPES[0]) for name in OPTIMIZERS),
        *(("sgd", shape) for shape in SHAPES[1:]),
        *(
            pytest.param(name, shape, marks=pytest.mark.slow)
            for name in OPTIMIZERS[1:]
            for shape in SHAPES[1:]
        ),
    ],
    ids=str,
)
def test_a_step_gives_the_bits_of_numba(name: str, shape: tuple[int, int, int], on: Kernels) -> None:
    optimizer = RowOptimizer(name, 0.03, 0.1 if shape[1] == 2 else 0.0)
    dim = {1: 3, 2: 10, 3: 16}[shape[1]]
    assert_steps_as_numba(drawn(shape, on), dim, optimizer, on)


def draw_long(rng: np.random.Generator) -> NDArray[np.int32]:
    """(600, 2) ids, of which two rows of each table have long lists."""
    return rng.choice(4, (600, 2), p=[0.48, 0.49, 0.02, 0.01]).astype(np.int32)


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        ("sgd", 16),
        # A program has fewer of wide rows at a time.
        *(
            pytest.param(name, dim, marks=pytest.mark.slow)
            for name in OPTIMIZERS
            for dim in (16, 128)
            if (name, dim) != ("sgd", 16) and (dim == 16 or name in ("sgd", "adam"))
        ),
    ],
)
def test_rows_with_long_lists_take_the_same_steps(name: str, dim: int, on: Kernels) -> None:
    batch = on.batch(draw_long(on.rng), [0, 4], num_padding=50, absent_share=0.6)
    is_absent = batch.slots_U[batch.by_row.counts_U > LONG_LOOKUPS] < 0
    assert sorted(is_absent.tolist()) == [False, False, False, True]
    assert_steps_as_numba(batch, dim, RowOptimizer(name, 0.03), on)


def test_rows_at_the_length_of_long_lists_are_updated_once(on: Kernels) -> None:
    ids_BF = on.rng.permutation(np.repeat([0, 1, 2], [LONG_LOOKUPS, LONG_LOOKUPS + 1, 1])).astype(np.int32)
    batch = on.batch(ids_BF.reshape(-1, 1), [3])
    assert int(batch.lists.long_offsets_F1[-1]) == 1
    assert_steps_as_numba(batch, 2, RowOptimizer("sgd", 0.03), on)


def test_rows_that_an_earlier_batch_left_take_no_step(on: Kernels) -> None:
    batch = on.batch(draw_long(on.rng), [4, 4])
    num_rows, num_long = batch.by_row.num_rows, int(batch.lists.long_offsets_F1[-1])
    assert num_long > 0
    # Behind the end are rows with a slot, short lists and a long one.
    # Adam counts steps without a gradient, too.
    left = batch.decoded
    left.starts_U1[num_rows + 1 :] = left.starts_U1[num_rows]
    left.slots_U[num_rows:] = 0
    left.long_rows_L[num_long:] = left.long_rows_L[0]
    assert_steps_as_numba(batch, 16, RowOptimizer("adam", 0.03), on)


def far_rows(num_rows: int, dim: int) -> torch.Tensor:
    """Rows whose numbers are more than 32 bits count; pages that no test touches have no memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    pages = mmap.mmap(-1, num_rows * dim * 4, flags=flags)
    return torch.frombuffer(pages, dtype=torch.float32).view(num_rows, dim)


def test_rows_lie_beyond_two_to_the_31_numbers(on: Kernels) -> None:
    num_rows, dim = 20_000_000, 128
    if on.device.type == "cpu":
        weights = far_rows(num_rows, dim)
    else:
        weights = torch.empty(num_rows, dim, device=on.device)
    near = on.rng.normal(size=(9, dim)).astype(np.float32)
    weights[-9:] = torch.from_numpy(near)
    rows = RowTensors(weights, weights[:, :0])
    slots_BF = torch.arange(num_rows - 9, num_rows, dtype=torch.int32, device=on.device).view(3, 3)
    count_1 = on.count(3)
    vectors_BFD = on.empty(3, 3, dim)
    on.run("gather_rows", weights, slots_BF, count_1, vectors_BFD)
    np.testing.assert_array_equal(vectors_BFD.flatten(0, 1).cpu(), near)

    # Three rows take a step, one of them by a long list, then go to the front.
    lookups = np.array([1, 2, LONG_LOOKUPS + 1])
    ids_BF = np.repeat(np.arange(3, dtype=np.int32), lookups).reshape(-1, 1)
    batch = on.batch(ids_BF, [3])
    slots_U = slots_BF.flatten()[3:6].contiguous()
    batch.decoded.slots_U[:3] = slots_U
    optimizer = RowOptimizer("sgd", 0.5)
    grad_BFD = torch.ones(*ids_BF.shape, dim, device=on.device)
    on.step(batch, grad_BFD, optimizer, rows)
    changes = np.float32(0.5) * lookups.astype(np.float32)
    np.testing.assert_array_equal(weights[-9:].cpu().numpy()[3:6], near[3:6] - changes[:, None])
    targets = torch.arange(3, dtype=torch.int32, device=on.device)
    place_3 = torch.tensor([3, 0, 0], dtype=torch.int32, device=on.device)
    on.run("move_rows", RowMoves(place_3, slots_U, targets), rows, rows)
    assert torch.equal(weights[:3], weights[-6:-3])


def test_sums_and_steps_apart_are_those_at_once(on: Kernels) -> None:
    ids_BF = np.minimum(draw_ids(300, 2, 50, on.rng), 5)
    batch = on.batch(ids_BF, [2, 5], num_padding=5)
    grad_BFD = on.gradients(batch, 16)
    sums_UD = on.empty(batch.room.num_rows, 16)
    partials = poisoned(batch.room.new_partials(16, on.device))
    on.run("sum_gradients", batch.lists, batch.decoded, grad_BFD, partials, sums_UD)
    num_rows = batch.by_row.num_rows
    wanted, _ = numba_sums(batch, grad_BFD, np.arange(num_rows))
    np.testing.assert_array_equal(sums_UD[:num_rows].cpu(), wanted)

    optimizer = RowOptimizer("adam", 0.03)
    rows = on.rows(optimizer, batch.num_slots, 16)
    weights, state = (each.cpu().numpy().copy() for each in rows)
    on.step(batch, grad_BFD, optimizer, rows)
    # The sums that were stored, stepped by the host.
    has_slot = batch.slots_U >= 0
    sums = sums_UD[:num_rows].cpu().numpy()[has_slot]
    step_with_numba(optimizer, weights, state, batch.slots_U[has_slot], sums)
    np.testing.assert_array_equal(rows.weights_SD.cpu().numpy(), weights)
    np.testing.assert_array_equal(rows.state_SW.cpu().numpy(), state)


@pytest.mark.slow
def test_a_row_with_sixty_thousand_lookups_takes_the_step_of_numba(on: Kernels) -> None:
    ids_BF = (on.rng.random((65_536, 1)) < 0.08).astype(np.int32)
    batch = on.batch(ids_BF, [2])
    assert batch.by_row.counts_U.max() > 60_000
    assert_steps_as_numba(batch, 16, RowOptimizer("sgd", 0.03), on)


def draw_moves(num_moves: int, num_sources: int, num_targets: int, on: Kernels) -> RowMoves:
    """Moves whose lists lie in one array, with poison before, between and behind them."""
    first_source, first_target = 3, num_moves + 5
    numbers = poisoned(torch.empty(2 * num_moves + 9, dtype=torch.int32))
    for first, most in ((first_source, num_sources), (first_target, num_targets)):
        drawn = on.rng.permutation(most)[:num_moves].astype(np.int32)
        numbers[first : first + num_moves] = torch.from_numpy(drawn)
    place_3 = torch.tensor([num_moves, first_source, first_target], dtype=torch.int32)
    return RowMoves(place_3.to(on.device), numbers.to(on.device), numbers.to(on.device))


def lists_of(moves: RowMoves) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and targets on the host."""
    count, first_source, first_target = moves.place_3.tolist()
    sources, targets = moves.sources_N[first_source:], moves.targets_N[first_target:]
    return sources[:count].cpu().long(), targets[:count].cpu().long()


@pytest.mark.parametrize(
    ("num_moves", "dim", "name"), [(0, 16, "sgd"), (1, 3, "adam"), (70, 16, "adagrad"), (70, 128, "adam")]
)
def test_moved_rows_keep_their_bits(num_moves: int, dim: int, name: str, on: Kernels) -> None:
    optimizer = RowOptimizer(name, 0.1)
    source, target = (on.rows(optimizer, size, dim) for size in (90, 80))
    wanted = [each.clone() for each in target]
    moves = draw_moves(num_moves, 90, 80, on)
    on.run("move_rows", moves, source, target)
    sources_N, targets_N = lists_of(moves)
    assert sources_N.numel() == num_moves
    for found, want, origin in zip(target, wanted, source, strict=True):
        want[targets_N] = origin[sources_N]
        assert torch.equal(found, want)


@pytest.mark.parametrize(("num_moves", "dim"), [(0, 16), (1, 16), (70, 10), (127, 128)])
def test_made_rows_have_the_bits_of_the_host(num_moves: int, dim: int, on: Kernels) -> None:
    # A table without a row on the tier lies between two that have some; 127 are the rows of all.
    layout = Layout.of([3, 40, 0], [60, 40, 70])
    initial = InitialValues.of(11, range(3), [60, 40, 70])
    optimizer = RowOptimizer("adagrad", 0.1)
    rows = on.rows(optimizer, 130, dim)
    weights, state = (each.cpu().clone() for each in rows)
    moves = draw_moves(num_moves, layout.num_own_slots, 130, on)
    on.run("make_rows", moves, SeedTables.of(layout, initial, on.device), rows)
    sources, targets = lists_of(moves)
    tables_N, ids_N = layout.rows_at(sources.numpy())
    initial.write(tables_N, ids_N, weights, targets.numpy())
    state[targets] = 0
    assert torch.equal(rows.weights_SD.cpu(), weights) and torch.equal(rows.state_SW.cpu(), state)


def test_slots_beyond_32_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="2147483648 slots"):
        SlotLayout.of(Layout.of([0], [1 << 31]), torch.device("cpu"))


def test_numbers_of_many_samples_take_four_bytes() -> None:
    dtypes = [BatchRoom(num_samples, 1, 0, 0, 0).number_dtype for num_samples in (65_536, 65_537)]
    assert dtypes == [torch.uint16, torch.int32]
