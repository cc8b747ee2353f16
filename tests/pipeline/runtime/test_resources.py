"""Resources are plain data beside every config: none of them is part of a folder's identity."""

from __future__ import annotations

import pickle
from dataclasses import fields

from hotset.pipeline.runtime.resources import DEFAULT_RESOURCES, Resources, silent
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.encode import EncodeConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig


def test_defaults_take_every_core_and_show_nothing() -> None:
    assert DEFAULT_RESOURCES == Resources(workers=0, memory_bytes=None, progress=silent)
    DEFAULT_RESOURCES.progress("count", 1, 2)


def test_resources_can_be_sent_to_a_worker() -> None:
    assert pickle.loads(pickle.dumps(Resources(workers=3))) == Resources(workers=3)


def test_no_config_has_a_field_that_is_a_resource() -> None:
    resources = {field.name for field in fields(Resources)}
    for config in (
        IngestConfig,
        CountConfig,
        RankConfig,
        EncodeConfig,
        SplitConfig,
        PackConfig,
    ):
        assert not resources & {field.name for field in fields(config)}
