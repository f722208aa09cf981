"""MODEL on the command line: `package.module:factory`, or a file."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from frame.core.errors import FrameError, InvalidArgumentError, NotFoundError, UnimplementedError

FACTORY = re.compile(r"^(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)$")
GRAPH_SUFFIXES = {".txt", ".graph", ".ir"}
LATER = {".onnx": "ONNX files", ".json": "JSON model specs"}


def load_model(reference: str) -> Any:
    """Return what a MODEL argument names: the factory's result, or the graph of a text file.

    Raises:
        NotFoundError: no such module, factory or file.
        InvalidArgumentError: the reference has another form, or the factory or the text is wrong.
        UnimplementedError: a kind of file that this version can't read.
    """
    path = Path(reference)
    if path.suffix in GRAPH_SUFFIXES:
        return _graph_of(path)
    if path.suffix in LATER:
        raise UnimplementedError(
            f"{reference}: this version does not read {LATER[path.suffix]}; "
            "give package.module:factory or the text of a graph"
        )
    match = FACTORY.match(reference)
    if not match:
        raise InvalidArgumentError(
            f"MODEL: expected package.module:factory or a graph text ({_suffixes()}), "
            f"received {reference!r}"
        )
    return _call(_attribute(match["module"], match["name"]), reference)


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
    if not callable(factory) or _is_declaration(factory):
        return factory
    try:
        return factory()
    except FrameError:
        raise
    except Exception as error:
        raise _user_error(f"calling {reference}", error) from error


def _is_declaration(value: Any) -> bool:
    # A Module value or a jitted function is callable, and is already the model.
    return not isinstance(value, type) and type(value).__module__.startswith("frame.")


def _user_error(action: str, error: Exception) -> InvalidArgumentError:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"\nat {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    return InvalidArgumentError(f"{action} failed with {type(error).__name__}: {error}{where}")
