"""Constants that the made-up machine is measured with."""

from __future__ import annotations

from hotset.tests.support.planning.made_up_machine import CONSTANTS
from hotset.train.planning.machine_file import Constant


def made_up_constants() -> list[Constant]:
    """Constants that lie on the curves of the made-up machine."""

    def constant(name: str, seconds: float, **facts: float) -> Constant:
        return Constant(
            name=name, unit="seconds", facts=facts, median=seconds, low=seconds, high=seconds, repetitions=1
        )

    products = [
        constant("product fp32", CONSTANTS.products.seconds(b, n, n), batch=b, inputs=n, outputs=n)
        for b in (8, 64, 512)
        for n in (16, 128, 512)
    ]
    rows = [
        constant(name, curve.seconds(size, working), row_bytes=size, working_bytes=working, **more)
        for name, curve, more in (
            ("copy row", CONSTANTS.rows, {}),
            ("update row", CONSTANTS.updates, {"lookups_per_row": 1.0}),
        )
        for size in (64.0, 256.0, 512.0)
        for working in (1e5, 1e9)
    ]
    return [*products, *rows, constant("copy", 1 / CONSTANTS.copy_bytes_per_second)]
