"""Modules: immutable declarations of parts of a model.

A Module holds a name, own parameter specifications, children and a builder function. It holds no
tensor. `parameters()` lists own specifications, then those of each child, in pre-order; the values
that `build` takes are in the same order, so each module gets one consecutive slice.
"""

from __future__ import annotations

import contextvars
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NoReturn, Protocol, runtime_checkable

from frame.core.arguments import plain, refuse
from frame.core.dataclass import dataclass
from frame.core.dtypes import uint64
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder, active_builder, current_builder
from frame.ir.graph import Graph, Role, TensorType, Value
from frame.nn.parameters import NAME, ParamSpec, add_parameter_inputs

MODES = ("infer", "train")
"""What a module is built for; it is settled when the module builds, see `BuildContext`."""

Builder = Callable[..., Any]  # (scope, *inputs) -> value or tuple of values


class Shared:
    """A parameter that several modules of a tree read; see `share`. Compared by identity."""

    __slots__ = ("spec",)

    def __init__(self, spec: ParamSpec) -> None:
        self.spec = spec

    def __repr__(self) -> str:
        return f"Shared({self.spec.type})"


def share(spec: ParamSpec) -> Shared:
    """Return a parameter for several modules: tied weights.

    Declare the result in the common ancestor, which owns it and lists it among its parameters, and
    give it to the layers below (`nn.Linear(..., weight=shared)`), which take no slot for it.
    """
    if not isinstance(spec, ParamSpec):
        refuse("nn.share", "spec", "a declaration such as nn.param((2, 3))", spec)
    return Shared(spec)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Module:
    """An immutable declaration of a part of a model.

    Attributes:
        name: the name in its parent; empty for the position in it.
        specs: own parameters and buffers.
        children: the modules below, in order.
        builder: builds the outputs: `builder(scope, *inputs)`, see `Scope`.
        kind: what the module is, for people (`Linear`).
        options: how it was made, as (name, value) pairs, for people and for the builder.
        shared: for each own specification that is shared, its position and what it is known by.
    """

    name: str
    specs: tuple[ParamSpec, ...]
    children: tuple[Module, ...]
    builder: Builder
    kind: str = "Module"
    options: tuple[tuple[str, Any], ...] = ()
    shared: tuple[tuple[int, Shared], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InvalidArgumentError(
                f"name of {self.kind} must be a string, received {self.name!r:.80}"
            )
        object.__setattr__(self, "options", plain(self.options))
        names = [spec.name for spec in self.specs]
        names += [name for name, _ in self.named_children()]
        for name in [*names, *([self.name] if self.name else [])]:
            if not NAME.fullmatch(name):
                raise InvalidArgumentError(
                    f"the name of a parameter or module must be 1 to 64 letters, digits and "
                    f"underscores, received {name!r} in {self.kind}"
                )
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgumentError(
                    f"{self.kind} has two parameters or children named {name!r}: names must "
                    "differ; a child without a name is called by its position"
                )

    def named_children(self) -> tuple[tuple[str, Module], ...]:
        """Return the children with their names: their own, or the position."""
        return tuple((c.name or str(i), c) for i, c in enumerate(self.children))

    def parameters(self) -> tuple[ParamSpec, ...]:
        """Return every parameter and buffer in pre-order; names are dotted paths."""
        return tuple(self._parameters(self.name))

    def _parameters(self, path: str) -> Iterator[ParamSpec]:
        for spec in self.specs:
            yield spec.renamed(_join(path, spec.name))
        for name, child in self.named_children():
            yield from child._parameters(_join(path, name))

    def modules(self) -> Iterator[tuple[str, Module]]:
        """Iterate over this module and all below it in pre-order, with their paths."""
        yield from self._modules(self.name)

    def _modules(self, path: str) -> Iterator[tuple[str, Module]]:
        yield path, self
        for name, child in self.named_children():
            yield from child._modules(_join(path, name))

    def count_parameters(self, trainable: bool | None = None) -> int:
        """Return the number of elements, of the trainable or of the other parameters."""
        return sum(
            spec.size
            for spec in self.parameters()
            if trainable is None or spec.trainable == trainable
        )

    def named(self, name: str) -> Module:
        """Return the same module under another name."""
        return replace(self, name=name)

    def build(self, inputs: Sequence[Any], parameters: Sequence[Value]) -> tuple[Value, ...]:
        """Append this module to the active builder and return its outputs.

        Args:
            inputs: the values that the module is applied to.
            parameters: one value for each of `parameters()`, in that order.

        Raises:
            InvalidArgumentError: the values don't fit the parameters, or an op does not fit; the
                message names the module.
        """
        result = _apply(self, self.name, tuple(parameters), tuple(inputs))
        return _tuple(result)

    def __call__(self, *inputs: Any) -> Any:
        """Apply the module to values of the graph being built.

        In the builder of a parent this is the child's own place. Elsewhere the parameters become
        inputs of the graph, once for a graph: a second call shares them.
        """
        frame = _frame.get()
        if frame is not None and frame.builder is not None and frame.in_scope():
            return frame.apply_child(self, inputs)
        context = current_context()
        return _apply(self, self.name, context.parameters_of(self), inputs)

    def summary_rows(self) -> list[tuple[str, str, str, int]]:
        """Return a row (path, module, own parameter shapes, elements) for each module."""
        from frame.nn.display import summary_rows

        return summary_rows(self)

    def __repr__(self) -> str:
        from frame.nn.display import text

        return text(self)

    def _repr_html_(self) -> str:
        from frame.nn.display import html

        return html(self)


@runtime_checkable
class Architecture(Protocol):
    """What becomes a Module once its inputs are known, such as a blueprint: `frame.compile` asks.

    For inputs of other batch sizes or resolutions it gives Modules of the same parameters.
    """

    def module_for(self, inputs: Sequence[TensorType]) -> Module:
        """Return the Module for inputs of these types; raise InvalidArgumentError if none fits."""


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _tuple(result: Any) -> tuple[Value, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


# --- building -------------------------------------------------------------------------------------

COUNTER_TYPE = TensorType(uint64, (2,))


class BuildContext:
    """What a whole build has in common: the mode, the random counter and the updates of state.

    Enter it inside the builder's block: `with GraphBuilder() as builder, BuildContext("train"):`.
    Leaving it declares the state updates.
    """

    def __init__(self, mode: str = "infer") -> None:
        if mode not in MODES:
            raise InvalidArgumentError(
                f"a module builds in one of the modes {', '.join(MODES)}, received {mode!r}"
            )
        self.mode = mode
        self._states: dict[Value, Value] = {}
        self._roots: dict[Module, tuple[Value, ...]] = {}
        self._token: contextvars.Token[BuildContext | None] | None = None
        self._builder: GraphBuilder | None = None

    def __enter__(self) -> BuildContext:
        self._builder = _root_builder()
        self._token = _context.set(self)
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if self._token is not None:
            _context.reset(self._token)
            self._token = None
        if kind is None and self._builder is not None:
            for state, value in self._states.items():
                self._builder.update(state, value)

    @property
    def training(self) -> bool:
        """Whether the mode is train."""
        return self.mode == "train"

    def counter(self) -> Value:
        """Return the random counter (seed, step), an input that is declared at the first use."""
        builder = _root_builder()
        for entry in builder.inputs:
            if entry.role is Role.COUNTER:
                return entry.value
        return builder.input(COUNTER_TYPE, Role.COUNTER, "counter")

    def state(self, value: Value) -> Value:
        """Return what a buffer holds at this point of the build."""
        return self._states.get(value, value)

    def update(self, state: Value, value: Value) -> None:
        """Let the buffer whose input is `state` hold `value` after the run.

        Raises:
            InvalidArgumentError: outside of training, or in the body of a scan, cond or while.
        """
        if not self.training:
            raise InvalidArgumentError("buffers are updated in the mode train only")
        if not current_builder().owns(state) or current_builder() is not _root_builder():
            raise InvalidArgumentError(
                "a buffer can't be updated in the body of a scan, cond or while: apply the module "
                "outside of it, or build it in the mode infer"
            )
        if value.type != state.type:
            raise InvalidArgumentError(
                f"the update of a buffer must keep its type {state.type}, received {value.type}"
            )
        self._states[state] = value

    def parameters_of(self, module: Module) -> tuple[Value, ...]:
        """Return the parameters of a module at the top, declaring them at the first use."""
        if module not in self._roots:
            self._roots[module] = add_parameter_inputs(_root_builder(), module.parameters())
        return self._roots[module]


_context: contextvars.ContextVar[BuildContext | None] = contextvars.ContextVar(
    "frame_build_context", default=None
)
_implicit: weakref.WeakKeyDictionary[GraphBuilder, BuildContext] = weakref.WeakKeyDictionary()


def current_context() -> BuildContext:
    """Return the active build context; a builder without one gets one of the mode infer."""
    context = _context.get()
    return context if context is not None else _implicit.setdefault(_root_builder(), BuildContext())


def _root_builder() -> GraphBuilder:
    builder = current_builder()
    while builder.parent is not None:
        builder = builder.parent
    return builder


class _Frame:
    """One module being built: where it stands, and its slice of the parameter values."""

    def __init__(
        self, module: Module, path: str, parameters: tuple[Value, ...], parent: _Frame | None
    ) -> None:
        self.module = module
        self.path = path
        self.parameters = parameters
        self.parent = parent
        self.builder = active_builder()

    def in_scope(self) -> bool:
        """Tell whether the active builder is this frame's, or a body nested in it."""
        builder = active_builder()
        while builder is not None and builder is not self.builder:
            builder = builder.parent
        return builder is not None

    def slice_of(self, index: int) -> tuple[Value, ...]:
        """Return the parameter values of child `index`."""
        start = len(self.module.specs)
        for child in self.module.children[:index]:
            start += len(child.parameters())
        return self.parameters[start : start + len(self.module.children[index].parameters())]

    def apply(self, index: int, inputs: Sequence[Any]) -> Any:
        """Apply child `index`."""
        name, child = self.module.named_children()[index]
        return _apply(child, _join(self.path, name), self.slice_of(index), tuple(inputs), name)

    def apply_child(self, module: Module, inputs: Sequence[Any]) -> Any:
        """Apply a module that must be one of the children."""
        places = [i for i, child in enumerate(self.module.children) if child is module]
        if len(places) == 1:
            return self.apply(places[0], inputs)
        if not module.parameters():
            return _apply(module, _join(self.path, module.name), (), tuple(inputs), module.name)
        where = f"{self.module.kind} {self.path}".strip()
        raise InvalidArgumentError(
            f"{module!r} is called in the builder of {where}, "
            + (
                "where it stands at several places: call it as an attribute of the scope"
                if places
                else "which does not declare it: declare it as a child, so that its parameters "
                "have a path"
            )
        )

    def shared(self, key: Shared) -> Value:
        """Return the value of a shared parameter of this module or of one above."""
        seen: _Frame | None = self
        while seen is not None:
            for position, shared in seen.module.shared:
                if shared is key:
                    return seen.parameters[position]
            seen = seen.parent
        raise InvalidArgumentError(
            f"{self.module.kind} {self.path} reads the shared parameter {key!r}, which no module "
            "above it declares: declare it in the common ancestor of its readers"
        )


_frame: contextvars.ContextVar[_Frame | None] = contextvars.ContextVar("frame_module", default=None)


class Scope:
    """What the builder of a module sees as `self`.

    Parameters and buffers are attributes that give their values, children are attributes that
    apply them: `self.fc(x) + self.bias`. A numbered child is `self[0]`.
    """

    __slots__ = ("_frame",)

    def __init__(self, frame: _Frame) -> None:
        self._frame = frame

    def __getattr__(self, name: str) -> Any:
        frame = self._frame
        for position, spec in enumerate(frame.module.specs):
            if spec.name == name:
                value = frame.parameters[position]
                return current_context().state(value) if spec.role is Role.BUFFER else value
        for index, (child, _) in enumerate(frame.module.named_children()):
            if child == name:
                return lambda *inputs: frame.apply(index, inputs)
        _fail_lookup(frame.module, name)

    def __getitem__(self, index: int) -> Callable[..., Any]:
        """Return the child at a position, ready to be applied."""
        range(len(self._frame.module.children))[index]
        count = len(self._frame.module.children)
        return lambda *inputs: self._frame.apply(index % count, inputs)

    def __len__(self) -> int:
        return len(self._frame.module.children)

    @property
    def options(self) -> Mapping[str, Any]:
        """How the module was made."""
        return MappingProxyType(dict(self._frame.module.options))

    @property
    def training(self) -> bool:
        """Whether the module builds for training."""
        return current_context().training

    def counter(self) -> Value:
        """Return the random counter of the graph, for `frame.ops.dropout` and the like."""
        return current_context().counter()

    def parameters_of(self, index: int) -> tuple[Value, ...]:
        """Return the values of all parameters of the child at a position, in its own order.

        For builders that compute a child in another way, such as a folded normalisation.
        """
        child = self._frame.module.children[index]
        values = self._frame.slice_of(index % len(self))
        pairs = zip(child.parameters(), values, strict=True)
        state = current_context().state
        return tuple(state(v) if spec.role is Role.BUFFER else v for spec, v in pairs)

    def shared(self, key: Shared) -> Value:
        """Return the value of a shared parameter that a module above declares."""
        return self._frame.shared(key)

    def update(self, name: str, value: Value) -> None:
        """Let the buffer `name` hold `value` after the run.

        Raises:
            InvalidArgumentError: there is no such buffer, or see `BuildContext.update`.
        """
        for position, spec in enumerate(self._frame.module.specs):
            if spec.name == name and spec.role is Role.BUFFER:
                current_context().update(self._frame.parameters[position], value)
                return
        raise InvalidArgumentError(f"{self._frame.module.kind} has no buffer named {name!r}")


RESERVED = frozenset({"options", "training", "counter", "parameters_of", "shared", "update"})
"""Names that parameters and children of `nn.module` can't have: a Scope has them itself."""


def _fail_lookup(module: Module, name: str) -> NoReturn:
    known = [spec.name for spec in module.specs]
    known += [child for child, _ in module.named_children()]
    raise AttributeError(
        f"{module.kind} has no parameter or child {name!r}; it declares "
        f"{', '.join(known) or 'nothing'}"
    )


def _apply(
    module: Module,
    path: str,
    parameters: tuple[Value, ...],
    inputs: tuple[Any, ...],
    name: str | None = None,
) -> Any:
    builder = current_builder()
    _check_parameters(module, path, parameters)
    step = module.name if name is None else name
    token = _frame.set(_Frame(module, path, parameters, _frame.get()))
    if step:
        builder.push_module(step)
    try:
        return module.builder(Scope(_frame_now()), *inputs)
    except InvalidArgumentError as error:
        if error.message.startswith("in module "):
            raise
        place = path or "the root"
        raise InvalidArgumentError(f"in module {place} ({module.kind}): {error}") from error
    except TypeError:
        _check_arity(module, path, inputs)
        raise
    finally:
        if step:
            builder.pop_module()
        _frame.reset(token)


def _check_arity(module: Module, path: str, inputs: Sequence[Any]) -> None:
    """Raise InvalidArgumentError if the module does not take this many inputs."""
    try:
        signature = inspect.signature(module.builder)
    except (TypeError, ValueError):  # a callable that does not tell
        return
    try:
        signature.bind(None, *inputs)
    except TypeError as error:
        names = ", ".join(list(signature.parameters)[1:])
        raise InvalidArgumentError(
            f"in module {path or 'the root'} ({module.kind}): it takes the inputs ({names}), "
            f"received {len(inputs)}: {error}"
        ) from None


def _frame_now() -> _Frame:
    frame = _frame.get()
    if frame is None:
        raise InvalidArgumentError("no module is being built")
    return frame


def _check_parameters(module: Module, path: str, values: tuple[Value, ...]) -> None:
    specs = module.parameters()
    where = f"{module.kind} {path}".strip()
    if len(specs) != len(values):
        raise InvalidArgumentError(
            f"{where} has {len(specs)} parameters, received {len(values)} values"
        )
    for spec, value in zip(specs, values, strict=True):
        if (value.dtype, value.shape) != (spec.type.dtype, spec.type.shape):
            raise InvalidArgumentError(
                f"parameter {spec.name!r} of {where} is {spec.type}, received {value.type}"
            )


def build_graph(
    module: Module,
    inputs: Sequence[TensorType] | Mapping[str, TensorType],
    mode: str = "infer",
) -> Graph:
    """Return the graph of a module: data inputs, then parameters, then the counter if it needs one.

    Args:
        module: the model.
        inputs: the types of its inputs, with names or without.
        mode: "infer" or "train".

    Raises:
        InvalidArgumentError: the module does not take these inputs.
    """
    named = inputs.items() if isinstance(inputs, Mapping) else [("", type_) for type_ in inputs]
    with GraphBuilder(module.name or module.kind.lower()) as builder, BuildContext(mode):
        values = [
            builder.input(type_, Role.INPUT, name or f"input{position}")
            for position, (name, type_) in enumerate(named)
        ]
        parameters = add_parameter_inputs(builder, module.parameters())
        for value in module.build(values, parameters):
            builder.output(value)
    return builder.finish()


# --- a user's own modules -------------------------------------------------------------------------


def module(function: Builder | None = None, /, **declared: ParamSpec | Shared | Module) -> Any:
    """Make a Module of a function, with the parameters and children that are declared.

    ```python
    def residual(width):
        @nn.module(scale=nn.param(width, nn.ones()), inner=nn.Linear(width, width))
        def residual(self, x):
            return x + self.inner(x) * self.scale

        return residual
    ```

    The function gets a `Scope` and the inputs. The result is a Module, not a function; `named`
    gives it a name. `@nn.module` without arguments declares nothing.

    Raises:
        InvalidArgumentError: a name is reserved, or a declaration is of another kind.
    """
    if function is not None:
        return _module_of(function, {})
    return lambda builder: _module_of(builder, declared)


def _module_of(function: Builder, declared: Mapping[str, ParamSpec | Shared | Module]) -> Module:
    specs: list[ParamSpec] = []
    children: list[Module] = []
    shared: list[tuple[int, Shared]] = []
    for name, entry in declared.items():
        if name in RESERVED or name.startswith("_"):
            raise InvalidArgumentError(
                f"a parameter or child of a module can't be named {name!r}: the scope has "
                f"{', '.join(sorted(RESERVED))} itself, and names don't begin with an underscore"
            )
        if isinstance(entry, Module):
            children.append(entry.named(name))
        elif isinstance(entry, Shared):
            shared.append((len(specs), entry))
            specs.append(entry.spec.renamed(name))
        elif isinstance(entry, ParamSpec):
            specs.append(entry.renamed(name))
        else:
            raise InvalidArgumentError(
                f"{name!r} must be a Module, nn.param(...), nn.buffer(...) or nn.share(...), "
                f"received {entry!r:.80}"
            )
    kind = getattr(function, "__name__", "module")
    return Module("", tuple(specs), tuple(children), function, kind, (), tuple(shared))
