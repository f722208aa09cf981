"""Every rule of the loop IR has a kernel that breaks it, and the message names the place."""

from __future__ import annotations

import dataclasses

import pytest

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import (
    INDEX,
    Alloc,
    Binary,
    BinaryOp,
    Bitcast,
    Broadcast,
    Buffer,
    Call,
    Carried,
    Compare,
    CompareOp,
    Const,
    ConstantData,
    Copy,
    Entry,
    Extract,
    Fail,
    Fma,
    For,
    If,
    Kernel,
    Launch,
    Let,
    Load,
    LoopKind,
    Module,
    MulHigh,
    PairDot,
    Place,
    Placement,
    Prefetch,
    Ramp,
    Reduce,
    Return,
    Scope,
    Select,
    Shuffle,
    Store,
    Type,
    Unary,
    UnaryOp,
    Var,
    View,
    While,
    fresh,
)
from frame.codegen.loops.verifier import verify_kernel, verify_module, written_buffers
from frame.core.dtypes import (
    bfloat16,
    bool_,
    float8_e5m2,
    float16,
    float32,
    int32,
    int64,
    uint8,
    uint32,
)
from frame.core.errors import InternalError

N = fresh("n")
X = b.buffer("x", float32, [N, 8])
Q = b.buffer("q", int64, [4])
S = b.buffer("small", float8_e5m2, [8])
ONE = b.const(1.0, float32)
WIDE = b.const(1.0, Type(float32, 4))
I32 = b.const(1, int32)
U32 = b.const(1, uint32)
NEAR = b.fresh_buffer("near", float32, [4])
LANE = b.fresh_buffer("lane", float32, [4], Scope.REGISTER, 8)


def kernel_of(*statements, buffers=(X, Q, S), scalars=(N,)):
    return Kernel("k", tuple(buffers), tuple(scalars), b.block(statements))


def put(value):
    """Store an expression somewhere: a Let is enough."""
    return Let(Var("v", value.type), value)


def loop(*body, kind=LoopKind.SERIAL, var=None, extent=N, carried=()):
    return For(kind, var or fresh("i"), extent, b.block(body), tuple(carried))


def carried(init, following, var_type=None, result_type=None):
    type_ = var_type or init.type
    return Carried(fresh("a", type_), init, following, fresh("r", result_type or type_))


FAR = fresh("far")
TWICE = fresh("twice")
INNER = fresh("inner")

BROKEN = {
    # expressions
    "constant out of range": (put(Const(300, Type(uint8))), "300 is not a value of uint8"),
    "constant not exact": (put(Const(0.1, Type(float32))), "not exact in float32"),
    "constant of another kind": (put(Const(1.5, INDEX)), "is not a value of int64"),
    "bool constant as number": (put(Const(True, INDEX)), "is not a value"),
    "unbound variable": (put(FAR), "variable far"),
    "lanes not a power of two": (put(Broadcast(ONE, 3)), "3 lanes"),
    "too many lanes": (put(Broadcast(ONE, 128)), "128 lanes"),
    "not of a float": (put(Unary(UnaryOp.NOT, ONE)), "not of float32"),
    "sqrt of an integer": (put(Unary(UnaryOp.SQRT, I32)), "sqrt of int32"),
    "operands differ": (put(Binary(BinaryOp.ADD, ONE, I32)), "received float32, int32"),
    "lanes differ": (put(Binary(BinaryOp.ADD, ONE, WIDE)), "received float32, float32x4"),
    "and of floats": (put(Binary(BinaryOp.AND, ONE, ONE)), "and of float32"),
    "division by zero": (put(Binary(BinaryOp.DIV, N, b.index(0))), "div by the constant 0"),
    "shift too far": (put(Binary(BinaryOp.SHL, I32, b.const(32, int32))), "shl of int32 by 32"),
    "arithmetic in float8": (
        put(Binary(BinaryOp.ADD, Load(S, (b.index(0),)), Load(S, (b.index(1),)))),
        "add of float8",
    ),
    "comparison of types": (put(Compare(CompareOp.LT, ONE, I32)), "lt needs operands"),
    "select on a number": (put(Select(I32, ONE, ONE)), "select on int32"),
    "select of scalars by a vector": (
        put(Select(Const(True, Type(bool_, 4)), ONE, ONE)),
        "expected bool",
    ),
    "fma of half": (put(Fma(*[b.const(1.0, float16)] * 3)), "fma of float16"),
    "pair_dot of too few pairs": (
        put(PairDot(*[b.const(1.0, Type(bfloat16, 4))] * 2, WIDE)),
        "pair_dot of bfloat16x4",
    ),
    "pair_dot of half": (put(PairDot(*[b.const(1.0, Type(float16, 8))] * 2, WIDE)), "of float16x8"),
    "bitcast of another width": (put(Bitcast(N, float32)), "bitcast of int64"),
    "mul_high of int64": (put(MulHigh(N, N)), "mul_high of int64"),
    "broadcast of a vector": (put(Broadcast(WIDE, 8)), "broadcast of float32x4"),
    "ramp of a float": (put(Ramp(ONE, 4)), "ramp of float32"),
    "shuffle position": (put(Shuffle(WIDE, WIDE, (0, 8))), "of 8 lanes"),
    "extract position": (put(Extract(WIDE, 4)), "lane 4"),
    "reduce by sub": (put(Reduce(BinaryOp.SUB, WIDE)), "reduce by sub"),
    "reduce of a scalar": (put(Reduce(BinaryOp.ADD, ONE)), "reduce by add of float32"),
    # access
    "load of rank": (put(Load(X, (N,))), "x has rank 2, received 1 indices"),
    "float index": (put(Load(Q, (ONE,))), "index 0 of q is float32"),
    "mixed lanes": (
        put(Load(X, (Ramp(b.index(0), 4), Ramp(b.index(0), 8)))),
        "indices of x have",
    ),
    "mask of other lanes": (
        put(Load(Q, (Ramp(b.index(0), 4),), Const(True, Type(bool_, 8)))),
        "mask of q is boolx8",
    ),
    "constant index out of bounds": (put(Load(Q, (b.index(4),))), "reaches 4 of 4"),
    "negative index": (put(Load(Q, (b.index(-1),))), "index 0 of q"),
    "ramp out of bounds": (put(Load(Q, (Ramp(b.index(1), 4),))), "reaches 4 of 4"),
    "store of another type": (Store(X, (N, N), I32), "stores int32 where x takes float32"),
    "store of other lanes": (Store(X, (N, N), WIDE), "takes float32"),
    "buffer that is not allocated": (put(Load(NEAR, (b.index(0),))), "buffer near"),
    "register with a vector index": (
        [Alloc(NEAR), put(Load(NEAR, (Ramp(b.index(0), 4),)))],
        "has a vector index",
    ),
    # scopes
    "bound twice": ([Let(TWICE, N), Let(TWICE, N)], "bound twice"),
    "one name for two": ([Let(Var("w"), N), Let(Var("w"), N)], "name w is used twice"),
    "used after its block": (
        [If(b.boolean(True), (Let(INNER, N),)), put(b.add(INNER, 1))],
        "variable inner",
    ),
    "used before it is bound": ([put(FAR), Let(FAR, N)], "variable far"),
    "let of another type": (Let(fresh("w", Type(float32)), N), "its value is int64"),
    "bad name": (Let(Var("1 2"), N), "is not a name"),
    # statements
    "extent of another type": (loop(extent=I32), "the extent must be int64"),
    "loop variable of another type": (loop(var=fresh("i", Type(int32))), "is int32"),
    "carried types differ": (loop(carried=[carried(ONE, I32)]), "has the types"),
    "carried result differs": (
        loop(carried=[carried(ONE, ONE, result_type=INDEX)]),
        "has the types",
    ),
    "parallel inside": (loop(loop(kind=LoopKind.PARALLEL)), "must be the last statement"),
    "parallel is not last": ([loop(kind=LoopKind.PARALLEL), Let(FAR, N)], "must be the last"),
    "parallel after a store": (
        [Store(Q, (N,), N), loop(kind=LoopKind.PARALLEL)],
        "must be the last statement",
    ),
    "parallel with carried": (
        loop(kind=LoopKind.PARALLEL, carried=[carried(ONE, ONE)]),
        "carries values",
    ),
    "condition is a number": (If(N, ()), "the condition is int64"),
    "fail without a site": (Fail(0, N, N), "site 0"),
    "fail of a float": (Fail(1, N, ONE), "the value must be int64"),
    "prefetch of another rank": (Prefetch(X, (N,)), "x has rank 2"),
    "prefetch of no index": (Prefetch(X, ()), "x has rank 2, a prefetch has 0"),
    "prefetch at a float": (Prefetch(Q, (ONE,)), "index 0 of a view of q must be int64"),
    "prefetch of registers": ([Alloc(LANE), Prefetch(LANE, (N,))], "is in registers"),
    "copy of another rank": (Copy(View(X), View(Q), (N, N)), "q has rank 1"),
    "copy of another dtype": (
        Copy(View(Q), View(b.buffer("z", float32, [4])), (N,)),
        "buffer z is not bound",
    ),
    "view of another rank": (
        Copy(View(X, (N,)), View(X, (N, N)), (N, N)),
        "x has rank 2, a view has 1",
    ),
    "launch in a kernel": (Launch("f", (), (), N), "Launch has no place in a kernel"),
    "while in a kernel": (While(Q, ()), "While has no place"),
    "return in a kernel": (Return(), "Return has no place"),
    # allocations
    "global allocation": (Alloc(b.buffer("g", float32, [4])), "has scope global"),
    "allocation of unknown size": (
        Alloc(Buffer("g", float32, (N,), (), Scope.LOCAL)),
        "not constant",
    ),
    "allocation too large": (
        Alloc(Buffer("g", float32, (1 << 20,), (), Scope.LOCAL)),
        "takes 4194304 bytes",
    ),
    "local vector elements": (
        Alloc(Buffer("g", float32, (4,), (), Scope.LOCAL, 8)),
        "for register buffers",
    ),
    "strides of another rank": (
        Alloc(Buffer("g", float32, (4,), (1, 1), Scope.LOCAL)),
        "2 strides",
    ),
    "negative extent": (Alloc(Buffer("g", float32, (-4,), (), Scope.LOCAL)), "negative extent"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_kernels_are_refused(name):
    statements, reason = BROKEN[name]
    with pytest.raises(InternalError, match="kernel k") as caught:
        verify_kernel(kernel_of(statements))
    assert reason in str(caught.value)


def test_messages_name_the_statement():
    bad = Store(X, (N, N), I32)
    nested = If(b.boolean(True), (), (Let(fresh("a"), N), bad))
    with pytest.raises(InternalError, match=r"kernel k, statement 0\.0e\.1 \(Store x\): stores"):
        verify_kernel(kernel_of(loop(nested)))


@pytest.mark.parametrize(
    ("parameter", "reason"),
    [
        (Buffer("p", float32, (4,), (), Scope.LOCAL), "has scope local"),
        (Buffer("p", float32, (4,), (), Scope.GLOBAL, 4), "vector elements"),
        (Buffer("p", float32, (fresh("m"),)), "variable m"),
        (Buffer("p", float32, (ONE,)), "a size of p"),
        (Buffer("x", float32, (4,)), "used twice"),
    ],
)
def test_broken_parameters_are_refused(parameter, reason):
    with pytest.raises(InternalError, match=reason):
        verify_kernel(kernel_of(buffers=(X, parameter)))


def test_what_must_be_gone_when_lowered():
    index = fresh("i")
    variable = [Alloc(NEAR), loop(Let(fresh("w", Type(float32)), Load(NEAR, (index,))), var=index)]
    for statements, reason in (
        ([loop(kind=LoopKind.VECTOR)], "kind vector is left"),
        ([loop(kind=LoopKind.UNROLL)], "kind unroll is left"),
        (variable, "index not constant"),
    ):
        verify_kernel(kernel_of(statements))
        with pytest.raises(InternalError, match=reason):
            verify_kernel(kernel_of(statements), lowered=True)


def test_an_expression_of_a_dead_scope_is_found_in_a_new_one():
    """A shared node is looked at once, but where it is used still matters."""
    shared = b.add(INNER, 1)
    first = If(b.boolean(True), (Let(INNER, N), Let(fresh("a"), shared)))
    other = fresh("other")
    second = If(b.boolean(True), (Let(other, N), Let(fresh("c"), b.add(shared, other))))
    with pytest.raises(InternalError, match="variable inner"):
        verify_kernel(kernel_of(first, second))


def test_good_kernel_with_everything():
    i = fresh("i")
    acc = carried(ONE, ONE)
    vector = Store(LANE, (b.index(1),), b.const(0.0, Type(float32, 8)))
    body = [
        Alloc(LANE), vector, loop(var=i, carried=[acc]), Store(X, (i, b.index(0)), acc.result)
    ]  # fmt: skip
    j = fresh("j")
    body[3] = Store(X, (b.index(0), b.index(0)), acc.result)
    verify_kernel(kernel_of(loop(body, kind=LoopKind.PARALLEL, var=j)), lowered=True)


# Modules

T = b.buffer("t", float32, [8])
U = b.buffer("u", float32, [8])
M = fresh("m")


def copy_kernel(name="copy"):
    source, target, count = b.buffer("s", float32, [8]), b.buffer("d", float32, [8]), fresh("c")
    body = b.for_(
        count, lambda i: b.store(target, [i], b.load(source, [i])), kind=LoopKind.PARALLEL
    )
    return Kernel(name, (source, target), (count,), (body,))


def serial_kernel(name="serial"):
    target = b.buffer("d", float32, [8])
    return Kernel(name, (target,), (), (b.store(target, [0], 1.0),))


def module_of(*body, kernels=None, placements=None, constants=()):
    places = placements or (
        Placement(T, Place.ARGUMENT, 0),
        Placement(U, Place.ARENA, 64),
    )
    kernels = (copy_kernel(), serial_kernel()) if kernels is None else kernels
    return Module("m", kernels, Entry("run", places, (M,), b.block(body)), constants)


BOTH = (View(T), View(U))


def launch(kernel="copy", views=BOTH, scalars=(M,), chunks=M):
    return Launch(kernel, views, scalars, chunks)


def test_good_module():
    verify_module(module_of(launch(), Call("serial", (View(U),)), Return()), lowered=True)


READ_ONLY = (Placement(T, Place.CONSTANT, 0), Placement(U, Place.ARENA, 0))
DATA = (ConstantData("w", bytes(32)),)

BROKEN_MODULES = {
    "unknown kernel": (module_of(launch("nothing")), "no kernel nothing"),
    "too few buffers": (module_of(launch(views=(View(T),))), r"\(1, 1\) buffers and scalars"),
    "too many scalars": (module_of(launch(scalars=(M, M))), r"expected \(2, 1\)"),
    "another dtype": (
        module_of(
            launch(),
            placements=(
                Placement(Buffer("t", int32, (8,)), Place.ARGUMENT, 0),
                Placement(U, Place.ARENA, 0),
            ),
        ),
        "buffer t is not bound",
    ),
    "chunks differ": (
        module_of(launch(scalars=(b.index(4),), chunks=b.index(5))),
        "gives 5 chunks, the loop of copy has 4",
    ),
    "many chunks of a serial kernel": (
        module_of(launch("serial", (View(U),), ())),
        "no parallel loop",
    ),
    "call of a parallel kernel": (
        module_of(Call("copy", (View(T), View(U)), (M,))),
        "has a parallel loop",
    ),
    "fail in an entry": (module_of(Fail(1, M, M)), "Fail has no place in a entry"),
    "parallel loop in an entry": (module_of(loop(kind=LoopKind.PARALLEL, extent=M)), "parallel"),
    "two kernels of one name": (
        module_of(kernels=(copy_kernel(), copy_kernel())),
        "copy is defined twice",
    ),
    "a callee after its caller": (
        module_of(
            kernels=(
                Kernel("first", (T,), (), (Call("serial", (View(T),)),)),
                serial_kernel(),
            )
        ),
        "no kernel serial is defined before",
    ),
    "a write to a constant": (
        module_of(launch(views=(View(U), View(T))), placements=READ_ONLY, constants=DATA),
        "copy writes the constant t",
    ),
    "a store to a constant": (
        module_of(Store(T, (b.index(0),), ONE), placements=READ_ONLY, constants=DATA),
        "stores to the constant t",
    ),
    "a constant that is too short": (
        module_of(placements=READ_ONLY, constants=(ConstantData("w", bytes(31)),)),
        "needs 32 bytes, its constant has 31",
    ),
    "no such constant": (module_of(placements=READ_ONLY), "constant 0 of 0"),
    "an unaligned buffer": (
        module_of(placements=(Placement(T, Place.ARENA, 2),)),
        "not aligned",
    ),
    "a negative slot": (module_of(placements=(Placement(T, Place.ARGUMENT, -1),)), "slot -1"),
    "a condition that is no bool": (
        module_of(While(T, ())),
        "must be a bool buffer of rank 0",
    ),
    "a name with a space": (
        module_of(kernels=(serial_kernel("a b"),)),
        "is not a name",
    ),
}


@pytest.mark.parametrize("name", BROKEN_MODULES)
def test_broken_modules_are_refused(name):
    module, reason = BROKEN_MODULES[name]
    with pytest.raises(InternalError, match=reason):
        verify_module(module)


def test_dtype_of_an_argument_must_be_the_parameters():
    whole = Buffer("whole", int32, (8,))
    places = (Placement(whole, Place.ARGUMENT, 0), Placement(U, Place.ARENA, 0))
    module = module_of(launch(views=(View(whole), View(U))), placements=places)
    with pytest.raises(InternalError, match="gives int32 whole for float32 s"):
        verify_module(module)


def test_written_buffers_follow_calls():
    caller = Kernel("caller", (T, U), (), (Call("serial", (View(U),)),))
    kernels = {"serial": serial_kernel()}
    assert written_buffers(caller, kernels) == {U}
    assert written_buffers(dataclasses.replace(caller, body=())) == set()
