"""The findings of a measured machine as plain data: what the page has in tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ...machine_facts import describe_machine
from ..fit_machine import Characterised, product_curves
from ..show_machine import summary
from .placement_speeds import placement_speeds
from .sweep_findings import elasticities, longest_parts, observations
from .torchrec_comparison import compare_with_torchrec


def findings_record(result: Characterised) -> dict[str, Any]:
    """Return the errors of predictions and the findings, ready for JSON.

    Returns:
        the figures of `show_machine.summary`; ``observations`` with their verdicts; ``elasticities`` with
        half of their 95% interval and their points, value and samples per second; ``longest_parts`` by
        dense features and tables; ``placements``, samples per second by model; ``predictions`` of the
        held-out cells by who predicts; ``products``, the curve of one thread by type of numbers;
        ``machine``, as benchmarks record it, with what was measured.
    """
    machine, cells = result.machine, result.cells
    return summary(result) | {
        "observations": [asdict(each) for each in observations(cells)],
        "elasticities": [asdict(each) for each in elasticities(cells)],
        "longest_parts": [
            {"num_dense": dense, "num_tables": tables, "part": part}
            for (dense, tables), part in longest_parts(cells).items()
        ],
        "placements": placement_speeds(cells),
        "predictions": {
            name: {
                "median_error": error.median_error,
                "p90_error": error.p90_error,
                "pairs_in_order": error.pairs_in_order,
            }
            for name, error in compare_with_torchrec(machine, cells).items()
        },
        "products": {name: asdict(curve) for name, curve in product_curves(machine.constants).items()},
        "machine": describe_machine()
        | {
            "device": machine.device,
            "device_name": machine.device_name,
            "threads": machine.threads,
            "memory_bytes": machine.memory_bytes,
            "libraries": machine.libraries,
        },
    }
