"""The decorator of kernels: code is kept, and no state of the cache keeps a kernel from running."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from hotset.stats import kernel as module
from hotset.stats.kernel import cache_fault, is_compiled, kernel

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")


class Pair(NamedTuple):
    """A named argument of a kernel, as staging's are: Numba's index names its class."""

    first: np.int64
    second: np.int64


def _add(pair: Pair) -> np.int64:
    return pair.first + pair.second


def _run() -> Any:
    """Run the kernel as a new process would; the compiled function and its result."""
    compiled = kernel(_add)
    assert compiled(Pair(np.int64(2), np.int64(3))) == 5
    return compiled


def _hits(compiled: Any) -> int:
    return sum(compiled.stats.cache_hits.values())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_faults", [])
    return tmp_path / "cache"


def _cut(text: bytes) -> bytes:
    return text[: len(text) // 2]


def _empty(text: bytes) -> bytes:
    return b""


def _flip(text: bytes) -> bytes:
    middle = len(text) // 2
    return text[:middle] + bytes([text[middle] ^ 1]) + text[middle + 1 :]


def _with_renamed_class(text: bytes) -> bytes:
    return text.replace(b"Pair", b"Fair")


def _with_renamed_module(text: bytes) -> bytes:
    return text.replace(b"test_kernel", b"test_colonel")


def test_code_is_kept_between_runs(cache: Path) -> None:
    assert _hits(_run()) == 0
    assert _hits(_run()) == 1


def test_code_in_the_cache_is_found_without_loading_it(cache: Path) -> None:
    assert not is_compiled(kernel(_add))
    assert is_compiled(_run())
    assert is_compiled(kernel(_add))
    for file in cache.rglob("*.nbi"):
        file.write_bytes(_flip(file.read_bytes()))
    assert not is_compiled(kernel(_add))
    # Code that cannot be kept is not worth compiling ahead.
    assert is_compiled(numba.njit(_add))


def test_only_kernels_that_are_compiled_are_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(module, "note_compiled_kernel", reported.append)
    _run()
    assert reported == ["add"]
    _run()
    assert reported == ["add"]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [_cut, _empty, _flip, _with_renamed_class, _with_renamed_module])
def test_a_damaged_cache_is_compiled_again_and_replaced(
    cache: Path, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    _run()
    (path,) = cache.rglob(f"*.{suffix}")
    before = path.read_bytes()
    path.write_bytes(damage(before))
    changed = path.read_bytes() != before
    assert _hits(_run()) == (0 if changed else 1)
    assert _hits(_run()) == 1
    assert cache_fault() is None


def _result_of_modules(folder: Path, scale: int, offset: int) -> int:
    """Run a kernel as a new process would that has its helper and a constant from other files."""
    texts = {
        "helper": f"@kernel\ndef scaled(x):\n    return {scale} * x\n",
        "constants": f"OFFSET = {offset}\n",
        "caller": (
            "from helper import scaled\nfrom constants import OFFSET\n"
            "@kernel\ndef run(x):\n    return outer(x)\n"
            "@kernel\ndef outer(x):\n    return scaled(x) + OFFSET\n"
        ),
    }
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(f"from hotset.stats.kernel import kernel\n{text}")
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return int(importlib.import_module("caller").run(7))


def test_code_is_compiled_again_once_what_it_takes_from_other_files_changed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert _result_of_modules(tmp_path, 2, 1) == 15
    assert _result_of_modules(tmp_path, 3, 1) == 22
    assert _result_of_modules(tmp_path, 3, 5) == 26
    assert _result_of_modules(tmp_path, 2, 1) == 15
    for name in ("helper", "constants", "caller"):
        del sys.modules[name]


def _result_of_overload(folder: Path, scale: int) -> int:
    """Run a kernel as a new process would that calls a function whose compiled form another file gives."""
    texts = {
        "operations": (
            "from numba.extending import overload\ndef grown(x):\n    return x\n"
            f"@overload(grown)\ndef _grown(x):\n    return lambda x: {scale} * x\n"
        ),
        "grower": (
            "from hotset.stats.kernel import kernel\nfrom operations import grown\n"
            "@kernel\ndef run(x):\n    return grown(x)\n"
        ),
    }
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return int(importlib.import_module("grower").run(7))


def test_code_is_compiled_again_once_an_operation_that_it_takes_from_another_file_changed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert [_result_of_overload(tmp_path, scale) for scale in (2, 3)] == [14, 21]
    for name in ("operations", "grower"):
        del sys.modules[name]


def test_code_of_another_signature_is_not_run(cache: Path) -> None:
    compiled = _run()
    assert compiled(Pair(2.5, 3.5)) == 6  # type: ignore[arg-type]
    first, second = sorted(cache.rglob("*.nbc"))
    first.write_bytes(second.read_bytes())
    assert _hits(_run()) == 0


def test_a_kernel_is_compiled_once_for_kernels_and_once_for_python(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    monkeypatch.setattr(module, "note_compiled_kernel", reported.append)

    def twice(number: Any) -> Any:
        return 2 * number

    double: Any = kernel(twice)

    @kernel
    def sum_of_doubles(stop: Any) -> Any:
        number = 0  # a constant where the loop begins, a variable in all of its later turns
        total = 0
        while number < stop:
            total += double(number)
            number += 1
        return total + double(3)

    assert sum_of_doubles(5) == 26
    assert reported == ["sum_of_doubles", "twice"]
    # A call from Python finds no code that only kernels may call, not even in the cache.
    for form in (double, kernel(twice)):
        assert form(3) == 6
    assert reported == ["sum_of_doubles", "twice", "twice"]


@pytest.mark.skipif(
    not hasattr(numba.config, "CACHE_LOCATOR_CLASSES"), reason="an early Numba chooses by itself"
)
def test_without_a_folder_to_keep_code_kernels_run(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    _run()
    assert "cannot cache function" in str(cache_fault())


def test_a_cache_that_cannot_be_written_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_data", fail)
    _run()
    assert str(cache_fault()).startswith(str(cache)) and "No space left on device" in str(cache_fault())


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_cache_that_cannot_be_written_is_reported_and_not_run(
    cache: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root writes everywhere, so that the read-only folder is one whose files cannot be saved."""
    _run()
    (path,) = cache.rglob(f"*.{suffix}")
    path.write_bytes(_flip(path.read_bytes()))
    damaged = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    for name in ("_save_index", "_save_data"):
        monkeypatch.setattr(f"numba.core.caching.IndexDataCacheFile.{name}", fail)
    assert _hits(_run()) == 0
    assert str(cache_fault()).startswith(str(cache)) and "Read-only file system" in str(cache_fault())
    assert path.read_bytes() == damaged


def test_a_plain_numba_function_dies_of_the_same_damage(cache: Path) -> None:
    """The purpose of the decorator: if Numba learns to do this, it can go."""
    numba.njit(cache=True)(_add)(Pair(np.int64(2), np.int64(3)))
    (path,) = cache.rglob("*.nbi")
    path.write_bytes(_cut(path.read_bytes()))
    with pytest.raises((pickle.UnpicklingError, EOFError)):
        numba.njit(cache=True)(_add)(Pair(np.int64(2), np.int64(3)))
