"""Every factory of layers refuses values of a wrong type, by the annotations of its parameters."""

from __future__ import annotations

import inspect
import math
import re

import pytest

from frame import nn
from frame.core.errors import InvalidArgumentError
from frame.frontend import catalogue
from frame.frontend.layers import Layers, module_of

# What each factory is called with; parameters that are left out have defaults.
CHAIN = ((0, 1, 2), (1, 2, 0))
BASE = {
    "AFF": (4,),
    "AvgPool1d": (2,),
    "AvgPool2d": (2,),
    "BatchNorm1d": (3,),
    "BatchNorm2d": (3,),
    "Conv1d": (2, 4, 3),
    "Conv2d": (2, 4, 3),
    "ConvTranspose1d": (2, 4, 3),
    "ConvTranspose2d": (2, 4, 3),
    "Embedding": (5, 3),
    "Fno1dBlock": (2, 2, 2),
    "Fno2dBlock": (2, 2, 2),
    "FourierFilter1d": (2, 8),
    "FourierMamba": (2, 8),
    "GATConv": (3, 2, 4, *CHAIN),
    "GRU": (3, 4),
    "GraphConv": (3, 2, 4, *CHAIN),
    "GroupNorm": (2, 4),
    "HypergraphConv": (3, 3, 2, 4, *CHAIN),
    "LSTM": (3, 4),
    "LayerNorm": (4,),
    "Linear": (3, 4),
    "Mamba": (4,),
    "MaxPool1d": (2,),
    "MaxPool2d": (2,),
    "MultiheadAttention": (4, 2),
    "RMSNorm": (4,),
    "Residual": (nn.ReLU(),),
    "Sequential": ("", (nn.ReLU(),)),
    "SimpleMamba": (2,),
    "SnnClassifier": (2, 3, 2),
    "SpectralConv1d": (2, 2, 2),
    "SpectralConv2d": (2, 2, 2),
    "TransformerDecoderBlock": (4, 2, 6),
    "TransformerEncoderBlock": (4, 2, 6),
}

# annotation -> values of another type; an annotation of several types has what none of them is.
WRONG = {
    "int": ("2", 1.5, True, None),
    "float": ("0.5", None, math.nan, True),
    "str": (3, None),
    "bool": ("no", 1, None),
    "int | None": ("2", 1.5, True),
    "Pair": ("2", 1.5, True, None, (1, "2"), (1, 2, 3)),
    "Pair | None": ("2", 1.5, True, (1, "2"), (1, 2, 3)),
    "Pair | str": (1.5, True, None, (1, "2"), "valid"),
    "int | Sequence[int]": ("2", 1.5, True, None, (1, "2"), (1, 2, 3)),
    "Sequence[int]": (3, None, (0, "1", 2), (0, 1.0, 2)),
    "int | Sequence[int] | None": ("2", 1.5, True, (1, "2"), (1, 2, 3)),
    "Sequence[float] | None": (3, "ab", (1.0, "2"), (1.0, -1.0), (math.nan, 1.0)),
    "DTypeLike": ("float33", 3),
    "Initialiser | None": (3, "ones"),
    "Module": (3, None),
    "Module | None": (3,),
    "Shared | None": (3,),
    "Sequence[Module]": (3, (3,)),
    "Mapping[str, Shared] | None": (3,),
    "str | Sequence[Module]": (3,),
}


def cases():
    for factory in catalogue.factories():
        for parameter in inspect.signature(getattr(nn, factory)).parameters.values():
            for value in WRONG[parameter.annotation]:
                yield factory, parameter, value


def arguments(factory, parameter, value):
    """Return the arguments of a factory with one of them replaced."""
    signature = inspect.signature(getattr(nn, factory))
    bound = signature.bind(*BASE.get(factory, ()))
    bound.arguments[parameter] = value
    return bound


# annotation -> values of the right type that no factory takes.
BEYOND = {
    "int": (10**30,),
    "float": (math.inf, -math.inf),
    "int | None": (10**30,),
    "Pair": ((1, 10**30),),
    "DTypeLike": ("int32", "bool", "float8_e4m3fn"),
}


@pytest.mark.parametrize("factory", catalogue.factories())
def test_values_beyond_all_ranges_are_refused_by_name(factory):
    found = {
        f"{parameter.name}={value!r}": text
        for parameter in inspect.signature(getattr(nn, factory)).parameters.values()
        for value in BEYOND.get(parameter.annotation, ())
        if (text := fault(factory, parameter, value))
    }
    assert not found


def test_every_factory_names_its_source():
    for factory in catalogue.factories():
        text = " ".join((inspect.getdoc(getattr(nn, factory)) or "").split())
        assert re.search(r"\b[Ss]ources?\b", text), factory
        if not re.search(r"no source|those of", text):
            assert re.search(r"(19|20)\d\d|arXiv \d{4}\.\d{4,5}", text), factory


def test_every_factory_can_be_called():
    assert set(BASE) <= set(catalogue.factories())
    for factory in catalogue.factories():
        make = getattr(nn, factory)
        assert isinstance(make(*BASE.get(factory, ())), nn.Module)
        assert inspect.signature(make).parameters["name"].default == ""


def fault(factory, parameter, value):
    """Return what is wrong with the answer to a wrong value; an empty text if nothing is."""
    bound = arguments(factory, parameter.name, value)
    try:
        getattr(nn, factory)(*bound.args, **bound.kwargs)
    except InvalidArgumentError as error:
        named = parameter.name in str(error) or repr(value) in str(error)
        return "" if named else f"the error does not name it: {error}"
    return "accepted"


@pytest.mark.parametrize("factory", catalogue.factories())
def test_wrong_types_are_refused_by_name(factory):
    found = {
        f"{parameter.name}={value!r}": text
        for name, parameter, value in cases()
        if name == factory and (text := fault(factory, parameter, value))
    }
    assert not found


def json_of(value):
    """Return an argument as a spec writes it."""
    if isinstance(value, nn.Module):
        return {"kind": value.kind}
    if isinstance(value, tuple):
        return [json_of(each) for each in value]
    return value


@pytest.mark.parametrize("factory", sorted(catalogue.layers()))
def test_a_spec_declares_the_same_layer(factory):
    bound = inspect.signature(getattr(nn, factory)).bind(*BASE.get(factory, ()))
    given = {key: json_of(v) for key, v in bound.arguments.items() if key != "name"}
    entry = {"name": "one", "kind": factory, "input": "x", **given}
    (child,) = module_of(("x",), Layers().check([entry], "layers"), "one").children
    expected = getattr(nn, factory)(*bound.args, **bound.kwargs).named("one")
    assert child.parameters() == expected.parameters()
    assert child.options == expected.options and child.kind == expected.kind
