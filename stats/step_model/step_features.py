"""The features that the seconds of a step's parts are sums of.

Every feature is a time that follows from measured constants (a product of such a size, rows moved in such a
working set), or a bare count. `part_model` fits how much of each a part really takes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..simd import WIDTH
from .step_work import StepWork, WorkConstants

NUM_FEATURES = {
    "lookup": 14,
    "bottom": 3,
    "interaction": 6,
    "top": 3,
    "backward": 3,
    "exchange": 5,
    "reduce": 5,
    "update": 13,
    "idle": 3,
    "load": 1,
    "beside load": 9,
    "beside transfers": 4,
}
"""Features of each part."""
TILE_PARTS = ("bottom", "interaction", "top", "backward")
"""Parts that threads compute tile by tile."""
ALONE = {"lookup": (3, 4, 7, 9, 10), "update": (6, 7, 9)}
"""Features that are the work of one thread, however many there are: lists that are added up or named by their
bags, slots that are found, memory that is cleared, rows that move in passes."""
DIVIDED = {"lookup": (1, 2, 8, 13), "update": (1, 2, 8, 12)}
"""Features that threads divide by ranges of rows."""
_FLOAT_BYTES = 4
_ROW_MESSAGES = 2
"""Messages of a step for rows: vectors and gradients."""


def features_of(work: StepWork, constants: WorkConstants) -> dict[str, NDArray[np.float64]]:
    """Return the features of each part of a step but ``idle``; the fit of a part weighs them.

    ``load`` is waiting for batches that were read ahead: ranks on the same cores hand them over late.
    ``beside load`` and ``beside transfers`` are the seconds of other threads.
    """
    features = _features_of_tiles(work, constants) | _features_of_rows(work, constants)
    features |= _features_of_ranks(work, constants) | _features_beside(work, constants)
    return {part: np.array(values, np.float64) for part, values in features.items()}


def idle_features(work: StepWork, tile_seconds: float) -> NDArray[np.float64]:
    """Return the features of idling beside `wasted_seconds`.

    Args:
        work: of the step.
        tile_seconds: of all parts in `TILE_PARTS` together, the mean over threads.
    """
    # Threads take one tile after another, so however many there are, they end less than one apart; the only
    # tile is waited for as a whole, and one thread waits for none.
    several = float(work.num_tiles > 1) * (1 - 1 / work.threads)
    of_tile = tile_seconds * work.threads / work.num_tiles
    return np.array([1.0, several * of_tile, work.num_tiles / work.threads])


def wasted_seconds(work: StepWork, tile_seconds: float) -> float:
    """Return how long threads have nothing to do while others compute the last tiles, the mean over threads.

    Args:
        work: of the step.
        tile_seconds: as in `idle_features`.
    """
    return work.waste * tile_seconds


def _features_of_tiles(work: StepWork, constants: WorkConstants) -> dict[str, tuple[float, ...]]:
    # Tiles as if divided evenly among threads; what the last round wastes is a feature of idling.
    tiles = work.num_tiles / work.threads
    samples = work.tile_samples
    share = work.batch_size / work.threads
    products = constants.products
    pairs = work.num_vectors * (work.num_vectors - 1) / 2
    # The kernels' vectors are filled up to whole registers.
    width = -(-work.embedding_dim // WIDTH) * WIDTH
    bottom = products.forward_seconds(samples, work.bottom)
    # The logit's layer is left out here: it is computed, and timed, with the interaction.
    top = products.forward_seconds(samples, work.top[:-1])
    bottom_back = products.backward_seconds(samples, work.bottom, to_inputs=False)
    top_back = products.backward_seconds(samples, work.top[:-1], to_inputs=True)
    outputs = sum(work.bottom[1:]) + sum(work.top[1:-1])
    return {
        "bottom": (tiles, tiles * bottom, share * sum(work.bottom[1:])),
        # By tiles, multiplications of the dots, floats of vectors, dots, the logit's layer, and dense
        # features, which a tile copies.
        "interaction": (
            tiles,
            share * pairs * width,
            share * work.num_vectors * width,
            share * pairs,
            share * sum(work.top[-2:-1]),
            share * sum(work.bottom[:1]),
        ),
        "top": (tiles, tiles * top, share * sum(work.top[1:-1])),
        "backward": (tiles, tiles * (bottom_back + top_back), share * outputs),
    }


def _features_of_rows(work: StepWork, constants: WorkConstants) -> dict[str, tuple[float, ...]]:
    vector_bytes = _FLOAT_BYTES * work.embedding_dim
    # A row is read once from wherever it is. Its lookups lie anywhere among the vectors of the batch.
    near = constants.rows.seconds(vector_bytes, 1.0)
    far = constants.rows.seconds(vector_bytes, work.table_bytes)
    vectors = constants.rows.seconds(vector_bytes, work.lookups * vector_bytes)
    gradients = constants.rows.seconds(vector_bytes, work.num_bags * vector_bytes)
    update = constants.updates.seconds(work.row_bytes, work.table_bytes)
    # What the loop itself moves between the tiers goes at the speed of a large copy.
    in_place = work.in_place_vectors * vector_bytes / constants.copy_bytes_per_second
    # Whole rows move one way in each of the passes that look up, and both ways in those that update.
    passed = work.passed_rows * constants.rows.seconds(work.row_bytes, work.table_bytes)
    # Several ranks join the rows of others with their own, and part them again, in each of both parts.
    is_ranked = float(work.num_ranks > 1)
    joined = work.exchanged_rows * near
    # Columns that fill no register are moved one by one.
    single = work.lookups * (work.embedding_dim % WIDTH)
    return {
        "lookup": (
            1.0,
            work.lookups * vectors * work.lookup_share,
            work.distinct_rows * far * work.lookup_share,
            # Lists are pooled: each of their lookups is a vector to add.
            work.is_pooled * work.lookups * work.embedding_dim,
            work.is_pooled * work.lookups,
            in_place,
            work.in_place_vectors,
            # One thread finds the slots.
            work.distinct_rows,
            work.lookups * near * work.lookup_share,
            # The system clears memory that it hands out, page by page.
            work.unset_bytes / constants.copy_bytes_per_second,
            passed,
            is_ranked,
            joined,
            single * work.lookup_share,
        ),
        "update": (
            1.0,
            work.lookups * gradients * work.update_share,
            work.distinct_rows * update * work.update_share,
            # The dense layers are stepped at the same time as the rows.
            work.num_weights,
            in_place,
            work.in_place_vectors,
            work.distinct_rows,
            # The lookups of lists are named by their bags, by one thread.
            work.is_pooled * work.lookups,
            work.lookups * work.update_share,
            2 * passed,
            is_ranked,
            joined,
            single * work.update_share,
        ),
    }


def _features_of_ranks(work: StepWork, constants: WorkConstants) -> dict[str, tuple[float, ...]]:
    is_ranked = float(work.num_ranks > 1)
    near = constants.rows.seconds(_FLOAT_BYTES * work.embedding_dim, 1.0)
    # The gradients of a single tile are used as they are; those of several are added up.
    several_tiles = float(work.num_tiles > 1) * work.num_tiles * work.num_weights / work.threads
    return {
        "exchange": (
            is_ranked,
            is_ranked * _ROW_MESSAGES * constants.message_seconds,
            work.exchanged_bytes / constants.message_bytes_per_second,
            _codec_seconds(work, constants),
            work.exchanged_rows * near,
        ),
        "reduce": (
            1.0,
            several_tiles,
            is_ranked * (constants.message_seconds + constants.gather_seconds),
            _sum_seconds(work, constants),
            is_ranked * work.num_weights,
        ),
    }


def _features_beside(work: StepWork, constants: WorkConstants) -> dict[str, tuple[float, ...]]:
    is_ranked = float(work.num_ranks > 1)
    is_read_ahead = float(work.is_read_ahead)
    # Transfers have a fixed cost only where there are any.
    has_staging = float(work.moved_rows + work.initialized_rows + work.staged_rows > 0)
    return {
        "load": (is_ranked * is_read_ahead,),
        "beside load": (
            1.0,
            work.num_reads * work.input_bytes,
            work.num_reads * work.lookups,
            work.num_reads * work.distinct_rows,
            work.staged_rows,
            work.cached_rows,
            work.num_reads * work.num_bags,
            # Every rank reads the lookups of all ranks, to know what crosses.
            is_ranked * work.num_ranks * work.lookups,
            # Lists are brought into sample order.
            work.num_reads * work.is_pooled * work.lookups,
        ),
        "beside transfers": (
            has_staging,
            work.moved_rows * constants.rows.seconds(work.row_bytes, work.table_bytes),
            work.initialized_rows * work.embedding_dim,
            work.moved_rows,
        ),
    }


def _codec_seconds(work: StepWork, constants: WorkConstants) -> float:
    """Return the seconds in which the rows of the exchange are encoded, and those of others decoded."""
    found = constants.codecs.get(work.codec)
    if found is None:
        return 0.0
    return work.exchanged_rows * (found.per_row + _FLOAT_BYTES * work.embedding_dim * found.per_byte)


def _sum_seconds(work: StepWork, constants: WorkConstants) -> float:
    """Return the seconds of the bytes of dense gradients: half of them in either collective."""
    each = work.reduced_bytes / 2
    return each / constants.message_bytes_per_second + each / constants.gather_bytes_per_second
