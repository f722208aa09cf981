"""JAX: the plan traced by jax.jit, weights as arguments; training with donated state."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.suite.case import LEARNING_RATE, MOMENTUM, Instance
from benchmarks.suite.peers.base import Prepared, how, losses, require
from benchmarks.suite.plan import Plan, Slot, affine_scan, fold_batch_norm, rewrite, spectral

Array = Any


def _matmul(a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> Array:
    return jnp.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)


def _conv2d(x: Array, w: Array, b: Array | None = None, **values: Any) -> Array:
    top, bottom, left, right = values["padding"]
    y = lax.conv_general_dilated(
        x,
        w,
        values["strides"],
        ((top, bottom), (left, right)),
        lhs_dilation=values["input_dilation"],
        rhs_dilation=values["dilation"],
        feature_group_count=values["groups"],
    )
    return y if b is None else y + b[:, None, None]


def _conv1d(x: Array, w: Array, b: Array | None = None, **values: Any) -> Array:
    y = lax.conv_general_dilated(
        x,
        w,
        (values["stride"],),
        (values["padding"],),
        rhs_dilation=(values["dilation"],),
        feature_group_count=values["groups"],
    )
    return y if b is None else y + b[:, None]


def _spectral_conv1d(x: Array, w: Array, count: int, n: int) -> Array:
    modes = jnp.fft.rfft(x)[..., :count]
    return jnp.fft.irfft(jnp.einsum("nim,mio->nom", modes, w), n)


def _attention(q: Array, k: Array, v: Array, scale: float) -> Array:
    return jax.nn.softmax(q @ k.mT * scale) @ v


def _max_pool2d(x: Array, kernel: Any, strides: Any, padding: Any) -> tuple[Array]:
    top, bottom, left, right = padding
    pads = ((0, 0), (0, 0), (top, bottom), (left, right))
    return (lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, *kernel), (1, 1, *strides), pads),)


def _layer_norm(x: Array, gamma: Array, beta: Array, eps: float) -> Array:
    centred = x - jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), -1, keepdims=True)
    return centred * lax.rsqrt(variance + eps) * gamma + beta


def _along(vector: Array, x: Array) -> Array:
    return vector.reshape(-1, *(1,) * (x.ndim - 2))


def _batch_norm_infer(
    x: Array, gamma: Array, beta: Array, mean: Array, variance: Array, eps: float
) -> Array:
    scale = gamma * lax.rsqrt(variance + eps)
    return (x - _along(mean, x)) * _along(scale, x) + _along(beta, x)


def _batch_norm_train(x: Array, gamma: Array, beta: Array, eps: float) -> tuple[Array, ...]:
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    mean, variance = jnp.mean(x, axes), jnp.var(x, axes)
    return _batch_norm_infer(x, gamma, beta, mean, variance, eps), mean, variance


def _scatter_add(updates: Array, indices: Array, shape: Any, axis: int) -> Array:
    where = (slice(None),) * axis + (indices,)
    return jnp.zeros(shape, updates.dtype).at[where].add(updates)


def _split(x: Array, sizes: Sequence[int], axis: int) -> Sequence[Array]:
    return jnp.split(x, np.cumsum(sizes)[:-1], axis)


def _scan(*operands: Array, **values: Any) -> tuple[Array, ...]:
    carries, elements, body = values["carries"], values["elements"], values["body"]
    captures = operands[carries + elements :]

    def step(state: tuple[Array, ...], row: tuple[Array, ...]) -> Any:
        results = run(body, (*state, *row, *captures), {})
        return tuple(results[:carries]), tuple(results[carries:])

    xs = tuple(operands[carries : carries + elements])
    final, made = lax.scan(
        step, tuple(operands[:carries]), xs, values["length"], reverse=values["reverse"]
    )
    return (*final, *made)


def _affine_scan(initial: Array, *operands: Array, **values: Any) -> tuple[Array, ...]:
    """The scan of an affine recurrence as an associative one; the rest of its body in one go."""
    body, reverse, elements = values["body"], values["reverse"], values["elements"]
    rows, captures = operands[:elements], operands[elements:]
    factors = replace(body, outputs=values["parts"])
    keep, fresh = jax.vmap(lambda row: run(factors, (initial, *row, *captures), {}))(rows)
    keep, fresh = (jnp.broadcast_to(x, (values["length"], *initial.shape)) for x in (keep, fresh))
    first, last = (-1, 0) if reverse else (0, -1)
    fresh = fresh.at[first].add(keep[first] * initial)
    _, states = lax.associative_scan(_combine, (keep, fresh), reverse=reverse)
    before = jnp.roll(states, -1 if reverse else 1, axis=0).at[first].set(initial)
    state = body.outputs[0]
    later = replace(
        body,
        inputs=(*body.inputs, state),
        steps=tuple(step for step in body.steps if state not in step.results),
        outputs=body.outputs[1:],
    )
    made = jax.vmap(lambda old, row, new: run(later, (old, *row, *captures, new), {}))(
        before, rows, states
    )
    return (states[last], *made)


def _combine(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
    """Compose two affine maps of a state, the left one first."""
    return right[0] * left[0], right[0] * left[1] + right[1]


TABLE: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "mul": operator.mul,
    "neg": operator.neg,
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "gelu": lambda x, approximate: jax.nn.gelu(x, approximate == "tanh"),
    "softmax": jax.nn.softmax,
    "layer_norm": _layer_norm,
    "sum": lambda x, axes, keepdims: jnp.sum(x, axes, keepdims=keepdims),
    "cumsum": lambda x, axis, exclusive, reverse: lax.cumsum(x, axis % x.ndim, reverse),
    "mean": lambda x, axes, keepdims: jnp.mean(x, axes, keepdims=keepdims),
    "matmul": _matmul,
    "attention": _attention,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "spectral_conv1d": _spectral_conv1d,
    "max_pool2d": _max_pool2d,
    "batch_norm_infer": _batch_norm_infer,
    "batch_norm_train": _batch_norm_train,
    "stop_gradient": lax.stop_gradient,
    "reshape": lambda x, shape: jnp.reshape(x, shape),
    "transpose": lambda x, permutation: jnp.transpose(x, permutation),
    "unsqueeze": lambda x, axes: jnp.expand_dims(x, axes),
    "expand": lambda x, shape: jnp.broadcast_to(x, shape),
    "concat": lambda *arrays, axis: jnp.concatenate(arrays, axis),
    "split": _split,
    "slice": lambda x, starts, stops, steps: lax.slice(x, starts, stops, steps),
    "gather": lambda x, indices, axis: jnp.take(x, indices, axis, mode="clip"),
    "scatter_add": _scatter_add,
    "scan": _scan,
    "affine_scan": _affine_scan,
}
CALLS = {
    "conv2d": "lax.conv_general_dilated",
    "scan": "lax.scan",
    "affine_scan": "lax.associative_scan",
    "spectral_conv1d": "jnp.fft, complex einsum",
}
_TRIALS = 5  # calls of each form of a case before the quickest is taken


def run(plan: Plan, inputs: Sequence[Array], parameters: Mapping[int, Array]) -> list[Array]:
    """Evaluate a plan; the outputs, then the new values of the buffers."""
    values: dict[Slot, Array] = dict(zip(plan.inputs, inputs, strict=True))
    values.update({Slot(index): value for index, value in parameters.items()})
    for step in plan.steps:
        operands = [values[x] if isinstance(x, Slot) else x for x in step.operands]
        results = TABLE[step.op](*operands, **step.attributes)
        single = len(step.results) == 1
        values.update(zip(step.results, (results,) if single else results, strict=False))
    return [values[slot] for slot in (*plan.outputs, *(new for _, new in plan.updates))]


def prepare(instance: Instance, threads: int) -> Prepared:
    """Compile a case; the number of threads is that of the processors the process may use.

    A case with an idiom of JAX, or a scan that is an affine recurrence, is compiled in both forms,
    and the quicker one is taken.
    """
    rules = () if instance.training else (fold_batch_norm, spectral)
    plans = [rewrite(instance.plan, rules)]
    if "affine_scan" in (associative := rewrite(plans[0], (affine_scan,))).ops():
        plans.append(associative)
    if instance.declaration.idiom in TABLE:
        plans.append(instance.idiom_plan())
    if len(plans) > 1:  # a trial moves the state of a training step: the chosen one begins anew
        plans.sort(key=lambda plan: _seconds(_prepare(instance, plan)))
    return _prepare(instance, plans[0])


def _seconds(form: Prepared) -> float:
    form.call()
    times = []
    for _ in range(_TRIALS):
        start = time.perf_counter()
        form.call()
        times.append(time.perf_counter() - start)
    return min(times)


def _prepare(instance: Instance, plan: Plan) -> Prepared:
    require(plan, TABLE, "jax")
    inputs = [jnp.asarray(array) for array in instance.arrays]
    parameters = {slot.index: jnp.array(value) for slot, value in plan.parameters.items()}
    if instance.training:
        return _training(instance, plan, inputs, parameters)
    count, names = len(inputs), tuple(parameters)

    def flat(*arrays: Array) -> list[Array]:
        return run(plan, arrays[:count], dict(zip(names, arrays[count:], strict=True)))

    compiled, arrays = jax.jit(flat), (*inputs, *parameters.values())

    def call() -> list[Array]:
        results = compiled(*arrays)
        for result in results:
            result.block_until_ready()
        return results

    text = how("jax.jit, weights as arguments", plan, CALLS)
    return Prepared(call, lambda: [np.array(x) for x in call()], text)


def _loss(instance: Instance, output: Array, target: Array) -> Array:
    if not instance.classes:
        return jnp.mean(jnp.square(output - target))
    logs = jax.nn.log_softmax(output)
    return -jnp.mean(jnp.take_along_axis(logs, target[:, None], 1))


def _training(
    instance: Instance, plan: Plan, inputs: Sequence[Array], parameters: dict[int, Array]
) -> Prepared:
    trained = {slot.index: parameters.pop(slot.index) for slot in plan.trainable}
    names = [buffer.index for buffer, _ in plan.updates]

    def loss(weights: Any, buffers: Any, data: Any, labels: Array) -> Any:
        results = run(plan, data, {**weights, **buffers})
        return _loss(instance, results[0], labels), results[len(plan.outputs) :]

    def update(weights: Any, momenta: Any, buffers: Any, data: Any, labels: Array) -> Any:
        gradient = jax.value_and_grad(loss, has_aux=True)
        (value, moved), slopes = gradient(weights, buffers, data, labels)
        momenta = jax.tree.map(lambda m, g: MOMENTUM * m + g, momenta, slopes)
        weights = jax.tree.map(lambda w, m: w - LEARNING_RATE * m, weights, momenta)
        return value, weights, momenta, {**buffers, **dict(zip(names, moved, strict=True))}

    compiled = jax.jit(update, donate_argnums=(0, 1, 2))
    state: list[Any] = [trained, jax.tree.map(jnp.zeros_like, trained), parameters]
    labels = jnp.asarray(instance.target)

    def step() -> Array:
        value, *state[:] = compiled(*state, inputs, labels)
        return jax.block_until_ready((value, state))[0]

    text = "jax.jit of value_and_grad and update in one, state donated"
    return Prepared(step, lambda: losses(step), how(text, plan, CALLS))
