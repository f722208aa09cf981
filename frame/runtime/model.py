"""Compiled models: `frame.compile` and the object that it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from frame.core import forks
from frame.core.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Role
from frame.nn.module import Architecture, Module, build_graph
from frame.nn.parameters import materialize
from frame.runtime.backends import backend as find_backend
from frame.runtime.backends import target_of, tuning_of
from frame.runtime.bound_entry import make_entry
from frame.runtime.entry import STATE, Counter, Entry
from frame.runtime.loading import Declared, Loaded, load
from frame.runtime.parameters import ParameterStore
from frame.runtime.specs import as_spec, check_sizes, named_specs, with_sizes
from frame.runtime.tracing import arguments, trace
from frame.runtime.variants import Family

if TYPE_CHECKING:
    from frame.compiler.optimizers import Optimizer
    from frame.compiler.pipeline import Passes
    from frame.hal.source import Source
    from frame.ir.regions import MemoryRegions
    from frame.runtime.profiler import Profile

INFER, TRAIN, TRAIN_STEP, EVALUATE = "infer", "train", "train_step", "evaluate"
_NAMED = 8  # how many missing parameters a message names
_NEEDS = {
    TRAIN: "calls as in training need a model that frame.compile made of a Module",
    TRAIN_STEP: "a training step needs loss= and optimizer= in frame.compile",
}


class Parameters(Mapping[str, np.ndarray]):
    """The parameters and buffers of a model by path. Reading gives copies."""

    def __init__(self, store: ParameterStore, names: Sequence[str]) -> None:
        self._store = store
        self._names = tuple(names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise NotFoundError(
                f"there is no parameter named {name!r}; known: {', '.join(self._names[:12])}"
            )
        return self._store[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class CompiledModel:
    """A model whose entries (inference, training step) are compiled and share their parameters.

    Call it for inference: `y = model(x)`. Arrays give arrays, Tensors give Tensors.
    """

    def __init__(
        self,
        name: str,
        declared: Mapping[str, Callable[[], Declared]],
        values: Mapping[str, np.ndarray],
        *,
        seed: int = 0,
        module: Module | None = None,
        state: Mapping[str, np.ndarray] | None = None,
        family: Family | None = None,
        owned: bool = False,
        loss: Module | None = None,
    ) -> None:
        """Take arrays as parameters and state: copies, unless nobody else has them (`owned`)."""
        self.name = name
        self.module = module
        self.loss = loss  # what it is trained with; None for a model of a file
        self.counter = Counter(seed)
        self._family = family
        self._declared = dict(declared)
        self._entries: dict[str, Entry] = {}
        self._lock = forks.recursive_lock()
        self._mode = INFER
        arrays = {**values, **(state or {})}
        types = {name: as_spec(array) for name, array in arrays.items()}
        self.store = ParameterStore(types, arrays, owned)
        self.params = Parameters(self.store, tuple(values))

    def __reduce__(self) -> NoReturn:
        """Refuse pickle and copy: they would share or lose native code, locks and parameters."""
        raise UnimplementedError(
            f"expected a model to be saved or compiled again, received a pickle or a copy of "
            f"{self.name}: write it with model.save(path) and read it with frame.load(path)"
        )

    def entry(self, name: str) -> Entry:
        """Return a compiled entry, compiling it at the first use.

        Raises:
            NotFoundError: the model has no such entry.
        """
        with self._lock:
            if name not in self._entries:
                self._entries[name] = self._compile(name)
            return self._entries[name]

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The entries that are compiled."""
        return MappingProxyType(self._entries)

    def declaration(self, name: str) -> Declared:
        """Return the declaration of an entry; raise NotFoundError for an unknown name."""
        self._require_entry(name)
        return self._declared[name]()

    def _require_entry(self, name: str) -> None:
        if name not in self._declared:
            raise NotFoundError(
                f"{self.name} has no entry {name!r}, only {', '.join(self._declared)}; "
                f"{_NEEDS.get(name, _NEEDS[TRAIN_STEP])}"
            )

    def adopt(self, name: str, declared: Declared, loaded: Loaded) -> Entry:
        """Take programs that were loaded elsewhere, from a file, as an entry."""
        with self._lock:
            self._entries[name] = self._bound(declared, loaded)
            return self._entries[name]

    def _compile(self, name: str) -> Entry:
        declared = self.declaration(name)
        return self._bound(declared, load(declared))

    def _bound(self, declared: Declared, loaded: Loaded) -> Entry:
        """Return an entry on the model's store, which gets the state that is new to it."""
        entry = make_entry(declared, self.store, self.counter, loaded)
        initial = {} if declared.transform is None else declared.transform.initial
        for port in entry.signature.inputs:
            if port.role in STATE and port.name not in self.store:
                shape = tuple(int(size) for size in port.type.shape)  # type: ignore[arg-type]
                filled = np.full(shape, initial.get(port.name, 0.0), port.type.dtype.numpy)
                self.store.add(port.name, port.type, filled)
        return entry

    def __call__(self, *inputs: Any, out: Sequence[np.ndarray] | None = None, **named: Any) -> Any:
        """Run the model on its inputs.

        Raises:
            InvalidArgumentError: an input is missing, unknown or does not fit.
        """
        entry = self._entries.get(self._mode) or self.entry(self._mode)
        return entry.call(inputs, named, out)

    def train_step(self, *inputs: Any, **hyperparameters: Any) -> Any:
        """Run one training step: forward, backward and update, as one executable.

        Args:
            inputs: the inputs of the model, then those of the loss (targets).
            hyperparameters: run-time values: `learning_rate`.

        Returns:
            The loss, then the outputs of the model.

        Raises:
            InvalidArgumentError: an input does not fit, or a label is out of range; then nothing
                has changed.
        """
        return tuple(self.entry(TRAIN_STEP).run(inputs, hyperparameters))

    def variant(
        self,
        inputs: Sequence[Any] | Mapping[str, Any],
        targets: Sequence[Any] | None = None,
        sizes: Mapping[str, int] | None = None,
        module: Module | None = None,
    ) -> CompiledModel:
        """Return this model for other inputs, such as another resolution or batch size.

        Parameters, running statistics, optimizer state and random counter are shared: a step of
        one variant changes all of them. Each variant is made once, and each of its entries is
        compiled at its first use.

        Args:
            inputs: as for `frame.compile`.
            targets: the inputs of the loss; those of this model by default.
            sizes: as for `frame.compile`.
            module: what is compiled in place of the model's own module: one with the same
                parameters, such as the same network behind another preprocessing. Each such
                object is another variant.

        Raises:
            InvalidArgumentError: the model was not compiled from a Module or a blueprint, or it
                needs parameters of other shapes for these inputs.
        """
        if self._family is None:
            raise InvalidArgumentError(
                f"{self.name} has no variants: expected a model that frame.compile made of a "
                "Module or a blueprint, received one of a function, a graph or a file"
            )
        return self._family.member(inputs, targets, sizes or {}, module)

    def share_state(self, other: CompiledModel) -> None:
        """Take the parameters, the state and the random counter of another model for its own."""
        self.store, self.params, self.counter = other.store, other.params, other.counter

    def train(self) -> CompiledModel:
        """Let calls run the model as in training (dropout drops, batch norm uses the batch).

        Raises:
            NotFoundError: the model is of a function, a graph or a file, which have no such mode.
        """
        self._require_entry(TRAIN)
        self._mode = TRAIN
        return self

    def infer(self) -> CompiledModel:
        """Let calls run the model as in inference."""
        self._mode = INFER
        return self

    @property
    def mode(self) -> str:
        """How calls run the model: `infer` or `train`."""
        return self._mode

    def load_params(self, values: Mapping[str, Any] | str | os.PathLike[str]) -> None:
        """Write parameters of a mapping or a .safetensors, .npz or .onnx file: all or none.

        Raises:
            NotFoundError: a name is unknown, or the file does not exist.
            InvalidArgumentError: a shape or dtype does not fit, or the file is damaged.
        """
        self.store.write(_read(values))

    def save(self, path: str | os.PathLike[str], *, objects: bool = True) -> None:
        """Write the model to a `.frame` file: declared graphs, weights and, unless `objects` is
        false, the machine code of its compiled entries.

        Raises:
            NotFoundError: the folder does not exist.
        """
        from frame.runtime.framefile import save

        save(self, path, objects)

    @property
    def graph(self) -> Graph:
        """The declared graph of the entry that calls run."""
        return self.entry(self._mode).declared.graph

    @property
    def host_steps(self) -> tuple[str, ...]:
        """The ops of the current entry that run in numpy; empty for every built-in op on cpu."""
        return self.entry(self._mode).host_steps

    def source(self, node: Any = None, *, entry: str | None = None) -> Source:
        """Return the generated code: of one node, or of a whole entry.

        `print` shows all stages (`loop`, `llvm`, `assembly` on cpu), `source["assembly"]` is one.
        A model that came from the cache or a file is compiled once more for it.

        Args:
            node: a value of `model.graph` (`"%7"`, `7`, or the Value or Node itself), a kernel as
                `profile` names it or its row, or a module path, which stands for all inside it.
                All of the entry by default.
            entry: `infer`, `train_step`, ...; the one that calls run by default.

        Raises:
            NotFoundError: there is no such node or entry, or no kernel computes the node.
            UnimplementedError: the backend does not tell which code computes a node.
        """
        return self.entry(entry or self._mode).source(node)

    def profile(
        self, *inputs: Any, entry: str | None = None, runs: int = 1, **named: Any
    ) -> Profile:
        """Return where the time of a run goes: a `Profile`, one row a kernel launch.

        Nothing is changed, not even by a training step: it runs on copies. The first profile on a
        machine measures what it can do, in less than a second; the cache keeps that.

        Args:
            inputs: as for a call, or for `train_step`.
            entry: `infer`, `train_step`, ...; the one that calls run by default.
            runs: how often to run; the run of median time is returned.
            named: inputs by name, and hyperparameters such as `learning_rate`.

        Raises:
            InvalidArgumentError: an input does not fit, or `runs` is no number of at least 1.
        """
        from frame.runtime.profiler import machine_peaks, median_profile

        chosen = self.entry(entry or self._mode)
        # The whole graph: kernels of the update stem from nodes that nobody declared.
        whole, peaks = chosen.declared.whole, machine_peaks(chosen.declared.backend)
        return median_profile(lambda: chosen.profile(*inputs, **named), whole, runs, peaks)

    def memory(
        self, entry: str | None = None, sizes: Mapping[str, int] | None = None
    ) -> MemoryRegions:
        """Return the memory of an entry by region; printing it gives a table.

        The regions are weights, running statistics, optimizer state, prepared weights, inputs,
        outputs, constants, and within one arena activations, gradients and workspace.

        Args:
            entry: `infer`, `train_step`, ...; the one that calls run by default.
            sizes: numbers for the symbols of the inputs, such as {"batch": 64}.

        Raises:
            NotFoundError: the model has no such entry.
            InvalidArgumentError: a symbol has no number.
        """
        from frame.runtime.memory import entry_regions

        return entry_regions(self.declaration(entry or self._mode), sizes or {})

    def summary(self) -> str:
        """Return a table of modules, shapes and parameter counts."""
        from frame.runtime.summary import summary

        return summary(self)

    def _repr_html_(self) -> str:
        from frame.runtime.summary import summary_html

        return summary_html(self)

    def __repr__(self) -> str:
        from frame.runtime.summary import count_text, counts

        entries = ", ".join(self._entries) or "none yet"
        return (
            f"<CompiledModel {self.name}: {count_text(*counts(self))}, compiled entries: {entries}>"
        )


def compile(
    model: Module | Architecture | Graph | Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any] = (),
    *,
    backend: str | None = None,
    target: TargetDescription | str | None = None,
    loss: Module | None = None,
    targets: Sequence[Any] = (),
    optimizer: Optimizer | None = None,
    sizes: Mapping[str, int] | None = None,
    params: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    passes: Passes = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    tune: bool | float = False,
) -> CompiledModel:
    """Compile a model to native code, through the cache.

    Args:
        model: a Module, a blueprint, a graph, or a function that builds a graph from values.
        inputs: one `frame.spec` (or array, or shape) an input; a mapping gives names, which for a
            function are those of its arguments. A graph has its own.
        backend: the name of the backend; FRAME_BACKEND or `cpu` by default.
        target: a target description or a name such as `x86-64-v3`; the host by default.
        loss: a module of (output, target); with `optimizer` the model gets a training step.
        targets: the specs of the inputs that the loss has beside the output of the model.
        optimizer: how a step updates the parameters.
        sizes: numbers for symbols, such as {"batch": 64}, for which the training step alone is
            compiled: quicker code, that takes no other size (`DataLoader(..., drop_last=True)`).
        params: initial values by path, or a .safetensors, .npz or .onnx file of them, in place of
            the declared initialisers. A graph has none of these: it needs a value for each
            parameter.
        passes: edits of the pass list, see `frame.compiler.pipeline.make_pipeline`.
        options: options of the backend.
        seed: the seed of initialisers and of random ops.
        tune: measure schedules on this machine and take the fastest: at most so many seconds for
            each entry, 60 for True. Only schedules that give the very same bits are tried, and the
            choices stay in the cache. Groups with symbolic sizes keep their schedules.

    Raises:
        InvalidArgumentError: the model can't be built for these inputs.
        UnimplementedError: an op that neither a backend nor a reference can run.
    """
    owner = find_backend(backend)
    on = target_of(owner, target)
    settings = _Settings(owner.name, on, passes, dict(options or {}), tuning_of(owner, tune))
    made = _Declarations(model, inputs, loss, targets, optimizer, settings, sizes or {})
    given: Mapping[str, Any] = {} if params is None else _read(params)
    family = Family(made.for_inputs, targets) if isinstance(made.model, Module) else None
    result = made.assembled(made.initial_values(seed, given), seed, family)
    if family is not None:
        family.begin(result, inputs, sizes or {})
    if params is not None:
        result.load_params(given)
    result.entry(INFER if optimizer is None else TRAIN_STEP)
    return result


class _Settings:
    """What all entries of a model are compiled for."""

    def __init__(
        self,
        backend: str,
        target: TargetDescription | None,
        passes: Passes,
        options: Mapping[str, Any],
        tune: float | None,
    ) -> None:
        self.backend, self.target = backend, target
        self.passes, self.options, self.tune = passes, options, tune

    def declare(self, graph: Graph, transform: Any = None) -> Declared:
        """Return the declaration of a graph."""
        return Declared(
            graph, self.backend, self.target, transform, self.passes, self.options, tune=self.tune
        )


class _Declarations:
    """The declarations of a model's entries."""

    def __init__(
        self,
        model: Any,
        inputs: Sequence[Any] | Mapping[str, Any],
        loss: Module | None,
        targets: Sequence[Any],
        optimizer: Optimizer | None,
        settings: _Settings,
        sizes: Mapping[str, int],
    ) -> None:
        if (loss is None) != (optimizer is None):
            raise InvalidArgumentError(
                "a training step needs both loss= and optimizer=, received only one of them"
            )
        if sizes and optimizer is None:
            raise InvalidArgumentError(
                "sizes= is for the training step, which needs loss= and optimizer=; write numbers "
                "in the specs instead"
            )
        self.source = model
        self.inputs, self.named = named_specs(inputs), isinstance(inputs, Mapping)
        if isinstance(model, Architecture):
            model = model.module_for(tuple(self.inputs.values()))
        _require_kinds(model, loss, optimizer)
        self.model, self.loss, self.optimizer, self.settings = model, loss, optimizer, settings
        self.targets = [as_spec(target) for target in targets]
        self.sizes = check_sizes(sizes, [*self.inputs.values(), *self.targets])
        if isinstance(model, Graph) and self.inputs:
            _require_own_inputs(model, list(self.inputs.values()))
        if isinstance(model, Module):
            self.name = model.name or model.kind
        elif isinstance(model, Graph):
            self.name = model.name
        else:
            self.name = getattr(model, "__name__", "function").strip("<>")

    def assembled(
        self, values: Mapping[str, np.ndarray], seed: int, family: Family | None
    ) -> CompiledModel:
        """Return the model of these declarations and values, which nobody else has."""
        return CompiledModel(
            self.name,
            self.entries(),
            values,
            seed=seed,
            module=self.model if isinstance(self.model, Module) else None,
            family=family,
            owned=True,
            loss=self.loss,
        )

    def for_inputs(
        self,
        inputs: Any,
        targets: Sequence[Any],
        sizes: Mapping[str, int],
        module: Module | None,
        family: Family,
    ) -> CompiledModel:
        """Return a model of the same declaration for other inputs, without parameters."""
        source = self.source if module is None else module
        made = _Declarations(
            source, inputs, self.loss, targets, self.optimizer, self.settings, sizes
        )
        return CompiledModel(
            made.name, made.entries(), {}, module=made.model, family=family, loss=self.loss
        )

    def entries(self) -> dict[str, Callable[[], Declared]]:
        """Return the makers of the declarations, by entry."""
        if not isinstance(self.model, Module):
            return {INFER: self._plain}
        made: dict[str, Callable[[], Declared]] = {
            INFER: lambda: self._forward("infer"),
            TRAIN: lambda: self._forward("train"),
        }
        if self.optimizer is not None:
            made[TRAIN_STEP] = self._train_step
            made[EVALUATE] = self._evaluate
        return made

    def initial_values(self, seed: int, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the initial parameters by path; those of a graph are there to be overwritten.

        Raises:
            InvalidArgumentError: the model is a graph, and `params` lacks one of its parameters.
        """
        if isinstance(self.model, Graph):
            return _blank_parameters(self.model, params)
        if not isinstance(self.model, Module):
            return {}
        return {spec.name: materialize(spec, seed) for spec in self.model.parameters()}

    def _plain(self) -> Declared:
        if isinstance(self.model, Graph):
            return self.settings.declare(self.model)
        specs = arguments(self.model, self.inputs) if self.named else self.inputs.values()
        return self.settings.declare(trace(self.model, *specs))

    def _forward(self, mode: str) -> Declared:
        return self.settings.declare(build_graph(self.model, self.inputs, mode))

    def _train_step(self) -> Declared:
        from frame.runtime.training import declare_training

        loss, optimizer = self._require_training()
        inputs = {name: with_sizes(spec, self.sizes) for name, spec in self.inputs.items()}
        targets = [with_sizes(spec, self.sizes) for spec in self.targets]
        graph, transform = declare_training(self.model, loss, inputs, targets, optimizer)
        return self.settings.declare(graph, transform)

    def _require_training(self) -> tuple[Module, Optimizer]:
        if self.loss is None or self.optimizer is None:
            raise InvalidArgumentError(
                f"{self.name} was compiled without loss= and optimizer=, which its training needs"
            )
        return self.loss, self.optimizer

    def _evaluate(self) -> Declared:
        """The loss beside the outputs, both as in inference."""
        from frame.runtime.training import graph_with_loss

        loss, _ = self._require_training()
        graph = graph_with_loss(self.model, loss, self.inputs, self.targets, "infer")
        return self.settings.declare(graph)


def _read(values: Any) -> Any:
    """Return parameters, from the file where a path is given."""
    if not isinstance(values, (str, os.PathLike)):
        return values
    # The readers of weight files are imported by those who have such a file.
    from frame.interop.weights import load_weights

    return load_weights(values)


def _blank_parameters(graph: Graph, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return zeros for the parameters and buffers of a graph, all of which `params` must have."""
    kept = [entry for entry in graph.inputs if entry.role in (Role.PARAMETER, Role.BUFFER)]
    missing = [entry.name for entry in kept if entry.name not in params]
    if missing:
        more = ", ..." if len(missing) > _NAMED else ""
        raise InvalidArgumentError(
            f"the graph {graph.name} has {len(kept)} parameters, which have no initial values of "
            f"their own: expected params= (--params) with a value for each, received none for "
            f"{', '.join(missing[:_NAMED])}{more}"
        )
    return {
        entry.name: np.zeros(entry.value.type.storage_shape, entry.value.dtype.numpy)  # type: ignore[arg-type]
        for entry in kept
    }


def _require_own_inputs(graph: Graph, given: Sequence[Any]) -> None:
    """Raise InvalidArgumentError for inputs that a graph does not have."""
    own = [entry.value.type for entry in graph.inputs if entry.role is Role.INPUT]
    if [(t.dtype, t.shape) for t in own] != [(t.dtype, t.shape) for t in given]:
        raise InvalidArgumentError(
            f"the graph {graph.name} has its own inputs ({', '.join(map(str, own)) or 'none'}): "
            f"leave out inputs=, received {', '.join(map(str, given))}"
        )


def _require_kinds(model: Any, loss: Any, optimizer: Any) -> None:
    """Raise InvalidArgumentError for a model, loss or optimizer that is of another kind."""
    if not isinstance(model, (Module, Graph)) and not callable(model):
        raise InvalidArgumentError(
            f"expected a Module, a Graph or a function that builds one, received {model!r:.80}"
        )
    if loss is None and optimizer is None:
        return
    from frame.compiler.optimizers import Optimizer

    if not isinstance(model, Module):
        raise InvalidArgumentError(
            f"a training step needs a Module, which has parameters, received {model!r:.80}"
        )
    if not isinstance(loss, Module):
        raise InvalidArgumentError(
            f"loss: expected a Module such as nn.CrossEntropyLoss(), received {loss!r:.80}"
        )
    if not isinstance(optimizer, Optimizer):
        raise InvalidArgumentError(
            f"optimizer: expected an optimizer such as SGD(momentum=0.9), "
            f"received {optimizer!r:.80}"
        )
