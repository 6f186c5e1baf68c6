"""Vector code for numba functions: bfloat16 in memory, float32 in lanes, what LLVM does not find by itself.

A `Lanes` writes LLVM instructions where an intrinsic of `kernels` is compiled; addresses are int64 values. Loads widen
exactly, stores round to nearest even, as torch does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from llvmlite import ir
from numba import int64, njit, void
from numba.extending import intrinsic

_LONG = ir.IntType(64)
_FLOAT, _INT, _HALF, _BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)
WIDTH = 16  # lanes; LLVM splits them where the machine has fewer
HALF_BYTES, FLOAT_BYTES = 2, 4
LEAST = -3.4e38  # to it, exp is 0
_LINE_BYTES = 64
_QUIET_NAN = 0x7FC0
_MANTISSA_BITS = 23
_LOG2_E = 1.4426950408889634
_LEAST_POWER = -126.0
# 2**f for |f| <= 1/2, by Taylor's series in f ln 2
_EXP2 = tuple(math.log(2) ** n / math.factorial(n) for n in range(8))
_READ, _MODERATE_LOCALITY, _DATA = 0, 2, 1

Value = Any  # an LLVM value; llvmlite has no types for mypy


class Lanes:
    """`width` numbers at a time."""

    def __init__(self, builder: Value, width: int) -> None:
        self._builder = builder
        self._width = width
        self._floats = ir.VectorType(_FLOAT, width)
        self._ints = ir.VectorType(_INT, width)
        self._halves = ir.VectorType(_HALF, width)

    def offset(self, address: Value, num_bytes: int) -> Value:
        """`address` + `num_bytes`."""
        return self._builder.add(address, _LONG(num_bytes))

    def row(self, address: Value, index: int, stride: Value) -> Value:
        """`address` + `index` times `stride` bytes."""
        return self._builder.add(address, self._builder.mul(stride, _LONG(index)))

    def float_at(self, address: Value) -> Value:
        """The float32 at `address`, in every lane."""
        return self.all(self._load(address, _FLOAT, FLOAT_BYTES))

    def all(self, number: Value) -> Value:
        """The float32 `number` in every lane."""
        empty = ir.Constant(self._floats, ir.Undefined)
        first = self._builder.insert_element(empty, number, _INT(0))
        return self._builder.shuffle_vector(first, empty, self._all(0))

    def floats_at(self, address: Value, block: int) -> Value:
        """Block `block` of the float32 row at `address`."""
        at = self.offset(address, FLOAT_BYTES * self._width * block)
        return self._load(at, self._floats, FLOAT_BYTES)

    def store_floats(self, values: Value, address: Value, block: int) -> None:
        """Writes block `block` of the float32 row at `address`."""
        at = self.offset(address, FLOAT_BYTES * self._width * block)
        self._store(values, at, FLOAT_BYTES)

    def halves_at(self, address: Value, block: int) -> Value:
        """Block `block` of the bfloat16 row at `address`, widened."""
        at = self.offset(address, HALF_BYTES * self._width * block)
        bits = self._builder.zext(self._load(at, self._halves, HALF_BYTES), self._ints)
        return self._builder.bitcast(self._builder.shl(bits, self._all(16)), self._floats)

    def pairs_at(self, address: Value, block: int) -> tuple[Value, Value]:
        """The even and the odd numbers of two blocks of bfloat16, widened."""
        at = self.offset(address, 2 * HALF_BYTES * self._width * block)
        bits = self._load(at, self._ints, HALF_BYTES)
        even = self._builder.shl(bits, self._all(16))
        odd = self._builder.and_(bits, self._all(0xFFFF0000))
        return tuple(self._builder.bitcast(each, self._floats) for each in (even, odd))

    def store_halves(self, values: Value, address: Value, block: int) -> None:
        """Writes block `block` of the bfloat16 row at `address`, rounded."""
        b = self._builder
        bits = b.bitcast(values, self._ints)
        is_odd = b.and_(b.lshr(bits, self._all(16)), self._all(1))
        rounded = b.lshr(b.add(b.add(bits, self._all(0x7FFF)), is_odd), self._all(16))
        is_nan = b.fcmp_unordered("uno", values, values)
        rounded = b.select(is_nan, self._all(_QUIET_NAN), rounded)
        at = self.offset(address, HALF_BYTES * self._width * block)
        self._store(b.trunc(rounded, self._halves), at, HALF_BYTES)

    def add_product(self, x: Value, y: Value, total: Value) -> Value:
        """X * y + total, rounded once."""
        return self._call("llvm.fma", self._floats, [self._floats] * 3, [x, y, total])

    def product(self, x: Value, y: Value) -> Value:
        """X * y."""
        return self._builder.fmul(x, y)

    def difference(self, x: Value, y: Value) -> Value:
        """X - y."""
        return self._builder.fsub(x, y)

    def sum(self, x: Value, y: Value) -> Value:
        """X + y."""
        return self._builder.fadd(x, y)

    def quotient(self, x: Value, y: Value) -> Value:
        """X / y."""
        return self._builder.fdiv(x, y)

    def constant(self, number: float) -> Value:
        """`number` in every lane."""
        return ir.Constant(self._floats, [number] * self._width)

    def where_negative(self, x: Value, then: Value, otherwise: Value) -> Value:
        """`then` in the lanes where x < 0, else `otherwise`."""
        is_negative = self._builder.fcmp_ordered("<", x, self.constant(0.0))
        return self._builder.select(is_negative, then, otherwise)

    def maximum(self, x: Value, y: Value) -> Value:
        """The larger one."""
        return self._call("llvm.maxnum", self._floats, [self._floats] * 2, [x, y])

    def largest(self, x: Value) -> Value:
        """The largest lane."""
        return self._call("llvm.vector.reduce.fmax", _FLOAT, [self._floats], [x])

    def exp(self, x: Value) -> Value:
        """E to the power of x <= 0, relative error 2e-7; 0 below the least normal float32."""
        b = self._builder
        powers = b.fmul(x, self.constant(_LOG2_E))
        is_normal = b.fcmp_ordered(">", powers, self.constant(_LEAST_POWER))
        whole = self._call("llvm.rint", self._floats, [self._floats], [powers])
        part = b.fsub(powers, whole)
        result = self.constant(_EXP2[-1])
        for coefficient in reversed(_EXP2[:-1]):
            result = self.add_product(result, part, self.constant(coefficient))
        exponent = b.shl(b.fptosi(whole, self._ints), self._all(_MANTISSA_BITS))
        result = b.bitcast(b.add(b.bitcast(result, self._ints), exponent), self._floats)
        return b.select(is_normal, result, self.constant(0.0))

    def store_sum(self, values: Value, address: Value) -> None:
        """Writes the sum over the lanes as a float32 at `address`."""
        name = "llvm.vector.reduce.fadd"
        arguments = [_FLOAT(0.0), values]
        total = self._call(name, _FLOAT, [_FLOAT, self._floats], arguments, fastmath=("fast",))
        self._store(total, address, FLOAT_BYTES)

    def prefetch(self, address: Value, num_bytes: int) -> None:
        """Has `num_bytes` from `address` brought nearer; nothing happens where there is no memory."""
        b = self._builder
        byte = _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _INT, _INT, _INT])
        function = b.module.globals.get("llvm.prefetch.p0i8") or ir.Function(
            b.module, kind, "llvm.prefetch.p0i8"
        )
        for line in range(0, num_bytes, _LINE_BYTES):
            at = b.inttoptr(self.offset(address, line), byte)
            b.call(function, [at, _INT(_READ), _INT(_MODERATE_LOCALITY), _INT(_DATA)])

    def spread(self, source: Value, target: Value, stride: int) -> None:
        """Writes the pairs of bfloat16 of two blocks at `source` to `target`, each `stride` bytes after the last."""
        pairs = self._load(source, self._ints, HALF_BYTES)
        for lane in range(self._width):
            pair = self._builder.extract_element(pairs, _INT(lane))
            self._store(pair, self.offset(target, stride * lane), HALF_BYTES)

    def interleave(self, even: Value, odd: Value, target: Value) -> None:
        """Writes a block of bfloat16 from `even` and one from `odd` as pairs."""
        low, high = (
            self._builder.zext(self._load(at, self._halves, HALF_BYTES), self._ints)
            for at in (even, odd)
        )
        pairs = self._builder.or_(low, self._builder.shl(high, self._all(16)))
        self._store(pairs, target, HALF_BYTES)

    def constant_int(self, number: int) -> Value:
        """An int64."""
        return _LONG(number)

    def pointer(self, address: Value) -> Value:
        """`address` as LLVM's instructions take it."""
        return self._builder.inttoptr(address, _BYTE.as_pointer())

    def instruct(self, name: str, *operands: Value | int) -> None:
        """An x86 instruction without a result; an int is a register's number."""
        values = [_BYTE(each) if isinstance(each, int) else each for each in operands]
        module, full = self._builder.module, f"llvm.x86.{name}"
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        self._builder.call(module.globals.get(full) or ir.Function(module, kind, full), values)

    def _all(self, number: int) -> Value:
        return ir.Constant(self._ints, [number] * self._width)

    def _load(self, address: Value, kind: Value, align: int) -> Value:
        value = self._builder.load(self._builder.inttoptr(address, kind.as_pointer()))
        value.align = align
        return value

    def _store(self, value: Value, address: Value, align: int) -> None:
        pointer = self._builder.inttoptr(address, value.type.as_pointer())
        self._builder.store(value, pointer).align = align

    def _call(
        self, name: str, result: Value, kinds: list[Value], arguments: list[Value], **flags: Any
    ) -> Value:
        full = f"{name}.v{self._width}f32"
        module = self._builder.module
        function = module.globals.get(full) or ir.Function(
            module, ir.FunctionType(result, kinds), full
        )
        return self._builder.call(function, arguments, **flags)


def vector_code(*kinds: Any) -> Callable[[Callable[..., None]], Any]:
    """Makes `write(lanes, *values)` a function of such arguments for numba: the code that it writes."""

    def decorate(write: Callable[..., None]) -> Any:
        @functools.wraps(write)  # its lanes stand where numba hands in its typing context
        def typed(_typing_context: Any, *_: Any) -> Any:
            def generate(context: Any, builder: Value, _: Any, values: Any) -> Value:
                write(Lanes(builder, WIDTH), *values)
                return context.get_dummy_value()

            return void(*kinds), generate

        return intrinsic(typed)

    return decorate


def uses_threads() -> bool:
    """Whether kernels are to run on several threads: NUMBA_NUM_THREADS of them, which the worker sets as torch's."""
    return torch.get_num_threads() > 1


def compiled(function: Callable[..., None], signature: Any, *, is_parallel: bool) -> Any:
    """`function` as machine code; sums may be reordered, as torch's are."""
    decorate = njit(signature, fastmath=True, nogil=True, error_model="numpy", parallel=is_parallel)
    return decorate(function)


def widen_code(size: int) -> Any:
    """For numba: a row of bfloat16 at one address to float32 at another."""

    @vector_code(int64, int64)
    def widen(v: Lanes, source: Value, target: Value) -> None:
        for block in range(size // WIDTH):
            v.store_floats(v.halves_at(source, block), target, block)

    return widen
