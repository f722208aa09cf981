"""Schema version 1: any layers of `frame.nn` in any graph without cycles.

What version 0 lacks: layers, losses, optimizers and schedules by the names of the library, several
inputs, merges, data from files, batches, validation, and a model that is saved. Shapes are those of
one row: the batch axis is the program's business.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from frame.core.arguments import LARGEST
from frame.core.dtypes import DTYPES, dtype
from frame.core.errors import FrameError, InvalidArgumentError, NotFoundError
from frame.core.shapes import as_shape
from frame.frontend import catalogue
from frame.frontend.catalogue import NAME, Entry, Named, Nested
from frame.frontend.columns import COLUMN, Place, Wanted, columns_of
from frame.frontend.document import NOTHING, Told, joined, wrong
from frame.frontend.draws import SEED
from frame.frontend.kinds import (
    AnyOf,
    Boolean,
    Choice,
    Field,
    Integer,
    ListOf,
    MapOf,
    Number,
    Record,
    Text,
    optional,
)
from frame.frontend.layers import (
    KIND,
    REFERENCE,
    Layers,
    check_names,
    check_used,
    in_order,
    module_of,
    source_of,
    unnamed_output,
)
from frame.frontend.plan import BATCH, TARGET, Plan, ScheduleOf, Training
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Role, TensorType
from frame.nn.module import BuildContext, Module
from frame.nn.parameters import add_parameter_inputs

if TYPE_CHECKING:
    from frame.train.resolution import Resolution
    from frame.train.warp import Look

ELEMENTS = Choice(tuple(name for name, row in DTYPES.items() if not row.storage_only))
SHAPE = ListOf(Integer(1), 0, 7)

INPUT = Record(
    (
        Field("name", NAME, "the name"),
        Field("shape", SHAPE, "the shape of one row, without the batch"),
        optional("dtype", ELEMENTS, "the element type", "float32"),
    ),
    "an input",
)
TARGET_FIELDS = (
    optional("target_shape", SHAPE, "the shape of a row of the target; usual: the output's"),
    optional("target_dtype", ELEMENTS, "the element type of the target", "float32"),
)
LEARNING_RATE = optional("learning_rate", Number(above=0.0), "the rate of every step")
SIDES = AnyOf(
    (Integer(1, LARGEST), ListOf(Integer(1, LARGEST), 2, 2)),
    "a number of pixels from 1 on, or [height, width]",
)
RESOLUTION = Record(
    (
        optional(
            "train",
            ListOf(
                Record(
                    (
                        Field("from_epoch", Integer(0), "how many epochs are done before"),
                        Field("size", SIDES, "the size, [height, width] or one number"),
                    ),
                    "a size and the epoch from which on it is trained on",
                ),
                1,
                64,
            ),
            "the sizes of the images in training, the first from epoch 0 on",
            (),
        ),
        optional("validate", SIDES, "the size in validation, and for the trained model"),
    ),
    "the sizes that images, the first input [channels, height, width], are scaled to",
)
TRAINING = Record(
    (
        optional("steps", Integer(1), "how many steps to run; or epochs"),
        optional("epochs", Integer(1), "how many times to go over the data; or steps"),
        optional("batch_size", Integer(1), "rows of a step; all if left out"),
        optional("seed", Integer(0, SEED), "seed of the data, parameters and batches", 0),
        optional("log_every", Integer(0), "report every so many steps", 0),
        optional("shuffle", Boolean(), "whether each epoch has an order of its own", True),
        optional("drop_last", Boolean(), "whether to leave out a last batch that is short", False),
        optional(
            "validation_split", Number(low=0.0, below=1.0), "share of the rows to keep back", 0.0
        ),
        optional(
            "resolution", RESOLUTION, "the sizes that images are scaled to; as data if left out"
        ),
        optional("save", Text(7, 4096, r".+\.frame"), "the .frame file to write", ""),
    ),
    "the training",
)
MODEL = Record(
    (
        Field("name", Text(1, 200), "the name of the model"),
        optional(
            "weights", Text(1, 4096), "initial weights, a .safetensors, .npz or .onnx file", ""
        ),
        optional("backend", Text(1, 64), "where to run; the usual backend if left out"),
    ),
    "the model",
)
LOSS = Named("loss", lambda: Entry(catalogue.losses, TARGET_FIELDS))
OPTIMIZER = Named("optimizer", lambda: Entry(catalogue.optimizers, (LEARNING_RATE,)))
SCHEDULE = Named("schedule", lambda: Entry(catalogue.schedules))
SOURCE = Named("column", lambda: COLUMN)
SHARED = (LOSS, OPTIMIZER, SCHEDULE, SOURCE)
"""What the JSON Schema writes once."""

ROOT = Record(
    (
        optional("$schema", Text(), "where an editor finds the schema"),
        Field("schema_version", Choice((1,)), "the version of this format"),
        Field("model", MODEL, "the model"),
        Field("inputs", ListOf(INPUT, 1, 64), "the inputs"),
        Field("layers", Layers(), "the layers, in any order"),
        optional("output", REFERENCE, "the layer that the loss takes; usual: the only last one"),
        Field("loss", LOSS, "the loss"),
        Field("optimizer", OPTIMIZER, "the optimizer"),
        optional(
            "schedule",
            SCHEDULE,
            "the learning rate over the steps, in place of optimizer.learning_rate",
        ),
        Field("training", TRAINING, "the training"),
        Field("data", MapOf(SOURCE), "a column an input, and the target"),
    ),
    "a model spec",
)


def plan_of(document: Mapping[str, Any], folder: Path, outside: bool = False) -> Plan:
    """Return the plan of a document of version 1.

    Args:
        document: the parsed text.
        folder: where the files of the spec lie.
        outside: whether they may lie elsewhere.

    Raises:
        InvalidArgumentError: a field is wrong, with its path; or the layers do not fit.
        NotFoundError: a file does not exist.
    """
    spec = ROOT.check(document, "")
    place = Place(folder, outside)
    inputs = {
        entry["name"]: TensorType(dtype(entry["dtype"]), as_shape((BATCH, *entry["shape"])))
        for entry in _unique_inputs(spec)
    }
    output = _output(spec, inputs)
    module = module_of(tuple(inputs), spec["layers"], output)
    training = _training(spec["training"])
    result = _result_type(module, _seen(training, module, inputs))
    target, loss = _target(spec["loss"], result), _loss(spec["loss"])
    _check_loss(module, loss, _seen(training, module, inputs), target)
    _check_data(spec, inputs)
    _check_files(spec, place)
    wanted = {
        name: Wanted(type_.dtype, _row(type_)) for name, type_ in {**inputs, TARGET: target}.items()
    }
    optimizer: Nested = spec["optimizer"]
    return Plan(
        1,
        spec["model"]["name"],
        module,
        loss,
        inputs,
        target,
        optimizer.maker.made(optimizer.values, "optimizer"),
        _schedule(spec),
        training,
        lambda: columns_of(spec["data"], wanted, place, training.seed),
        lambda: _weights(spec["model"]["weights"], place),
        _backend(spec["model"]["backend"]),
        _saved(spec["training"]["save"], place),
    )


# --- rules that join fields -----------------------------------------------------------------------


def _unique_inputs(spec: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    names = [entry["name"] for entry in spec["inputs"]]
    check_names(names, spec["layers"], (TARGET,))
    return tuple(spec["inputs"])


def _output(spec: Mapping[str, Any], inputs: Mapping[str, TensorType]) -> str:
    layers, output = spec["layers"], spec["output"]
    names = [layer["name"] for layer in layers]
    if output is not None and source_of(output) not in names:
        wrong("output", f"a layer ({', '.join(names[:12])})", output)
    # A cycle has no end, and is told as what it is rather than as a missing output.
    in_order(tuple(inputs), layers)
    found = str(output or unnamed_output(layers))
    check_used(tuple(inputs), layers, found)
    return found


def _result_type(module: Module, inputs: Mapping[str, TensorType]) -> TensorType:
    """Return the type of the output: the model is built once, for its checks."""
    with GraphBuilder("check") as builder, BuildContext("infer"):
        values = [builder.input(type_, Role.INPUT, name) for name, type_ in inputs.items()]
        try:
            (result,) = module.build(values, add_parameter_inputs(builder, module.parameters()))
        except InvalidArgumentError as error:
            # The path of the field comes first: it says where, better than the root's name.
            text = error.message.removeprefix(f"in module the root ({KIND}): ")
            raise InvalidArgumentError(text) from error
    return result.type


def _row(type_: TensorType) -> tuple[int, ...]:
    return tuple(int(size) for size in type_.shape[1:])  # type: ignore[arg-type]


def _target(loss: Nested, result: TensorType) -> TensorType:
    shape = loss.values["target_shape"]
    if shape is None:
        # What labels are is the loss's own: a class a row, not a row of numbers.
        shape = result.shape[1:] if _compares(loss) else ()
    if any(not isinstance(size, int) for size in shape):
        wrong("loss.target_shape", "the shape of a row of the target", NOTHING, "add it")
    return TensorType(dtype(loss.values["target_dtype"]), as_shape((BATCH, *shape)))


def _compares(loss: Nested) -> bool:
    return bool(DTYPES[loss.values["target_dtype"]].is_float)


def _loss(loss: Nested) -> Module:
    made: Module = loss.maker.made(loss.values, "loss")
    return made


def _check_loss(
    module: Module, loss: Module, inputs: Mapping[str, TensorType], target: TensorType
) -> None:
    """Raise InvalidArgumentError where the loss does not take the output and the target."""
    from frame.runtime.training import graph_with_loss

    try:
        graph_with_loss(module, loss, inputs, [target], "infer")
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"loss: {error}") from error


def _schedule(spec: Mapping[str, Any]) -> ScheduleOf:
    rate, schedule = spec["optimizer"].values["learning_rate"], spec["schedule"]
    if (rate is None) == (schedule is None):
        received = NOTHING if rate is None else Told("both, it and schedule")
        wrong("optimizer.learning_rate", "one of it and schedule", received)
    if schedule is not None:
        made: ScheduleOf = schedule.maker.made(schedule.values, "schedule").schedule
        return made
    from frame.train.schedules import constant

    if not np.float32(rate) > 0:
        wrong("optimizer.learning_rate", "a number above 0 as a float32", rate)
    return lambda steps_per_epoch: constant(rate)


def _training(found: Mapping[str, Any]) -> Training:
    steps, epochs = found["steps"], found["epochs"]
    if (steps is None) == (epochs is None):
        received = NOTHING if steps is None else Told("both")
        wrong("training.steps", "one of steps and epochs", received)
    if found["batch_size"] is None and found["drop_last"]:
        wrong("training.drop_last", "it to come with a batch_size", True)
    return Training(
        steps,
        epochs,
        found["batch_size"],
        found["seed"],
        found["log_every"],
        found["shuffle"],
        found["drop_last"],
        found["validation_split"],
        _resolution(found["resolution"]),
    )


def _resolution(found: Mapping[str, Any] | None) -> Resolution | None:
    if found is None:
        return None
    from frame.train.resolution import Resolution, pixels

    path = "training.resolution"
    starts = [stage["from_epoch"] for stage in found["train"]]
    if starts and (starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts))):
        wrong(f"{path}.train", "stages with rising from_epoch, the first 0", Told(str(starts)))
    if not starts and found["validate"] is None:
        wrong(path, "train, validate or both", NOTHING)
    train = tuple(
        (stage["from_epoch"], pixels(path, "size", stage["size"])) for stage in found["train"]
    )
    seen = found["validate"]
    return Resolution(train, None if seen is None else pixels(path, "validate", seen), "NCHW")


def _seen(
    training: Training, module: Module, inputs: Mapping[str, TensorType]
) -> Mapping[str, TensorType]:
    """Return the inputs as the layers get them, after a check that they take every size."""
    rule = training.resolution
    if rule is None:
        return inputs
    types = list(inputs.values())
    try:
        rule.check(partial(_scaled, rule, module), types, rule.layout)
        seen = rule.scaled(types, rule.layout)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"training.{error}") from error
    return dict(zip(inputs, seen, strict=True))


def _scaled(rule: Resolution, module: Module, look: Look) -> Module:
    from frame.train.augment import ImageAugmentation

    return rule.around(module, ImageAugmentation(layout=rule.layout), look)


def _check_data(spec: Mapping[str, Any], inputs: Mapping[str, TensorType]) -> None:
    needed = (*inputs, TARGET)
    for name in needed:
        if name not in spec["data"]:
            wrong(joined("data", name), "a column", NOTHING, "add it")
    for name, entry in spec["data"].items():
        if name not in needed:
            wrong(joined("data", name), "no such key", entry, f"there are {', '.join(needed)}")


def _check_files(spec: Mapping[str, Any], place: Place) -> None:
    for name, entry in spec["data"].items():
        if "path" in entry:
            place.file(entry["path"], f"data.{name}.path")
    if spec["model"]["weights"]:
        place.file(spec["model"]["weights"], "model.weights")


def _weights(text: str, place: Place) -> Mapping[str, np.ndarray]:
    if not text:
        return {}
    from frame.interop.weights import load_weights

    try:
        return load_weights(place.file(text, "model.weights"))
    except FrameError as error:
        raise InvalidArgumentError(f"model.weights: {error}") from error


def _backend(name: str | None) -> str | None:
    from frame.runtime.backends import backend

    try:
        return None if name is None else backend(name).name
    except NotFoundError as error:
        raise InvalidArgumentError(f"model.backend: {error}") from error


def _saved(text: str, place: Place) -> str:
    if not text:
        return ""
    hint = "give another place with -o, or allow more (frame train --outside)"
    return str(place.within(text, "training.save", hint))
