"""Every public name of frame has a docstring and annotations, in the class and in its methods."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PACKAGES = (
    "frame", "frame.nn", "frame.ops", "frame.runtime", "frame.core", "frame.data", "frame.train",
    "frame.interop", "frame.blueprint", "frame.frontend", "frame.codegen",
)  # fmt: skip


def public(package: str) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes of frame that a package shows, by dotted name."""
    module = importlib.import_module(package)
    for name in (each for each in dir(module) if not each.startswith("_")):
        value = getattr(module, name)
        if callable(value) and str(getattr(value, "__module__", "")).startswith("frame"):
            yield f"{package}.{name}", value


def functions_of(name: str, value: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield a function itself, or the public methods and properties that a class defines."""
    if not inspect.isclass(value):
        yield name, value
        return
    for key, member in vars(value).items():
        found = inspect.unwrap(member.fget if isinstance(member, property) else member)
        found = getattr(found, "__func__", found)
        if not key.startswith("_") and inspect.isfunction(found):
            yield f"{name}.{key}", found


def faults(name: str, value: Any) -> list[str]:
    """What a function or class lacks."""
    found = [] if value.__doc__ else [f"{name} has no docstring"]
    for where, function in functions_of(name, value):
        if inspect.isclass(value):
            inherited = inspect.getdoc(getattr(value, where.rpartition(".")[2]))
            found += [] if function.__doc__ or inherited else [f"{where} has no docstring"]
        signature = inspect.signature(function)
        found += [
            f"{where}: parameter {each.name} has no annotation"
            for each in signature.parameters.values()
            if each.annotation is each.empty and each.name not in ("self", "cls")
        ]
        if signature.return_annotation is signature.empty:
            found.append(f"{where}: the result has no annotation")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_documented_and_annotated(package: str) -> None:
    names = list(public(package))
    assert names
    assert [fault for name, value in names for fault in faults(name, value)] == []


def test_the_ops_and_layers_are_among_them() -> None:
    shown = {name for package in PACKAGES for name, _ in public(package)}
    assert {"frame.compile", "frame.ops.matmul", "frame.nn.Linear", "frame.Tensor"} <= shown
    assert len(shown) > 250


class _Bare:
    def method(self, x):  # type: ignore[no-untyped-def]
        return x


def test_what_is_missing_is_found() -> None:
    assert faults("Bare", _Bare) == [
        "Bare has no docstring",
        "Bare.method has no docstring",
        "Bare.method: parameter x has no annotation",
        "Bare.method: the result has no annotation",
    ]
