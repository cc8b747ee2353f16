"""Bounds of tables as Feng et al. released them.

A table is tight, base or loose by its size or by its name. Their trainer lists the tables of Criteo's two
logs by number. The sizes reproduce the lists but for a few tables: Kaggle's tight ones begin at 90,000 rows,
and two of its small tables are base.

Source:
    Feng et al., SC'24, arXiv 2407.04272, and the code published with it.
"""

from __future__ import annotations

from collections.abc import Mapping

TIGHT, BASE, LOOSE = 0.01, 0.03, 0.05
MANY_ROWS = 400_000
"""Tables with more rows are tight."""
FEW_ROWS = 1_000
"""Tables with fewer rows are loose."""
_LISTS = {
    # Tables of the log by their position, first the tight ones, then the loose ones.
    "kaggle": ((2, 3, 9, 11, 15, 20, 23, 25), (8, 16, 19, 21, 22, 24)),
    "terabyte": ((0, 9, 10, 19, 20, 21, 22), (5, 8, 12, 15, 16, 17, 18, 24, 25)),
}
PUBLISHED_LISTS = tuple(_LISTS)
_NUM_TABLES = 26


def bound_by_size(num_rows: int) -> float:
    """Return the bound of a table by its rows."""
    if num_rows > MANY_ROWS:
        return TIGHT
    return LOOSE if num_rows < FEW_ROWS else BASE


def published_bounds(log: str) -> Mapping[str, float]:
    """Return the bounds of the tables C1 to C26 of a log, one of `PUBLISHED_LISTS`."""
    tight, loose = _LISTS[log]
    bounds = dict.fromkeys(range(_NUM_TABLES), BASE)
    bounds |= dict.fromkeys(tight, TIGHT) | dict.fromkeys(loose, LOOSE)
    return {f"C{table + 1}": bound for table, bound in bounds.items()}
