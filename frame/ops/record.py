"""The op record: everything that frame knows of an op, in one place."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from frame.core.dataclass import dataclass
from frame.core.devices import HOST
from frame.core.dtypes import DType, dtype
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim, Size, normalize_axis, numel, shape_text
from frame.ir.graph import Attribute, Constant, Graph, Node, TensorType, Value


class Trait(enum.StrEnum):
    """Properties that passes and schedules rely on."""

    ELEMENTWISE = "elementwise"
    COMMUTATIVE = "commutative"
    REDUCTION = "reduction"  # one operand, reduced over the attribute `axes`
    CONTRACTION = "contraction"
    VIEW = "view"  # every result element is one operand element (or a constant)
    RANDOM = "random"
    SIDE_EFFECT = "side_effect"
    CONTROL_FLOW = "control_flow"
    CHECKED = "checked"  # reads indices that the kernel checks
    EXPENSIVE = "expensive"  # recomputing it costs more than a load (exp, tanh, ...)


class Autocast(enum.StrEnum):
    """What mixed precision does with an op."""

    LOW = "low"
    FLOAT32 = "float32"
    FOLLOW = "follow"


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of an op. `kinds` names the kinds that it takes; `group` ties dtypes together.

    Operands of one group have one dtype; an empty group ties nothing (the operands of scan). A
    variadic operand must be the last. `storage` admits the storage-only dtypes too, for ops that
    move or cast elements and never compute with them.
    """

    name: str
    kinds: tuple[str, ...] = ("float", "int", "uint", "bool")
    group: str = "T"
    optional: bool = False
    variadic: bool = False
    storage: bool = False
    doc: str = ""


_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """An attribute; kinds: int float bool str dtype size ints floats shape graph constant.

    `default` is absent for a required attribute; a default of None leaves the value to the op's
    `canonicalize`, which must replace it. `choices` limits a string. An `optional` attribute that
    is not given, or None, does not stand in the node at all.
    """

    name: str
    kind: str
    default: Attribute = _REQUIRED
    doc: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False

    @property
    def required(self) -> bool:
        """Whether the attribute must be given."""
        return self.default is _REQUIRED and not self.optional


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: how to make the operands, and the attributes. Covers a corner of the domain.

    `operands` are arrays, or None for an absent optional operand. `dtype` of float arrays is
    replaced by the dtype under test unless `fixed` names the operand positions that keep theirs.
    `gradient` says whether the sample is smooth enough for the central-difference check.
    """

    name: str
    operands: tuple[np.ndarray | None, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    fixed: tuple[int, ...] = ()
    gradient: bool = True


@dataclass(frozen=True, slots=True)
class NoGradient:
    """States that an op has no gradient, and why. `zero` makes it act as a constant (argmax)."""

    reason: str
    zero: bool = False


@dataclass(frozen=True, slots=True)
class GradientContext:
    """What a gradient builder sees; it returns one value (or None: no dependence) an operand."""

    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    cotangents: tuple[Value, ...]  # one per result; zeros where nothing flows back
    attributes: Mapping[str, Attribute]
    needed: tuple[bool, ...]  # which operand gradients are wanted; others may be None


Canonicalize = Callable[[tuple[TensorType, ...], Mapping[str, Attribute]], Mapping[str, Attribute]]
InferTypes = Callable[
    [tuple[TensorType, ...], Mapping[str, Attribute]], TensorType | tuple[TensorType, ...]
]
Constraints = Callable[
    [tuple[TensorType, ...], Mapping[str, Attribute]], Iterable[tuple[Size, str]]
]
Reference = Callable[..., Any]  # (operands: list[np.ndarray], attributes) -> array or tuple
Gradient = Callable[[GradientContext], Sequence[Value | None]]
Decomposition = Callable[[tuple[Value, ...], Mapping[str, Attribute]], Value | tuple[Value, ...]]


def unconstrained(
    operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
) -> Iterable[tuple[Size, str]]:
    """Accept all values of the symbols: the constraints of most ops."""
    return ()


def no_indices(node: Node) -> Mapping[Value, Size]:
    """State nothing of the indices that a node reads or makes: most ops have none."""
    return {}


_Checked = tuple[Mapping[str, Attribute], tuple[TensorType, ...]]

# What ops have inferred before: a deep network asks the same thing for each of its layers.
_memory: dict[Hashable, tuple[object, _Checked]] = {}
_MEMORY_LIMIT = 4096


def _remember(key: Hashable, entry: tuple[object, _Checked]) -> None:
    if len(_memory) >= _MEMORY_LIMIT:
        _memory.clear()
    _memory[key] = entry


def _memory_item(value: Attribute) -> Hashable:
    """Return a key that tells 1 from True and 0.0 from -0.0; TypeError for what is not kept."""
    kind = type(value)
    if kind is tuple:
        return tuple(_memory_item(item) for item in value)
    if kind is float:
        return value.hex()  # type: ignore[no-any-return]
    if kind in (int, bool, str) or value is None:
        return kind, value
    if isinstance(value, (DType, Dim)):
        return value
    raise TypeError


@dataclass(frozen=True, slots=True)
class OpDef:
    """An op: its schema, type rule, float64 reference, gradient, samples and traits.

    `canonicalize` brings attributes into their one normal form with the operand types at hand (a
    negative axis, a -1 in a shape), so that nodes that mean the same are equal; what it returns it
    must leave alone when given it again. Results lie on the device of the operands.

    `constraints` yields (size, text) pairs: where a size is symbolic and turns out negative once
    symbols are bound, the graph refuses the values and says that the op needs what `text` says.

    `indices` gives the operands and results of a node that, once it has run without an error, hold
    nothing but indices from 0 to below a limit: what a checked op has checked, and the positions
    that an op computes. A check of the same values against the same limit can't fail after that.

    `reference` receives float operands in float64 (and integers as they are) and the attributes
    with symbols already bound to ints; its results are cast to the inferred dtypes by the
    interpreter. `decomposition` builds the op from simpler ones inside the active builder.
    """

    name: str
    doc: str
    operands: tuple[Operand, ...]
    infer: InferTypes
    reference: Reference
    gradient: Gradient | NoGradient
    attributes: tuple[AttributeSpec, ...] = ()
    results: tuple[str, ...] = ("y",)
    traits: frozenset[Trait] = frozenset()
    autocast: Autocast = Autocast.FOLLOW
    decomposition: Decomposition | None = None
    samples: Callable[[], Iterable[Sample]] = tuple
    canonicalize: Canonicalize | None = None
    constraints: Constraints = unconstrained
    indices: Callable[[Node], Mapping[Value, Size]] = no_indices

    def check(
        self, operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
    ) -> tuple[Mapping[str, Attribute], tuple[TensorType, ...]]:
        """Normalise the attributes, check the operands and infer the result types.

        Raises:
            InvalidArgumentError: on a wrong operand count or dtype, an unknown, missing or
                ill-typed attribute, or whatever the type rule of the op rejects.
        """
        key = self._memory_key(operands, attributes)
        if key is None:
            return self._check_afresh(operands, attributes)
        found = _memory.get(key)
        if found is None:
            # The record is kept with the entry, so that nothing else gets its id meanwhile.
            found = (self, self._check_afresh(operands, attributes))
            _remember(key, found)
        return found[1]

    def _memory_key(
        self, operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
    ) -> Hashable:
        try:
            items = tuple((name, _memory_item(value)) for name, value in attributes.items())
        except TypeError:
            return None
        return id(self), operands, items

    def _check_afresh(
        self, operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
    ) -> _Checked:
        normal = self.normalize(attributes)
        self._check_operands(operands)
        if self.canonicalize is not None:
            changed = {**normal, **self.canonicalize(operands, normal)}
            normal = MappingProxyType(changed)
        inferred = self.infer(operands, normal)
        types = inferred if isinstance(inferred, tuple) else (inferred,)
        for type_ in types:
            self._check_size(type_)
        return normal, self._on_device(operands, types)

    def normalize(self, attributes: Mapping[str, Attribute]) -> Mapping[str, Attribute]:
        """Return the attributes in canonical types, defaults filled in, sorted by name."""
        specs = {spec.name: spec for spec in self.attributes}
        for name in attributes:
            if name not in specs:
                raise InvalidArgumentError(self._unknown(name, tuple(specs)))
        values = {}
        for spec in sorted(self.attributes, key=lambda item: item.name):
            if spec.optional and attributes.get(spec.name) is None:
                continue
            if spec.name in attributes:
                values[spec.name] = _normal(self.name, spec, attributes[spec.name])
            elif spec.required:
                raise InvalidArgumentError(f"{self.name} needs the attribute {spec.name!r}")
            else:
                values[spec.name] = spec.default
        return MappingProxyType(values)

    def _unknown(self, name: str, known: tuple[str, ...]) -> str:
        import difflib  # only a misspelt name needs it

        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}" if near else ""
        return (
            f"{self.name} has no attribute {name!r}{hint}; its attributes are: "
            f"{', '.join(known) or 'none'}"
        )

    def _check_size(self, type_: TensorType) -> None:
        if any(isinstance(size, int) and size < 0 for size in type_.shape):
            raise InvalidArgumentError(
                f"the result of {self.name} would have the shape {shape_text(type_.shape)}; "
                "sizes must not be negative"
            )
        numel(type_.shape)

    def _on_device(
        self, operands: tuple[TensorType, ...], types: tuple[TensorType, ...]
    ) -> tuple[TensorType, ...]:
        device = operands[0].device if operands else HOST
        if any(operand.device != device for operand in operands):
            places = ", ".join(str(operand.device) for operand in operands)
            raise InvalidArgumentError(
                f"the operands of {self.name} must lie on one device, received {places}"
            )
        return types if device == HOST else tuple(replace(t, device=device) for t in types)

    def _check_operands(self, operands: tuple[TensorType, ...]) -> None:
        least = sum(not (o.optional or o.variadic) for o in self.operands)
        open_ended = bool(self.operands) and self.operands[-1].variadic
        if len(operands) < least or (len(operands) > len(self.operands) and not open_ended):
            names = ", ".join(o.name + ("..." if o.variadic else "") for o in self.operands)
            raise InvalidArgumentError(
                f"{self.name} takes the operands ({names}), received {len(operands)}"
            )
        groups: dict[str, tuple[str, DType]] = {}
        for position, type_ in enumerate(operands):
            self._check_dtype(self.operands[min(position, len(self.operands) - 1)], type_, groups)

    def _check_dtype(
        self, operand: Operand, type_: TensorType, groups: dict[str, tuple[str, DType]]
    ) -> None:
        stored = type_.dtype.storage_only and not operand.storage
        if type_.dtype.kind not in operand.kinds or stored:
            raise InvalidArgumentError(
                f"operand {operand.name!r} of {self.name} must be of kind "
                f"{' or '.join(operand.kinds)}, received {type_.dtype}; frame.ops.cast converts"
            )
        first, common = groups.setdefault(operand.group, (operand.name, type_.dtype))
        if operand.group and common != type_.dtype:
            raise InvalidArgumentError(
                f"operands {first!r} and {operand.name!r} of {self.name} must have one dtype, "
                f"received {common} and {type_.dtype}; frame.ops.cast converts"
            )


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))


def _is_number(value: object) -> bool:
    return _is_int(value) or isinstance(value, (float, np.floating))


def _sequence(value: Any, test: Callable[[Any], bool], convert: Callable[[Any], Any]) -> Any:
    if test(value):
        return (convert(value),)
    items = tuple(value) if isinstance(value, (tuple, list, range, np.ndarray)) else None
    if items is None or not all(test(item) for item in items):
        raise TypeError
    return tuple(convert(item) for item in items)


def _scalar(value: Any, test: Callable[[Any], bool], convert: Callable[[Any], Any]) -> Any:
    if not test(value):
        raise TypeError
    return convert(value)


def _is_size(value: object) -> bool:
    return _is_int(value) or isinstance(value, Dim)


def _size(value: Any) -> int | Dim:
    return value if isinstance(value, Dim) else int(value)


def _kind(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _identity(value: Any) -> Any:
    return value


def _constant(value: Any) -> Constant:
    return value if isinstance(value, Constant) else Constant(value)


# kind -> how a value of that kind is checked and brought into its canonical type
_CONVERTERS: Mapping[str, Callable[[Any], Attribute]] = {
    "int": lambda v: _scalar(v, _is_int, int),
    "float": lambda v: _scalar(v, _is_number, float),
    "bool": lambda v: _scalar(v, _kind(bool, np.bool_), bool),
    "str": lambda v: _scalar(v, _kind(str), str),
    "dtype": dtype,
    "size": lambda v: _scalar(v, _is_size, _size),
    "ints": lambda v: _sequence(v, _is_int, int),
    "floats": lambda v: _sequence(v, _is_number, float),
    "shape": lambda v: _sequence(v, _is_size, _size),
    "graph": lambda v: _scalar(v, _kind(Graph), _identity),
    "constant": lambda v: _scalar(v, _kind(Constant, np.ndarray), _constant),
}


def _normal(op: str, spec: AttributeSpec, value: Attribute) -> Attribute:
    if value is None and spec.default is None:
        return None
    try:
        normal = _CONVERTERS[spec.kind](value)
    except TypeError:
        raise InvalidArgumentError(
            f"attribute {spec.name!r} of {op} must be of type {spec.kind}, received "
            f"{value!r} of type {type(value).__name__}"
        ) from None
    if spec.choices and normal not in spec.choices:
        raise InvalidArgumentError(
            f"attribute {spec.name!r} of {op} must be one of {', '.join(spec.choices)}, "
            f"received {normal!r}"
        )
    return normal


def normal_axis(
    operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
) -> Mapping[str, Attribute]:
    """Return the attribute `axis` counted from the front: a canonical form."""
    return {"axis": normalize_axis(attributes["axis"], operands[0].rank)}


def axis_or_scalar(
    operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
) -> Mapping[str, Attribute]:
    """As `normal_axis`, but a scalar counts as one axis: the op itself takes or refuses it."""
    return {"axis": normalize_axis(attributes["axis"], max(operands[0].rank, 1))}


def check_above_zero(op: str, name: str, attributes: Mapping[str, Attribute]) -> None:
    """Raise InvalidArgumentError for an attribute that is not finite and above 0."""
    value = attributes[name]
    if not (math.isfinite(value) and value > 0):
        raise InvalidArgumentError(
            f"attribute {name!r} of {op} must be finite and above 0, received {value}"
        )
