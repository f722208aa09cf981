"""MODEL on the command line: `package.module:factory`, or a file."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frame.cli.arguments import InputSpec, by_name
from frame.cli.words import CommandError
from frame.core.errors import FrameError, InvalidArgumentError, NotFoundError, UnimplementedError
from frame.ir.locations import source_of

if TYPE_CHECKING:
    from frame.ir.graph import Graph, TensorType
    from frame.runtime.model import CompiledModel

FACTORY = re.compile(r"^(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)$")
GRAPH_SUFFIXES = {".txt", ".graph", ".ir"}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
LATER = {".onnx": "ONNX files"}
SPEC_SUFFIX = ".json"


def load_model(reference: str) -> Any:
    """Return what a MODEL argument names: the factory's result, or the graph of a text file.

    Raises:
        NotFoundError: no such module, factory or file.
        CommandError: the reference has another form.
        InvalidArgumentError: the factory or the text is wrong.
        UnimplementedError: a kind of file that this version can't read.
    """
    path = Path(reference)
    if path.suffix in GRAPH_SUFFIXES:
        return _graph_of(path)
    if path.suffix == SPEC_SUFFIX:
        from frame import frontend

        return frontend.load(path)
    if path.suffix in LATER:
        raise UnimplementedError(
            f"{reference}: this version does not read {LATER[path.suffix]}; "
            "give package.module:factory, a JSON model spec, or the text of a graph"
        )
    match = FACTORY.match(reference)
    if not match:
        hint = "; `frame run` takes a .frame file" if path.suffix == ".frame" else ""
        raise CommandError(
            f"MODEL: expected package.module:factory, a model spec ({SPEC_SUFFIX}) or a graph text "
            f"({_suffixes()}), "
            f"received {reference!r:.200}{hint}"
        )
    return _call(_attribute(match["module"], match["name"]), reference)


def compile_model(
    model: Any, specs: list[InputSpec], *, blank: bool = False, **options: Any
) -> CompiledModel:
    """Compile what `load_model` returned for the inputs of the command line.

    `blank` lets the parameters of a graph be zeros where no values are given: for looking at its
    code, or to have it in the cache.

    Raises:
        CommandError: an input is missing, doubled or unknown, or the model is none.
        InvalidArgumentError: the user's code failed.
    """
    import frame
    from frame.ir import graph as ir
    from frame.nn.module import Architecture, Module

    if _is_plan(model):
        return _compile_plan(model, specs, **options)
    if isinstance(model, ir.Graph):
        if specs:
            raise CommandError("a graph has its own inputs: leave out --input")
        if blank and options.get("params") is None:
            options["params"] = _zeros(model)
        return frame.compile(model, **options)
    if not isinstance(model, (Module, Architecture)) and not callable(model):
        raise CommandError(
            f"MODEL: expected it to give a Module, a Graph or a function of values, received "
            f"{model!r:.80}"
        )
    if not specs:
        raise CommandError("missing --input: give the shape of each input, --input 1,784")
    inputs = _inputs(model, specs)
    try:
        return frame.compile(model, inputs, **options)
    except FrameError:
        raise
    except Exception as error:
        if source_of(error):
            raise _user_error("building the model", error) from error
        raise


def _zeros(graph: Graph) -> dict[str, Any]:
    """Return zeros for the inputs of a graph that are no inputs of a call."""
    import numpy as np

    from frame.ir.graph import Role

    return {
        entry.name: np.zeros(entry.value.type.storage_shape, entry.value.dtype.numpy)  # type: ignore[arg-type]
        for entry in graph.inputs
        if entry.role in (Role.PARAMETER, Role.BUFFER)
    }


def _is_plan(model: Any) -> bool:
    """Whether a model is a spec's; nothing of the frontend is loaded for any other."""
    return type(model).__module__ == "frame.frontend.plan"


def _compile_plan(
    plan: Any, specs: list[InputSpec], *, params: Any = None, seed: int = 0, **options: Any
) -> CompiledModel:
    """Compile a spec for inference: its own parameters and seed stand unless others are given."""
    from frame import frontend

    if specs:
        raise CommandError("a model spec has its own inputs: leave out --input")
    options |= ({"params": params} if params else {}) | ({"seed": seed} if seed else {})
    compiled: CompiledModel = frontend.compile_plan(plan, train=False, **options)
    return compiled


def _inputs(model: Any, specs: list[InputSpec]) -> dict[str, TensorType]:
    """Return the input types in the order of a function's arguments, or of the command line."""
    from frame.ir.graph import TensorType
    from frame.nn.module import Architecture, Module

    if isinstance(model, (Module, Architecture)):
        names = _module_names(specs)
    else:
        names = list(inspect.signature(model).parameters)
    chosen = by_name(specs, names)
    return {name: TensorType(chosen[name].dtype, chosen[name].shape) for name in names}


def _module_names(specs: list[InputSpec]) -> list[str]:
    """A module takes any names; without names a single input is `x`."""
    if len(specs) == 1:
        return [specs[0].name or "x"]
    unnamed = any(spec.name is None for spec in specs)
    if unnamed:
        raise CommandError("several inputs need names: --input a=1,784 --input b=1,10")
    return list(dict.fromkeys(spec.name for spec in specs if spec.name))


def _suffixes() -> str:
    return ", ".join(sorted(GRAPH_SUFFIXES))


def _graph_of(path: Path) -> Any:
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}")
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path}: expected UTF-8 text, {error}") from None
    from frame.ir.parser import parse_graph

    return parse_graph(text)


def _attribute(module: str, name: str) -> Any:
    # A console script does not have the current folder on its path, `python -m frame` does.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            raise _user_error(f"importing {module}", error) from error
        raise NotFoundError(
            f"there is no module {module!r} in {Path.cwd()} or on the path"
        ) from None
    except Exception as error:
        raise _user_error(f"importing {module}", error) from error
    if not hasattr(loaded, name):
        raise NotFoundError(f"the module {module} has no {name!r}")
    return getattr(loaded, name)


def _call(factory: Any, reference: str) -> Any:
    if not callable(factory) or _is_the_model(factory):
        return factory
    try:
        return factory()
    except FrameError:
        raise
    except (Exception, SystemExit) as error:
        raise _user_error(f"calling {reference}", error) from error


def _is_the_model(value: Any) -> bool:
    """A Module value, a jitted function, and a function that takes values are models themselves."""
    if not isinstance(value, type) and type(value).__module__.startswith("frame."):
        return True
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.default is each.empty and each.kind in _POSITIONAL for each in parameters)


def _user_error(action: str, error: BaseException) -> InvalidArgumentError:
    where = f"\nat {line}" if (line := source_of(error)) else ""
    return InvalidArgumentError(f"{action} failed with {type(error).__name__}: {error}{where}")
