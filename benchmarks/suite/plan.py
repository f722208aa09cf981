"""The declared graph in the form that the peers are made from.

A `Plan` is the declared graph of a case as flat steps over numbered slots, with its weights. It is
rewritten by rules that put together what a peer has one fast call for (a product with bias, a
convolution with bias, attention, batch normalisation folded into the weights): every peer then maps
each op to its own call by one table. Composites are never taken apart.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from frame import nn
from frame.ir.graph import Graph, Node, Role, Value


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of a plan: an input, a parameter or a result."""

    index: int


Operand = Slot | float | int | bool  # scalar constants stand in the steps themselves


@dataclass(frozen=True, slots=True)
class Step:
    """One call: an op, its operands, its attributes and the slots of its results."""

    op: str
    operands: tuple[Operand, ...]
    attributes: Mapping[str, Any]
    results: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps over slots.

    `parameters` holds the values of parameters, buffers and array constants, `trainable` those that
    a training step updates, `updates` what a buffer holds after a step. Shapes are by slot.
    """

    inputs: tuple[Slot, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Slot, ...]
    shapes: Mapping[Slot, tuple[int, ...]]
    parameters: Mapping[Slot, np.ndarray]
    trainable: tuple[Slot, ...] = ()
    updates: tuple[tuple[Slot, Slot], ...] = ()
    notes: tuple[str, ...] = field(default=())

    def ops(self) -> frozenset[str]:
        """Return the ops of the steps, those of bodies included."""
        own = frozenset(step.op for step in self.steps)
        return own.union(*(body.ops() for body in self.bodies()))

    def bodies(self) -> Iterator[Plan]:
        """Iterate over the plans of the bodies of scans."""
        for step in self.steps:
            if isinstance(body := step.attributes.get("body"), Plan):
                yield body


# --- from the declared graph ----------------------------------------------------------------------


class _Reader:
    """Numbers the values of graphs and turns their nodes into steps."""

    def __init__(self) -> None:
        self.count = itertools.count()
        self.operands: dict[Value, Operand] = {}
        self.shapes: dict[Slot, tuple[int, ...]] = {}
        self.parameters: dict[Slot, np.ndarray] = {}

    def slot(self, value: Value) -> Slot:
        made = Slot(next(self.count))
        self.operands[value] = made
        self.shapes[made] = tuple(int(size) for size in value.shape)
        return made

    def steps(self, graph: Graph) -> tuple[Step, ...]:
        told = (self.constant, self.same)
        return tuple(
            self.step(node) for node in graph.nodes if not any(tell(node) for tell in told)
        )

    def same(self, node: Node) -> bool:
        """Take over a cast to the dtype that a value has: peers have no step for it."""
        if node.op != "cast" or node.operands[0].dtype != node.results[0].dtype:
            return False
        self.operands[node.results[0]] = self.operands[node.operands[0]]
        return True

    def constant(self, node: Node) -> bool:
        """Take over a constant: a scalar as a Python number, an array as a parameter."""
        if node.op != "constant":
            return False
        array = node.attributes["value"].array
        if array.ndim == 0:
            self.operands[node.results[0]] = array.item()
        else:
            self.parameters[self.slot(node.results[0])] = array
        return True

    def step(self, node: Node) -> Step:
        attributes = {k: self.body(v) if k == "body" else v for k, v in node.attributes.items()}
        operands = tuple(self.operands[value] for value in node.operands)
        if node.op in _PLAIN and len(operands) <= 3:
            op, plain = _PLAIN[node.op]
            return Step(op, operands, plain(node), (self.slot(node.results[0]),))
        return Step(node.op, operands, attributes, tuple(map(self.slot, node.results)))

    def body(self, graph: Graph) -> Plan:
        inputs = tuple(self.slot(entry.value) for entry in graph.inputs)
        steps = self.steps(graph)
        outputs = tuple(self.result(value) for value in graph.outputs)
        return Plan(inputs, steps, outputs, self.shapes, {})

    def result(self, value: Value) -> Slot:
        found = self.operands[value]
        if isinstance(found, Slot):
            return found
        raise ValueError("a case must not return a scalar constant")


def _scaled(node: Node) -> dict[str, Any]:
    """Return the attributes of an attention with the scale that 0 stands for."""
    if node.attributes["causal"]:
        raise ValueError("a case must not have causal attention: no peer has a row for it")
    features = int(node.operands[0].shape[-1])
    return {"scale": float(node.attributes["scale"]) or features**-0.5}


def _whole_table(node: Node) -> dict[str, Any]:
    """Return the attributes of a gather that stands for an embedding without padding."""
    if node.attributes["padding_index"] >= 0:
        raise ValueError("a case must not pad an embedding: no peer has a row for its gradient")
    return {"axis": 0}


_PLAIN: Mapping[str, tuple[str, Callable[[Node], dict[str, Any]]]] = {
    "embedding": ("gather", _whole_table),
    "scaled_dot_product_attention": ("attention", _scaled),
}
"""Op -> the name and the attributes that the tables of the peers have for it."""


def read_plan(
    module: nn.Module,
    specs: Sequence[Any],
    values: Mapping[str, np.ndarray],
    mode: str = "infer",
) -> Plan:
    """Return the plan of a module for inputs of given types, with the values of its parameters."""
    graph = nn.build_graph(module, specs, mode)
    reader = _Reader()
    by_role: dict[Role, list[Slot]] = {role: [] for role in Role}
    for entry in graph.inputs:
        slot = reader.slot(entry.value)
        by_role[entry.role].append(slot)
        if entry.role in (Role.PARAMETER, Role.BUFFER):
            reader.parameters[slot] = values[entry.name]
    steps = reader.steps(graph)
    buffers = [reader.result(graph.inputs[update.input_index].value) for update in graph.updates]
    updated = [reader.result(update.value) for update in graph.updates]
    return Plan(
        tuple(by_role[Role.INPUT]),
        steps,
        tuple(map(reader.result, graph.outputs)),
        reader.shapes,
        reader.parameters,
        tuple(by_role[Role.PARAMETER]),
        tuple(zip(buffers, updated, strict=True)),
    )


# --- rewriting ------------------------------------------------------------------------------------


class Editor:
    """A plan being rewritten: who makes a slot, how often it is read, and new parameters."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.makers = {slot: step for step in plan.steps for slot in step.results}
        reads: Counter[Slot] = Counter(plan.outputs)
        reads.update(value for _, value in plan.updates)
        for step in plan.steps:
            reads.update(x for x in step.operands if isinstance(x, Slot))
        self.reads = reads
        self.parameters = dict(plan.parameters)
        self.shapes = dict(plan.shapes)
        self.notes: dict[str, None] = dict.fromkeys(plan.notes)
        self.updates = plan.updates
        self._next = itertools.count(1 + max(slot.index for slot in plan.shapes))

    def made_by(self, operand: Operand, op: str) -> Step | None:
        """Return the step that makes `operand` if it is of `op` and nothing else reads it."""
        step = self.makers.get(operand) if isinstance(operand, Slot) else None
        if step is None or step.op != op or self.reads[operand] != 1:  # type: ignore[index]
            return None
        return step

    def parameter(self, operand: Operand, rank: int | None = None) -> np.ndarray | None:
        """Return the value of a parameter (of a rank), None for any other operand."""
        value = self.parameters.get(operand) if isinstance(operand, Slot) else None
        return value if value is None or rank is None or value.ndim == rank else None

    def add_parameter(self, value: np.ndarray) -> Slot:
        """Add a parameter that is computed from others."""
        slot = Slot(next(self._next))
        kept = np.complex64 if np.iscomplexobj(value) else np.float32
        self.parameters[slot] = np.ascontiguousarray(value, kept)
        self.shapes[slot] = value.shape
        return slot


Rule = Callable[[Editor, Step], Step | None]
"""Return the step that stands for a step and what it alone reads, or None."""


def rewrite(plan: Plan, rules: Iterable[Rule]) -> Plan:
    """Apply rules in order, each once to every step, and drop what is no longer read."""
    for rule in rules:
        editor = Editor(plan)
        steps = []
        for step in plan.steps:
            step = rule(editor, step) or step
            editor.makers.update(dict.fromkeys(step.results, step))
            steps.append(step)
        plan = _pruned(editor, steps)
    return plan


def _pruned(editor: Editor, steps: Sequence[Step]) -> Plan:
    plan = editor.plan
    live = {*plan.outputs, *(value for _, value in editor.updates)}
    kept = []
    for step in reversed(steps):
        if live.intersection(step.results):
            kept.append(step)
            live.update(x for x in step.operands if isinstance(x, Slot))
    keep = live.union(plan.trainable, (buffer for buffer, _ in editor.updates))
    return replace(
        plan,
        steps=tuple(reversed(kept)),
        shapes=editor.shapes,
        parameters={slot: v for slot, v in editor.parameters.items() if slot in keep},
        updates=editor.updates,
        notes=tuple(editor.notes),
    )


def _sides(step: Step) -> Iterator[tuple[Operand, Operand]]:
    """Yield the operands of a commutative step in both orders."""
    yield step.operands[0], step.operands[1]
    yield step.operands[1], step.operands[0]


def linear(editor: Editor, step: Step) -> Step | None:
    """Match x @ weight + bias, with parameters for weight [k, n] and bias [n]."""
    if step.op != "add":
        return None
    for product, bias in _sides(step):
        inner = editor.made_by(product, "matmul")
        if inner is None or editor.parameter(bias, 1) is None or any(inner.attributes.values()):
            continue
        if editor.parameter(inner.operands[1], 2) is not None:
            return Step("linear", (*inner.operands, bias), {}, step.results)
    return None


def conv_bias(editor: Editor, step: Step) -> Step | None:
    """Match conv2d(x, w) + bias, the bias reshaped to [c, 1, 1]; conv1d alike."""
    if step.op != "add":
        return None
    for image, bias in _sides(step):
        inner = editor.made_by(image, "conv2d") or editor.made_by(image, "conv1d")
        shaped = editor.made_by(bias, "reshape")
        if inner is None or shaped is None or len(inner.operands) > 2:
            continue
        if editor.parameter(shaped.operands[0], 1) is not None:
            return replace(
                inner, operands=(*inner.operands, shaped.operands[0]), results=step.results
            )
    return None


def fold_batch_norm(editor: Editor, step: Step) -> Step | None:
    """Match batch_norm_infer(conv2d(x, w)): scale the weights, shift by a bias."""
    if step.op != "batch_norm_infer":
        return None
    inner = editor.made_by(step.operands[0], "conv2d")
    weight = inner and editor.parameter(inner.operands[1])
    if inner is None or weight is None or len(inner.operands) > 2:
        return None
    gamma, beta, mean, variance = (editor.parameters[x] for x in step.operands[1:])  # type: ignore[index]
    scale = gamma / np.sqrt(variance.astype(np.float64) + step.attributes["eps"])
    folded = editor.add_parameter(weight * scale[:, None, None, None])
    bias = editor.add_parameter(beta - mean * scale)
    editor.notes["batch_norm folded into the weights"] = None
    return replace(inner, operands=(inner.operands[0], folded, bias), results=step.results)


def transposed_conv(editor: Editor, step: Step) -> Step | None:
    """Match conv2d over a dilated input: a transposed one, the weights turned around."""
    if step.op != "conv2d" or step.attributes["input_dilation"] == (1, 1):
        return None
    values = step.attributes
    weight = editor.parameter(step.operands[1])
    if weight is None or values["groups"] != 1 or values["strides"] != (1, 1):
        return None
    turned = editor.add_parameter(weight.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1])
    lows = [k - 1 - p for k, p in zip(weight.shape[2:], values["padding"][::2], strict=True)]
    highs = [k - 1 - p for k, p in zip(weight.shape[2:], values["padding"][1::2], strict=True)]
    attributes = {"strides": values["input_dilation"], "low": tuple(lows), "high": tuple(highs)}
    return Step("conv_transpose2d", (step.operands[0], turned), attributes, step.results)


def running_statistics(editor: Editor, step: Step) -> Step | None:
    """Match batch_norm_train together with the updates of its running mean and variance."""
    if step.op != "batch_norm_train":
        return None
    buffers = [_updated_from(editor, result) for result in step.results[1:]]
    if None in buffers:
        return None
    taken = [buffer for buffer, _ in buffers]  # type: ignore[misc]
    attributes = {**step.attributes, "momentum": buffers[0][1]}  # type: ignore[index]
    editor.updates = tuple(pair for pair in editor.updates if pair[0] not in taken)
    return Step("batch_norm_step", (*step.operands, *taken), attributes, step.results[:1])


def _updated_from(editor: Editor, result: Slot) -> tuple[Slot, float] | None:
    """Return the buffer that moves towards `result`, and how far."""
    for buffer, value in editor.updates:
        if result in _ancestors(editor, value):
            total = editor.makers[value]
            moved = editor.makers[total.operands[0]]  # type: ignore[index]
            return buffer, 1.0 - float(moved.operands[1])  # type: ignore[arg-type]
    return None


def _ancestors(editor: Editor, slot: Slot) -> set[Slot]:
    """Return the slots that `slot` is computed from by elementwise steps."""
    found, pending = set(), [slot]
    while pending:
        found.add(current := pending.pop())
        step = editor.makers.get(current)
        if step is not None and step.op in ("add", "mul", "stop_gradient"):
            pending += [x for x in step.operands if isinstance(x, Slot)]
    return found


def spectral(editor: Editor, step: Step) -> Step | None:
    """Match irfft(modes of rfft(x), each times its complex matrix), for peers with complex numbers.

    Real and imaginary parts are concatenated for one real product a mode: the step in their place
    takes x and the complex weights [modes, inputs, outputs].
    """
    if step.op != "irfft":
        return None
    product = _made_through(editor, step.operands[0], ("transpose", "reshape", "matmul"))
    found = product and _made_through(editor, product.operands[0], ("reshape", "transpose", "rfft"))
    matrix = product and editor.made_by(product.operands[1], "concat")
    upper = matrix and editor.made_by(matrix.operands[0], "concat")
    if not found or not upper or found.attributes["count"] == 0:
        return None
    real, imaginary = (editor.parameter(part, 3) for part in upper.operands)
    if real is None or imaginary is None:
        return None
    weights = editor.add_parameter(real + 1j * imaginary)
    values = {"count": found.attributes["count"], "n": step.attributes["n"]}
    return Step("spectral_conv1d", (found.operands[0], weights), values, step.results)


def _made_through(editor: Editor, operand: Operand, ops: Sequence[str]) -> Step | None:
    """Return the last of a chain of steps, each made for the first operand of the one before."""
    step = None
    for op in ops:
        step = editor.made_by(operand, op)
        if step is None:
            return None
        operand = step.operands[0]
    return step


def affine_scan(editor: Editor, step: Step) -> Step | None:
    """Match a scan whose one carry becomes keep * carry + fresh, for peers with associative scans.

    `parts` of the step in its place are the slots of keep and fresh in the body.
    """
    if step.op != "scan" or step.attributes["carries"] != 1:
        return None
    parts = _affine_parts(step.attributes["body"])
    return parts and Step(
        "affine_scan", step.operands, {**step.attributes, "parts": parts}, step.results
    )


def _affine_parts(body: Plan) -> tuple[Slot, Slot] | None:
    """Return the slots of keep and fresh, which must not depend on the carry; None without such."""
    carry = body.inputs[0]
    makers = {slot: step for step in body.steps for slot in step.results}
    depends = {carry}
    for step in body.steps:
        if depends.intersection(x for x in step.operands if isinstance(x, Slot)):
            depends.update(step.results)
    total = makers.get(body.outputs[0])
    if total is None or total.op != "add":
        return None
    for moved, fresh in itertools.permutations(total.operands):
        product = makers.get(moved) if isinstance(moved, Slot) else None
        if product is None or product.op != "mul" or carry not in product.operands:
            continue
        keep = next((x for x in product.operands if x != carry), carry)
        if isinstance(keep, Slot) and isinstance(fresh, Slot) and not {keep, fresh} & depends:
            return keep, fresh
    return None


COMMON: tuple[Rule, ...] = (transposed_conv, linear, conv_bias)
"""Rules for every peer that has such calls."""


# --- work -----------------------------------------------------------------------------------------


def contraction_flops(plan: Plan, training: bool = False) -> int:
    """Return the floating-point operations of the products and convolutions of a plan.

    In a training step each of them costs as much again for the gradient of its weight, and for
    that of its input where a parameter stands before it.
    """
    depends: set[Slot] = set(plan.trainable) if training else set()
    total = 0
    for step in plan.steps:
        slots = [x for x in step.operands if isinstance(x, Slot)]
        times = 1 + sum(x in depends for x in slots[:2])
        total += times * _flops(plan, step)
        if depends.intersection(slots):
            depends.update(step.results)
    return total


def _flops(plan: Plan, step: Step) -> int:
    shapes = [plan.shapes[x] for x in (*step.operands, *step.results) if isinstance(x, Slot)]
    if step.op == "matmul":
        rows = shapes[0][-2 if step.attributes["transpose_a"] else -1]
        return 2 * math.prod(shapes[-1]) * rows
    if step.op == "attention":
        return 2 * math.prod(shapes[0][:-1]) * shapes[1][-2] * (shapes[0][-1] + shapes[2][-1])
    if step.op in ("conv1d", "conv2d"):
        spread = math.prod(step.attributes.get("input_dilation", ()))
        return 2 * math.prod(shapes[-1]) * math.prod(shapes[1][1:]) // spread
    if step.op == "scan":
        return int(step.attributes["length"]) * contraction_flops(step.attributes["body"])
    return 0
