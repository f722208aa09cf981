"""Every public factory refuses what can't be meant, by the annotations of its parameters.

The factories of `frame.nn`, `frame.blueprint`, `frame.train` and `frame.data` and the methods of a
task are found by reflection: a new one is tried here, or has a reason in `LEFT_OUT`. The error says
the name of the parameter and what came.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from frame import blueprint, data, nn, train
from frame.core.arguments import shown
from frame.core.errors import FrameError
from frame.train import DeepLearningTask
from tests.nn.test_arguments import BASE as LAYERS
from tests.train.support import classes

CONV = blueprint.conv(4, 3)
IMAGES = np.zeros((4, 2, 2, 1), np.uint8)
ROWS = classes(8)
SPEC = nn.param((2,), name="w")

# What a factory is called with; what is left out has a default.
BASE: dict[str, tuple[Any, ...]] = {
    **{f"nn.{name}": arguments for name, arguments in LAYERS.items()},
    "nn.full": (1.5,),
    "nn.inline": ([1.0],),
    "nn.param": ((2, 3),),
    "nn.buffer": ((2, 3),),
    "nn.materialize": (SPEC,),
    "blueprint.InputSpec": (3, 4, 5),
    "blueprint.add2": (CONV, CONV),
    "blueprint.avgpool": (2, 2, 1),
    "blueprint.cbr": (4, 3, 1, 1),
    "blueprint.cbrp": (4, 3, 1, 1, 2, 2, 1),
    "blueprint.conv": (4, 3),
    "blueprint.conv_bn_relu": (4, 3, 1, 1),
    "blueprint.conv_dw": (3,),
    "blueprint.dropout": (0.5,),
    "blueprint.fc": (4, True),
    "blueprint.gap_fc": (4, True),
    "blueprint.group_conv": (4, 2, 3),
    "blueprint.maxpool": (2, 2, 1),
    "blueprint.mbconv": (6, 4, 1),
    "blueprint.repeat": (CONV, 2),
    "train.CsvLog": ("log.csv",),
    "train.HtmlReport": ("report.html",),
    "train.JsonLinesLog": ("log.jsonl",),
    "train.Freeze": (("a.*",),),
    "train.ParameterGroup": (("a.*",),),
    "train.Swa": (2,),
    "train.constant": (0.1,),
    "train.cosine": (0.1,),
    "data.DataLoader": (data.TensorDataset(ROWS),),
    "data.ImageDataset": (IMAGES, np.arange(4)),
    "data.ImageFolder": (".",),
    "data.TensorDataset": (ROWS,),
    "data.cifar10": (".",),
    "data.cifar100": (".",),
    "data.mnist": (".",),
    "data.npz_dataset": ("a.npz",),
    "task.accumulate": (2,),
    "task.average": (train.Ema(),),
    "task.checkpoints": ("folder",),
    "task.data": (ROWS, ROWS),
    "task.early_stop_by_top1": (0.5,),
    "task.freeze": ("a.*",),
    "task.freeze_first_layer_after": (1,),
    "task.input_resolution": (4,),
    "task.optimizer": (train.SGD(),),
    "task.progressive_crop": (4, 8),
    "task.progressive_resize": (4, 8),
    "task.save_model_at_epoch": (1, "model.frame"),
    "task.stop_at": ("loss", 0.5),
    "task.train_resolution": (4,),
    "task.val_resolution": (4,),
    "task.validate_every": (2,),
}
KEYWORDS: dict[str, dict[str, Any]] = {
    "train.MultiStepLR": {"milestones": (2, 3)},
    "task.remat": {"budget": 9},
}

# What is no factory: why it is not tried here.
LEFT_OUT = {
    "nn.Architecture": "a protocol",
    "nn.Initialiser": "a protocol",
    "data.Dataset": "a protocol",
    "nn.BuildContext": "the work of builders: tests/nn/test_module.py",
    "nn.Module": "made by factories; user modules by nn.module: tests/nn/test_module.py",
    "nn.ParamSpec": "made by nn.param and nn.buffer",
    "nn.Scope": "made for a builder",
    "nn.Shared": "made by nn.share",
    "nn.add_parameter_inputs": "the work of builders",
    "nn.build_graph": "the work of builders",
    "nn.module": "takes a function and declarations: tests/nn/test_module.py",
    "blueprint.ArchLayer": "made by plans",
    "blueprint.ArchPlan": "made by BluePrint.plan and from_yaml: tests/blueprint/test_plan.py",
    "blueprint.BlockStyle": "an enumeration",
    "blueprint.BluePrint": "made by factories",
    "blueprint.LayerKind": "an enumeration",
    "blueprint.block": "two forms, told apart by number: tests/blueprint/test_values.py",
    "train.DeepLearningTask": "set by its methods, which are tried here; fields: below",
    "train.EpochRecord": "made by runs",
    "train.History": "made by runs",
    "train.Callback": "a base class without arguments",
    "train.accuracy": "a function of a batch: tests/train/test_metrics.py",
    "train.evaluate": "takes a compiled model: tests/train/test_fit.py",
    "train.fit": "takes a compiled model: tests/train/test_fit.py",
    "train.TensorBoardLog": "needs an extra: tests/train/test_tensorboard.py",
    "data.Digits": "made by digits()",
    "task.variant": "takes a compiled model; the work of runs",
}


def _public() -> Iterator[tuple[str, Any]]:
    for package in (nn, nn.models, blueprint, train, data):
        for name in sorted(package.__all__):
            yield f"{package.__name__.removeprefix('frame.')}.{name}", getattr(package, name)
    for name, method in vars(DeepLearningTask).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            yield f"task.{name}", partial(method, DeepLearningTask())


FACTORIES = {name: made for name, made in _public() if callable(made) and name not in LEFT_OUT}

HUGE = 10**30
BEYOND = (10**400, 10**5000)
COUNT = (None, "2", 1.5, True, math.nan, [2], HUGE, -HUGE, *BEYOND)
NUMBER = (None, "0.5", True, math.nan, math.inf, -math.inf, 1j, [0.5], *BEYOND)
PAIR = ("2", 1.5, True, (1, "2"), (1, 2, 3), (1, HUGE))
SIZE = ("2", 1.5, True, (1, "2"), (1, 2, 3), 0, -1, HUGE)

WRONG: dict[str, tuple[Any, ...]] = {
    "BluePrint": (None, 3, "relu()", blueprint.relu),
    "BluePrint | Sequence[BluePrint]": (None, 3, "relu()", blueprint.relu),
    "DTypeLike": ("float33", 3),
    "Dataset": (None, 3, np.zeros(3)),
    "Ema | Swa": (None, 0.9, train.Ema),
    "ImageAugmentation": (None, 3, train.ImageAugmentation),
    "Initialiser | None": (3, "ones"),
    "Initializer": (None, 3, nn.zeros()),
    "Iterable[Any]": (3, None, "ab"),
    "LossScale | None": (2.0, "auto"),
    "Mapping[str, Shared] | None": (3,),
    "Mapping[str, float | bool] | tuple[tuple[str, float | bool], ...]": (3, "ab"),
    "Module": (3, None, nn.ReLU),
    "Module | Architecture": (3, None, nn.ReLU),
    "Module | None": (3, nn.ReLU),
    "Optimizer": (3, None, train.SGD),
    "Pair": (None, *PAIR),
    "Pair | None": PAIR,
    "Pair | str": (None, *PAIR[1:], "valid"),
    "ParamSpec": (3, None, "w"),
    "Pathlike": (None, 3, 1.5),
    "Scheduler": (3, None, train.ConstantLR, 0.1),
    "Sequence[Module]": (3, (3,)),
    "Sequence[ParameterGroup]": (3, "a", ("a.*",)),
    "Sequence[float] | None": (3, "ab", (1.0, "2"), (1.0, -1.0), (math.nan, 1.0)),
    "Sequence[int]": (3, None, (0, "1", 2), (0, 1.0, 2)),
    "Sequence[str]": (3, "abc", (3,)),
    "Shared | None": (3,),
    "Size | Sequence[Size]": (None, 1.5, (-1,), (True,), ("a b",), (2**63,)),
    "Views": (None, True, train.Views),
    "bool": (None, "no", 1, 0.0),
    "bool | None": ("no", 1, 0.0),
    "float": NUMBER,
    "float | None": NUMBER[1:],
    "int": COUNT,
    "int | None": COUNT[1:],
    "int | Sequence[int]": (None, *PAIR),
    "int | Sequence[int] | None": PAIR,
    "int | tuple[int, int]": (None, *SIZE),
    "int | tuple[int, int] | Mapping[int, int | tuple[int, int]]": (None, *SIZE, {}, {1: 4}),
    "str": (None, 3, b"x"),
    "str | None": (3, b"x"),
    "str | Metric": (3, None),
    "str | Sequence[Module]": (3,),
    "tuple[float, ...]": (3, "ab", None, (1.0, "2"), (math.nan, 1.0), (math.inf, 1.0)),
    "tuple[int, ...]": (3, "ab", None, (1, "2"), (1.5, 2), (True, 2)),
    "tuple[int, int] | None": (3, "ab", (1, "2"), (0, 2), (1, 2, 3), (1.0, 2), (True, 2)),
    "tuple[str, ...]": (3, (3,), ("a", None)),
}
"""Annotation -> values that nothing of it takes."""

ANY = {
    "nn.inline.values": (object(),),
    "task.callback.callbacks": (3, None, train.Callback),
    "task.data.train": (None, 3, (), ([],)),
    "task.data.validation": (3, (), ([],)),
    "data.ImageDataset.images": (None, "a", np.zeros(3)),
    "data.ImageDataset.labels": (None, "a", [0.5] * 4, [0]),
}
"""What has no annotation to go by."""

FINE = {
    ("nn.full.value", "inf"): "masks of attention begin with infinities",
    ("nn.full.value", "-inf"): "masks of attention begin with infinities",
    ("nn.buffer.dtype", "'float8_e4m3fn'"): "a buffer may only be stored",
}
"""Values that are meant in these places."""


def _values(name: str, parameter: inspect.Parameter) -> tuple[Any, ...]:
    key = f"{name}.{parameter.name}"
    return ANY[key] if key in ANY else WRONG[parameter.annotation]


def _call(name: str, parameter: inspect.Parameter, value: Any) -> Any:
    """Call a factory with one argument replaced."""
    signature = inspect.signature(FACTORIES[name])
    bound = signature.bind_partial(*BASE.get(name, ()), **KEYWORDS.get(name, {}))
    several = parameter.kind is parameter.VAR_POSITIONAL
    bound.arguments[parameter.name] = (value,) if several else value
    return FACTORIES[name](*bound.args, **bound.kwargs)


def _tells(text: str, value: Any) -> bool:
    """Whether a message shows a value, or the part of it that is wrong, as what came."""
    parts = [value, *(value if isinstance(value, (tuple, list, str)) else ())]
    _, _, came = re.sub(r"\b(received|got)\b", "\0", text).partition("\0")
    return any(shown(part)[:20] in came for part in parts)


OTHERS = (TypeError, AttributeError, LookupError, ValueError, ArithmeticError, OSError)
"""What Python itself raises where nobody looked at an argument."""


def _fault(name: str, parameter: inspect.Parameter, value: Any) -> str:
    """Return what is wrong with the answer to a value; nothing if it is as it should be."""
    try:
        _call(name, parameter, value)
    except FrameError as error:
        text = str(error)
        several = parameter.kind is parameter.VAR_POSITIONAL  # nobody writes its name
        if (
            not several
            and not re.search(rf"\b{parameter.name}\b", text.replace("_", " "))
            and (parameter.name not in text)
        ):
            return f"no name: {text}"
        return "" if _tells(text, value) else f"no value: {text}"
    except OTHERS as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


@pytest.mark.parametrize("name", FACTORIES)
def test_what_can_not_be_meant_is_refused_by_name(name: str) -> None:
    found = {
        f"{parameter.name}={shown(value)[:40]}": text
        for parameter in inspect.signature(FACTORIES[name]).parameters.values()
        for value in _values(name, parameter)
        if (f"{name}.{parameter.name}", shown(value)) not in FINE
        if (text := _fault(name, parameter, value))
    }
    assert not found


@pytest.mark.parametrize(
    "field, value",
    [
        ("network", 3),
        ("feed", ROWS),
        ("criterion", nn.ReLU),
        ("optimizer_record", None),
        ("scheduler_record", 0.1),
        ("epochs", -3),
        ("epochs", 2.5),
        ("seed_value", "x"),
        ("clip_norm", "1"),
        ("averaging", 0.9),
        ("use_average", 1),
        ("views", True),
        ("resolutions", 32),
    ],
)
def test_the_fields_of_a_task_are_checked(field: str, value: Any) -> None:
    with pytest.raises(FrameError, match=f"expected {field} to be .*, received ") as error:
        DeepLearningTask(**{field: value})
    assert _tells(str(error.value), value)


# --- ranges ---------------------------------------------------------------------------------------

NEGATIVE = {"axis", "ignore_index", "fill", "low", "high", "mean", "value", "slope", "alpha"}
"""Parameters that may be negative: places counted from the end, labels, and plain numbers."""
OWN = {"nn.Embedding.padding_index": "-1 is none", "task.stop_at.threshold": "of any value"}


def _numbers(kind: str) -> Iterator[tuple[str, inspect.Parameter]]:
    for name, made in FACTORIES.items():
        for parameter in inspect.signature(made).parameters.values():
            if str(parameter.annotation).split(" | ")[0] == kind:
                yield name, parameter


@pytest.mark.parametrize("kind", ["int", "float"])
def test_negative_numbers_are_refused_where_they_mean_nothing(kind: str) -> None:
    value = {"int": -2, "float": -0.5}[kind]
    found = {
        f"{name}.{parameter.name}": text
        for name, parameter in _numbers(kind)
        if parameter.name not in NEGATIVE and f"{name}.{parameter.name}" not in OWN
        if (text := _fault(name, parameter, value))
    }
    assert not found


# --- numbers of numpy -----------------------------------------------------------------------------


def _given(name: str, parameter: inspect.Parameter) -> Any:
    signature = inspect.signature(FACTORIES[name])
    bound = signature.bind_partial(*BASE.get(name, ()), **KEYWORDS.get(name, {}))
    return bound.arguments.get(parameter.name, parameter.default)


def _numpy_cases() -> Iterator[tuple[str, inspect.Parameter, Any, Any]]:
    for kind, make in (("int", np.int64), ("float", np.float64), ("bool", np.bool_)):
        for name, parameter in _numbers(kind):
            value = _given(name, parameter)
            if isinstance(value, (bool, int, float)) and parameter.name != "resume":
                yield name, parameter, value, make(value)


def test_numbers_of_numpy_are_those_of_python() -> None:
    """The same record, which prints alike: keys of caches and JSON files see no difference."""
    found = {}
    for name, parameter, own, given in _numpy_cases():
        if name.startswith("data.") and name != "data.DataLoader":
            continue
        try:
            made, expected = (_call(name, parameter, value) for value in (given, own))
        except FrameError as error:
            found[f"{name}.{parameter.name}"] = str(error)
            continue
        if "np." in repr(vars(made) if hasattr(made, "__dict__") else made) or (
            _shown(made) != _shown(expected)
        ):
            found[f"{name}.{parameter.name}"] = _shown(made)
    assert not found


def _shown(made: Any) -> str:
    """Return all that a record or a Module holds as text."""
    if isinstance(made, nn.Module):
        own = (made.kind, made.options, made.specs)
        return f"{own} {[_shown(child) for child in made.children]}"
    return re.sub(r" at 0x\w+", "", repr(made))


# --- the tables -----------------------------------------------------------------------------------


def test_the_tables_name_what_there_is() -> None:
    names = {name for name, made in _public() if callable(made)}
    parameters = {
        f"{name}.{parameter}"
        for name, made in FACTORIES.items()
        for parameter in inspect.signature(made).parameters
    }
    assert set(LEFT_OUT) <= names
    assert {*BASE, *KEYWORDS} <= set(FACTORIES)
    assert {*ANY, *OWN, *(key for key, _ in FINE)} <= parameters
    used = {
        str(parameter.annotation)
        for name, made in FACTORIES.items()
        for parameter in inspect.signature(made).parameters.values()
    }
    assert set(WRONG) <= used
