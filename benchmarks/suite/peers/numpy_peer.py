"""numpy: the plan as straight calls, where numpy has what the case needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.suite.case import Instance
from benchmarks.suite.peers.base import NotSupportedError, Prepared, how, require
from benchmarks.suite.plan import COMMON, Plan, Slot, Step, rewrite, spectral

Array = np.ndarray


def _matmul(a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> Array:
    return np.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)


def _linear(x: Array, w: Array, b: Array) -> Array:
    y = x @ w
    y += b
    return y


def _conv1d(x: Array, w: Array, b: Array | float = 0.0, **values: Any) -> Array:
    if w.shape[2] != 1 or values["stride"] != 1 or values["groups"] != 1 or any(values["padding"]):
        raise NotSupportedError("numpy has no convolution but that of width 1, a product")
    return w[:, :, 0] @ x + np.reshape(b, (-1, 1))


def _spectral_conv1d(x: Array, w: Array, count: int, n: int) -> Array:
    modes = np.fft.rfft(x)[..., :count].transpose(2, 0, 1)
    return np.fft.irfft((modes @ w).transpose(1, 2, 0), n)


def _gelu(x: Array, approximate: str) -> Array:
    if approximate != "tanh":
        raise NotSupportedError("numpy has no error function")
    y = np.tanh(np.sqrt(2 / np.pi).astype(np.float32) * (x + np.float32(0.044715) * x * x * x))
    y += 1
    y *= x
    y *= np.float32(0.5)
    return y


def _attention(q: Array, k: Array, v: Array, scale: float) -> Array:
    return _softmax(q @ k.mT * np.float32(scale), -1) @ v


def _softmax(x: Array, axis: int) -> Array:
    y = x - np.max(x, axis, keepdims=True)
    np.exp(y, out=y)
    y /= np.sum(y, axis, keepdims=True)
    return y


def _layer_norm(x: Array, gamma: Array, beta: Array, eps: float) -> Array:
    y = x - np.mean(x, -1, keepdims=True)
    y /= np.sqrt(np.mean(np.square(y), -1, keepdims=True) + np.float32(eps))
    y *= gamma
    y += beta
    return y


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _split(x: Array, sizes: Any, axis: int) -> list[Array]:
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _scatter_add(updates: Array, indices: Array, shape: Any, axis: int) -> Array:
    result = np.zeros(shape, updates.dtype)
    np.add.at(result, (slice(None),) * axis + (indices,), updates)
    return result


def _scan(*operands: Any, **values: Any) -> tuple[Array, ...]:
    carries, elements = values["carries"], values["elements"]
    state = operands[:carries]
    captures = operands[carries + elements :]
    steps = range(values["length"])
    made: list[tuple[Array, ...]] = [()] * values["length"]
    for t in reversed(steps) if values["reverse"] else steps:
        row = [x[t] for x in operands[carries : carries + elements]]
        results = values["body"](*state, *row, *captures)
        state, made[t] = results[:carries], results[carries:]
    return (*state, *(np.stack(column) for column in zip(*made, strict=True)))


TABLE: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "neg": np.negative,
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "softplus": lambda x: np.logaddexp(x, np.float32(0)),
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "gelu": _gelu,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "sum": lambda x, axes, keepdims: np.sum(x, axes, keepdims=keepdims),
    "cumsum": lambda x, axis, exclusive, reverse: np.cumsum(x, axis),
    "mean": lambda x, axes, keepdims: np.mean(x, axes, keepdims=keepdims),
    "attention": _attention,
    "matmul": _matmul,
    "linear": _linear,
    "conv1d": _conv1d,
    "spectral_conv1d": _spectral_conv1d,
    "reshape": lambda x, shape: np.reshape(x, shape),
    "transpose": lambda x, permutation: np.transpose(x, permutation),
    "unsqueeze": lambda x, axes: np.expand_dims(x, axes),
    "expand": lambda x, shape: np.broadcast_to(np.float32(x), shape),
    "concat": lambda *arrays, axis: np.concatenate(arrays, axis),
    "split": _split,
    "slice": lambda x, starts, stops, steps: x[tuple(map(slice, starts, stops, steps))],
    "gather": lambda x, indices, axis: np.take(x, indices, axis),
    "scatter_add": _scatter_add,
    "scan": _scan,
}
ABSENT: Mapping[str, str] = {
    "conv2d": "numpy has no convolution",
    "conv_transpose2d": "numpy has no convolution",
    "max_pool2d": "numpy has no pooling",
    "batch_norm_infer": "numpy has no convolution, which every batch norm here follows",
    "relu6": "numpy has no convolution, which every relu6 here follows",
}
"""Ops that numpy is not asked for, with the reason."""


def straight(plan: Plan) -> Callable[..., tuple[Array, ...]]:
    """Return a plan as a Python function of straight lines, as one would write it by hand."""
    known: dict[str, Any] = {}
    lines = [f"def call({', '.join(map(_name, plan.inputs))}):"]
    known.update({_name(slot): value for slot, value in plan.parameters.items()})
    for number, step in enumerate(plan.steps):
        known[f"f{number}"] = _with_attributes(step)
        operands = [_operand(x, known) for x in step.operands]
        results = ", ".join(map(_name, step.results))
        lines.append(f"    {results} = f{number}({', '.join(operands)})")
    moved = any(step.op == "transpose" for step in plan.steps)
    outputs = [f"whole({_name(x)})" if moved else _name(x) for x in plan.outputs]
    lines.append(f"    return ({', '.join(outputs)},)")
    known["whole"] = np.ascontiguousarray
    exec("\n".join(lines), known)  # the text is made of slot numbers alone
    made: Callable[..., tuple[Array, ...]] = known["call"]
    return made


def _name(slot: Slot) -> str:
    return f"v{slot.index}"


def _operand(operand: Any, known: dict[str, Any]) -> str:
    """Return the name of an operand; a number becomes a float32 of a name of its own."""
    if isinstance(operand, Slot):
        return _name(operand)
    name = f"c{len(known)}"
    known[name] = np.float32(operand)
    return name


def _with_attributes(step: Step) -> Callable[..., Any]:
    function, attributes = TABLE[step.op], dict(step.attributes)
    if step.op == "matmul" and not any(attributes.values()):
        return np.matmul
    if "body" in attributes:
        attributes["body"] = straight(attributes["body"])
    return functools.partial(function, **attributes) if attributes else function


def prepare(instance: Instance, threads: int) -> Prepared:
    """Make a case ready; the threads of its products come from the environment."""
    if instance.training:
        raise NotSupportedError("numpy has no gradients")
    plan = rewrite(instance.plan, (*COMMON, spectral))
    for op in sorted(plan.ops() & set(ABSENT)):
        raise NotSupportedError(ABSENT[op])
    require(plan, TABLE, "numpy")
    function, arrays = straight(plan), instance.arrays

    def read() -> list[Array]:
        return [np.array(x) for x in function(*arrays)]

    return Prepared(lambda: function(*arrays), read, how("straight calls", plan, {}))
