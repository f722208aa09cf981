"""Printing, parsing, and the errors of texts."""

from __future__ import annotations

import dataclasses
import math

import pytest

from frame.codegen.loops import builder as b
from frame.codegen.loops import rewrites
from frame.codegen.loops.ir import (
    Alloc,
    BinaryOp,
    Bitcast,
    Buffer,
    Call,
    ConstantData,
    Copy,
    Entry,
    Fail,
    For,
    Kernel,
    Launch,
    Let,
    LoopKind,
    Module,
    Place,
    Placement,
    Return,
    Scope,
    Type,
    View,
    While,
    fresh,
)
from frame.codegen.loops.parser import parse_kernel, parse_module
from frame.codegen.loops.printer import (
    kernel_key,
    print_block,
    print_entry,
    print_expression,
    print_kernel,
    print_module,
)
from frame.codegen.loops.verifier import verify_kernel, verify_module
from frame.core.dtypes import bfloat16, bool_, float32, float64, int8, uint32
from frame.core.errors import InvalidArgumentError


def everything():
    """A kernel with every kind of statement that a kernel has, and every expression."""
    n = fresh("n")
    x, y = b.buffer("x", float32, [n]), b.buffer("y", float32, [n, 4], [1, n], Scope.WORKSPACE)
    u = b.buffer("u", uint32, [8])
    pairs = b.buffer("pairs", bfloat16, [8])
    body = b.Body()
    near = body.alloc("near", float32, [2], Scope.REGISTER, 8)
    far = body.alloc("far", float32, [2, 4], Scope.LOCAL)
    lanes = b.ramp(n, 8)
    mask = b.lt(lanes, b.index(9))
    wide = body.let("wide", b.load(x, [lanes], mask))
    body.store(near, [1], b.fma(wide, 2.0, b.shuffle(wide, wide, [*range(8)])))
    body.store(x, [lanes], b.select(mask, b.neg(wide), b.load(near, [1])), mask)
    with body.fold(n, [b.sum_lanes(wide), b.index(0)]) as fold:
        fold.next = [b.add(fold.values[0], b.extract(wide, 3)), b.max_(fold.values[1], fold.index)]
    with body.when(b.gt(n, 3)):
        bits = b.bitcast(fold.results[0], uint32)
        body.store(u, [0], b.mul_high(b.shr(bits, 3), b.cast(fold.results[1], uint32)))
        with body.loop(3, "j") as j:
            body.store(far, [0, j], b.const(math.inf, float32))
    with body.otherwise():
        body.fail(4, n, b.rem(n, 3))
    body.add(Copy(View(far), View(y, (n, b.index(0))), (b.index(2), b.index(4))))
    body.add(Call("other", (View(x, (n,)), View(y)), (b.add(n, 1),)))
    body.prefetch(y, [n, 3])
    body.store(y, [n, b.ramp(b.index(0), 4)], b.load(y, [0, b.ramp(b.index(0), 4)]), streamed=True)
    body.store(x, [0], b.reduce(BinaryOp.MINIMUM, b.load(near, [0])))
    i = fresh("i")
    body.add(For(LoopKind.UNROLL, i, b.index(2), (Alloc(b.fresh_buffer("z", bool_, [2])),)))
    body.let("flags", b.not_(b.eq(b.load(x, [0]), b.const(math.nan, float32))))
    body.let("kept", b.cast(b.broadcast(b.load(x, [0]), 4), bfloat16))
    pair = b.load(pairs, [b.ramp(0, 8)])
    body.let("dot", b.pair_dot(pair, pair, b.load(y, [0, b.ramp(b.index(0), 4)])))
    return Kernel("everything", (x, y, u, pairs), (n,), body.block(), "a picture\n\n  of the nest")


def test_round_trip_of_everything():
    kernel = everything()
    verify_kernel(kernel)
    text = print_kernel(kernel)
    again = parse_kernel(text)
    assert print_kernel(again) == text
    assert again.note == kernel.note and again.name == kernel.name
    verify_kernel(again)
    assert kernel_key(again) == kernel_key(kernel)


def test_the_text_of_a_kernel():
    n = fresh("n")
    x, y = b.buffer("x", float32, [n]), b.buffer("y", float32, [n])

    def body(i):
        let, v = b.let("v", b.load(x, [i]))
        return [let, b.store(y, [i], b.mul(v, 2.0))]

    kernel = Kernel("scale", (x, y), (n,), (b.for_(n, body),), "for i in n")
    assert print_kernel(kernel) == (
        "kernel scale {\n"
        "  # for i in n\n"
        "  scalar n.0\n"
        "  buffer x.1: float32[n.0]\n"
        "  buffer y.2: float32[n.0]\n"
        "  for i.3 < n.0 {\n"
        "    let v.4: float32 = x.1[i.3]\n"
        "    store y.2[i.3] = mul(v.4, 2.0:float32)\n"
        "  }\n"
        "}\n"
    )


def module():
    n = fresh("n")
    x, y = b.buffer("x", float32, [4]), b.buffer("y", float32, [4])
    kernel = Kernel("copy", (x, y), (n,), (Copy(View(y), View(x), (b.index(4),)),))
    flag = b.buffer("flag", bool_, [])
    m = fresh("m")
    source, target = b.buffer("source", float32, [4]), b.buffer("target", float32, [m, 4])
    places = (
        Placement(source, Place.CONSTANT, 0),
        Placement(target, Place.TABLE, 1),
        Placement(flag, Place.ARENA, 64),
    )
    launch = Launch("copy", (View(source), View(target, (m, b.index(0)))), (m,), b.index(1))
    body = b.block(b.for_(m, lambda i: [launch]), While(flag, (Return(),)), Return())
    return Module("m", (kernel,), Entry("run", places, (m,), body), (ConstantData("c", bytes(16)),))


def test_round_trip_of_a_module():
    verify_module(module())
    text = print_module(module())
    again = parse_module(text)
    assert print_module(again) == text
    assert again.constants[0].data == bytes(16)
    assert print_entry(again.entry) in text
    verify_module(again)


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (0.1, Type(float64)),
        (-0.0, Type(float32, 8)),
        (math.inf, Type(float32)),
        (-math.inf, Type(float64)),
        (1e-45, Type(float32)),
        (1e300, Type(float64)),
        (-128, Type(int8, 4)),
        (2**63 - 1, Type(b.INDEX.dtype)),
        (True, Type(bool_)),
        (False, Type(bool_, 16)),
    ],
)
def test_constants_survive(value, type_):
    constant = b.const(value, type_)
    kernel = Kernel("k", (), (), (Let(fresh("c", type_), constant),))
    (let,) = parse_kernel(print_kernel(kernel)).body
    assert let.value.type == type_ and repr(let.value.value) == repr(constant.value)


def test_nan_survives():
    kernel = Kernel("k", (), (), (Let(fresh("c", Type(float32)), b.const(math.nan, float32)),))
    assert math.isnan(parse_kernel(print_kernel(kernel)).body[0].value.value)


def test_names_do_not_depend_on_history():
    texts = [print_kernel(everything()) for _ in range(2)]
    assert texts[0] == texts[1]
    fresh("unrelated")
    assert print_module(module()) == print_module(module())


def test_shared_expressions_are_written_once():
    x = fresh("x", Type(float32))
    value = x
    for _ in range(200):
        value = b.add(value, value)
    assert len(print_expression(value).splitlines()) == 200
    deep = x
    for _ in range(3000):
        deep = b.add(deep, 1.0)
    lines = print_block([Let(fresh("y", Type(float32)), deep)]).splitlines()
    assert max(map(len, lines)) < 300 and lines[-1].startswith("let y")
    kernel = Kernel("k", (), (), (Let(x, b.const(1.0, float32)), Let(fresh("d", x.type), deep)))
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)


def test_representations_are_short():
    """A DAG written as a tree would never end."""
    value = fresh("x", Type(float32))
    for _ in range(5000):
        value = b.add(value, value)
    assert repr(value) == "<Binary add: float32>"
    kernel = Kernel("k", (), (), (Let(fresh("y", Type(float32)), value),))
    assert len(repr(kernel)) < 200 and len(repr(ConstantData("c", bytes(9999)))) < 100


def test_keys_see_what_matters_and_nothing_else():
    kernel = everything()
    key = kernel_key(kernel)
    assert kernel_key(dataclasses.replace(kernel, name="other", note="")) == key
    assert kernel_key(everything()) == key
    renamed = rewrites.substitute(kernel.body, {}, refresh=True)
    assert kernel_key(rewrites.with_body(kernel, renamed)) == key
    smaller = rewrites.with_body(kernel, kernel.body[:-1])
    x, y = kernel.buffers[:2]
    retyped = dataclasses.replace(kernel, buffers=(x, y), body=())
    assert len({key, kernel_key(smaller), kernel_key(retyped)}) == 3


HEAD = "kernel k {\n  scalar n\n  buffer x: float32[n, 4]\n"
BAD_TEXTS = {
    "empty": ("", "line 1: expected 'kernel'"),
    "not a kernel": ("karnel k {\n}\n", "line 1: expected 'kernel', received 'karnel'"),
    "strange sign": (HEAD + "  let a: int64 = n ? 2\n}\n", "line 4: expected a token"),
    "no end": (HEAD, "line 3: expected a statement or '}', received 'the end'"),
    "after the end": (HEAD + "}\nmore\n", "line 5: expected the end of the text"),
    "unknown statement": (HEAD + "  jump n\n}\n", "line 4: expected a statement"),
    "unknown variable": (HEAD + "  let a: int64 = q\n}\n", "line 4: expected a variable that is"),
    "unknown buffer": (HEAD + "  store q[n] = 1\n}\n", "line 4: expected a buffer"),
    "unknown buffer read": (HEAD + "  let a: int64 = q[n]\n}\n", "line 4: expected a buffer"),
    "unknown alias": (HEAD + "  let a: int64 = %3\n}\n", "line 4: expected a defined alias"),
    "alias twice": (HEAD + "  %0 = n\n  %0 = n\n}\n", "line 5: expected an alias that is not"),
    "unknown operation": (HEAD + "  let a: int64 = plus(n)\n}\n", "line 4: expected an operation"),
    "wrong arity": (HEAD + "  let a: int64 = add(n)\n}\n", "line 4: expected 2 operands of add"),
    "unknown dtype": ("kernel k {\n  buffer x: float33[4]\n}\n", "line 2: expected a dtype"),
    "unknown type": (HEAD + "  let a: int65 = n\n}\n", "line 4: expected a type"),
    "bad value": (HEAD + "  let a: int64 = 1.5\n}\n", "line 4: expected a value of int64"),
    "bad bool": (HEAD + "  let a: bool = 1:bool\n}\n", "line 4: expected true or false"),
    "bound twice": (HEAD + "  let n: int64 = 1\n}\n", "line 4: expected a name that is not bound"),
    "declared twice": (HEAD + "  alloc x: float32[4] local\n}\n", "line 4: expected a buffer name"),
    "next of another": (
        HEAD + "  for i < n {\n    carry a: int64 = n -> r\n    next r = a\n  }\n}\n",
        "line 6: expected the next value of a",
    ),
    "missing next": (
        HEAD + "  for i < n {\n    carry a: int64 = n -> r\n  }\n}\n",
        "line 6: expected 'next'",
    ),
    "no lanes": (HEAD + "  let a: int64 = ramp<0>(n)\n}\n", "line 4: expected a positive number"),
    "bad site": (HEAD + "  fail x(n, n)\n}\n", "line 4: expected an integer"),
    "fail of one": (HEAD + "  fail 1(n)\n}\n", "line 4: expected a position and a value"),
    "rest of a line": (HEAD + "  store x[n, n] = n n\n}\n", "line 4: expected the end of the line"),
    "too deep": (
        HEAD + "  let a: int64 = " + "neg(" * 101 + "n" + ")" * 101 + "\n}\n",
        "line 4: expected at most 100 nested",
    ),
    "reduce by nothing": (HEAD + "  let a: int64 = reduce<n>(n)\n}\n", "line 4: expected a binary"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_bad_texts_name_their_line(name):
    text, reason = BAD_TEXTS[name]
    with pytest.raises(InvalidArgumentError) as caught:
        parse_kernel(text)
    assert str(caught.value).startswith(reason), str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("module m", "modul m", "line 1: expected 'module'"),
        ('"AAAA', '"A*AA', "line 2: expected base64 data"),
        ("at table 1", "at shelf 1", "expected one of argument, arena, table, constant"),
        ("entry run", "exit run", "expected 'entry'"),
        ('constant c "', 'constant "', "line 2: expected a name"),
        ('constant c "', 'constant c c "', "line 2: expected a string in quotes"),
    ],
)
def test_bad_modules_name_their_line(old, new, reason):
    text = print_module(module())
    assert old in text
    with pytest.raises(InvalidArgumentError, match="^line ") as caught:
        parse_module(text.replace(old, new, 1))
    assert reason in str(caught.value)


def test_lines_are_counted_with_blank_lines_and_comments():
    text = "\n\nkernel k {\n  # note\n\n  scalar n\n\n  bad\n}\n"
    with pytest.raises(InvalidArgumentError, match="^line 8: expected a statement"):
        parse_kernel(text)


def test_unlisted_nodes_print_in_place():
    x = fresh("x", Type(float32))
    assert print_expression(Bitcast(x, uint32)) == "bitcast<uint32>(x.0)\n"
    memory = Buffer("m", float32, (2,), (3,), Scope.LOCAL)
    assert print_block([Alloc(memory)]) == "alloc m.0: float32[2] strides [3] local\n"
    assert print_block([Fail(2, b.index(1), b.index(3))]) == "fail 2(1, 3)\n"
