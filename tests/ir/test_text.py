"""The text of graphs: golden forms, round trips, and what the parser refuses."""

from __future__ import annotations

import random

import numpy as np
import pytest

from frame.core.devices import Device
from frame.core.dtypes import DTYPES, bfloat16, float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim, parse_dim
from frame.ir import parser, scanner
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Constant, Graph, GraphInput, Layout, Node, TensorType, Value
from frame.ir.parser import parse_graph
from frame.ir.printer import constant_pool, print_attribute, print_graph, print_node
from frame.ops.registry import create_node
from tests.ir.graphs import constant, mlp, op, tensor

MLP = """\
graph @mlp [batch] {
  %0 = input "x" {role=input} : float32[batch, 4]
  %1 = input "0.weight" {role=parameter} : float32[4, 4]
  %2 = t_matmul(%0, %1) : float32[batch, 4]
  %3 = t_relu(%2) : float32[batch, 4]
  %4 = t_loop(%3, %1) {body=graph @step {
    %0 = input "carry" {role=carry} : float32[batch, 4]
    %1 = input "capture0" {role=capture} : float32[4, 4]
    %2 = t_matmul(%0, %1) : float32[batch, 4]
    %3 = t_add(%2, %0) : float32[batch, 4]
    return %3 as "output0"
  }} : float32[batch, 4]
  %5, %6 = t_many(%4) {kernel=(3, 3)} : float32[batch, 4], float32[batch, 4]
  %7 = t_constant() {value=float32[1](0.5)} : float32[1]
  %8 = t_add(%1, %7) : float32[4, 4]
  return %5 as "logits", %6 as "output1"
  update %1 = %8
}"""


def check_round_trip(graph: Graph, **options) -> Graph:
    text = print_graph(graph, **options)
    back = parse_graph(text, constant_pool(graph))
    assert print_graph(back, **options) == text
    return back


def with_attributes(**attributes) -> Graph:
    with GraphBuilder() as builder:
        x = builder.input(tensor("batch", "inf", "float32"))
        builder.output(op("t_every", x, **attributes))
    return builder.finish()


def test_golden_text():
    assert print_graph(mlp()) == MLP
    assert str(mlp()) == MLP


def test_text_without_names():
    text = print_graph(mlp(), names=False)
    assert text.startswith("graph [batch] {\n  %0 = input {role=input} : float32[batch, 4]\n")
    assert "body=graph {" in text and "return %5, %6\n" in text and '"' not in text
    back = check_round_trip(mlp(), names=False)
    assert [entry.name for entry in back.inputs] == ["arg0", "arg1"]


def test_round_trip_keeps_everything_but_locations():
    back = check_round_trip(mlp())
    assert back.name == "mlp" and back.output_names == ("logits", "output1")
    assert [str(entry.role) for entry in back.inputs] == ["input", "parameter"]
    assert back.updates[0].input_index == 1 and back.symbols == ("batch",)
    assert str(back.location(back.nodes[0])) == "graph text, line 4"
    assert str(back.location(back.nodes[3])) == "graph text, line 13"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1e-5, "1e-05"),
        (1e16, "1e+16"),
        (0.1, "0.1"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
    ],
)
def test_floats(value, text):
    assert print_attribute(value) == text
    back = check_round_trip(with_attributes(float=value, floats=(value,)))
    for found in (back.nodes[0].attributes["float"], back.nodes[0].attributes["floats"][0]):
        assert np.float64(found).tobytes() == np.float64(value).tobytes()


@pytest.mark.parametrize(
    "attributes",
    [
        {"int": -(2**63), "ints": (2**64 - 1, 0)},
        {"bool": True, "dtype": bfloat16},
        {"size": Dim.symbol("batch"), "shape": (parse_dim("2*batch*inf - batch + 3"), 7)},
        {"size": Dim.symbol("inf"), "shape": (-Dim.symbol("inf"), Dim.symbol("float32"))},
        {"size": -Dim.symbol("inf") + 3, "shape": (Dim.symbol("inf") * Dim.symbol("float32"),)},
        {"str": 'a"b\\c\n\t\r\x00\x7f é 雪 \U0001f600 \u202e // %1'},
        {"str": ""},
    ],
    ids=str,
)
def test_attributes_round_trip(attributes):
    graph = with_attributes(**attributes)
    back = check_round_trip(graph)
    assert dict(back.nodes[0].attributes) == dict(graph.nodes[0].attributes)


def test_a_symbol_named_like_a_keyword_is_no_keyword():
    graph = with_attributes(size=Dim.symbol("inf"))
    assert "size=1*inf" in print_graph(graph)
    assert "float32[batch, inf, float32]" in print_graph(graph)


def constants_of_every_kind():
    yield np.array([0.1, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3.4028235e38], np.float32)
    yield np.array([0.1, 6e-8, 65504, np.nan], np.float16)
    yield np.array([0.1, -0.0, 1e300, np.nan], np.float64)
    yield np.array([0.1, 3e38, np.nan, -np.inf], bfloat16.numpy)
    yield np.array([-128, 127], np.int8)
    yield np.array([2**64 - 1], np.uint64)
    yield np.array([[True], [False]])
    yield np.array(2.5)
    yield np.zeros((0, 3), np.int32)
    yield np.array([0xFFC00000, 0x7FC00001, 0x7F800001], np.uint32).view(np.float32)
    yield np.array([0xFE01, 0x7D01], np.uint16).view(np.float16)
    yield np.array([0xFFC1, 0x7F81], np.uint16).view(bfloat16.numpy)
    yield np.arange(-7, 8).astype(DTYPES["int4"].numpy)
    yield np.array([0.5, 448], DTYPES["float8_e4m3fn"].numpy)


@pytest.mark.parametrize(
    "array", list(constants_of_every_kind()), ids=lambda a: f"{a.dtype}{a.shape}"
)
def test_constants_keep_their_bits(array):
    with GraphBuilder() as builder:
        builder.output(op("t_constant", value=Constant(array)))
    back = check_round_trip(builder.finish())
    found = back.nodes[0].attributes["value"]
    assert found == Constant(array) and found.array.tobytes() == array.tobytes()


def test_every_float16_reads_back():
    bits = np.arange(1 << 16, dtype=np.uint16)[::97].view(np.float16)
    with GraphBuilder() as builder:
        for start in range(0, len(bits), 32):
            builder.output(op("t_constant", value=Constant(bits[start : start + 32])))
    back = check_round_trip(builder.finish())
    found = np.concatenate([node.attributes["value"].array for node in back.nodes])
    assert found.tobytes() == bits.tobytes()


def test_a_constant_above_the_inline_size_is_pooled():
    array = np.arange(33, dtype=np.float32)
    with GraphBuilder() as builder:
        builder.output(op("t_constant", value=Constant(array)))
    graph = builder.finish()
    text = print_graph(graph)
    digest = Constant(array).digest
    assert f"float32[33]#{digest}" in text and list(constant_pool(graph)) == [digest]
    check_round_trip(graph)
    with pytest.raises(InvalidArgumentError, match="line 2, column 39: .*not among the 0 arrays"):
        parse_graph(text)
    with pytest.raises(InvalidArgumentError, match="another digest"):
        parse_graph(text, {digest: array + 1})
    with pytest.raises(InvalidArgumentError, match="dtypes"):
        parse_graph(text, {digest: array.astype(complex)})
    wrong = text.replace("{value=float32[33]#", "{value=float32[3, 11]#")
    with pytest.raises(InvalidArgumentError, match="expected an array of float32"):
        parse_graph(wrong, {digest: array})


def test_big_endian_and_strided_constants_are_made_native():
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    assert Constant(array) == Constant(np.ascontiguousarray(array, np.float32))


def test_layouts_and_devices():
    blocked = TensorType(float32, (2, 16, 8, 8), Layout(blocks=((1, 16),)), Device("gpu", 1))
    turned = TensorType(float32, (3, 5), Layout((1, 0), ((1, 4), (0, 2))), Device("gpu", 1))
    values = (Value(blocked), Value(turned))
    graph = Graph(tuple(GraphInput(v, name=f"i{k}") for k, v in enumerate(values)), (), values)
    text = print_graph(graph)
    assert "float32[2, 16, 8, 8]<|1:16>@gpu:1" in text
    assert "float32[3, 5]<1,0|1:4,0:2>@gpu:1" in text
    assert [v.type for v in check_round_trip(graph).outputs] == [blocked, turned]
    assert blocked.storage_shape == (2, 1, 8, 8, 16) and turned.storage_shape == (2, 2, 4, 2)
    assert turned.nbytes == 128


def test_names_of_any_characters():
    names = ("line\nbreak", 'quote"', "ünïcode", " ")
    entries = tuple(GraphInput(Value(tensor(2)), name=name) for name in names)
    outputs = (entries[0].value,)
    graph = Graph(entries, (), outputs, name="a graph\u2028", output_names=("{}",))
    back = check_round_trip(graph)
    assert tuple(entry.name for entry in back.inputs) == names
    assert back.name == "a graph\u2028" and back.output_names == ("{}",)


def test_a_node_without_results():
    with GraphBuilder() as builder:
        x = builder.input(tensor(2))
        builder.output(x)
        create_node("t_sink", (x,), {})
    assert "\n  t_sink(%0)\n" in print_graph(builder.finish())
    check_round_trip(builder.finish())


def test_comments_and_free_spacing():
    text = MLP.replace("{\n", "{ // a comment with %9 = \n\n").replace(", ", " ,\t")
    assert print_graph(parse_graph(text)) == MLP


def test_broken_graphs_still_print():
    stray = Value(tensor(2))
    node = Node("t_relu", (stray,), {"odd": [1]}, (tensor(2),))
    text = print_graph(Graph((), (node,), node.results))
    assert "%0 = t_relu(%?) {odd=<unsupported list: [1]>} : float32[2]" in text
    assert print_node(node).startswith("%? = t_relu(%?)")


HEAD = 'graph @g {\n  %0 = input "x" {role=input} : float32[2]\n'
REFUSED = [
    ("", "line 1, column 1: expected 'graph', found the end of the text"),
    ("graph @g", "line 1, column 9: expected '{', found the end of the text"),
    ("graph @g {\n}", "line 2, column 1: expected an op, 'return' or a value to define, found '}'"),
    (HEAD + "  return %0\n}\n$", "line 5, column 1: expected the end of the text, found '.'"),
    (HEAD + "  return %1\n}", "line 3, column 10: %1 is not defined above its use"),
    (HEAD + "  return\n}", "V11: a graph must have an output"),
    (
        HEAD + "  %1 = t_relu(%2) : float32[2]\n  %2 = t_relu(%1) : float32[2]\n  return %2\n}",
        "line 3, column 15: %2 is not defined above its use .* line 4 defines .* cyclic",
    ),
    (HEAD + "  %0 = t_relu(%0) : float32[2]\n  return %0\n}", "line 3, column 3: %0 is defined al"),
    (HEAD + "  %1, %1 = t_many(%0) : float32[2]\n", "line 3, column 3: a value is defined twice"),
    (
        HEAD + "  %1 = t_relux(%0) : float32[2]\n",
        "line 3, column 8: there is no op named 't_relux'",
    ),
    (
        HEAD + "  %1 = t_relu(%0) : float32[3]\n",
        r"line 3, column 8: result 0 must have the type float32\[2\], the node states float32\[3\]",
    ),
    (HEAD + "  %1 = t_relu(%0) : float32[2], float32[2]\n", "the op gives 1 results, the node"),
    (HEAD + "  %1 = t_many(%0) : float32[2], float32[2]\n", "as many values as results, found 1"),
    (HEAD + "  %1 = t_relu(%0) {a=1} : float32[2]\n", "t_relu has no attribute 'a'"),
    (HEAD + "  %1 = t_many(%0) {kernel=2.0} : float32[2]\n", "'kernel' of t_many must be of type"),
    (HEAD + "  %1 = t_many(%0) {kernel=(2)} : float32[2]\n", "one entry is written with a comma"),
    (HEAD + "  %1 = t_every(%0) {int=1, int=1} : float32[2]\n", "'int' is given twice"),
    (HEAD + f"  %1 = t_every(%0) {{int={2**64}}} : float32[2]\n", "must fit in 64 bits"),
    (HEAD + "  %1 = t_every(%0) {int=" + "9" * 5000 + "}\n", "an integer|at most 20 digits|longer"),
    (HEAD + "  %1 = t_absurd(%0) : float32[2]\n", "column 8: t_absurd .* failed with IndexError"),
    (
        HEAD + '  %1 = input "x" {role=input} : float32[2]\n',
        "line 3, column 14: .* named 'x' already",
    ),
    (HEAD + '  %1 = input "y" {role=king} : float32[2]\n', "one of the roles input, parameter"),
    (HEAD + '  %1 = input "y" {role=input} : float31[2]\n', "one of the dtypes float64"),
    (HEAD + '  %1 = input "y" {role=input} : float32[-2]\n', "expected a size"),
    (HEAD + '  %1 = input "y" {role=input} : float32[n]\n  return %0\n}', "'n' is not declared"),
    (HEAD + f'  %1 = input "y" {{role=input}} : float32[{2**32}, {2**32}]\n', r"2\*\*62"),
    (HEAD + '  %1 = input "y" {role=input} : float32[2]<0,1|>\n', "must order the axes 0 to 0"),
    (HEAD + '  %1 = input "y" {role=input} : float32[2]<|0:0>\n', "a block of the layout"),
    (HEAD + "  return %0\n  update %0 = %1\n}", "line 4, column 15: %1 is not defined"),
    (
        HEAD + "  %1 = t_relu(%0) : float32[2]\n  return %0\n  update %1 = %0\n}",
        "line 5, column 10: expected an input of the graph to update, found '%1'",
    ),
    (
        HEAD + "  return %0\n  update %0 = %0\n  update %0 = %0\n}",
        "V8: an update must name an inpu",
    ),
    (HEAD + '  return %0 as "open\n}', "line 4, column 13: expected an output name|an output name"),
    (HEAD + r'  return %0 as "\q"' + "\n}", r"unknown escape '\\\\q'"),
    (HEAD + r'  return %0 as "\Uffffffff"' + "\n}", "unknown escape"),
    ("graph @g [n] {\n  return\n}", "line 1, column 10: the symbol 'n' is declared but never used"),
    (HEAD + "  %1 = t_constant() {value=float32[2](1.0)} : float32[2]\n", "one element .* found 1"),
    (HEAD + "  %1 = t_constant() {value=int8[1](300)} : int8[1]\n", "in the range of int8"),
    (HEAD + "  %1 = t_constant() {value=int4[1](9)} : int4[1]\n", "in the range of int4"),
    (
        HEAD + "  %1 = t_constant() {value=float16[1](7e9)} : float16[1]\n",
        "in the range of float16",
    ),
    (HEAD + "  %1 = t_constant() {value=float32[1](nan(0x1))} : float32[1]\n", "the bits of a NaN"),
    (HEAD + f"  %1 = t_constant() {{value=float32[{2**62}, 4](1.0)}} :", "no memory can hold it"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused_texts(text, message):
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        parse_graph(text)
    assert str(caught.value).startswith("line ")


def test_a_body_sees_no_value_from_around_it():
    outside = MLP.replace("t_matmul(%0, %1)", "t_matmul(%0, %7)").replace(
        "%2 = t_matmul(%0, %7) : float32[batch, 4]\n  %3 = t_relu", "%3 = t_relu"
    )
    with pytest.raises(InvalidArgumentError, match="a body sees none of the values around it"):
        parse_graph(outside)
    with pytest.raises(InvalidArgumentError, match="only the top graph has state updates"):
        parse_graph(MLP.replace('%3 as "output0"', "%3 update %1 = %1"))


def nested(depth: int) -> str:
    text = ""
    for level in range(depth + 1):
        body = f"graph {{ %0 = input {{role=input}} : float32[1]\n{text} return %0 }}"
        text = f"%1 = t_loop(%0) {{body={body}}} : float32[1]\n" if level < depth else body
    return text


def test_hostile_texts_are_bounded(monkeypatch):
    parse_graph(nested(parser.MAX_DEPTH - 1))
    with pytest.raises(InvalidArgumentError, match="nested more than 16 deep"):
        parse_graph(nested(parser.MAX_DEPTH))
    with pytest.raises(InvalidArgumentError, match="expected"):
        parse_graph("graph {" * 100_000)
    with pytest.raises(InvalidArgumentError, match="longer than 4096"):
        parse_graph(f"graph @{'a' * 5000} {{")
    monkeypatch.setattr(parser, "MAX_NODES", 3)
    with pytest.raises(InvalidArgumentError, match="more than 3 nodes"):
        parse_graph(MLP)
    monkeypatch.setattr(scanner, "MAX_TEXT", 10)
    with pytest.raises(InvalidArgumentError, match="at most 10 characters"):
        parse_graph(MLP)


@pytest.mark.parametrize("text", [None, b"graph", 3], ids=str)
def test_not_a_text(text):
    with pytest.raises(InvalidArgumentError, match="the text of a graph"):
        parse_graph(text)


def mutate(text: str, source: random.Random) -> str:
    pieces = ["%0", "%7", "{", "}", "(", ")", ",", "=", '"', "-", "*", "nan", "inf", "batch", "99"]
    pieces += ["float32", "graph", "return", "update", "[", "]", "<", "1:0", "@", "\\", "\0", "é"]
    for _ in range(source.randint(1, 4)):
        start = source.randrange(len(text) + 1)
        stop = min(len(text), start + source.choice([0, 0, 1, 2, 5, 40]))
        text = text[:start] + source.choice([*pieces, ""]) + text[stop:]
    return text


def test_mutated_texts_give_a_graph_or_a_located_error():
    rich = print_graph(with_attributes(size=Dim.symbol("inf"), shape=(Dim.symbol("batch"), 3)))
    source = random.Random(20260801)
    outcomes = {"graph": 0, "error": 0}
    for text in [MLP] * 500 + [rich] * 500:
        try:
            graph = parse_graph(mutate(text, source))
        except InvalidArgumentError as error:
            assert str(error).startswith("line ")
            outcomes["error"] += 1
        else:
            printed = print_graph(graph)
            assert print_graph(parse_graph(printed)) == printed
            outcomes["graph"] += 1
    assert min(outcomes.values()) > 10


def test_integers_beyond_the_element_type():
    with pytest.raises(InvalidArgumentError, match="uint64"):
        parse_graph("graph { %0 = t_constant() {value=uint64[1](-1)} : uint64[1] return %0 }")


def test_scalars_of_a_constant_node():
    with GraphBuilder() as builder:
        builder.output(constant(True, False, dtype="bool"))
    assert "bool[2](true, false)" in print_graph(builder.finish())
