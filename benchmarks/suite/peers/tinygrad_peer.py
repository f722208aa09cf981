"""tinygrad: the plan as Tensor calls under TinyJit, on its CPU device."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tinygrad import Device, Tensor, TinyJit
from tinygrad.helpers import DEV
from tinygrad.nn.optim import SGD

from benchmarks.suite.case import LEARNING_RATE, MOMENTUM, Instance
from benchmarks.suite.peers.base import NotSupportedError, Prepared, how, losses, require
from benchmarks.suite.plan import COMMON, Plan, Slot, fold_batch_norm, rewrite

DEVICE = "CPU"


def _matmul(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    left = a.transpose(-1, -2) if transpose_a else a
    return left @ (b.transpose(-1, -2) if transpose_b else b)


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return (q @ k.transpose(-1, -2) * scale).softmax(-1) @ v


def _conv2d(x: Tensor, w: Tensor, b: Tensor | None = None, **values: Any) -> Tensor:
    top, bottom, left, right = values["padding"]
    return x.conv2d(
        w, b, values["groups"], values["strides"], values["dilation"], (left, right, top, bottom)
    )


def _conv1d(x: Tensor, w: Tensor, b: Tensor | None = None, **values: Any) -> Tensor:
    return x.conv2d(
        w, b, values["groups"], values["stride"], values["dilation"], tuple(values["padding"])
    )


def _max_pool2d(x: Tensor, kernel: Any, strides: Any, padding: Any) -> tuple[Tensor]:
    top, bottom, left, right = padding
    return (x.max_pool2d(kernel, strides, padding=(left, right, top, bottom)),)


def _layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    return x.layernorm(eps=eps) * gamma + beta


def _expand(x: Any, shape: Any) -> Tensor:
    return x.expand(shape) if isinstance(x, Tensor) else Tensor.full(shape, x)


def _unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in axes:
        x = x.unsqueeze(axis)
    return x


def _slice(x: Tensor, starts: Any, stops: Any, steps: Any) -> Tensor:
    return x[tuple(map(slice, starts, stops, steps))]


TABLE: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "neg": lambda x: -x,
    "exp": Tensor.exp,
    "tanh": Tensor.tanh,
    "sigmoid": Tensor.sigmoid,
    "silu": Tensor.silu,
    "softplus": Tensor.softplus,
    "relu": Tensor.relu,
    "relu6": Tensor.relu6,
    "gelu": lambda x, approximate: x.gelu() if approximate == "tanh" else _gelu_erf(x),
    "softmax": lambda x, axis: x.softmax(axis),
    "layer_norm": _layer_norm,
    "sum": lambda x, axes, keepdims: x.sum(axes, keepdims),
    "cumsum": lambda x, axis, exclusive, reverse: x.cumsum(axis),
    "mean": lambda x, axes, keepdims: x.mean(axes, keepdims),
    "matmul": _matmul,
    "linear": lambda x, w, b: x.linear(w, b),
    "attention": _attention,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "max_pool2d": _max_pool2d,
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, permutation: x.permute(permutation),
    "unsqueeze": _unsqueeze,
    "expand": _expand,
    "concat": lambda *tensors, axis: tensors[0].cat(*tensors[1:], dim=axis),
    "split": lambda x, sizes, axis: x.split(list(sizes), axis),
    "slice": _slice,
    "gather": lambda x, indices, axis: x[indices],
}
ABSENT: Mapping[str, str] = {
    "scan": "tinygrad unrolls loops: a scan of this length has no usable form",
    "scatter_add": "scatter_add as a comparison with every row takes minutes in tinygrad",
    "batch_norm_step": "the running statistics of batch norm have no row in the table",
    "batch_norm_train": "the running statistics of batch norm have no row in the table",
    "batch_norm_infer": "a batch norm that stands alone has no row in the table",
    "conv_transpose2d": "the transposed convolution has no row in the table",
    "rfft": "tinygrad has no Fourier transform",
    "irfft": "tinygrad has no Fourier transform",
    "stop_gradient": "only the updates of batch norm use it",
}
"""Ops that tinygrad is not asked for, with the reason."""


def _gelu_erf(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + (x * 0.5**0.5).erf())


def run(plan: Plan, inputs: Sequence[Tensor], parameters: Mapping[Slot, Tensor]) -> list[Tensor]:
    """Evaluate a plan lazily."""
    values: dict[Slot, Any] = dict(zip(plan.inputs, inputs, strict=True))
    values.update(parameters)
    for step in plan.steps:
        operands = [values[x] if isinstance(x, Slot) else x for x in step.operands]
        results = TABLE[step.op](*operands, **step.attributes)
        single = len(step.results) == 1
        values.update(zip(step.results, (results,) if single else results, strict=False))
    return [values[slot] for slot in plan.outputs]


def prepare(instance: Instance, threads: int) -> Prepared:
    """Make a case ready; tinygrad takes its threads from the environment (NUM_CPU_THREADS)."""
    DEV.value = DEVICE
    if DEVICE == "CPU" and shutil.which("clang") is None:
        raise NotSupportedError("tinygrad compiles for the CPU with clang, which is not installed")
    rules = COMMON if instance.training else (fold_batch_norm, *COMMON)
    plan = rewrite(instance.plan, rules)
    for op in sorted(plan.ops() & set(ABSENT)):
        raise NotSupportedError(ABSENT[op])
    require(plan, TABLE, "tinygrad")
    inputs = [Tensor(array).realize() for array in instance.arrays]
    parameters = {slot: Tensor(value).realize() for slot, value in plan.parameters.items()}
    if instance.training:
        return _training(instance, plan, inputs, parameters)

    @TinyJit
    def forward(*values: Tensor) -> list[Tensor]:
        return [x.contiguous().realize() for x in run(plan, values, parameters)]

    def call() -> list[Tensor]:
        results = forward(*inputs)
        Device[DEVICE].synchronize()
        return results

    def outputs() -> list[np.ndarray]:
        call()
        call()  # TinyJit captures at its second call
        return [x.numpy() for x in call()]

    return Prepared(call, outputs, how("TinyJit", plan, {}))


def _training(
    instance: Instance, plan: Plan, inputs: Sequence[Tensor], parameters: Mapping[Slot, Tensor]
) -> Prepared:
    for slot in plan.trainable:
        parameters[slot].requires_grad = True
    optimizer = SGD([parameters[s] for s in plan.trainable], LEARNING_RATE, momentum=MOMENTUM)
    target = Tensor(instance.target).realize()

    @TinyJit
    @Tensor.train()
    def update() -> Tensor:
        optimizer.zero_grad()
        output = run(plan, inputs, parameters)[0]
        if instance.classes:
            loss = output.sparse_categorical_crossentropy(target)
        else:
            loss = (output - target).square().mean()
        loss.backward()
        return loss.realize(*optimizer.schedule_step())

    def step() -> Any:
        result = update()
        Device[DEVICE].synchronize()
        return result

    return Prepared(step, lambda: losses(lambda: step().item()), "TinyJit of the whole step")
