"""The layers of a spec of version 1 as one Module: any directed graph without cycles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frame import ops
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.frontend.catalogue import NAME, UNSET, Maker, layers
from frame.frontend.document import NOTHING, Told, wrong
from frame.frontend.kinds import Field, Integer, ListOf, Tagged, Text, optional
from frame.ir.graph import Value
from frame.nn.module import Module, Scope

REFERENCE = Text(1, 80, r"[A-Za-z_][A-Za-z0-9_]*(\.[0-9]+)?")
"""An input or a layer; `name.1` is the second result of a layer that has several."""


@dataclass(frozen=True, slots=True)
class Merge:
    """What joins several values: the function of (values, options), its fields, and its least
    number of values."""

    build: Callable[[Sequence[Value], Mapping[str, Any]], Value]
    doc: str
    fields: tuple[Field, ...] = ()
    least: int = 2


def _folded(op: Callable[[Value, Value], Value]) -> Any:
    def build(values: Sequence[Value], options: Mapping[str, Any]) -> Value:
        result = values[0]
        for value in values[1:]:
            result = op(result, value)
        return result

    return build


def _concat(values: Sequence[Value], options: Mapping[str, Any]) -> Value:
    return ops.concat(*values, axis=options["axis"])


MERGES: Mapping[str, Merge] = {
    "add": Merge(_folded(ops.add), "the sum of the values, broadcast as numpy does"),
    "multiply": Merge(_folded(ops.mul), "the product of the values, broadcast as numpy does"),
    "subtract": Merge(_folded(ops.sub), "the first value without the others"),
    "maximum": Merge(_folded(ops.maximum), "the largest of the values, element by element"),
    "matmul": Merge(_folded(ops.matmul), "the matrix product of the values"),
    "concat": Merge(
        _concat,
        "the values one after another along an axis",
        (optional("axis", Integer(-8, 8), "the axis; the batch is axis 0", 1),),
    ),
}
"""The layers that join values, by kind; the kinds of frame.nn begin with a capital letter."""


class Layers:
    """The kind of the list of layers."""

    def __init__(self) -> None:
        self._list = ListOf(_Layer(), 1, 4096)

    def check(self, value: Any, path: str) -> Any:
        """Return the checked layers."""
        return self._list.check(value, path)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema."""
        return self._list.schema()


_COMMON = (
    Field("name", NAME, "the name, unlike every other"),
    optional("input", REFERENCE, "the value it takes: an input, a layer, or layer.1"),
    optional("inputs", ListOf(REFERENCE, 1, 64), "the values it takes, where it takes several"),
)


class _Layer:
    def _tagged(self) -> Tagged:
        fields = {name: merge.fields for name, merge in MERGES.items()}
        docs = {name: merge.doc for name, merge in MERGES.items()}
        for name, maker in layers().items():
            fields[name], docs[name] = maker.fields, maker.doc
        return Tagged(fields, _COMMON, docs)

    def check(self, value: Any, path: str) -> dict[str, Any]:
        """Return the fields of a layer; `inputs` has what it takes."""
        found = self._tagged().check(value, path)
        single, several = found.pop("input"), found["inputs"]
        if (single is None) == (several is None):
            received = Told("both" if single else "neither")
            wrong(f"{path}.input", "one of input and inputs", received)
        found["inputs"] = (single,) if several is None else several
        found["path"] = f"{path}.input" if several is None else f"{path}.inputs"
        merge = MERGES.get(found["kind"])
        if merge is not None and len(found["inputs"]) < merge.least:
            expected = f"at least {merge.least} values to {found['kind']}"
            wrong(f"{path}.inputs", expected, list(found["inputs"]))
        return found

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema."""
        return self._tagged().schema()


# --- the graph ------------------------------------------------------------------------------------


def check_names(
    inputs: Sequence[str], found: Sequence[Mapping[str, Any]], reserved: Sequence[str]
) -> None:
    """Raise InvalidArgumentError for a name that comes twice or is reserved, and for a reference to
    something that does not exist."""
    taken = set(reserved)
    names = [(f"inputs[{k}].name", name) for k, name in enumerate(inputs)]
    names += [(f"layers[{k}].name", layer["name"]) for k, layer in enumerate(found)]
    for path, name in names:
        if name in taken:
            reason = "the loss and its data have it" if name in reserved else "it is taken"
            wrong(path, "a name of its own", name, f"{reason}: rename it")
        taken.add(name)
    known = {*inputs, *(layer["name"] for layer in found)}
    for layer in found:
        for path, reference in references(layer):
            if source_of(reference) not in known:
                wrong(path, f"an input or a layer ({_few(known)})", reference)
            if source_of(reference) in inputs and "." in reference:
                wrong(path, "an input, which has one value", reference)


def _few(names: set[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:12]) + (", ..." if len(found) > 12 else "")


def references(layer: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return what a layer takes, with the path of each."""
    path = layer["path"]
    if path.endswith(".input"):
        return ((path, layer["inputs"][0]),)
    return tuple((f"{path}[{place}]", each) for place, each in enumerate(layer["inputs"]))


def source_of(reference: str) -> str:
    """Return the name in a reference."""
    return reference.partition(".")[0]


def in_order(inputs: Sequence[str], found: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the positions of the layers, each after those that it takes values of.

    Raises:
        InvalidArgumentError: layers wait for each other in a circle.
    """
    ready, order, waiting = set(inputs), [], list(range(len(found)))
    while waiting:
        able = [k for k in waiting if all(source_of(r) in ready for r in found[k]["inputs"])]
        if not able:
            _fail_cycle(found, waiting)
        order += able
        ready.update(found[k]["name"] for k in able)
        waiting = [k for k in waiting if k not in set(able)]
    return order


def _fail_cycle(found: Sequence[Mapping[str, Any]], waiting: Sequence[int]) -> None:
    by_name = {found[k]["name"]: found[k] for k in waiting}
    name, seen = found[waiting[0]]["name"], []
    while name not in seen:
        seen.append(name)
        name = next(source_of(r) for r in by_name[name]["inputs"] if source_of(r) in by_name)
    circle = [*seen[seen.index(name) :], name]
    place = next(k for k in waiting if found[k]["name"] == name)
    wrong(
        found[place]["path"],
        "layers without a cycle",
        Told(" <- ".join(circle)),
        "a layer can't take what is made of it",
    )


def check_used(inputs: Sequence[str], found: Sequence[Mapping[str, Any]], output: str) -> None:
    """Raise InvalidArgumentError for an input or a layer that the output does not depend on."""
    by_name = {layer["name"]: layer for layer in found}
    used, pending = set(), [output]
    while pending:
        name = source_of(pending.pop())
        if name not in used:
            used.add(name)
            pending += by_name[name]["inputs"] if name in by_name else ()
    places = [(f"inputs[{k}]", name) for k, name in enumerate(inputs)]
    places += [(f"layers[{k}]", layer["name"]) for k, layer in enumerate(found)]
    for path, name in places:
        if name not in used:
            hint = f"remove it, or use it on the way to {output}"
            wrong(path, f"something that the output {output} depends on", Told(name), hint)


KIND = "Spec"
"""The kind of the Module that a spec makes."""


def module_of(inputs: Sequence[str], found: Sequence[Mapping[str, Any]], output: str) -> Module:
    """Return the Module of checked layers, whose children have the names of the layers.

    Raises:
        InvalidArgumentError: a factory refuses its options; with the path of the field.
    """
    children: list[Module] = []
    steps = []
    for k in in_order(inputs, found):
        layer, path = found[k], f"layers[{k}]"
        maker = layers().get(layer["kind"])
        child = None
        if maker is not None:
            child = len(children)
            children.append(_made(maker, layer, path).named(layer["name"]))
        options = tuple((f.name, layer[f.name]) for f in _merge_fields(layer["kind"]))
        steps.append((path, layer["name"], layer["kind"], references(layer), child, options))
    settings = (("inputs", tuple(inputs)), ("steps", tuple(steps)), ("output", output))
    return Module("", (), tuple(children), _build, KIND, settings)


def _merge_fields(kind: str) -> tuple[Field, ...]:
    return MERGES[kind].fields if kind in MERGES else ()


def _made(maker: Maker, layer: Mapping[str, Any], path: str) -> Module:
    values = {field.name: layer.get(field.name, UNSET) for field in maker.fields}
    made: Module = maker.made(values, path)
    return made


def _build(self: Scope, *values: Value) -> Value:
    options = self.options
    known: dict[str, Any] = dict(zip(options["inputs"], values, strict=True))
    for path, name, kind, sources, child, merge_options in options["steps"]:
        try:
            taken = [_value(known, reference, place) for place, reference in sources]
            if child is None:
                known[name] = MERGES[kind].build(taken, dict(merge_options))
            else:
                known[name] = self[child](*taken)
        except InvalidArgumentError as error:
            if error.message.startswith("layers["):
                raise
            raise InvalidArgumentError(f"{path}: {error}") from error
    return _value(known, options["output"], "output")


def _value(known: Mapping[str, Any], reference: str, path: str) -> Value:
    name, _, place = reference.partition(".")
    value = known[name]
    results = value if isinstance(value, (tuple, list)) else (value,)
    if not place and len(results) > 1:
        wrong(path, f"which result of {name}", reference, f"write {name}.0, it has {len(results)}")
    if place and int(place) >= len(results):
        wrong(path, f"a result of {name}, which has {len(results)}", reference)
    result: Value = results[int(place or 0)]
    return result


def unnamed_output(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the output where the spec names none: the only layer that no other takes."""
    taken = {source_of(reference) for layer in found for reference in layer["inputs"]}
    ends = [layer["name"] for layer in found if layer["name"] not in taken]
    if len(ends) != 1:
        wrong(
            "output", f"the name of the output, one of {', '.join(ends) or 'the layers'}", NOTHING
        )
    return str(ends[0])
