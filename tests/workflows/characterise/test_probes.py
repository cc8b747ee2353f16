"""The products that are timed, and the piece of work between the steps of a cell.

`test_characterise` has the tests of constants.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hotset.train.work_threads import WorkThreads
from hotset.workflows.characterise import machine_probes, probes
from hotset.workflows.characterise.probes import SpeedProbe


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_the_speed_is_probed_in_all_threads_once_in_a_while(
    num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    products: list[object] = []

    def multiply(left: object, right: object, *, out: object) -> None:
        products.append(out)
        now[0] += 1.0

    monkeypatch.setattr(f"{probes.__name__}.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(f"{probes.__name__}.torch.mm", multiply)
    probe = SpeedProbe(WorkThreads(num_threads))
    probe.take()
    assert products == [] and probe.seconds == []
    probe.take(now=True)
    assert len(products) == num_threads * probes._PROBE_PRODUCTS and len(probe.seconds) == 1
    # Too soon after the last one.
    probe.take()
    assert len(probe.seconds) == 1
    now[0] += probes._PROBE_INTERVAL
    probe.take()
    assert len(probe.seconds) == 2 and all(seconds > 0 for seconds in probe.seconds)
    if num_threads == 1:
        # The clock is read before the work and behind it.
        assert probe.seconds == [probes._PROBE_PRODUCTS] * 2


def test_the_products_that_are_timed_are_those_of_the_hidden_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def product(*args: object) -> Callable[[], object]:
        return lambda: asked.append(args)

    monkeypatch.setattr(machine_probes, "hidden_product", product)
    monkeypatch.setattr(machine_probes, "has_bf16", lambda _: True)
    for probe in machine_probes.product_probes():
        asked.clear()
        probe.call()
        batch, inputs, outputs = (probe.facts[name] for name in ("batch", "inputs", "outputs"))
        dtype = torch.float32 if probe.name == "product fp32" else torch.bfloat16
        assert asked == [(batch, inputs, outputs, dtype)]
