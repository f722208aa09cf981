"""The strict parser of the text that `frame.ir.printer` prints; the grammar stands there.

Texts may come from anywhere: depth, counts, lengths and sizes are bounded, every name is looked up
in a closed table, and every error is an InvalidArgumentError that names the line and the column.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from frame.core.devices import HOST, Device
from frame.core.dtypes import DTYPES, DType
from frame.core.shapes import Dim, Size, as_shape
from frame.ir.graph import (
    MAX_DEPTH,
    ROW_MAJOR,
    Attribute,
    Constant,
    Graph,
    GraphInput,
    Layout,
    Location,
    Node,
    Role,
    StateUpdate,
    TensorType,
    Value,
)
from frame.ir.printer import INLINE_ELEMENTS, KEYWORDS
from frame.ir.scanner import Scanner, Token
from frame.ir.schema import check_types, find_schema, infer
from frame.ir.verify import check_layout, verify

MAX_NODES = 1_000_000
"""How many nodes and inputs a text may declare, bodies included."""

MAX_RANK = 64
MAX_ENTRIES = 1 << 16
"""The most entries of a list: results, operands, attributes, a tuple."""

_MAX_DEGREE = 16
_ROLES = frozenset(map(str, Role))


def parse_graph(text: str, constants: Mapping[str, np.ndarray] | None = None) -> Graph:
    """Return the graph that a text describes; its types are checked against each op's rule.

    Args:
        text: what `print_graph` prints, with or without names.
        constants: the arrays of constants that the text holds as digests, by digest.

    Raises:
        InvalidArgumentError: the text is not a graph; the message names line and column, what was
            expected and what was found.
    """
    parser = _GraphParser(Scanner(text), constants or {})
    graph = parser.top()
    with parser.scanner.located(Token("end", "", 0)):
        verify(graph, symbols=parser.declared)
    return graph


class _Scope:
    """The values, inputs and nodes of one graph while it is parsed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, Value] = {}
        self.inputs: list[GraphInput] = []
        self.input_names: set[str] = set()
        self.input_index: dict[Value, int] = {}
        self.nodes: list[Node] = []
        self.locations: list[Location] = []
        self.outputs: list[Value] = []
        self.output_names: list[str] = []
        self.updates: list[StateUpdate] = []

    def finish(self) -> Graph:
        names = tuple(self.output_names) if any(self.output_names) else ()
        return Graph(
            tuple(self.inputs),
            tuple(self.nodes),
            tuple(self.outputs),
            tuple(self.updates),
            self.name,
            names,
            tuple(self.locations),
        )


class _GraphParser:
    """Recursive descent, one method a rule of the grammar."""

    def __init__(self, scanner: Scanner, constants: Mapping[str, np.ndarray]) -> None:
        self.scanner = scanner
        self.declared: tuple[str, ...] = ()
        self._constants = constants
        self._used: dict[str, Token] = {}
        self._count = 0
        self._line = (0, 1)

    # --- graphs -------------------------------------------------------------------------------

    def top(self) -> Graph:
        """Parse the whole text."""
        self.scanner.expect("graph")
        name = self._graph_name()
        head = self.scanner.token
        if self.scanner.at("["):
            self.declared = tuple(self._list("[", "]", self._symbol))
        graph = self._body(name, 0)
        if self.scanner.token.kind != "end":
            self.scanner.fail("the end of the text")
        self._check_symbols(head)
        return graph

    def _check_symbols(self, head: Token) -> None:
        for symbol, token in self._used.items():
            if symbol not in self.declared:
                known = ", ".join(self.declared) or "none"
                self.scanner.refuse(
                    f"the symbol {symbol!r} is not declared in the head of the graph "
                    f"(declared: {known})",
                    token,
                )
        for symbol in self.declared:
            if symbol not in self._used:
                self.scanner.refuse(f"the symbol {symbol!r} is declared but never used", head)

    def _symbol(self) -> str:
        return self.scanner.expect_kind("name", "the name of a symbol").text

    def _graph_name(self) -> str:
        if not self.scanner.accept("@"):
            return "graph"
        if self.scanner.token.kind == "string":
            return self.scanner.string("a graph name")
        return self.scanner.expect_kind("name", "a graph name").text

    def _body(self, name: str, depth: int) -> Graph:
        if depth >= MAX_DEPTH:
            self.scanner.refuse(f"graphs are nested more than {MAX_DEPTH} deep")
        scope = _Scope(name)
        self.scanner.expect("{")
        while self._at_input():
            self._input(scope)
        while not self.scanner.at("return"):
            self._node(scope, depth)
        self._return(scope)
        while self.scanner.at("update"):
            self._update(scope, depth)
        self.scanner.expect("}")
        return scope.finish()

    def _at_input(self) -> bool:
        return self.scanner.ahead.text == "=" and self.scanner.beyond.text == "input"

    def _input(self, scope: _Scope) -> None:
        token = self._new_value(scope)
        self.scanner.expect("=")
        self.scanner.expect("input")
        here = self.scanner.token
        named = here.kind == "string"
        name = self.scanner.string("an input name") if named else f"arg{len(scope.inputs)}"
        if name in scope.input_names:
            self.scanner.refuse(f"the graph has an input named {name!r} already", here)
        role = self._role()
        self.scanner.expect(":")
        value = Value(self._type())
        scope.input_index[value] = len(scope.inputs)
        scope.inputs.append(GraphInput(value, role, name))
        scope.input_names.add(name)
        self._define(scope, token, value)

    def _role(self) -> Role:
        for text in ("{", "role", "="):
            self.scanner.expect(text)
        token = self.scanner.expect_kind("name", "a role")
        if token.text not in _ROLES:
            self.scanner.fail(f"one of the roles {', '.join(Role)}", token)
        self.scanner.expect("}")
        return Role(token.text)

    def _node(self, scope: _Scope, depth: int) -> None:
        first, line = self.scanner.token, self._line_of(self.scanner.token)
        results = self._results(scope)
        op = self.scanner.expect_kind("name", "an op, 'return' or a value to define")
        if op.text in ("input", "update"):
            self.scanner.fail("an op or 'return' (inputs come first, updates after 'return')", op)
        operands = tuple(self._list("(", ")", lambda: self._value(scope)))
        attributes = self._attributes(depth)
        types: tuple[TensorType, ...] = ()
        if results:
            self.scanner.expect(":")
            types = tuple(self._items(self._type))
        self._count_one(first)
        with self.scanner.located(op):
            node = self._make(op.text, operands, attributes, types, len(scope.nodes))
        if len(types) != len(results):
            self.scanner.refuse(
                f"expected as many values as results, found {len(results)} and {len(types)}", first
            )
        scope.nodes.append(node)
        scope.locations.append(Location("", f"graph text, line {line}", op.text))
        for token, value in zip(results, node.results, strict=True):
            self._define(scope, token, value)

    def _results(self, scope: _Scope) -> list[Token]:
        if self.scanner.token.kind != "value":
            return []
        results = self._items(lambda: self._new_value(scope))
        texts = [token.text for token in results]
        if len(set(texts)) != len(texts):
            self.scanner.refuse("a value is defined twice", results[0])
        self.scanner.expect("=")
        return results

    def _make(
        self,
        op: str,
        operands: tuple[Value, ...],
        attributes: Mapping[str, Attribute],
        types: tuple[TensorType, ...],
        origin: int,
    ) -> Node:
        schema = find_schema(op)
        normal, inferred = infer(schema, tuple(value.type for value in operands), attributes)
        check_types(inferred, types)
        return Node(op, operands, normal, types, origin)

    def _line_of(self, token: Token) -> int:
        """Return the line of a token; offsets only grow, so the sum over all calls is linear."""
        offset, line = self._line
        line += self.scanner.text.count("\n", offset, token.offset)
        self._line = (token.offset, line)
        return line

    def _return(self, scope: _Scope) -> None:
        self.scanner.expect("return")
        if self.scanner.token.kind != "value":
            return
        for value, name in self._items(lambda: self._output(scope)):
            scope.outputs.append(value)
            scope.output_names.append(name)

    def _output(self, scope: _Scope) -> tuple[Value, str]:
        value = self._value(scope)
        return value, self.scanner.string("an output name") if self.scanner.accept("as") else ""

    def _update(self, scope: _Scope, depth: int) -> None:
        word = self.scanner.expect("update")
        if depth:
            self.scanner.refuse("only the top graph has state updates, not a body", word)
        here = self.scanner.token
        index = scope.input_index.get(self._value(scope))
        if index is None:
            self.scanner.fail("an input of the graph to update", here)
        self.scanner.expect("=")
        scope.updates.append(StateUpdate(index, self._value(scope)))

    # --- values -------------------------------------------------------------------------------

    def _new_value(self, scope: _Scope) -> Token:
        token = self.scanner.expect_kind("value", "a value such as %0")
        if token.text in scope.values:
            self.scanner.refuse(f"{token.text} is defined already", token)
        return token

    def _define(self, scope: _Scope, token: Token, value: Value) -> None:
        scope.values[token.text] = value
        if value.node is None:
            self._count_one(token)

    def _count_one(self, token: Token) -> None:
        self._count += 1
        if self._count > MAX_NODES:
            self.scanner.refuse(f"the text has more than {MAX_NODES} nodes and inputs", token)

    def _value(self, scope: _Scope) -> Value:
        token = self.scanner.expect_kind("value", "a value such as %0")
        value = scope.values.get(token.text)
        if value is None:
            self._refuse_undefined(token)
        return value

    def _refuse_undefined(self, token: Token) -> NoReturn:
        definition = re.compile(
            rf"^[ \t]*(?:%[0-9]+, )*{re.escape(token.text)}(?:, %[0-9]+)* *=", re.MULTILINE
        ).search(self.scanner.text, token.offset)
        later = ""
        if definition is not None:
            line = self.scanner.text.count("\n", 0, definition.start()) + 1
            later = f"; line {line} defines a value of that name: a forward or cyclic reference"
        self.scanner.refuse(
            f"{token.text} is not defined above its use in this graph (a value is defined once, "
            f"before its readers, and a body sees none of the values around it){later}",
            token,
        )

    # --- types --------------------------------------------------------------------------------

    def _type(self) -> TensorType:
        start = self.scanner.token
        element = self._dtype()
        sizes = tuple(self._list("[", "]", self._size))
        if len(sizes) > MAX_RANK:
            self.scanner.refuse(f"a type has at most {MAX_RANK} dimensions", start)
        layout = self._layout() if self.scanner.at("<") else ROW_MAJOR
        with self.scanner.located(start):
            type_ = TensorType(element, as_shape(sizes), layout, self._device())
            check_layout(type_)
        return type_

    def _dtype(self) -> DType:
        token = self.scanner.expect_kind("name", "a dtype")
        if token.text not in DTYPES:
            self.scanner.fail(f"one of the dtypes {', '.join(DTYPES)}", token)
        return DTYPES[token.text]

    def _layout(self) -> Layout:
        permutation = self._list("<", "|", lambda: self.scanner.integer("an axis", 4))
        blocks: list[tuple[int, int]] = []
        if not self.scanner.at(">", "|"):
            blocks = self._items(self._block)
        transformed = self.scanner.accept("|")
        winograd = self.scanner.integer("the results of a tile", 4) if transformed else 0
        self.scanner.expect(">")
        return Layout(tuple(permutation), tuple(blocks), winograd)

    def _block(self) -> tuple[int, int]:
        axis = self.scanner.integer("an axis", 4)
        self.scanner.expect(":")
        return axis, self.scanner.integer("a block size", 9)

    def _device(self) -> Device:
        if not self.scanner.accept("@"):
            return HOST
        backend = self.scanner.expect_kind("name", "a backend").text
        self.scanner.expect(":")
        return Device(backend, self.scanner.integer("a device index", 4))

    def _size(self) -> Size:
        """Parse a sum of products of integers and symbols."""
        start = self.scanner.token
        negative = self.scanner.accept("-")
        total = -self._product() if negative else self._product()
        while self.scanner.at("+", "-"):
            sign = self.scanner.take().text
            term = self._product()
            with self.scanner.located(start):
                total = total + term if sign == "+" else total - term
        return total

    def _product(self) -> Size:
        start = self.scanner.token
        total = self._factor()
        for _ in range(_MAX_DEGREE):
            if not self.scanner.accept("*"):
                return total
            factor = self._factor()
            with self.scanner.located(start):
                total = total * factor
        self.scanner.refuse(f"a product of sizes has at most {_MAX_DEGREE} factors", start)

    def _factor(self) -> Size:
        if self.scanner.token.kind == "name":
            token = self.scanner.take()
            self._used.setdefault(token.text, token)
            with self.scanner.located(token):
                return Dim.symbol(token.text)
        if self.scanner.token.kind != "integer":
            self.scanner.fail("a size (an integer or a symbol)")
        return self.scanner.integer("a size")

    # --- attributes ---------------------------------------------------------------------------

    def _attributes(self, depth: int) -> dict[str, Attribute]:
        attributes: dict[str, Attribute] = {}
        if self.scanner.at("{"):
            for token, value in self._list("{", "}", lambda: self._attribute(depth)):
                if token.text in attributes:
                    self.scanner.refuse(f"the attribute {token.text!r} is given twice", token)
                attributes[token.text] = value
        return attributes

    def _attribute(self, depth: int) -> tuple[Token, Attribute]:
        name = self.scanner.expect_kind("name", "the name of an attribute")
        self.scanner.expect("=")
        return name, self._attribute_value(depth)

    def _attribute_value(self, depth: int) -> Attribute:
        if self.scanner.at("("):
            return self._tuple()
        if self._is_keyword("graph"):
            self.scanner.take()
            return self._body(self._graph_name(), depth + 1)
        if self.scanner.token.text in DTYPES and self.scanner.ahead.text == "[":
            return self._constant()
        return self._scalar()

    def _is_keyword(self, *words: str) -> bool:
        """Tell whether the current token is a keyword and not a symbol in a size."""
        return self.scanner.at(*words) and self.scanner.ahead.text not in ("*", "+", "-")

    def _tuple(self) -> tuple[Attribute, ...]:
        self.scanner.expect("(")
        items: list[Attribute] = []
        while not self.scanner.accept(")"):
            if len(items) >= MAX_ENTRIES:
                self.scanner.refuse(f"a tuple has at most {MAX_ENTRIES} entries")
            items.append(self._scalar())
            if not self.scanner.at(")"):
                self.scanner.expect(",")
            elif len(items) == 1:
                self.scanner.fail("',' (a tuple of one entry is written with a comma)")
        return tuple(items)

    def _scalar(self) -> Attribute:
        token = self.scanner.token
        if token.kind == "string":
            return self.scanner.string("a string")
        if self._is_keyword(*KEYWORDS - {"nan", "inf"}):
            return self._keyword()
        if token.kind == "float" or self._is_keyword("nan", "inf"):
            return self._float()
        if self.scanner.at("-") and self._negative_float_follows():
            self.scanner.take()
            return -self._float()
        return self._integer_or_size()

    def _negative_float_follows(self) -> bool:
        ahead, beyond = self.scanner.ahead, self.scanner.beyond
        special = ahead.text in ("nan", "inf") and beyond.text not in ("*", "+", "-")
        return ahead.kind == "float" or special

    def _keyword(self) -> Attribute:
        token = self.scanner.take()
        if token.text in DTYPES:
            return DTYPES[token.text]
        if token.text == "graph":
            self.scanner.fail("a scalar", token)
        return token.text == "true"

    def _float(self) -> float:
        token = self.scanner.take()
        if len(token.text) > 400:
            self.scanner.refuse("a number has at most 400 characters", token)
        return float(token.text)

    def _integer_or_size(self) -> Size:
        start = self.scanner.token
        value = self._size()
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            self.scanner.refuse(f"an integer must fit in 64 bits, found {value}", start)
        return value

    def _constant(self) -> Constant:
        start = self.scanner.token
        element = self._dtype()
        sizes = tuple(self._list("[", "]", lambda: self.scanner.integer("a size")))
        with self.scanner.located(start):
            shape = as_shape(sizes)
        if len(shape) > MAX_RANK:
            self.scanner.refuse(f"a constant has at most {MAX_RANK} dimensions", start)
        if self.scanner.token.kind == "digest":
            return self._pooled(element, sizes)
        items = self._list("(", ")", lambda: self._element(element))
        if len(items) != np.prod(sizes, dtype=object) or len(items) > INLINE_ELEMENTS:
            self.scanner.refuse(
                f"expected one element (of at most {INLINE_ELEMENTS}) for each place of the shape "
                f"{list(sizes)}, found {len(items)}",
                start,
            )
        # Joined as bytes: a conversion of lists would quiet the bits of some NaNs.
        data = b"".join(item.tobytes() for item in items)
        return Constant(np.frombuffer(data, element.numpy).reshape(sizes))

    def _pooled(self, element: DType, sizes: tuple[int, ...]) -> Constant:
        token = self.scanner.take()
        array = self._constants.get(token.text[1:])
        if array is None:
            self.scanner.refuse(
                f"the constant {token} is not among the {len(self._constants)} arrays given", token
            )
        with self.scanner.located(token):
            constant = Constant(array)
        found = constant.array
        if constant.digest != token.text[1:] or found.size <= INLINE_ELEMENTS:
            self.scanner.refuse(f"the array given for the constant {token} has another digest")
        if (found.dtype, found.shape) != (element.numpy, sizes):
            self.scanner.refuse(
                f"expected an array of {element}{list(sizes)} for the constant, received "
                f"{found.dtype}{list(found.shape)}",
                token,
            )
        return constant

    def _element(self, element: DType) -> np.generic:
        token = self.scanner.token
        if element.is_bool:
            value: Any = self._bool_element()
        elif element.is_float:
            value = self._float_element(element)
        else:
            value = self._integer_element()
        result = _convert(value, element)
        if result is None:
            self.scanner.fail(f"a value in the range of {element}", token)
        return result

    def _bool_element(self) -> bool:
        if not self.scanner.at("true", "false"):
            self.scanner.fail("'true' or 'false'")
        return self.scanner.take().text == "true"

    def _integer_element(self) -> int:
        negative = self.scanner.accept("-")
        value = self.scanner.integer("an integer")
        return -value if negative else value

    def _float_element(self, element: DType) -> Any:
        if self.scanner.at("nan") and self.scanner.ahead.text == "(":
            return self._nan(element)
        negative = self.scanner.accept("-")
        if self.scanner.token.kind != "float" and not self.scanner.at("nan", "inf"):
            self.scanner.fail("a float such as 1.0")
        value = self._float()
        return -value if negative else value

    def _nan(self, element: DType) -> np.generic:
        self.scanner.take()
        self.scanner.expect("(")
        token = self.scanner.expect_kind("hex", "the bits of a NaN in hexadecimal")
        bits = int(token.text, 16) if len(token.text) <= 18 else 1 << 64
        if bits >> element.bits:
            self.scanner.fail(f"at most {element.bits} bits", token)
        value = np.frombuffer(bits.to_bytes(element.itemsize, sys.byteorder), element.numpy)[0]
        if value == value:
            self.scanner.fail("the bits of a NaN", token)
        self.scanner.expect(")")
        return value

    # --- lists --------------------------------------------------------------------------------

    def _items(self, parse: Callable[[], Any]) -> list[Any]:
        items = [parse()]
        while self.scanner.accept(","):
            if len(items) >= MAX_ENTRIES:
                self.scanner.refuse(f"a list has at most {MAX_ENTRIES} entries")
            items.append(parse())
        return items

    def _list(self, opening: str, closing: str, parse: Callable[[], Any]) -> list[Any]:
        self.scanner.expect(opening)
        items = [] if self.scanner.at(closing) else self._items(parse)
        self.scanner.expect(closing)
        return items


def _convert(value: Any, element: DType) -> Any:
    """Return a number as an element, or None where it is out of range."""
    try:
        with np.errstate(over="ignore"):
            result = np.array(value, element.numpy)[()]
    except (OverflowError, ValueError):
        return None
    if element.is_integer:
        return result if int(result) == value else None
    return None if math.isinf(float(result)) and not math.isinf(float(value)) else result
