"""Asking the cache for what a kernel will read soon: a lookup into a large table then does not wait."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import create_struct_proxy
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

AHEAD: Final = np.uint64(128)
"""Lookups between asking and reading. On tables of 16 MiB: 18 ns per lookup without, 10 at 16 ahead, 6 at
64 and more."""
LINE_BYTES: Final = 64


def prefetch(array: NDArray[Any], position: np.uint64) -> None:
    """Ask for the cache line of the ``position``-th number of a contiguous array.

    A hint, that computes nothing and may name any position; nothing at all when not compiled.
    """


@intrinsic
def _prefetch_compiled(_: Any, array: Any, position: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = create_struct_proxy(signature.args[0])(context, builder, value=arguments[0]).data
        byte_pointer = ir.IntType(8).as_pointer()
        flag = ir.IntType(32)
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), byte_pointer)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], kind)
        to_read = flag(0)
        keep = flag(3)
        is_data = flag(1)
        builder.call(function, [pointer, to_read, keep, is_data])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


@overload(prefetch, inline="always")
def _prefetch_overload(array: Any, position: Any) -> Any:
    def ask(array: Any, position: Any) -> Any:
        return _prefetch_compiled(array, position)

    return ask
