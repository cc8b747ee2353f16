"""A machine whose constants are made up, for tests that must not depend on how long anything takes."""

from __future__ import annotations

from hotset.stats.step_model.rate_curves import ProductCurve, RowCurve
from hotset.stats.step_model.step_work import CodecSeconds, StepWork, WorkConstants
from hotset.train.planning.curves import Curves
from hotset.train.planning.machine_file import (
    FORMAT,
    VERSION,
    Constant,
    HeldOutError,
    MachineFile,
    StepModel,
)

CONSTANTS = WorkConstants(
    products=ProductCurve(2e-6, 5e10, 20.0),
    rows=RowCurve((1e5, 1e9), (1e-8, 1e-7), (1e-10, 4e-10)),
    updates=RowCurve((1e5, 1e9), (2e-8, 2e-7), (2e-10, 8e-10)),
    copy_bytes_per_second=1e10,
    message_seconds=1e-4,
    message_bytes_per_second=1e9,
    gather_seconds=2e-4,
    gather_bytes_per_second=5e8,
    codecs={"none": CodecSeconds(0.0, 0.0), "int8": CodecSeconds(1e-8, 2e-10)},
)
WORK = StepWork(
    batch_size=2048,
    threads=2,
    bottom=(13, 64, 16),
    top=(367, 64, 1),
    num_vectors=27,
    embedding_dim=16,
    num_bags=2048 * 26,
    lookups=2048 * 26,
    lookup_ranges=3,
    update_ranges=3,
    distinct_rows=20_000,
    row_bytes=68,
    table_bytes=1e7,
    input_bytes=2048 * 160,
)
ERROR = HeldOutError(
    num_cells=60,
    median_error=0.1,
    p90_error=0.2,
    low_ratio=0.8,
    high_ratio=1.25,
    num_pairs=300,
    pairs_in_order=0.97,
)


WEIGHTS: dict[str, tuple[float, ...]] = {
    "lookup": (1e-4, 1.0, 1.0, 1e-10, 1e-9, 1.0, 1e-9, 1e-9, 1.0, 1.0, 1.0, 1e-4, 1.0, 1e-10),
    "bottom": (1e-5, 1.0, 1e-10),
    "interaction": (1e-5, 2e-11, 1e-10, 1e-10, 1e-10, 1e-10),
    "top": (1e-5, 1.0, 1e-10),
    "backward": (1e-5, 1.0, 1e-10),
    "exchange": (1e-5, 1.0, 1.0, 1.0, 1.0),
    "reduce": (1e-5, 1e-10, 1.0, 1.0, 1e-10),
    "update": (1e-4, 1.0, 1.0, 2e-10, 1.0, 1e-9, 1e-9, 1e-9, 1e-9, 1.0, 1e-4, 1.0, 1e-10),
    "idle": (1e-4, 0.01, 1e-5),
    "load": (1e-3,),
    "beside load": (1e-4, 1e-10, 2e-9, 2e-9, 2e-9, 1e-8, 1e-9, 1e-9, 2e-9),
    "beside transfers": (1e-4, 1.0, 1e-10, 1e-9),
}


def made_up_machine(threads: int = 2) -> MachineFile:
    """The file of the machine."""
    constant = Constant(
        name="copy",
        unit="seconds per byte",
        facts={"bytes": 1.0},
        median=1e-10,
        low=1e-10,
        high=2e-10,
        repetitions=5,
    )
    model = StepModel(
        curves=Curves.of(CONSTANTS),
        weights=WEIGHTS,
        contention=0.5,
        num_fitted=60,
        ranks=(1,),
        placements=("all-fast", "cache", "hybrid", "hybrid-dedup", "lookahead"),
        error=ERROR,
    )
    return MachineFile(
        format=FORMAT,
        version=VERSION,
        hotset="0.1.0",
        device="cpu",
        device_name="made up",
        threads=threads,
        memory_bytes=1 << 33,
        libraries={"torch": "2"},
        minutes=8.0,
        is_quiet=True,
        disturbances=(),
        constants=(constant,),
        not_measured={"power": "made up"},
        num_cells=120,
        model=model,
    )
