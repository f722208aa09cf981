"""An ONNX model of a plan, which onnxruntime and openvino run: weights are initializers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.suite.case import Instance
from benchmarks.suite.peers.base import NotSupportedError, require
from benchmarks.suite.plan import COMMON, Plan, Rule, Slot, Step, rewrite

OPSET = 20
IR_VERSION = 10


class Writer:
    """Collects the nodes of one graph; the initializers of bodies are those of the outer graph."""

    def __init__(self, plan: Plan, parent: Writer | None = None) -> None:
        self.plan = plan
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = parent.initializers if parent else []
        self.names: dict[Slot, str] = dict(parent.names) if parent else {}
        self.fresh: itertools.count[int] = parent.fresh if parent else itertools.count()

    def name(self, operand: Any) -> str:
        """Return the name of an operand; a number becomes an initializer."""
        if isinstance(operand, Slot):
            return self.names.setdefault(operand, f"v{operand.index}")
        return self.constant(np.array(operand, np.float32))

    def constant(self, array: np.ndarray | Sequence[int]) -> str:
        """Add an initializer; a sequence of numbers is int64."""
        name = f"c{next(self.fresh)}"
        value = np.array(array, order="C") if isinstance(array, np.ndarray) else None
        value = np.array(array, np.int64) if value is None else value
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op: str, *operands: Any, to: Slot | None = None, **attributes: Any) -> str:
        """Add a node of one result and return its name."""
        result = f"t{next(self.fresh)}" if to is None else self.name(to)
        names = [x if isinstance(x, str) else self.name(x) for x in operands]
        self.nodes.append(helper.make_node(op, names, [result], **attributes))
        return result

    def shape(self, operand: Slot) -> tuple[int, ...]:
        """Return the shape of an operand."""
        return self.plan.shapes[operand]


Translate = Callable[[Writer, Step], Any]


def _simple(op: str, **attributes: Any) -> Translate:
    return lambda w, s: w.node(op, *s.operands, to=s.results[0], **attributes)


def _gelu(w: Writer, s: Step) -> None:
    w.node("Gelu", *s.operands, to=s.results[0], approximate=s.attributes["approximate"])


def _silu(w: Writer, s: Step) -> None:
    w.node("Mul", s.operands[0], w.node("Sigmoid", *s.operands), to=s.results[0])


def _reduce(op: str) -> Translate:
    def translate(w: Writer, s: Step) -> None:
        axes, keep = s.attributes["axes"], s.attributes["keepdims"]
        if op == "ReduceMean" and axes == (2, 3) and not keep:
            w.node("Flatten", w.node("GlobalAveragePool", *s.operands), to=s.results[0])
        else:
            w.node(op, *s.operands, w.constant(axes), to=s.results[0], keepdims=int(keep))

    return translate


def _matmul(w: Writer, s: Step) -> None:
    names: list[Any] = list(s.operands)
    for position, flag in enumerate(("transpose_a", "transpose_b")):
        if s.attributes[flag]:
            *rest, last, final = range(len(w.shape(s.operands[position])))  # type: ignore[arg-type]
            names[position] = w.node("Transpose", names[position], perm=[*rest, final, last])
    w.node("MatMul", *names, to=s.results[0])


def _linear(w: Writer, s: Step) -> None:
    x, weight, bias = s.operands
    if len(w.shape(x)) == 2:  # type: ignore[arg-type]
        w.node("Gemm", x, weight, bias, to=s.results[0])
    else:
        w.node("Add", w.node("MatMul", x, weight), bias, to=s.results[0])


def _conv2d(w: Writer, s: Step) -> None:
    values = s.attributes
    top, bottom, left, right = values["padding"]
    w.node(
        "Conv",
        *s.operands,
        to=s.results[0],
        pads=[top, left, bottom, right],
        strides=values["strides"],
        dilations=values["dilation"],
        group=values["groups"],
    )


def _conv1d(w: Writer, s: Step) -> None:
    values = s.attributes
    w.node(
        "Conv",
        *s.operands,
        to=s.results[0],
        pads=values["padding"],
        strides=[values["stride"]],
        dilations=[values["dilation"]],
        group=values["groups"],
    )


def _dft(w: Writer, rows: str, size: int, **attributes: int) -> str:
    """Transform [rows, size, parts] along the axis 1, the one that OpenVINO reads every DFT by."""
    length, axis = w.constant(np.array(size)), w.constant(np.array(1))
    return w.node("DFT", rows, length, axis, **attributes)


def _rfft(w: Writer, s: Step) -> None:
    """DFT takes real numbers along a last axis of 1, and gives pairs."""
    size, shape = w.shape(s.operands[0])[-1], w.shape(s.results[0])  # type: ignore[arg-type]
    whole = _dft(w, w.node("Reshape", *s.operands, w.constant([-1, size, 1])), size, onesided=1)
    kept = w.node("Slice", whole, *map(w.constant, ([0], [shape[-2]], [1])))
    w.node("Reshape", kept, w.constant(shape), to=s.results[0])


def _irfft(w: Writer, s: Step) -> None:
    """The real part of the inverse of all frequencies: DFT has no one-sided inverse.

    The frequencies above 0 stand twice there, each but for the middle one; the real part of a
    spectrum that holds them once, but doubled, is the same.
    """
    (z,), n = s.operands, s.attributes["n"]
    weights = np.full((w.shape(z)[-2], 1), 2.0, np.float32)  # type: ignore[arg-type]
    weights[0] = 1.0
    if n % 2 == 0 and weights.size == n // 2 + 1:
        weights[-1] = 1.0
    spectrum = w.node("Mul", z, w.constant(weights))
    rows = w.node("Reshape", spectrum, w.constant([-1, weights.size, 2]))
    real = w.node("Gather", _dft(w, rows, n, inverse=1), w.constant(np.array(0)), axis=-1)
    w.node("Reshape", real, w.constant(w.shape(s.results[0])), to=s.results[0])


def _attention(w: Writer, s: Step) -> None:
    """Opset 20 has no attention: the two products and the softmax that exporters write."""
    q, k, v = s.operands
    *rest, last, final = range(len(w.shape(k)))  # type: ignore[arg-type]
    scores = w.node("MatMul", q, w.node("Transpose", k, perm=[*rest, final, last]))
    weights = w.node("Softmax", w.node("Mul", scores, s.attributes["scale"]), axis=-1)
    w.node("MatMul", weights, v, to=s.results[0])


def _conv_transpose2d(w: Writer, s: Step) -> None:
    pads = [*s.attributes["low"], *s.attributes["high"]]
    strides = s.attributes["strides"]
    w.node("ConvTranspose", *s.operands, to=s.results[0], pads=pads, strides=strides)


def _max_pool2d(w: Writer, s: Step) -> None:
    top, bottom, left, right = s.attributes["padding"]
    w.node(
        "MaxPool",
        *s.operands,
        to=s.results[0],
        kernel_shape=s.attributes["kernel"],
        strides=s.attributes["strides"],
        pads=[top, left, bottom, right],
    )


def _with_epsilon(op: str) -> Translate:
    return lambda w, s: w.node(op, *s.operands, to=s.results[0], epsilon=s.attributes["eps"])


def _reshape(w: Writer, s: Step) -> None:
    w.node("Reshape", s.operands[0], w.constant(s.attributes["shape"]), to=s.results[0])


def _transpose(w: Writer, s: Step) -> None:
    w.node("Transpose", *s.operands, to=s.results[0], perm=s.attributes["permutation"])


def _unsqueeze(w: Writer, s: Step) -> None:
    w.node("Unsqueeze", s.operands[0], w.constant(s.attributes["axes"]), to=s.results[0])


def _expand(w: Writer, s: Step) -> None:
    shape = s.attributes["shape"]
    if isinstance(s.operands[0], Slot):
        w.node("Expand", s.operands[0], w.constant(shape), to=s.results[0])
    else:
        w.names[s.results[0]] = w.constant(np.full(shape, s.operands[0], np.float32))


def _concat(w: Writer, s: Step) -> None:
    w.node("Concat", *s.operands, to=s.results[0], axis=s.attributes["axis"])


def _split(w: Writer, s: Step) -> None:
    names = [w.name(s.operands[0]), w.constant(s.attributes["sizes"])]
    results = [w.name(slot) for slot in s.results]
    w.nodes.append(helper.make_node("Split", names, results, axis=s.attributes["axis"]))


def _slice(w: Writer, s: Step) -> None:
    starts, stops, steps = (w.constant(s.attributes[k]) for k in ("starts", "stops", "steps"))
    axes = w.constant(range(len(s.attributes["starts"])))
    w.node("Slice", s.operands[0], starts, stops, axes, steps, to=s.results[0])


def _gather(w: Writer, s: Step) -> None:
    w.node("Gather", *s.operands, to=s.results[0], axis=s.attributes["axis"])


def _cumsum(w: Writer, s: Step) -> None:
    flags = {name: int(s.attributes[name]) for name in ("exclusive", "reverse")}
    w.node("CumSum", *s.operands, w.constant(s.attributes["axis"]), to=s.results[0], **flags)


def _scatter_add(w: Writer, s: Step) -> None:
    if s.attributes["axis"] != 0:
        raise NotSupportedError("ScatterND adds along the first axis")
    updates, indices = s.operands
    zeros = w.constant(np.zeros(s.attributes["shape"], np.float32))
    places = w.node("Unsqueeze", indices, w.constant([-1]))
    w.node("ScatterND", zeros, places, updates, to=s.results[0], reduction="add")


def _scan(w: Writer, s: Step) -> None:
    body, carries = s.attributes["body"], s.attributes["carries"]
    elements = s.attributes["elements"]
    inner = Writer(body, w)
    taken = carries + elements
    for slot, outer in zip(body.inputs[taken:], s.operands[taken:], strict=True):
        inner.names[slot] = w.name(outer)
    for step in body.steps:
        TABLE[step.op](inner, step)
    results = [inner.node("Identity", slot) for slot in body.outputs]
    graph = helper.make_graph(
        inner.nodes,
        "body",
        [_info(inner.name(slot), body.shapes[slot]) for slot in body.inputs[:taken]],
        [_info(n, body.shapes[slot]) for n, slot in zip(results, body.outputs, strict=True)],
    )
    reverse = int(s.attributes["reverse"])
    node = helper.make_node(
        "Scan",
        [w.name(x) for x in s.operands[:taken]],
        [w.name(slot) for slot in s.results],
        body=graph,
        num_scan_inputs=elements,
        scan_input_directions=[reverse] * elements,
        scan_output_directions=[reverse] * (len(s.results) - carries),
    )
    w.nodes.append(node)


def _lstm(w: Writer, s: Step) -> None:
    """Gates: input, forget, cell, output here; input, output, forget, cell in ONNX.

    Sequences are [batch, length, width] here; in the layout that runtimes have, length is first.
    """
    weight, recurrent, bias = (w.plan.parameters[slot] for slot in s.operands[1:])  # type: ignore[index]

    def ordered(matrix: np.ndarray) -> np.ndarray:
        into, keep, fresh, out = np.split(matrix, 4, -1)
        return np.concatenate([into, out, keep, fresh], -1)

    both = np.concatenate([ordered(bias), np.zeros_like(bias)])
    parts = [ordered(weight).T[None], ordered(recurrent).T[None], both[None]]
    names = [w.constant(part.astype(np.float32)) for part in parts]
    x = w.node("Transpose", s.operands[0], perm=(1, 0, 2))
    y = w.node("LSTM", x, *names, hidden_size=recurrent.shape[0])
    steps = w.node("Squeeze", y, w.constant([1]))
    w.node("Transpose", steps, perm=(1, 0, 2), to=s.results[0])


TABLE: Mapping[str, Translate] = {
    "add": _simple("Add"),
    "mul": _simple("Mul"),
    "neg": _simple("Neg"),
    "exp": _simple("Exp"),
    "tanh": _simple("Tanh"),
    "sigmoid": _simple("Sigmoid"),
    "silu": _silu,
    "softplus": _simple("Softplus"),
    "relu": _simple("Relu"),
    "relu6": lambda w, s: w.node("Clip", *s.operands, 0.0, 6.0, to=s.results[0]),
    "gelu": _gelu,
    "softmax": lambda w, s: w.node("Softmax", *s.operands, to=s.results[0], **s.attributes),
    "layer_norm": _with_epsilon("LayerNormalization"),
    "batch_norm_infer": _with_epsilon("BatchNormalization"),
    "sum": _reduce("ReduceSum"),
    "mean": _reduce("ReduceMean"),
    "cumsum": _cumsum,
    "matmul": _matmul,
    "linear": _linear,
    "attention": _attention,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "rfft": _rfft,
    "irfft": _irfft,
    "conv_transpose2d": _conv_transpose2d,
    "max_pool2d": _max_pool2d,
    "reshape": _reshape,
    "transpose": _transpose,
    "unsqueeze": _unsqueeze,
    "expand": _expand,
    "concat": _concat,
    "split": _split,
    "slice": _slice,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "scan": _scan,
    "lstm": _lstm,
}
CALLS = {
    "linear": "Gemm or MatMul + Add",
    "lstm": "LSTM",
    "scan": "Scan",
    "rfft": "DFT",
    "scatter_add": "ScatterND",
}


def _info(name: str, shape: Sequence[int], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def onnx_plan(instance: Instance, rules: tuple[Rule, ...] = COMMON) -> Plan:
    """Return the plan that the model is made from.

    Raises:
        NotSupportedError: a training step, or an op without a row in the table.
    """
    if instance.training:
        raise NotSupportedError("inference only")
    if instance.declaration.idiom == "lstm":
        return instance.idiom_plan()
    plan = rewrite(instance.plan, rules)
    require(plan, TABLE, "the ONNX table")
    return plan


def onnx_model(instance: Instance, plan: Plan) -> bytes:
    """Return the serialized model of a plan, opset 20."""
    writer = Writer(plan)
    for step in plan.steps:
        TABLE[step.op](writer, step)
    used = {name for node in writer.nodes for name in node.input}
    for slot, value in plan.parameters.items():
        if writer.name(slot) in used or _in_bodies(writer, slot):
            writer.initializers.append(numpy_helper.from_array(value, writer.name(slot)))
    inputs = [
        _info(writer.name(slot), array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
        for slot, array in zip(plan.inputs, instance.arrays, strict=True)
    ]
    outputs = [_info(writer.name(slot), plan.shapes[slot]) for slot in plan.outputs]
    graph = helper.make_graph(writer.nodes, "case", inputs, outputs, writer.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    return model.SerializeToString()


def _in_bodies(writer: Writer, slot: Slot) -> bool:
    """Whether a body reads a parameter of the outer graph."""
    name = writer.name(slot)
    return any(
        name in inner.input
        for node in writer.nodes
        for attribute in node.attribute
        if attribute.HasField("g")
        for inner in attribute.g.node
    )
