"""Writes `frame/ops/__init__.pyi`, through which type checkers and editors see the ops.

Run `python -m frame.ops.stubs` after a change of a record; a test fails while the file is stale.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from frame import ops
from frame.core.errors import InternalError

PATH = Path(__file__).resolve().parent / "__init__.pyi"

_HEADER = '"""The ops of frame. Written by `python -m frame.ops.stubs` from the op records."""'

# name that an annotation may use -> where it comes from
_HOMES: Mapping[str, str] = {
    "Callable": "collections.abc",
    "Mapping": "collections.abc",
    "Sequence": "collections.abc",
    "Any": "typing",
    "TypeAlias": "typing",
    "DType": "frame.core.dtypes",
    "DTypeLike": "frame.core.dtypes",
    "Shape": "frame.core.shapes",
    "Size": "frame.core.shapes",
    "Constant": "frame.ir.graph",
    "Graph": "frame.ir.graph",
    "Value": "frame.ir.graph",
    "OpDef": "frame.ops.record",
}
_BUILTINS = frozenset(
    {"bool", "dict", "float", "int", "list", "str", "tuple", "None", "True", "False"}
)
_OPERAND = "Operand: TypeAlias = Value | float | np.ndarray | Sequence[Any]"
_REEXPORTED = ("lookup", "records", "register", "unregister")
_WIDTH = 100


def generate() -> str:
    """Return the text of the stub.

    Raises:
        InternalError: a handwritten form uses a name in an annotation that `_HOMES` lacks.
    """
    # Not what was registered since: a user's op is not part of the package.
    functions = {name: getattr(ops, name) for name in ops.__all__ if name not in _REEXPORTED}
    declarations = [_declaration(name, function) for name, function in sorted(functions.items())]
    names = [*_REEXPORTED, *sorted(functions)]
    exported = "\n".join(["__all__ = [", *(f'    "{name}",' for name in names), "]"])
    body = "\n".join(declarations).rstrip()
    imports = "\n".join(_imports(f"{_OPERAND}\n{_signatures(body)}"))
    families = "FAMILIES: tuple[str, ...]\nDEFERRED: dict[str, tuple[str, ...]]"
    return "\n".join([_HEADER, "", imports, "", exported, "", families, _OPERAND, "", body, ""])


def _signatures(body: str) -> str:
    """Return the declarations without their docstrings, whose words are no names."""
    return re.sub(r'""".*?"""', "", body, flags=re.DOTALL)


def _imports(text: str) -> Iterator[str]:
    used = {word for word in re.findall(r"(?<![\w.\"])[A-Z]\w*", text) if word != "Operand"}
    unknown = used - _HOMES.keys() - _BUILTINS
    if unknown:
        raise InternalError(
            f"the stub of frame.ops needs {', '.join(sorted(unknown))}: add it to the table of "
            "frame/ops/stubs.py, or annotate the handwritten form with a name that is there"
        )
    modules: dict[str, list[str]] = {}
    for name in sorted(used & _HOMES.keys()):
        modules.setdefault(_HOMES[name], []).append(name)
    for module in ("collections.abc", "typing"):
        if module in modules:
            yield f"from {module} import {', '.join(modules.pop(module))}"
    yield "\nimport numpy as np\n"
    for module, names in sorted(modules.items()):
        yield f"from {module} import {', '.join(names)}"
    yield "from frame.ops.registry import lookup, records, register, unregister"


def _declaration(name: str, function: Callable[..., Any]) -> str:
    shape = inspect.signature(function)
    parameters = list(_parameters(shape))
    returns = _annotation(shape.return_annotation)
    line = f"def {name}({', '.join(parameters)}) -> {returns}:"
    if len(line) > _WIDTH:
        lines = "".join(f"    {parameter},\n" for parameter in parameters)
        line = f"def {name}(\n{lines}) -> {returns}:"
    return f'{line}\n    """{_summary(function)}"""\n'


def _parameters(shape: inspect.Signature) -> Iterator[str]:
    positional = True
    for parameter in shape.parameters.values():
        star = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else ""
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and positional:
            yield "*"
        positional = positional and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        text = f"{star}{parameter.name}: {_annotation(parameter.annotation)}"
        yield text if parameter.default is inspect.Parameter.empty else text + _default(parameter)


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "Any")


def _default(parameter: inspect.Parameter) -> str:
    plain = parameter.default is None or isinstance(parameter.default, (bool, int, float, str))
    return f" = {parameter.default!r}".replace("'", '"') if plain else " = ..."


def _summary(function: Callable[..., Any]) -> str:
    """Return the first sentence of a docstring, cut to fit one line."""
    text = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    sentence = re.split(r"(?<=[.:;]) ", text)[0].rstrip(".:;") + "."
    room = _WIDTH - len('    """"""')
    if len(sentence) > room:
        sentence = sentence[: room - 4].rsplit(" ", 1)[0] + " ..."
    return sentence


if __name__ == "__main__":
    PATH.write_text(generate(), "utf-8")
