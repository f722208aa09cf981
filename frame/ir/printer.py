"""The canonical text of graphs.

    graph      := "graph" name? symbols? "{" input* node* return update* "}"
    name       := "@" identifier | "@" string
    symbols    := "[" identifier ("," identifier)* "]"              the top graph alone
    input      := value "=" "input" string? "{" "role" "=" identifier "}" ":" type
    node       := (value ("," value)* "=")? op "(" operands ")" attributes? (":" type, ...)?
    attributes := "{" identifier "=" attribute ("," identifier "=" attribute)* "}"
    return     := "return" (value ("as" string)?, ...)?
    update     := "update" value "=" value                          state input = its next value
    type       := dtype "[" size, ... "]" layout? ("@" backend ":" index)?
    layout     := "<" axis, ... "|" axis ":" block, ... ">"
    attribute  := "true" | "false" | integer | float | string | size | dtype | tuple | constant
                | graph
    constant   := dtype "[" sizes "]" ( "(" elements ")" | "#" sha256 )

Values are numbered from %0 in each graph, bodies included; attributes are sorted by name; floats
are the shortest text that reads back to the same number. A constant of more than INLINE_ELEMENTS
elements is printed as its digest, its elements are in `constant_pool`. A comment runs from `//` to
the end of its line. `parse_graph(print_graph(g), constant_pool(g))` prints as the same text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from frame.core.dtypes import DTYPES, DType, dtype
from frame.core.shapes import Dim
from frame.ir.graph import Constant, Graph, Node, TensorType, Value, dim_symbols, shape_symbols

INLINE_ELEMENTS = 32
"""The largest number of elements of a constant that is printed in place."""

KEYWORDS = frozenset({"true", "false", "nan", "inf", "graph", *DTYPES})
"""What an identifier in an attribute means other than the symbol of that name."""

MAX_STRING = 4096
"""The longest string literal or identifier, in characters."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_MESSAGE_LENGTH = 400


def print_graph(graph: Graph, names: bool = True) -> str:
    """Return the canonical text of a graph, without a final newline.

    With `names=False` the names of graphs, inputs and outputs are left out: the text is then what
    the structural hash covers.
    """
    return GraphPrinter(names).graph(graph)


def print_node(node: Node, graph: Graph | None = None) -> str:
    """Return one node as a line for messages: bodies abbreviated, unknown operands as `%?`."""
    numbers = number_values(graph) if graph is not None else {}
    line = _BriefPrinter().node(node, numbers, "")
    return line if len(line) <= _MESSAGE_LENGTH else line[:_MESSAGE_LENGTH] + "..."


def print_attribute(value: Any) -> str:
    """Return the text of one attribute value."""
    return GraphPrinter().attribute(value, "")


def number_values(graph: Graph) -> dict[Value, int]:
    """Number the values of a graph: the inputs, then the results of each node, from 0 up."""
    numbers: dict[Value, int] = {}
    for value in graph.input_values:
        numbers.setdefault(value, len(numbers))
    for node in graph.nodes:
        for value in node.results:
            numbers.setdefault(value, len(numbers))
    return numbers


def constant_pool(graph: Graph) -> dict[str, np.ndarray]:
    """Return the constants, bodies included, that the text holds as digests alone."""
    return {
        constant.digest: constant.array
        for constant in constants(graph)
        if constant.array.size > INLINE_ELEMENTS
    }


def constants(graph: Graph) -> Iterator[Constant]:
    """Iterate over all constants in the attributes of a graph and of its bodies."""
    pending, seen = [graph], {id(graph)}
    while pending:
        for node in pending.pop().nodes:
            for value in node.attributes.values():
                if isinstance(value, Constant):
                    yield value
                elif isinstance(value, Graph) and id(value) not in seen:
                    seen.add(id(value))
                    pending.append(value)


# --- scalars --------------------------------------------------------------------------------------


def quote(text: str) -> str:
    """Return a string literal: printable characters as they are, all others escaped."""
    return f'"{"".join(_escape(character) for character in text)}"'


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _dim_text(dim: Dim) -> str:
    """Return the text of a symbolic size in an attribute, never mistaken for a keyword."""
    text = str(dim)
    bare = text.removeprefix("-")
    if bare not in KEYWORDS:
        return text
    return f"-1*{bare}" if text.startswith("-") else f"1*{bare}"


def _element_text(element: np.generic, type_: DType) -> str:
    """Return one element of a constant; the text reads back to the same bits."""
    if type_.is_bool:
        return "true" if element else "false"
    if not type_.is_float:
        return str(int(element))
    number = float(element)
    if number != number:
        return _nan_text(element, type_)
    short = str(element) if type_.name in ("float32", "float16") else repr(number)
    exact = type_.numpy.type(float(short)) == element
    return _as_float(short if exact else repr(number))


def _as_float(text: str) -> str:
    return text if any(mark in text for mark in ".einf") else text + ".0"


def _nan_text(element: np.generic, type_: DType) -> str:
    bits = element.tobytes()
    if bits == np.array(float("nan"), type_.numpy).tobytes():
        return "nan"
    return f"nan(0x{int.from_bytes(bits, sys.byteorder):x})"


def _constant_text(constant: Constant) -> str:
    array = constant.array
    type_ = dtype(array.dtype)
    head = f"{type_}[{', '.join(map(str, array.shape))}]"
    if array.size > INLINE_ELEMENTS:
        return f"{head}#{constant.digest}"
    return f"{head}({', '.join(_element_text(element, type_) for element in array.flat)})"


def _name_text(name: str) -> str:
    return f"@{name}" if _IDENTIFIER.fullmatch(name) else f"@{quote(name)}"


# --- graphs ---------------------------------------------------------------------------------------


class GraphPrinter:
    """Prints graphs and notes their symbols. A subclass may print bodies in another form."""

    def __init__(self, names: bool = True) -> None:
        self._names = names
        self._symbols: dict[str, None] = {}

    def graph(self, graph: Graph, indent: str = "") -> str:
        """Return the text of a graph; its lines after the first start with `indent`."""
        numbers = number_values(graph)
        inner = indent + "  "
        lines = [self._input(graph, index, numbers) for index in range(len(graph.inputs))]
        lines += [self.node(node, numbers, inner) for node in graph.nodes]
        lines.append(self._return(graph, numbers))
        lines += [
            f"update {_ref(_input_value(graph, update.input_index), numbers)} = "
            f"{_ref(update.value, numbers)}"
            for update in graph.updates
        ]
        body = "".join(f"{inner}{line}\n" for line in lines)
        return f"{self._header(graph, indent)} {{\n{body}{indent}}}"

    def _header(self, graph: Graph, indent: str) -> str:
        text = f"graph {_name_text(graph.name)}" if self._names else "graph"
        top = not indent and bool(self._symbols)
        return f"{text} [{', '.join(self._symbols)}]" if top else text

    def _input(self, graph: Graph, index: int, numbers: Mapping[Value, int]) -> str:
        entry = graph.inputs[index]
        name = f" {quote(entry.name)}" if self._names else ""
        kind = self.type(entry.value.type)
        return f"{_ref(entry.value, numbers)} = input{name} {{role={entry.role}}} : {kind}"

    def _return(self, graph: Graph, numbers: Mapping[Value, int]) -> str:
        names = graph.output_names if self._names else ()
        items = []
        for index, value in enumerate(graph.outputs):
            name = names[index] if index < len(names) else ""
            items.append(_ref(value, numbers) + (f" as {quote(name)}" if name else ""))
        return f"return {', '.join(items)}" if items else "return"

    def node(self, node: Node, numbers: Mapping[Value, int], indent: str) -> str:
        """Return the text of one node; lines after the first start with `indent`."""
        results = ", ".join(_ref(value, numbers) for value in node.results)
        operands = ", ".join(_ref(value, numbers) for value in node.operands)
        text = f"{node.op}({operands})"
        if node.attributes:
            items = (
                f"{name}={self.attribute(node.attributes[name], indent)}"
                for name in sorted(node.attributes)
            )
            text += f" {{{', '.join(items)}}}"
        if not results:
            return text
        return f"{results} = {text} : {', '.join(self.type(v.type) for v in node.results)}"

    def type(self, type_: TensorType) -> str:
        """Return the text of a type."""
        self._symbols.update(dict.fromkeys(shape_symbols(type_.shape)))
        return str(type_)

    def attribute(self, value: Any, indent: str) -> str:
        """Return the text of an attribute; a value outside the closed set as `<unsupported>`."""
        if isinstance(value, tuple):
            items = [self._scalar(item) for item in value]
            return f"({', '.join(items)},)" if len(items) == 1 else f"({', '.join(items)})"
        if isinstance(value, Graph):
            return self.body(value, indent)
        return self._scalar(value)

    def body(self, graph: Graph, indent: str) -> str:
        """Return the text of a body."""
        return self.graph(graph, indent)

    def _scalar(self, value: Any) -> str:
        for kind, text in _SCALARS:
            if isinstance(value, kind):
                if isinstance(value, Dim):
                    self._symbols.update(dict.fromkeys(dim_symbols(value)))
                return text(value)
        return f"<unsupported {type(value).__name__}: {value!r:.80}>"


class _BriefPrinter(GraphPrinter):
    """Prints bodies as their names."""

    def body(self, graph: Graph, indent: str) -> str:
        return f"graph {_name_text(graph.name)} {{...}}"


# A bool is an int in Python, so it comes first.
_SCALARS: tuple[tuple[type, Any], ...] = (
    (bool, lambda value: "true" if value else "false"),
    (int, lambda value: str(int(value))),
    (float, lambda value: _as_float(repr(float(value)))),
    (str, quote),
    (Dim, _dim_text),
    (DType, str),
    (Constant, _constant_text),
)


def _ref(value: Value, numbers: Mapping[Value, int]) -> str:
    number = numbers.get(value)
    return "%?" if number is None else f"%{number}"


def _input_value(graph: Graph, index: int) -> Any:
    return graph.inputs[index].value if 0 <= index < len(graph.inputs) else None
