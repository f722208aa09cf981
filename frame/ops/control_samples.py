"""Samples of the ops with bodies. Their graphs are float32, so every operand keeps its dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from frame import ops
from frame.core.dtypes import DType, dtype
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Attribute, Graph, Role, TensorType, Value
from frame.ops.record import Sample
from frame.ops.samples import smooth

Body = Callable[..., Sequence[Value]]


def body(function: Body, *inputs: np.ndarray, roles: str = "") -> Graph:
    """Trace a function of values into a body whose inputs have the types of `inputs`.

    `roles` holds a letter for each input: c carry, e element (one slice of it), else capture.
    """
    names = {"c": Role.CARRY, "e": Role.ELEMENT, "k": Role.CAPTURE}
    letters = roles or "k" * len(inputs)
    with GraphBuilder("body") as builder:
        values = [
            builder.input(_type(array, letter), names[letter])
            for array, letter in zip(inputs, letters, strict=True)
        ]
        for value in function(*values):
            builder.output(value)
    return builder.finish()


def _type(array: np.ndarray, letter: str) -> TensorType:
    element: DType = dtype(array.dtype)
    return TensorType(element, array.shape[1:] if letter == "e" else array.shape)


def _single(*shape: int, seed: int = 0) -> np.ndarray:
    return smooth(shape, -1.0, 1.0, seed).astype(np.float32)


def _scan_sample(
    name: str, function: Body, roles: str, *operands: np.ndarray, **attributes: Attribute
) -> Sample:
    elements = [array for array, letter in zip(operands, roles, strict=True) if letter == "e"]
    known: dict[str, Any] = {"length": len(elements[0])} if elements else {}
    return Sample(
        name,
        operands,
        {
            "body": body(function, *operands, roles=roles),
            "carries": roles.count("c"),
            "elements": roles.count("e"),
            **known,
            **attributes,
        },
        fixed=tuple(range(len(operands))),
    )


def _recurrent(state: Value, x: Value, weight: Value) -> Sequence[Value]:
    following = ops.tanh(ops.add(ops.matmul(state, weight), x))
    return following, ops.mul(following, following)


def _nested(state: Value, x: Value) -> Sequence[Value]:
    total, _ = ops.scan(lambda c, y: (ops.add(ops.mul(c, state), y), None), ops.sum(x), x)
    return total, total


def scan() -> Iterable[Sample]:
    """Yield samples of scan: recurrences, maps, reverse, no steps, integer carries, nesting."""
    state, xs, weight = _single(2, 3), _single(5, 2, 3, seed=1), _single(3, 3, seed=2)
    yield _scan_sample("recurrent", _recurrent, "cek", state, xs, weight)
    yield _scan_sample("reverse", _recurrent, "cek", state, xs, weight, reverse=True)
    yield _scan_sample("one_step", _recurrent, "cek", state, xs[:1], weight)
    yield _scan_sample("no_step", _recurrent, "cek", state, xs[:0], weight)
    yield _scan_sample("map", lambda x, k: [ops.mul(ops.sin(x), k)], "ek", xs, _single(3))
    power = _scan_sample(
        "no_element",
        lambda c, k: [ops.mul(c, k), c],
        "ck",
        _single(3),
        _single(3, seed=3),
        length=4,
    )
    yield power
    yield _scan_sample(
        "integer_carry",
        lambda i, c, x: [ops.add(i, 1), ops.add(c, ops.mul(x, ops.cast(i, x.dtype))), i],
        "cce",
        np.zeros((), np.int64),
        _single(2),
        _single(4, 2, seed=4),
    )
    yield _scan_sample("nested", _nested, "ce", np.full((), 0.5, np.float32), _single(3, 4, seed=5))


def _cond_sample(
    name: str,
    value: bool,
    then: Body,
    otherwise: Body,
    *captures: np.ndarray,
    gradient: bool = True,
) -> Sample:
    return Sample(
        name,
        (np.array(value), *captures),
        {"then": body(then, *captures), "otherwise": body(otherwise, *captures)},
        fixed=tuple(range(len(captures) + 1)),
        gradient=gradient,
    )


def cond() -> Iterable[Sample]:
    """Yield samples of cond: both branches, several results, unused captures, integers."""
    x, y = _single(2, 3), _single(2, 3, seed=1)
    for value in (True, False):
        yield _cond_sample(
            f"{value}".lower(),
            value,
            lambda a, b: [ops.mul(a, b), ops.sum(a)],
            lambda a, b: [ops.sin(b), ops.sum(ops.square(b))],
            x,
            y,
        )
    count = np.arange(3)
    yield _cond_sample(
        "integer", True, lambda a: [ops.add(a, 1)], lambda a: [a], count, gradient=False
    )
    yield _cond_sample("unused_capture", False, lambda a, b: [ops.exp(a)], lambda a, b: [b], x, y)


def while_loop() -> Iterable[Sample]:
    """Yield samples of while: some iterations, none, a capture."""
    for name, limit in (("some", 5), ("none", -1)):
        operands = (np.zeros((), np.int64), _single(3), np.array(limit))
        attributes = {
            "condition": body(lambda i, x, k: [ops.less(i, k)], *operands, roles="cck"),
            "body": body(lambda i, x, k: [ops.add(i, 1), ops.mul(x, 1.5)], *operands, roles="cck"),
            "carries": 2,
        }
        yield Sample(name, operands, attributes, fixed=(0, 1, 2), gradient=False)
