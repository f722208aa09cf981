"""PyTorch: the plan as an fx.GraphModule, eager or through torch.compile, in either memory format.

Generated straight-line Python (fx) calls torch.nn.functional, as a hand-written module would.
Linear layers have their weights as torch.nn.Linear keeps them, [out, in].
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx

from benchmarks.suite.case import LEARNING_RATE, MOMENTUM, Instance
from benchmarks.suite.peers.base import NotSupportedError, Prepared, how, losses, require
from benchmarks.suite.plan import (
    COMMON,
    Plan,
    Slot,
    Step,
    fold_batch_norm,
    rewrite,
    running_statistics,
    spectral,
)

Tensor = torch.Tensor


# --- one call an op -------------------------------------------------------------------------------


def _matmul(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    return torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=scale)


def _conv2d(x: Tensor, w: Tensor, b: Tensor | None = None, **values: Any) -> Tensor:
    top, bottom, left, right = values["padding"]
    if top != bottom or left != right:
        x, top, left = F.pad(x, (left, right, top, bottom)), 0, 0
    return F.conv2d(x, w, b, values["strides"], (top, left), values["dilation"], values["groups"])


def _conv1d(x: Tensor, w: Tensor, b: Tensor | None = None, **values: Any) -> Tensor:
    left, right = values["padding"]
    if left != right:
        x, left = F.pad(x, (left, right)), 0
    return F.conv1d(x, w, b, values["stride"], left, values["dilation"], values["groups"])


def _spectral_conv1d(x: Tensor, w: Tensor, count: int, n: int) -> Tensor:
    modes = torch.fft.rfft(x)[..., :count]
    return torch.fft.irfft(torch.einsum("nim,mio->nom", modes, w), n)


def _conv_transpose2d(x: Tensor, w: Tensor, strides: Any, low: Any, high: Any) -> Tensor:
    return F.conv_transpose2d(x, w, None, strides, low)


def _max_pool2d(x: Tensor, kernel: Any, strides: Any, padding: Any) -> Tensor:
    return F.max_pool2d(x, kernel, strides, (padding[0], padding[2]))


def _batch_norm_infer(
    x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> Tensor:
    return F.batch_norm(x, mean, variance, gamma, beta, eps=eps)


def _batch_norm_step(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    momentum: float,
) -> Tensor:
    return F.batch_norm(x, mean, variance, gamma, beta, True, momentum, eps)


def _slice(x: Tensor, starts: Any, stops: Any, steps: Any) -> Tensor:
    return x[tuple(map(slice, starts, stops, steps))]


def _gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    if axis == 0 and x.dim() == 2:
        return F.embedding(indices, x)
    return torch.index_select(x, axis, indices)


def _scatter_add(updates: Tensor, indices: Tensor, shape: Any, axis: int) -> Tensor:
    return torch.zeros(shape).index_add_(axis, indices, updates)


def _expand(x: Any, shape: Any) -> Tensor:
    return x.expand(shape) if isinstance(x, Tensor) else torch.full(shape, x)


def _unsqueeze(x: Tensor, axes: Any) -> Tensor:
    for axis in axes:
        x = x.unsqueeze(axis)
    return x


def _layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, gamma.shape, gamma, beta, eps)


TABLE: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "mul": operator.mul,
    "neg": operator.neg,
    "exp": torch.exp,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "softmax": lambda x, axis: F.softmax(x, axis),
    "layer_norm": _layer_norm,
    "sum": lambda x, axes, keepdims: torch.sum(x, axes, keepdims),
    "cumsum": lambda x, axis, exclusive, reverse: torch.cumsum(x, axis),
    "mean": lambda x, axes, keepdims: torch.mean(x, axes, keepdims),
    "matmul": _matmul,
    "linear": F.linear,
    "attention": _attention,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "spectral_conv1d": _spectral_conv1d,
    "conv_transpose2d": _conv_transpose2d,
    "max_pool2d": _max_pool2d,
    "batch_norm_infer": _batch_norm_infer,
    "batch_norm_step": _batch_norm_step,
    "reshape": lambda x, shape: torch.reshape(x, shape),
    "transpose": lambda x, permutation: x.permute(permutation),
    "unsqueeze": _unsqueeze,
    "expand": _expand,
    "concat": lambda *tensors, axis: torch.cat(tensors, axis),
    "split": lambda x, sizes, axis: torch.split(x, sizes, axis),
    "slice": _slice,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "scan": lambda *operands, **values: operands,  # made for each scan by `_scan`
}
CALLS = {
    "linear": "F.linear",
    "attention": "F.scaled_dot_product_attention",
    "lstm": "torch.nn.LSTM",
    "spectral_conv1d": "torch.fft, complex einsum",
    "scan": "scan as a Python loop",
    "conv_transpose2d": "F.conv_transpose2d",
    "batch_norm_step": "F.batch_norm(training=True)",
}


def _scan(body: fx.GraphModule, values: Mapping[str, Any]) -> Callable[..., tuple[Tensor, ...]]:
    carries, elements = values["carries"], values["elements"]

    def scan(*operands: Tensor) -> tuple[Tensor, ...]:
        state: Sequence[Tensor] = operands[:carries]
        rows = zip(*(x.unbind(0) for x in operands[carries : carries + elements]), strict=True)
        captures = operands[carries + elements :]
        made = []
        for row in reversed(list(rows)) if values["reverse"] else rows:
            results = body(*state, *row, *captures)
            state = results[:carries]
            made.append(results[carries:])
        columns = zip(*(reversed(made) if values["reverse"] else made), strict=True)
        return (*state, *(torch.stack(column) for column in columns))

    return scan


# --- the module -----------------------------------------------------------------------------------


def _linear_weights(plan: Plan) -> set[Slot]:
    """Return the weights that only linear layers read: they are kept [out, in]."""
    readers: dict[Slot, set[str]] = {}
    for step in plan.steps:
        for position, operand in enumerate(step.operands):
            if isinstance(operand, Slot):
                readers.setdefault(operand, set()).add(f"{step.op}{position}")
    return {slot for slot, ops in readers.items() if ops == {"linear1"}}


class _Weights(torch.nn.Module):
    """The parameters and buffers of a plan under the names p<slot>."""

    def __init__(self, plan: Plan, training: bool) -> None:
        super().__init__()
        turned = _linear_weights(plan)
        for slot, value in plan.parameters.items():
            array = np.ascontiguousarray(value.T) if slot in turned else np.array(value)
            tensor = torch.from_numpy(array)
            if slot in plan.trainable and tensor.is_floating_point():
                self.register_parameter(f"p{slot.index}", torch.nn.Parameter(tensor, training))
            else:
                self.register_buffer(f"p{slot.index}", tensor)


def graph_module(plan: Plan, training: bool = False) -> fx.GraphModule:
    """Return a plan as a module."""
    require(plan, TABLE, "torch")
    turned = _linear_weights(plan)
    graph = fx.Graph()
    nodes: dict[Slot, fx.Node] = {slot: graph.placeholder(f"x{slot.index}") for slot in plan.inputs}
    for slot in plan.parameters:
        nodes[slot] = graph.get_attr(f"p{slot.index}")
    for step in plan.steps:
        operands = tuple(nodes[x] if isinstance(x, Slot) else x for x in step.operands)
        if step.op == "linear" and step.operands[1] not in turned:
            operands = (operands[0], graph.call_method("t", (operands[1],)), operands[2])
        _append(graph, nodes, step, operands)
    moved = {slot for step in plan.steps if step.op == "transpose" for slot in step.results}
    results = tuple(
        graph.call_method("contiguous", (nodes[slot],)) if slot in moved else nodes[slot]
        for slot in plan.outputs
    )
    graph.output(results)
    return fx.GraphModule(_Weights(plan, training), graph)


def _append(
    graph: fx.Graph, nodes: dict[Slot, fx.Node], step: Step, operands: tuple[Any, ...]
) -> None:
    attributes = dict(step.attributes)
    if step.op == "scan":
        function, attributes = _scan(graph_module(attributes["body"]), attributes), {}
    else:
        function = TABLE[step.op]
    node = graph.call_function(function, operands, attributes)
    if len(step.results) == 1 or step.op == "max_pool2d":
        nodes[step.results[0]] = node
        return
    for position, slot in enumerate(step.results):
        nodes[slot] = graph.call_function(operator.getitem, (node, position))


class _Lstm(torch.nn.Module):
    """torch.nn.LSTM with the weights of a plan of one step, whose gates have torch's order."""

    def __init__(self, plan: Plan, training: bool) -> None:
        super().__init__()
        weight, recurrent, bias = (
            torch.from_numpy(np.array(plan.parameters[slot])) for slot in plan.trainable
        )
        self.lstm = torch.nn.LSTM(weight.shape[0], recurrent.shape[0], batch_first=True)
        with torch.no_grad():
            self.lstm.weight_ih_l0.copy_(weight.T)
            self.lstm.weight_hh_l0.copy_(recurrent.T)
            self.lstm.bias_ih_l0.copy_(bias)
            self.lstm.bias_hh_l0.zero_()
        self.lstm.bias_hh_l0.requires_grad_(False)
        if not training:
            self.requires_grad_(False).eval()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.lstm(x)[0],)


def _module(instance: Instance) -> tuple[torch.nn.Module, Plan]:
    training = instance.training
    if instance.declaration.idiom == "lstm":
        plan = instance.idiom_plan()
        return _Lstm(plan, training), plan
    # A complex weight is made of the parameters once, so training must not have one.
    own = (running_statistics,) if training else (fold_batch_norm, spectral)
    plan = rewrite(instance.plan, (*own, *COMMON))
    return graph_module(plan, training), plan


# --- the four forms -------------------------------------------------------------------------------


def _prepare(instance: Instance, threads: int, compiled: bool, channels_last: bool) -> Prepared:
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    module, plan = _module(instance)
    if channels_last:
        _require_convolutions(plan)
        module = module.to(memory_format=torch.channels_last)
    inputs = [_tensor(array, channels_last) for array in instance.arrays]
    text = "torch.compile" if compiled else "eager"
    text += ", channels_last" if channels_last else ""
    if instance.training:
        return _training(instance, module, inputs, compiled, how(text, plan, CALLS))
    run: Callable[..., Any] = module.forward  # no hooks: the quickest way into a module
    if compiled:
        torch._dynamo.reset()
        torch._inductor.config.freezing = True
        run = torch.compile(module)
        text += " with frozen weights"

    def outputs() -> list[np.ndarray]:
        return [np.array(x.contiguous().numpy()) for x in run(*inputs)]

    return Prepared(lambda: run(*inputs), outputs, how(text, plan, CALLS))


def _tensor(array: np.ndarray, channels_last: bool) -> Tensor:
    tensor = torch.from_numpy(array)
    if channels_last and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def _require_convolutions(plan: Plan) -> None:
    if "conv2d" not in plan.ops():
        raise NotSupportedError("channels_last matters to convolutions alone")


def _training(
    instance: Instance,
    module: torch.nn.Module,
    inputs: Sequence[Tensor],
    compiled: bool,
    text: str,
) -> Prepared:
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)
    loss_of = F.cross_entropy if instance.classes else F.mse_loss
    target = torch.from_numpy(instance.target)

    def forward(*values: Tensor) -> Tensor:
        return loss_of(module(*values)[0], target)

    run: Callable[..., Tensor] = forward
    if compiled:
        torch._dynamo.reset()
        torch._inductor.config.freezing = False
        run = torch.compile(forward)

    def step() -> Tensor:
        with torch.enable_grad():
            optimizer.zero_grad()
            loss = run(*inputs)
            loss.backward()
        optimizer.step()
        return loss.detach()

    return Prepared(step, lambda: losses(step), f"{text}; autograd, torch.optim.SGD(fused=True)")


def prepare_eager(instance: Instance, threads: int) -> Prepared:
    """Eager, row-major images."""
    return _prepare(instance, threads, compiled=False, channels_last=False)


def prepare_channels_last(instance: Instance, threads: int) -> Prepared:
    """Eager, with images and their weights in the memory format channels_last."""
    return _prepare(instance, threads, compiled=False, channels_last=True)


def prepare_compiled(instance: Instance, threads: int) -> Prepared:
    """torch.compile, row-major images."""
    return _prepare(instance, threads, compiled=True, channels_last=False)


def prepare_compiled_channels_last(instance: Instance, threads: int) -> Prepared:
    """torch.compile with images and their weights in the memory format channels_last."""
    return _prepare(instance, threads, compiled=True, channels_last=True)
