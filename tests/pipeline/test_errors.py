"""Checks of options that every config shares, and what the system refuses."""

from __future__ import annotations

import errno
import os

import pyarrow as pa
import pytest

from hotset.pipeline.errors import ConfigError, HotsetError, require_at_least, system_fault

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
