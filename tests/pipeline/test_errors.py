"""Checks of options that every config shares, and what the system refuses.

Sizes as people write them.

The commands in hints about stage folders; `tests/system/hints/test_hints_of_data.py` runs them.
"""

from __future__ import annotations

import errno
import os
import pickle
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.pipeline.errors import (
    STAGE_OF,
    ByteSize,
    ConfigError,
    HotsetError,
    check_fields,
    format_byte_size,
    hint_to_rewrite,
    hint_to_write,
    local_path,
    parse_byte_size,
    require_at_least,
    system_fault,
)
from hotset.pipeline.preprocess import FOLDERS

SYSTEM = {
    "too many open files": OSError(errno.EMFILE, "Too many open files"),
    "starts no more threads": pa.ArrowException(
        "Unknown error: Failed to launch worker thread: Resource temporarily unavailable"
    ),
    "starts no more threads: can't": RuntimeError("can't start new thread"),
    "not enough memory": pa.ArrowMemoryError("malloc of size 64 failed"),
    "not enough memory: [enforce": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    "not enough memory: x.so": ImportError("x.so: failed to map segment from shared object"),
    "not enough memory: [Errno 12]": OSError(errno.ENOMEM, "Cannot allocate memory"),
    "a.arrow: Input/output error": OSError(errno.EIO, os.strerror(errno.EIO)),
    "'a.arrow' has a name that is not UTF-8": UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates"),
    "a.arrow: '\\xe9' cannot be written in the encoding latin-1": UnicodeEncodeError(
        "latin-1", "xé", 1, 2, "ordinal not in range"
    ),
}


@dataclass(frozen=True)
class _Inner:
    """A config inside another."""


@dataclass(frozen=True, kw_only=True)
class _Config:
    """Fields of all types that are checked."""

    epochs: int = 1
    rate: float = 0.5
    memory: ByteSize | None = None
    widths: tuple[int, ...] | None = None
    every: int | str = 1
    is_kept: bool = False
    order: Literal["near", "far"] = "near"
    elsewhere: Path = Path()
    inner: _Inner = field(default_factory=_Inner)

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("epochs", np.int64(2), 2),
        ("rate", np.float32(0.25), 0.25),
        ("rate", 1, 1),
        ("rate", np.array(0.25), 0.25),
        ("memory", "64KiB", ByteSize(65536)),
        ("memory", np.int32(7), ByteSize(7)),
        ("widths", [np.int64(3), 4], (3, 4)),
        ("every", "10min", "10min"),
        ("every", np.uint8(3), 3),
        ("is_kept", np.True_, True),
        ("order", np.str_("far"), "far"),
        ("elsewhere", "any", "any"),
    ],
)
def test_scalars_and_sizes_become_plain_values(name: str, given: Any, wanted: Any) -> None:
    found = getattr(_Config(**{name: given}), name)
    assert found == wanted and type(found) is type(wanted)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("epochs", "2", "epochs must be a whole number, got '2'"),
        ("epochs", 1.5, "epochs must be a whole number, got 1.5"),
        ("epochs", True, "epochs must be a whole number, got True"),
        ("epochs", None, "epochs must be a whole number, got None"),
        ("rate", "0.5", "rate must be a number, got '0.5'"),
        ("rate", np.zeros(3), "rate must be a number, got a ndarray"),
        ("memory", 1.5, "memory must be a number of bytes or a text such as 64MiB, got 1.5"),
        ("memory", "much", "memory: not a size: 'much'"),
        ("widths", 64, "widths must be a list of whole numbers, got 64"),
        ("widths", ["a"], "widths must be a whole number, got 'a'"),
        ("every", 1.5, "every must be a whole number or text, got 1.5"),
        ("is_kept", 1, "is_kept must be True or False, got 1"),
        ("order", np.zeros(3), "order must be one of near, far, got a ndarray"),
        ("inner", 3, "inner must be a _Inner, got 3"),
        ("order", "nearer", "order must be one of near, far, got 'nearer'"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _Config(**{name: given})
    assert str(refused.value) == message


def test_a_traceback_shows_the_hint_and_another_process_gets_it() -> None:
    error = ConfigError("epochs must be 1 or more", hint="write 1")
    for each in (error, pickle.loads(pickle.dumps(error))):
        lines = traceback.format_exception_only(each)
        assert "".join(lines).endswith("ConfigError: epochs must be 1 or more\nhint: write 1\n")
        assert str(each) == "epochs must be 1 or more" and each.hint == "write 1"
    assert len(traceback.format_exception_only(ConfigError("no hint"))) == 1


@pytest.mark.parametrize("wanted", SYSTEM)
def test_what_the_system_refuses_is_named_and_is_no_damage(wanted: str) -> None:
    fault = system_fault("a.arrow", SYSTEM[wanted])
    assert fault is not None and wanted in str(fault) and "damage" not in str(fault)


@pytest.mark.parametrize(
    "error",
    [
        OSError("Expected to read 8 bytes, got 3"),
        pa.ArrowInvalid("not an Arrow file"),
        OSError(errno.EINVAL, "Invalid argument"),
        ValueError("x"),
        HotsetError("said already: can't start new thread"),
    ],
)
def test_what_a_file_holds_is_no_fault_of_the_system(error: Exception) -> None:
    assert system_fault("a.arrow", error) is None


@pytest.mark.parametrize("value", [0, -1, 0.5, float("nan"), float("inf")])
def test_a_number_below_the_least_or_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=rf"^samples must be 1 or more, got {value}$"):
        require_at_least("samples", value, 1)


@pytest.mark.parametrize("value", [None, 1, 1.0, 2**70])
def test_a_number_at_or_above_the_least_and_an_unset_one_are_accepted(value: float | None) -> None:
    require_at_least("samples", value, 1)


def test_a_device_error_names_the_file_at_fault() -> None:
    fault = system_fault("folder", PermissionError(errno.EACCES, "Permission denied", "folder/file"))
    assert str(fault) == "folder/file: Permission denied"
    assert (
        str(system_fault("folder", OSError(errno.EIO, "Input/output error"))) == "folder: Input/output error"
    )


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("256MiB", 256 * 2**20),
        ("256 mib", 256 * 2**20),
        (" 1KiB ", 1024),
        ("1.5GB", 1_500_000_000),
        ("0.5KiB", 512),
        ("2TiB", 2**41),
        ("7b", 7),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_a_size_is_read(text: str, num_bytes: int) -> None:
    found = parse_byte_size(text)
    assert found == num_bytes and isinstance(found, ByteSize)


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "1 000", "256M", "1.MiB", ".5GB", "0x10", "1\n2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a size") as caught:
        parse_byte_size(text)
    assert repr(text) in str(caught.value) and caught.value.hint


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (268435456, "256 MiB"),
        (2**40 - 1, "1 TiB"),
        (3 * 2**40, "3 TiB"),
        (-2048, "-2 KiB"),
    ],
)
def test_a_size_is_written(num_bytes: int, text: str) -> None:
    assert format_byte_size(num_bytes) == text


@given(num_bytes=st.integers(0, 2**45))
def test_what_is_written_is_near_what_is_meant_and_can_be_read(num_bytes: int) -> None:
    read = parse_byte_size(format_byte_size(num_bytes))
    assert abs(read - num_bytes) <= max(num_bytes, 1024) * 0.05
    assert len(format_byte_size(num_bytes)) <= len("1023.9 GiB")


def test_every_folder_has_its_stage() -> None:
    assert {stage: folder for folder, stage in STAGE_OF.items()} == FOLDERS


@pytest.mark.parametrize(
    ("folder", "present", "hint"),
    [
        ("vocabulary", ["columns", "counts", "samples"], "`hotset rank {dir}` writes it"),
        ("samples", ["columns", "vocabulary"], "`hotset encode {dir}` writes it"),
        ("columns", ["shards"], "`hotset ingest RAW --out {dir}` writes it"),
        (
            "shards",
            ["columns"],
            "`hotset preprocess RAW --out {dir}` goes on from what is there; give it the options that it had",
        ),
        ("other", ["columns"], "give the folder that preprocess wrote (its --out)"),
    ],
)
def test_a_missing_folder_names_the_command_that_writes_it(
    folder: str, present: list[str], hint: str, tmp_path: Path
) -> None:
    assert hint_to_write(tmp_path / folder, present) == hint.format(dir=tmp_path)


def test_where_no_stage_has_run_all_are_to_be_run(tmp_path: Path) -> None:
    hint = hint_to_write(tmp_path / "no such" / "plan", [])
    assert hint == f"`hotset preprocess RAW --out '{tmp_path}/no such'` writes it from raw logs"


def test_a_damaged_folder_is_removed_and_written_again() -> None:
    hint = hint_to_rewrite(Path("my data/shards"))
    assert hint.startswith("`rm -r 'my data/shards' && hotset pack 'my data'` writes it again")
    assert hint_to_rewrite(Path("x/run")).startswith("take the folder from a copy")


@pytest.mark.parametrize(
    "named", ["s3://bucket/data", "gs://b/log.gz", "hdfs://node:8020/x", Path("s3://b/d")]
)
def test_an_address_of_a_store_is_no_path(named: str | Path) -> None:
    with pytest.raises(ConfigError, match="is in a store, want a path on this machine"):
        local_path(named)


@pytest.mark.parametrize("named", ["data", "a:b", "x/s3:/d", "/s3://b", "day=1/part:0", Path("c:/d"), ""])
def test_other_names_are_paths(named: str | Path) -> None:
    assert local_path(named) == Path(named)
