"""The three products of a linear layer, each with what comes behind it, on activations in panels.

All rows of a left matrix are multiplied by a part of the right one, sixty-four terms by sixty-four columns,
which is copied to the nearest cache. Sums are added in such parts, which keeps their errors small, in the
order of the terms. What is read next is asked for while a block is multiplied, and the next part of the
weights is copied meanwhile: from one product to the next the activations and weights of a layer do not stay
in the second cache, and waiting for the third one cost a sixth of the time. This stands in the loops over
blocks themselves, because a kernel called there costs a tenth of the time.

On a Xeon with AVX-512 the products of a DLRM's layers run at 170 to 183 GF/s a core, with bias, ReLU and
copies, those of torch alone at 150 to 168 (docs/training-step.md).

M samples, S rows of the panels for them, K inputs and N outputs of the layer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from ..simd import WIDTH, add, keep_where_positive, load, prefetch, store
from .block_product import COLUMNS, PANEL, ROWS, multiply_columns, multiply_rows
from .panels import PART_FLOATS, SQUARES, pack_rows, pack_squares, pack_whole_row

_FLOAT_BYTES = 4


@kernel
def layer_outputs(
    inputs: NDArray[np.float32],
    num_stored: int,
    weight_KN: NDArray[np.float32],
    bias_N: NDArray[np.float32],
    parts: NDArray[np.float32],
    outputs: NDArray[np.float32],
) -> None:
    """Write ``max(x W + b, 0)``.

    Args:
        inputs: panels of the (S, K) inputs.
        num_stored: S.
        weight_KN: (num_inputs, num_outputs), contiguous.
        bias_N: (num_outputs,).
        parts: twice `PART_FLOATS`, workspace.
        outputs: panels of the (S, N) outputs, written.

    Error:
        Products are not rounded; K of them are added in parts of 64, then these: at most ``(64 + K / 64) *
        2**-24`` of the sum of magnitudes. The order does not depend on the numbers of samples and outputs.
    """
    num_inputs, num_outputs = weight_KN.shape
    flat_N = weight_KN.reshape(-1)
    current = 0
    pack_rows(flat_N, num_outputs, 0, min(num_inputs, PANEL), min(num_outputs, PANEL), parts, current)
    share = -(-PANEL * ROWS // max(num_stored, ROWS))
    for column in range(0, num_outputs, PANEL):
        width = min(num_outputs - column, PANEL)
        of_panel = bias_N[column : column + width]
        for term in range(0, max(num_inputs, 1), PANEL):
            count = np.uint64(min(num_inputs - term, PANEL))
            is_last = term + PANEL >= num_inputs
            # The next part: that of the next terms, or the first of the next columns.
            next_term, next_column = (0, column + PANEL) if is_last else (term + PANEL, column)
            following = PART_FLOATS - current
            source = next_term * num_outputs + next_column
            next_height = min(num_inputs - next_term, PANEL)
            next_width = min(num_outputs - next_column, PANEL)
            num_whole = next_height if next_width == PANEL else 0
            for row in range(0, num_stored, ROWS):
                left = term * num_stored + row * PANEL
                out = column * num_stored + row * PANEL
                begin = row // ROWS * share
                for each in range(begin, min(begin + share, num_whole)):
                    source_row = source + each * num_outputs
                    soon = source_row + share * num_outputs
                    pack_whole_row(flat_N, source_row, soon, parts, following + each * PANEL)
                next_left = inputs.ctypes.data + _FLOAT_BYTES * (left + ROWS * PANEL)
                next_out = outputs.ctypes.data + _FLOAT_BYTES * (out + ROWS * PANEL)
                for first in range(0, width, COLUMNS):
                    multiply_rows(
                        inputs,
                        np.uint64(left),
                        parts,
                        np.uint64(current + first),
                        count,
                        outputs,
                        np.uint64(out + first),
                        term > 0,
                        np.uint64(next_left if first or term else next_out),
                    )
                if is_last:
                    _add_bias_relu(outputs, out, of_panel)
            if 0 < next_width < PANEL:
                pack_rows(flat_N, num_outputs, source, next_height, next_width, parts, following)
            current = following


@kernel
def _add_bias_relu(outputs: NDArray[np.float32], first: int, bias_N: NDArray[np.float32]) -> None:
    """``max(h + b, 0)`` for a block of rows of a panel; numbers behind the last column are any."""
    for column in range(0, bias_N.size, WIDTH):
        if column + WIDTH <= bias_N.size:
            bias = load(bias_N, np.uint64(column))
            for row in range(ROWS):
                at = np.uint64(first + row * PANEL + column)
                value = add(load(outputs, at), bias)
                store(outputs, at, keep_where_positive(value, value))
        else:
            for row in range(ROWS):
                for rest in range(column, bias_N.size):
                    at_rest = first + row * PANEL + rest
                    number = outputs[at_rest] + bias_N[rest]
                    outputs[at_rest] = np.float32(0) if number <= np.float32(0) else number


@kernel
def input_gradients(
    grads: NDArray[np.float32],
    num_stored: int,
    weight_KN: NDArray[np.float32],
    parts: NDArray[np.float32],
    input_grads: NDArray[np.float32],
) -> None:
    """Write the gradients by the inputs of a layer that are given to the model.

    Args:
        grads: panels of the (S, N) gradients by the sums of the layer.
        num_stored: S.
        weight_KN: (num_inputs, num_outputs), contiguous.
        parts: twice `PART_FLOATS`, workspace.
        input_grads: panels of the (S, K) gradients, written.

    Error:
        That of `layer_outputs`, with N terms.
    """
    _input_gradients(grads, num_stored, weight_KN, parts, input_grads, input_grads, weight_KN[0, :0], 0)


@kernel
def masked_input_gradients(
    grads: NDArray[np.float32],
    num_stored: int,
    weight_KN: NDArray[np.float32],
    parts: NDArray[np.float32],
    input_grads: NDArray[np.float32],
    inputs: NDArray[np.float32],
    bias_grad_K: NDArray[np.float32],
    num_samples: int,
) -> None:
    """Write the gradients by the sums of the layer below, whose ReLU left the inputs, and by its bias.

    Args:
        grads: panels of the (S, N) gradients by the sums of the layer.
        num_stored: S.
        weight_KN: (num_inputs, num_outputs), contiguous.
        parts: twice `PART_FLOATS`, workspace.
        input_grads: panels of the (S, K) gradients, written.
        inputs: panels of the (S, K) inputs: zero where no gradient passes.
        bias_grad_K: (num_inputs,), written; summed serially over the samples.
        num_samples: M.

    Error:
        That of `layer_outputs`, with N terms.
    """
    _input_gradients(grads, num_stored, weight_KN, parts, input_grads, inputs, bias_grad_K, num_samples)


@kernel
def _input_gradients(
    grads: NDArray[np.float32],
    num_stored: int,
    weight_KN: NDArray[np.float32],
    parts: NDArray[np.float32],
    input_grads: NDArray[np.float32],
    inputs: NDArray[np.float32],
    bias_grad_K: NDArray[np.float32],
    num_samples: int,
) -> None:
    """Write the gradients by the inputs, masked where there is a gradient of the bias below."""
    num_inputs, num_outputs = weight_KN.shape
    is_masked = bias_grad_K.size > 0
    bias_grad_K[:] = 0
    flat_N = weight_KN.reshape(-1)
    current = 0
    pack_squares(
        flat_N, num_outputs, 0, min(num_inputs, PANEL), min(num_outputs, PANEL), 0, SQUARES, parts, current
    )
    share = -(-SQUARES * ROWS // max(num_stored, ROWS))
    for column in range(0, num_inputs, PANEL):
        width = min(num_inputs - column, PANEL)
        of_panel = bias_grad_K[column : column + width]
        for term in range(0, max(num_outputs, 1), PANEL):
            count = np.uint64(min(num_outputs - term, PANEL))
            is_last = term + PANEL >= num_outputs
            next_term, next_column = (0, column + PANEL) if is_last else (term + PANEL, column)
            following = PART_FLOATS - current
            source = next_column * num_outputs + next_term
            next_height = min(num_inputs - next_column, PANEL)
            next_width = min(num_outputs - next_term, PANEL)
            squares = SQUARES if next_column < num_inputs else 0
            for row in range(0, num_stored, ROWS):
                left = term * num_stored + row * PANEL
                out = column * num_stored + row * PANEL
                begin = row // ROWS * share
                stop = min(begin + share, squares)
                pack_squares(
                    flat_N, num_outputs, source, next_height, next_width, begin, stop, parts, following
                )
                next_left = grads.ctypes.data + _FLOAT_BYTES * (left + ROWS * PANEL)
                next_out = inputs.ctypes.data if is_last else input_grads.ctypes.data
                next_out += _FLOAT_BYTES * (out + ROWS * PANEL)
                for first in range(0, width, COLUMNS):
                    multiply_rows(
                        grads,
                        np.uint64(left),
                        parts,
                        np.uint64(current + first),
                        count,
                        input_grads,
                        np.uint64(out + first),
                        term > 0,
                        np.uint64(next_out if first == 0 and (is_last or term == 0) else next_left),
                    )
                if is_last and is_masked:
                    num_rows = min(ROWS, num_samples - row)
                    _mask_block(input_grads, inputs, out, num_rows, of_panel)
            current = following


@kernel
def mask_gradients(
    grads: NDArray[np.float32],
    outputs: NDArray[np.float32],
    num_stored: int,
    num_samples: int,
    bias_grad_N: NDArray[np.float32],
) -> None:
    """Set gradients by the outputs of a layer to zero where ReLU was, in place, and add those of its bias.

    Args:
        grads: panels of the (S, N) gradients.
        outputs: panels of the (S, N) outputs.
        num_stored: S.
        num_samples: M.
        bias_grad_N: (num_outputs,), written; summed serially over the samples.
    """
    bias_grad_N[:] = 0
    for column in range(0, bias_grad_N.size, PANEL):
        of_panel = bias_grad_N[column : column + PANEL]
        _mask_block(grads, outputs, column * num_stored, num_samples, of_panel)


@kernel
def _mask_block(
    grads: NDArray[np.float32],
    outputs: NDArray[np.float32],
    first: int,
    num_rows: int,
    bias_grad_N: NDArray[np.float32],
) -> None:
    """Set gradients of rows of a panel to zero where ReLU was, and add them to those of the bias."""
    for column in range(0, bias_grad_N.size, WIDTH):
        if column + WIDTH <= bias_grad_N.size:
            total = load(bias_grad_N, np.uint64(column))
            for row in range(num_rows):
                at = np.uint64(first + row * PANEL + column)
                value = keep_where_positive(load(grads, at), load(outputs, at))
                store(grads, at, value)
                total = add(total, value)
            store(bias_grad_N, np.uint64(column), total)
        else:
            for row in range(num_rows):
                for rest in range(column, bias_grad_N.size):
                    at_rest = first + row * PANEL + rest
                    number = np.float32(0) if outputs[at_rest] <= np.float32(0) else grads[at_rest]
                    grads[at_rest] = number
                    bias_grad_N[rest] += number


@kernel
def weight_gradients(
    inputs: NDArray[np.float32],
    grads: NDArray[np.float32],
    num_stored: int,
    num_samples: int,
    part: NDArray[np.float32],
    weight_grad_KN: NDArray[np.float32],
) -> None:
    """Write the gradients by the weights.

    Args:
        inputs: panels of the (S, K) inputs.
        grads: panels of the (S, N) gradients by the sums of the layer.
        num_stored: S.
        num_samples: M.
        part: `PART_FLOATS`, workspace.
        weight_grad_KN: (num_inputs, num_outputs), contiguous, written.

    Error:
        That of `layer_outputs`, with M terms.
    """
    num_inputs, num_outputs = weight_grad_KN.shape
    flat_N = weight_grad_KN.reshape(-1)
    for column in range(0, num_outputs, PANEL):
        width = min(num_outputs - column, PANEL)
        for top in range(0, num_inputs, PANEL):
            height = min(num_inputs - top, PANEL)
            # The sums of a part of the weights stay in the nearest cache until all samples are added.
            for term in range(0, max(num_samples, 1), PANEL):
                count = np.uint64(min(num_samples - term, PANEL))
                is_last = term + PANEL >= num_samples
                left = top * num_stored + term * PANEL
                right = column * num_stored + term * PANEL
                next_left = inputs.ctypes.data + _FLOAT_BYTES * (left + PART_FLOATS)
                next_right = grads.ctypes.data + _FLOAT_BYTES * (right + PART_FLOATS)
                for first in range(0, width, COLUMNS):
                    for row in range(0, height, ROWS):
                        # Where the sums of this block go at last is asked for, too.
                        if is_last:
                            for each in range(ROWS):
                                target = np.uint64((top + row + each) * num_outputs + column + first)
                                prefetch(flat_N, target)
                                prefetch(flat_N, target + np.uint64(WIDTH))
                        ahead = (next_right if first else next_left) + _FLOAT_BYTES * row * PANEL
                        multiply_columns(
                            inputs,
                            np.uint64(left + row),
                            grads,
                            np.uint64(right + first),
                            count,
                            part,
                            np.uint64(row * PANEL + first),
                            term > 0,
                            np.uint64(ahead),
                        )
            for row in range(height):
                target = (top + row) * num_outputs + column
                whole = width - width % WIDTH
                for first in range(0, whole, WIDTH):
                    store(flat_N, np.uint64(target + first), load(part, np.uint64(row * PANEL + first)))
                for first in range(whole, width):
                    flat_N[target + first] = part[row * PANEL + first]
