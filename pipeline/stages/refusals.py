"""Refuses what a stage would refuse, before a run removes a finished folder to write it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..folders.discard import is_discarded, refuse_discarded
from ..folders.manifest import Manifest
from ..runtime.resources import DEFAULT_RESOURCES, Resources
from .count import refuse_count
from .encode import refuse_encode
from .pack import refuse_pack
from .rank import refuse_rank
from .split import refuse_split
from .stage_order import INPUTS, inputs_of

_REFUSALS: dict[str, Callable[..., object]] = {
    "count": refuse_count,
    "rank": refuse_rank,
    "encode": refuse_encode,
    "split": refuse_split,
    "pack": refuse_pack,
}
"""By stage of `preprocess` after `ingest`."""


def refuse_stage(stage: str, config: object, folder: Path, resources: Resources = DEFAULT_RESOURCES) -> None:
    """Raise HotsetError where a stage after `ingest` would refuse its inputs, settings or memory.

    Args:
        stage: name of the stage.
        config: its settings.
        folder: the folder called DIR in help texts, with the folders that the stage reads.
        resources: workers, and the memory cap.
    """
    names = inputs_of(stage, config)
    refuse_without_inputs(stage, folder, names)
    inputs = [Manifest.read(folder / name) for name in names]
    # What a stage reads only with some settings is passed by the name of its folder.
    num_always = len(INPUTS[stage])
    more = dict(zip(names[num_always:], inputs[num_always:], strict=True))
    _REFUSALS[stage](config, *inputs[:num_always], resources, **more)


def refuse_without_inputs(stage: str, folder: Path, names: Sequence[str]) -> None:
    """Raise ManifestError if a folder that ``stage`` would read was discarded."""
    redo = "ingest" if is_discarded(folder / "columns") else "encode"
    for name in names:
        refuse_discarded(folder / name, stage, redo)
