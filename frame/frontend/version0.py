"""Schema version 0: a chain or tree of linear layers, mean squared error, plain descent.

Data and parameters come from one stream of the Mersenne Twister: the input, the target, then
weight and bias of each layer in the order of the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from frame import ops
from frame.core.dataclass import dataclass
from frame.core.dtypes import float32
from frame.frontend.document import NOTHING, joined, wrong
from frame.frontend.draws import SEED, Draws
from frame.frontend.kinds import (
    Choice,
    Field,
    Integer,
    Kind,
    ListOf,
    Number,
    Numbers,
    Record,
    Tagged,
    Text,
    optional,
)
from frame.frontend.plan import TARGET, Plan, Training
from frame.ir.graph import TensorType, Value
from frame.nn.losses import MseLoss
from frame.nn.module import Module, Scope
from frame.nn.parameters import ParamSpec

PARAMS = "params"
MOST_ELEMENTS = 2**31 - 1

SIZE = Integer(1)
NAME = Text(1, 200)
SHAPE = ListOf(SIZE, 1, 8)
RANGE = ListOf(Number(), 2, 2)

INPUT = Record(
    (Field("name", NAME, "the name"), Field("shape", SHAPE, "the shape, batch first")), "an input"
)
LAYER = Record(
    (
        Field("name", NAME, "the name, unlike every other"),
        Field("kind", Choice(("linear",)), "what the layer is"),
        Field("input", NAME, "an input, or a layer further up"),
        Field("weight_shape", ListOf(SIZE, 2, 2), "[in, out]"),
        optional("bias_shape", ListOf(SIZE, 2, 2), "[batch, out]; no bias if left out"),
        optional("activation", Choice(("none", "relu")), "what follows", "none"),
    ),
    "a layer",
)
LOSS = Record(
    (
        Field("kind", Choice(("mse",)), "mean squared error"),
        Field("prediction", NAME, "the layer whose output is compared"),
        Field("target_shape", SHAPE, "the shape of that output"),
    ),
    "the loss",
)
OPTIMIZER = Record(
    (
        Field("kind", Choice(("sgd",)), "gradient descent"),
        Field("learning_rate", Number(above=0.0), "the rate of every step"),
    ),
    "the optimizer",
)
TRAINING = Record(
    (
        Field("steps", Integer(1), "how many steps to run"),
        Field("seed", Integer(0, SEED), "seed of the Mersenne Twister"),
        Field("log_every", Integer(0), "report every so many steps; 0 reports the last alone"),
    ),
    "the training",
)
COLUMN = Tagged(
    {
        "inline": (Field("values", Numbers(), "the numbers in row-major order"),),
        "uniform_seeded": (Field("range", RANGE, "[low, high]"),),
    }
)
PARAMETERS = Tagged(
    {
        "uniform_seeded": (
            Field("weight_range", RANGE, "[low, high] of the weights"),
            Field("bias_range", RANGE, "[low, high] of the biases"),
        )
    }
)
MODEL = Record(
    (
        Field("name", Text(), "the name of the model"),
        Field("dtype", Choice(("float32",)), "the element type of everything"),
        Field("batch", SIZE, "rows of every input"),
    ),
    "the model",
)


@dataclass(frozen=True, slots=True)
class Data:
    """The section `data`: the target, the parameters, and one entry an input, by its name."""

    def check(self, value: Any, path: str) -> dict[str, Any]:
        """Return the checked entries; which inputs there are is a rule of the whole spec."""
        if not isinstance(value, dict):
            wrong(path, "an object with the data", value)
        for name in (TARGET, PARAMS):
            if name not in value:
                wrong(joined(path, name), "a value", NOTHING, "add it")
        kinds: dict[str, Kind] = {PARAMS: PARAMETERS}
        return {
            key: kinds.get(key, COLUMN).check(each, joined(path, key))
            for key, each in value.items()
        }

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema."""
        return {
            "type": "object",
            "properties": {TARGET: COLUMN.schema(), PARAMS: PARAMETERS.schema()},
            "required": [TARGET, PARAMS],
            "additionalProperties": COLUMN.schema(),
        }


ROOT = Record(
    (
        optional("$schema", Text(), "where an editor finds the schema"),
        Field("schema_version", Choice((0,)), "the version of this format"),
        Field("model", MODEL, "the model"),
        Field("inputs", ListOf(INPUT, 1, 1), "the input"),
        Field("layers", ListOf(LAYER, 1, 4096), "the layers"),
        Field("loss", LOSS, "the loss"),
        Field("optimizer", OPTIMIZER, "the optimizer"),
        Field("training", TRAINING, "the training"),
        Field("data", Data(), "the data and the initial parameters"),
    ),
    "a model spec",
)


def plan_of(document: Mapping[str, Any]) -> Plan:
    """Return the plan of a document of version 0.

    Raises:
        InvalidArgumentError: a field is missing, unknown, of the wrong kind, out of range, or does
            not fit the others; with its path.
    """
    spec = ROOT.check(document, "")
    shapes = _shapes(spec)
    _check_loss(spec, shapes)
    _check_data(spec, shapes)
    entry, training = spec["inputs"][0], spec["training"]
    rate = spec["optimizer"]["learning_rate"]
    if not np.float32(rate) > 0:
        wrong("optimizer.learning_rate", "a number above 0 as a float32", rate)
    from frame.compiler.optimizers import SGD
    from frame.train.schedules import constant

    start = _Start(spec, shapes)
    return Plan(
        0,
        spec["model"]["name"],
        _module(spec),
        MseLoss(),
        {entry["name"]: TensorType(float32, entry["shape"])},
        TensorType(float32, spec["loss"]["target_shape"]),
        SGD(),
        lambda steps_per_epoch: constant(rate),
        Training(training["steps"], seed=training["seed"], log_every=training["log_every"]),
        start.columns,
        start.parameters,
    )


# --- rules that join fields -----------------------------------------------------------------------


def _shapes(spec: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Check inputs and layers in order; return the shape of each by name."""
    batch, entry = spec["model"]["batch"], spec["inputs"][0]
    shape = entry["shape"]
    if entry["name"] in (TARGET, PARAMS):
        hint = f"the data of the {'loss' if entry['name'] == TARGET else 'layers'} has this name"
        wrong("inputs[0].name", f"another name than {TARGET} and {PARAMS}", entry["name"], hint)
    if shape[0] != batch:
        wrong("inputs[0].shape[0]", f"model.batch, {batch}", shape[0])
    if len(shape) != 2:
        wrong("inputs[0].shape", "two axes, [batch, features]: layers are linear", list(shape))
    shapes = {entry["name"]: _small("inputs[0].shape", shape)}
    for place, layer in enumerate(spec["layers"]):
        shapes[_new_name(layer["name"], shapes, place)] = _layer(layer, shapes, place, batch)
    _check_parameter_names(spec)
    return shapes


def _new_name(name: str, shapes: Mapping[str, Any], place: int) -> str:
    if name in shapes or name == TARGET:
        expected = "a name that no input, layer or target has"
        wrong(f"layers[{place}].name", expected, name, "rename the layer")
    return name


def _layer(
    layer: Mapping[str, Any], shapes: Mapping[str, tuple[int, int]], place: int, batch: int
) -> tuple[int, int]:
    path, source = f"layers[{place}]", layer["input"]
    if source not in shapes:
        known = ", ".join(shapes)
        wrong(f"{path}.input", f"an input or a layer further up ({known})", source)
    weight, width = layer["weight_shape"], shapes[source][1]
    if weight[0] != width:
        expected = f"{width}, the last size of {source}"
        wrong(f"{path}.weight_shape", f"[in, out] with in = {expected}", list(weight))
    bias = layer["bias_shape"]
    if bias is not None and bias != (batch, weight[1]):
        wrong(f"{path}.bias_shape", f"[batch, out] = [{batch}, {weight[1]}]", list(bias))
    _small(f"{path}.weight_shape", weight)
    return _small(f"{path}.weight_shape", (batch, weight[1]))


def _small(path: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if math.prod(shape) > MOST_ELEMENTS:
        wrong(path, f"at most {MOST_ELEMENTS} elements", list(shape))
    return shape[0], shape[1]


def _check_parameter_names(spec: Mapping[str, Any]) -> None:
    """The graph calls its parameters `<layer>_weight` and `<layer>_bias`: inputs can't."""
    taken = {spec["inputs"][0]["name"], TARGET}
    for place, layer in enumerate(spec["layers"]):
        for name in _own_names(layer):
            if name in taken:
                hint = f"the parameter {name} of the layer has it: rename the layer or the input"
                wrong(f"layers[{place}].name", "a name that leads to no name twice", name, hint)
            taken.add(name)


def _own_names(layer: Mapping[str, Any]) -> list[str]:
    stem = re.sub(r"[^A-Za-z0-9_]", "_", layer["name"])[:57]
    return [f"{stem}_weight", *([f"{stem}_bias"] if layer["bias_shape"] else [])]


def _check_loss(spec: Mapping[str, Any], shapes: Mapping[str, tuple[int, int]]) -> None:
    loss, layers = spec["loss"], [layer["name"] for layer in spec["layers"]]
    if loss["prediction"] not in layers:
        wrong("loss.prediction", f"a layer ({', '.join(layers)})", loss["prediction"])
    shape = shapes[loss["prediction"]]
    if loss["target_shape"] != shape:
        wrong(
            "loss.target_shape",
            f"{list(shape)}, the shape of {loss['prediction']}",
            list(loss["target_shape"]),
        )


def _check_data(spec: Mapping[str, Any], shapes: Mapping[str, tuple[int, int]]) -> None:
    data, name = spec["data"], spec["inputs"][0]["name"]
    sizes = {name: shapes[name], TARGET: spec["loss"]["target_shape"]}
    for key, entry in data.items():
        path = joined("data", key)
        if key not in (*sizes, PARAMS):
            wrong(path, "no such key", entry, f"there are {', '.join((*sizes, PARAMS))}")
        count = math.prod(sizes[key]) if key in sizes else 0
        if entry["kind"] == "inline" and len(entry["values"]) != count:
            expected = f"{count} numbers, for the shape {list(sizes[key])}"
            wrong(f"{path}.values", expected, len(entry["values"]))
        for field in ("range", "weight_range", "bias_range"):
            if field in entry:
                _check_range(entry[field], f"{path}.{field}")
    if name not in data:
        wrong(joined("data", name), "the data of the input", NOTHING, "add it")


def _check_range(bounds: tuple[float, float], path: str) -> None:
    if not bounds[0] < bounds[1]:
        wrong(path, "[low, high] with low below high", list(bounds))


# --- the model ------------------------------------------------------------------------------------


def _module(spec: Mapping[str, Any]) -> Module:
    """Return the module: one parameter list for all layers, as the names ask for."""
    specs = []
    for layer in spec["layers"]:
        shapes = (layer["weight_shape"], layer["bias_shape"])
        for name, shape in zip(_own_names(layer), shapes, strict=False):
            specs.append(ParamSpec(name, TensorType(float32, shape)))
    names = tuple(_own_names(layer) for layer in spec["layers"])
    layers = tuple((one["name"], one["input"], one["activation"]) for one in spec["layers"])
    options = (
        ("input", spec["inputs"][0]["name"]),
        ("layers", layers),
        ("names", names),
        ("prediction", spec["loss"]["prediction"]),
    )
    return Module("", tuple(specs), (), _build, "Spec", options)


def _build(self: Scope, x: Value) -> Value:
    options = self.options
    values = {options["input"]: x}
    for (name, source, activation), (weight, *bias) in zip(
        options["layers"], options["names"], strict=True
    ):
        y = ops.matmul(values[source], getattr(self, weight))
        y = ops.add(y, getattr(self, bias[0])) if bias else y
        values[name] = ops.relu(y) if activation == "relu" else y
    result: Value = values[options["prediction"]]
    return result


class _Start:
    """The data and the initial parameters, drawn from one stream whenever they are asked for."""

    def __init__(self, spec: Mapping[str, Any], shapes: Mapping[str, tuple[int, int]]) -> None:
        self.spec, self.shapes = spec, shapes

    def _draws(self) -> Draws:
        return Draws(self.spec["training"]["seed"])

    def _columns(self, draws: Draws) -> tuple[np.ndarray, ...]:
        spec = self.spec
        name, data = spec["inputs"][0]["name"], spec["data"]
        sizes = {name: self.shapes[name], TARGET: spec["loss"]["target_shape"]}
        return tuple(_column(draws, data[key], shape) for key, shape in sizes.items())

    def columns(self) -> tuple[np.ndarray, ...]:
        """Return the input and the target."""
        return self._columns(self._draws())

    def parameters(self) -> Mapping[str, np.ndarray]:
        """Return the initial parameters, whose numbers follow those of the data."""
        draws, ranges = self._draws(), self.spec["data"][PARAMS]
        self._columns(draws)
        values: dict[str, np.ndarray] = {}
        for layer in self.spec["layers"]:
            weight, *bias = _own_names(layer)
            values[weight] = draws.uniform(layer["weight_shape"], *ranges["weight_range"])
            if bias:
                values[bias[0]] = draws.uniform(layer["bias_shape"], *ranges["bias_range"])
        return values


def _column(draws: Draws, entry: Mapping[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    if entry["kind"] == "inline":
        return np.array(entry["values"], np.float32).reshape(shape)
    return draws.uniform(shape, *entry["range"])
