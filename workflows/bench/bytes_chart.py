"""Draw the chart of README, `docs/bytes.svg`, from a result of the placements: what each moves per sample.

``python -m hotset.workflows.bench.bytes_chart`` writes it. It is plain SVG, so that a page shows it in the
reader's colours without a program.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "workflows" / "results" / "placements-2m.json"
CHART = ROOT / "docs" / "bytes.svg"
_SHARE = 0.015
"""Share of the rows that is hot; as many staging slots or slots of a cache come on top."""
_NAMES = {
    "hybrid": "hybrid (offloading, one vector per lookup)",
    "fae": "fae",
    "hybrid-dedup": "hybrid-dedup (each row once per batch)",
    "hybrid-uva": "hybrid-uva (read in place)",
    "cache lfu": "cache (FreqCache, LFU)",
    "lookahead": "lookahead (hotset's default)",
}
_WIDTH, _BAR, _STEP, _LEFT = 720, 18, 28, 310
_STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#24292f}.bar{fill:#8c959f}.own{fill:#0969da}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.bar{fill:#6e7681}.own{fill:#58a6ff}}"
)


def bytes_per_sample(result: dict[str, Any]) -> dict[str, float]:
    """Return the bytes that each placement moves per sample, both ways together."""
    (share,) = (each for each in result["shares"] if each["share"] == _SHARE)
    return {name: share["bytes"][name]["to_fast"] + share["bytes"][name]["to_slow"] for name in _NAMES}


def draw(moved: dict[str, float]) -> str:
    """Return the chart: a bar and a number for each placement."""
    height = _STEP * len(moved) + 40
    title = "Bytes moved per sample between host and fast memory"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{title}</title><style>{_STYLE}</style>",
        f'<text x="0" y="18" font-weight="600">{title}</text>',
    ]
    scale = (_WIDTH - _LEFT - 60) / max(moved.values())
    for number, (name, value) in enumerate(moved.items()):
        top = 34 + _STEP * number
        kind = "own" if name == "lookahead" else "bar"
        length = max(scale * value, 1)
        lines.append(f'<text x="0" y="{top + 14}">{_NAMES[name]}</text>')
        lines.append(
            f'<rect class="{kind}" x="{_LEFT}" y="{top}" width="{length:.1f}" height="{_BAR}" rx="2"/>'
        )
        lines.append(f'<text x="{_LEFT + length + 6:.1f}" y="{top + 14}">{value:,.0f}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    CHART.write_text(draw(bytes_per_sample(json.loads(RESULT.read_text()))))
