"""The decorator of compiled functions, with a robust compile cache.

Numba keeps machine code next to the source, in the user's cache folder or in ``NUMBA_CACHE_DIR``. It refuses
to import a kernel if none of these is writable, and raises while unpickling a file that a power cut truncated
or that names a class renamed by an upgrade of this package. But a cache is only a convenience. Here a kernel
whose code cannot be kept is compiled at each start, and code that cannot be trusted is compiled again and
replaced. The digest of each entry keeps a flipped byte from becoming a wrong instruction.

Numba compiles a kernel again after its file changed. But its code also contains the kernels that it calls,
the operations that it uses (`simd`) and the constants that it names. Here changes of those in other files
count, too, so kernels can be in any file.
"""

from __future__ import annotations

import hashlib
import inspect
import pickle
import sys
from collections.abc import Callable, Iterable
from functools import cache, cached_property, partial
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numba.core.types.misc import unliteral
from numpy.typing import NDArray

from .compile_notice import compiling, note_compiled_kernel

Result = TypeVar("Result")

_CONSTANTS = (bool, int, float, str, tuple, np.generic)
_faults: list[str] = []
"""Why kernels of this process could not be kept, the first reason first."""


def kernel(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compile a function that runs without the interpreter's lock; its machine code is kept between runs."""
    compiled: Callable[..., Result] = _compiled(function)
    return compiled


def inlined_kernel(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compile a small function as `kernel` does; kernels that call it contain a copy of its code."""
    compiled: Callable[..., Result] = _compiled(function, inline="always")
    return compiled


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written.

    A kernel is compiled once for arrays that can be written and once for those that cannot, such as mapped
    files. An argument that is one or the other by chance is passed through this, so that it has one type.
    """
    view = array.view()
    view.flags.writeable = False
    return view


def cache_fault() -> str | None:
    """Return why machine code could not be kept in this process, None where it could."""
    return _faults[0] if _faults else None


def is_compiled(function: Callable[..., Any]) -> bool:
    """Return whether a kernel's code is in the cache, for some types; True where it cannot be kept."""
    cache = getattr(function, "_cache", None)
    if not isinstance(cache, _CheckedCache) or function.signatures:  # type: ignore[attr-defined]
        return True
    return cache.has_code(function.targetctx)  # type: ignore[attr-defined]


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile lazily and as little as possible: planners alone take 11 s of CPU this way, else 23 s.

    What kernels call is compiled without the code that takes Python's arguments apart, which for named tuples
    of arrays is as long as the kernel itself. A kernel that both call is compiled in both forms.
    """
    compiled = _dispatcher(function, is_inner=False, **options)
    # NUMBA_DISABLE_JIT leaves the function as it is.
    if compiled is function:
        return function
    inner = cache(partial(_dispatcher, function, is_inner=True, **options))

    # Numba would compile a kernel once more for each constant it is called with, such as where a loop begins.
    def template_of_variables(types: Iterable[Any], named: dict[str, Any]) -> Any:
        return inner().get_call_template(
            [unliteral(each) for each in types],
            {name: unliteral(each) for name, each in named.items()},
        )

    # Numba calls both when it compiles a kernel that calls this one.
    compiled.get_call_template = template_of_variables
    compiled.get_overload = lambda signature: inner().get_overload(signature)
    return compiled


def _dispatcher(function: Callable[..., Any], *, is_inner: bool, **options: Any) -> Any:
    """Return what compiles ``function`` for calls from Python, or for those from kernels."""
    # No C code calls a kernel by its address.
    compiled = numba.njit(nogil=True, no_cfunc_wrapper=True, no_cpython_wrapper=is_inner, **options)(function)
    if compiled is function:
        return function
    compile_types = compiled.compile

    def compile_unmeasured(types: Any) -> Any:
        with compiling():
            return compile_types(types)

    compiled.compile = compile_unmeasured
    try:
        compiled._cache = _CheckedCache(function, is_inner)
    except (RuntimeError, OSError) as error:  # no folder of all that Numba tries can be written
        _faults.append(str(error).splitlines()[0])
    return compiled


class _CheckedCache(FunctionCache):  # type: ignore[misc]
    """A compile cache whose faults cost time and nothing else."""

    _cache_file: Any
    source: tuple[str, Any]
    """Name of the module, and the stamp of its file."""

    def __init__(self, function: Callable[..., Any], is_inner: bool) -> None:
        super().__init__(function)
        self._is_inner = is_inner
        self._function = function
        self.source = (function.__module__, self._cache_file._source_stamp)
        self._cache_file = _CheckedFile(self._cache_file, function)

    def has_code(self, target_context: Any) -> bool:
        """Return whether there is an entry for this machine."""
        try:
            machine = target_context.codegen().magic_tuple()
            return any(key[1] == machine for key in self._cache_file.keys())
        except MemoryError:
            raise
        except Exception:  # a damaged index, as in `load_overload`
            return False

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        # The code for kernels must never be called from Python.
        return (*super()._index_key(sig, codegen), self._is_inner)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the machine code for a signature, None where there is none that can be trusted."""
        found = None
        try:
            found = super().load_overload(sig, target_context)
        except MemoryError:
            raise
        except Exception:  # unpickling what is damaged, or of an older version, raises anything
            try:
                self.flush()
            except OSError as error:
                _faults.append(f"{self.cache_path}: {error.strerror or error}")
        if found is None:
            note_compiled_kernel(self._function.__name__.strip("_"))
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the machine code for a signature where that is possible."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _faults.append(f"{self.cache_path}: {error.strerror or error}")
        except (
            pickle.UnpicklingError,
            EOFError,
            AttributeError,
            ImportError,
            LookupError,
            ValueError,
        ) as error:
            # The index is damaged and could not be replaced when it was found to be.
            _faults.append(f"{self.cache_path}: {error}")


class _CheckedFile:
    """Entries of one kernel's cache, each with its key and a digest.

    Numba's index says which file belongs to which signature, and neither it nor the files have a checksum.
    """

    def __init__(self, file: Any, function: Callable[..., Any]) -> None:
        self._unstamped = file
        self._function = function

    @cached_property
    def _file(self) -> Any:
        # At the first call, not before: a kernel may call others further down in its file.
        self._unstamped._source_stamp = (self._unstamped._source_stamp, *_stamps_of(self._function))
        return self._unstamped

    def keys(self) -> list[Any]:
        """Return the keys of all entries."""
        return list(self._file._load_index())

    def flush(self) -> None:
        """Forget all entries."""
        self._file.flush()

    def save(self, key: Any, data: Any) -> None:
        """Keep ``data`` under ``key``."""
        text = self._file._dump((key, data))
        self._file.save(key, (hashlib.sha256(text).digest(), text))

    def load(self, key: Any) -> Any:
        """Return what was kept under ``key``, None where there is nothing; raises where it is damaged."""
        found = self._file.load(key)
        if found is None:
            return None
        digest, text = found
        # Check the digest before unpickling: damaged bytes are never interpreted.
        if hashlib.sha256(text).digest() != digest:
            raise ValueError("the digest of compiled code is not that of its bytes")
        kept_key, data = pickle.loads(text)
        if kept_key != key:
            raise ValueError("compiled code is that of another signature")
        return data


def _stamps_of(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return the stamps of all files that contain a kernel's code, and the constants it names."""
    stamps: set[tuple[str, Any]] = set()
    functions = [function]
    seen = {function}
    while functions:
        named = inspect.getclosurevars(functions.pop())
        for name, value in {**named.globals, **named.nonlocals}.items():
            if isinstance(value, _CONSTANTS):
                stamps.add((name, repr(value)))
            # A function with a separate compiled form, such as those of `simd`.
            if inspect.isfunction(value):
                source = inspect.getsource(sys.modules[value.__module__])
                stamps.add((value.__module__, hashlib.sha256(source.encode()).hexdigest()))
            called = getattr(value, "py_func", None)
            if called is None or called in seen:
                continue
            seen.add(called)
            functions.append(called)
            # A kernel whose code cannot be kept has a cache that knows no file.
            if isinstance(value._cache, _CheckedCache):
                stamps.add(value._cache.source)
    return sorted(stamps, key=repr)
