"""The README of an exported folder: how its model is used, with the features that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..options.export_config import ExportConfig

_EXAMPLES: dict[str, Any] = {"integer": 7, "unsigned": 7, "hex8": "0000beef", "text": "a"}
_TIME = "2026-01-31 23:59:59"
_INTEGER_TIME = 1_700_000_000
"""Seconds since 1970 of a time in 2023; in other units it is one in 1970."""
_ROWS = {
    "fp32": "float32, as they were trained",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int8": "8-bit codes with a least value and a step for each row",
}


def readme_of(features: Mapping[str, Any], config: ExportConfig, fingerprint: str | None) -> str:
    """Return the text; its programs run as they stand in the folder."""
    columns: dict[str, list[Any]] = {each["column"]: [0.0, None] for each in features["dense"]}
    # Times last: a column that others are made from, too, is shown as one.
    for each in sorted(features["sparse"], key=lambda each: each["kind"] not in _EXAMPLES):
        value = _EXAMPLES.get(each["kind"], _INTEGER_TIME if "unit" in each else _TIME)
        columns[each["column"]] = [[value, value], None] if each["is_list"] else [value, None]
    shown = "\n".join(f"    {name!r}: {values!r}," for name, values in columns.items())
    text = f"""\
# A click model, exported by hotset

`model.pt2` goes from values as they stand in a log to the probability of a click. It holds the vocabulary,
the tables ({_ROWS[config.row_type]}) and the dense layers.

Training run: {fingerprint or "of an earlier version"}.

`serving_inputs.py` turns rows into the numbers that the model takes; it needs NumPy and xxhash. Two rows, the
second with every value missing:

```python
from serving_inputs import ServingInputs

columns = {{
{shown}
}}
inputs = ServingInputs()
```

With PyTorch:

```python
import torch

model = torch.export.load("model.pt2").module()
with torch.no_grad():
    probability, logit = model(*inputs.for_torch(columns))
```
"""
    if config.onnx:
        text += """
With ONNX Runtime (`model.onnx.data` stays beside `model.onnx`):

```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
probability, logit = session.run(["probability", "logit"], inputs.for_onnx(columns))
```
"""
    return (
        text
        + """
A category that the model does not know gets the row of out-of-vocabulary categories, None and "" that of
missing ones. A list-valued feature takes a list in each row. Columns that are not named above are not needed.
"""
    )
