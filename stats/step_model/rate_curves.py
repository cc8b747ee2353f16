"""Curves through measured times: products of matrices by their size, rows by their working set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .nonnegative_fit import fit_relative


@dataclass(frozen=True, slots=True)
class ProductCurve:
    """Seconds of a product of matrices: ``t0 + operations / (P b / (b + b0))`` for b samples, and more
    for each number of a sample that is read or written, which counts where layers are narrow."""

    fixed_seconds: float
    """t0."""
    flops: float
    """P, operations per second of large batches."""
    half_batch: float
    """b0, the samples at which half of them are reached."""
    number_seconds: float = 0.0
    """Seconds for each input and output of each sample."""

    @classmethod
    def fit(
        cls,
        batch: NDArray[np.float64],
        inputs: NDArray[np.float64],
        outputs: NDArray[np.float64],
        seconds: NDArray[np.float64],
    ) -> ProductCurve:
        """Fit the four constants to measured products, by relative error.

        The curve is linear in ``t0``, ``1 / P``, ``b0 / P`` and the seconds of a number, which are fitted.

        Args:
            batch: (num_products,), samples of each, b.
            inputs: (num_products,).
            outputs: (num_products,).
            seconds: (num_products,), above 0.
        """
        weights = 2 * inputs * outputs
        numbers = batch * (inputs + outputs)
        features = np.stack([np.ones_like(seconds), batch * weights, weights, numbers], axis=1)
        fixed, inverse, half, number = fit_relative(features, seconds)
        # Where the fit gives operations no cost they get next to none, so that nothing divides by zero.
        inverse = max(float(inverse), 1e-18)
        return cls(float(fixed), 1 / inverse, float(half) / inverse, float(number))

    def seconds(self, batch: float, inputs: int, outputs: int) -> float:
        """Return the seconds of a product of (batch, inputs) and (inputs, outputs)."""
        numbers = batch * (inputs + outputs) * self.number_seconds
        return self.fixed_seconds + 2 * inputs * outputs * (batch + self.half_batch) / self.flops + numbers

    def forward_seconds(self, batch: float, widths: Sequence[int]) -> float:
        """Return the seconds of the forward pass of layers of these widths, from inputs to outputs."""
        return sum(self.seconds(batch, *pair) for pair in pairwise(widths))

    def backward_seconds(self, batch: float, widths: Sequence[int], *, to_inputs: bool) -> float:
        """Return the seconds of the backward pass: gradients of weights, and of each layer's inputs."""
        found = 0.0
        for number, (inputs, outputs) in enumerate(pairwise(widths)):
            # The gradient of the weights sums over samples: (inputs, batch) times (batch, outputs).
            found += self.seconds(inputs, int(batch), outputs)
            # Below the first layer are data, which need no gradient, or vectors, which do.
            if number or to_inputs:
                found += self.seconds(batch, outputs, inputs)
        return found


@dataclass(frozen=True, slots=True)
class RowCurve:
    """Seconds to move one row at a random place, by the bytes of the rows among which it is chosen."""

    working_bytes: tuple[float, ...]
    """Ascending."""
    seconds_per_row: tuple[float, ...]
    """Of the same length; seconds of a row of ``row_bytes`` in each working set."""
    seconds_per_byte: tuple[float, ...]
    """What each byte of a row adds."""

    def seconds(self, row_bytes: float, working_bytes: float) -> float:
        """Return the seconds of a row, interpolated over the logarithm of the working set."""
        # Below and above the measured working sets the nearest one is taken.
        where = np.log(max(working_bytes, 1.0))
        edges = np.log(np.array(self.working_bytes))
        fixed = float(np.interp(where, edges, self.seconds_per_row))
        return fixed + row_bytes * float(np.interp(where, edges, self.seconds_per_byte))

    @classmethod
    def fit(
        cls,
        row_bytes: NDArray[np.float64],
        working_bytes: NDArray[np.float64],
        seconds: NDArray[np.float64],
    ) -> RowCurve:
        """Fit a line over the bytes of a row for each working set that was measured.

        Args:
            row_bytes: (num_series,).
            working_bytes: (num_series,), some of them equal.
            seconds: (num_series,), per row, above 0.
        """
        sets = np.unique(working_bytes)
        lines = []
        for size in sets:
            own = working_bytes == size
            features = np.stack([np.ones(int(own.sum())), row_bytes[own]], axis=1)
            lines.append(fit_relative(features, seconds[own]))
        return cls(
            tuple(float(size) for size in sets),
            tuple(float(line[0]) for line in lines),
            tuple(float(line[1]) for line in lines),
        )
