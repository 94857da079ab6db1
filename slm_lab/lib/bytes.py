"""Two machine instructions for compiled loops: copy bytes between arrays, and fetch bytes into the cache ahead of use.

Arrays are C-contiguous; places are counted in bytes from their beginning and are not checked.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

INT32 = ir.IntType(32)
READ, KEEP, DATA = (ir.Constant(INT32, value) for value in (0, 3, 1))  # what llvm.prefetch wants to know


def _copy(typingctx, target, at, source, source_at, count):
    """copy(target, at, source, source_at, count): memcpy."""

    def generate(context, builder, signature, args):
        to = _place(context, builder, signature.args[0], args[0], args[1])
        cgutils.raw_memcpy(
            builder,
            to,
            _place(context, builder, signature.args[2], args[2], args[3]),
            args[4],
            ir.Constant(ir.IntType(64), 1),
        )
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


def _fetch(typingctx, source, at):
    """fetch(source, at): the cache line of this byte will be needed soon."""

    def generate(context, builder, signature, args):
        place = _place(context, builder, signature.args[0], args[0], args[1])
        kind = ir.FunctionType(ir.VoidType(), [place.type, INT32, INT32, INT32])
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind), [place, READ, KEEP, DATA])
        return context.get_dummy_value()

    return types.void(source, types.int64), generate


def _place(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer()), [at])


copy: Any = intrinsic(_copy)  # called from compiled code, without the typing context
fetch: Any = intrinsic(_fetch)
