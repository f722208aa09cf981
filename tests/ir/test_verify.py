"""Each invariant of the verifier has a graph that breaks it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from frame.core.devices import Device
from frame.core.errors import InternalError, InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir import verify as verifier
from frame.ir.graph import (
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
from frame.ir.verify import is_attribute, verify
from tests.ir.graphs import mlp, tensor

T = tensor(2)


def relu(x: Value, type_=T, **attributes) -> Node:
    return Node("t_relu", (x,), attributes, (type_,), 0)


def entry(name="x", type_=T) -> GraphInput:
    return GraphInput(Value(type_), name=name)


def graph(inputs, nodes, outputs=None, **rest) -> Graph:
    outputs = nodes[-1].results if outputs is None else outputs
    rest.setdefault("locations", (Location("mlp.0", "model.py:7"),))
    return Graph(tuple(inputs), tuple(nodes), tuple(outputs), name="g", **rest)


X = entry()
GOOD = relu(X.value)


def cyclic() -> Graph:
    first = relu(X.value)
    second = relu(first.results[0])
    object.__setattr__(first, "operands", second.results)
    return graph([X], [first, second])


def forged_result() -> Graph:
    node = relu(X.value)
    object.__setattr__(node, "results", GOOD.results)
    return graph([X], [node])


def body_of_outer_value() -> Graph:
    inner = Graph((entry("y"),), (), (X.value,), name="body")
    node = Node("t_loop", (X.value,), {"body": inner}, (T,), 0)
    return graph([X], [node])


def loop(body: Graph) -> Graph:
    return graph([X], [Node("t_loop", (X.value,), {"body": body}, (T,), 0)])


def with_input(type_) -> Graph:
    value = Value(type_)
    return Graph((GraphInput(value, name="x"),), (), (value,), name="g")


BROKEN = {
    "V1 node twice": (graph([X], [GOOD, GOOD]), "V1: the value .* is defined twice.*%1 = t_relu"),
    "V1 input twice": (graph([X, X], [GOOD]), "V1: .* defined twice"),
    "V1 input of a node": (
        graph([GraphInput(GOOD.results[0], name="x")], [], GOOD.results),
        "V1: the input 'x' is the result of a node",
    ),
    "V1 forged": (forged_result(), "V1: result 0 does not lead back"),
    "V2 missing": (graph([], [GOOD]), "V2: operand 0 is defined by no input and no node"),
    "V2 order": (graph([X], [relu(GOOD.results[0]), GOOD]), "V2: operand 0 is defined only later"),
    "V2 cycle": (cyclic(), "V2: operand 0 is defined only later in the order, or in a cycle"),
    "V2 output": (graph([X], [], GOOD.results), "V2: output 0 is defined by no input"),
    "V2 update": (
        graph([X], [], [X.value], updates=(StateUpdate(0, GOOD.results[0]),)),
        "V2: the update of 'x' is defined by no",
    ),
    "V3": (
        graph([X], [Node("t_rleu", (X.value,), {}, (T,), 0)]),
        r"V3: there is no op named 't_rleu'; did you mean .*; in the graph 'g', node %1 = "
        r"t_rleu\(%0\) : float32\[2\] \(mlp\.0, model\.py:7\)$",
    ),
    "V4 type": (
        graph([X], [relu(X.value, tensor(3))]),
        r"V4: result 0 must have the type float32\[2\], the node states float32\[3\]",
    ),
    "V4 dtype": (graph([X], [relu(X.value, tensor(2, dtype="int32"))]), "V4: result 0 must have"),
    "V4 count": (
        graph([X], [Node("t_relu", (X.value,), {}, (T, T))]),
        "V4: the op gives 1 results, the node states 2",
    ),
    "V4 operands": (graph([X], [Node("t_add", (X.value,), {}, (T,))]), "V4: t_add takes the oper"),
    "V4 attribute": (graph([X], [relu(X.value, slope=1)]), "V4: t_relu has no attribute 'slope'"),
    "V4 missing attribute": (
        graph([X], [Node("t_many", (X.value,), {}, (T, T))]),
        "V4: the attribute 'kernel' is missing",
    ),
    "V4 not canonical": (
        graph([X], [Node("t_many", (X.value,), {"kernel": (True, 2)}, (T, T))]),
        "V4: attribute 'kernel' of t_many must be of type ints",
    ),
    "V5 negative": (with_input(TensorType(T.dtype, (-2,))), "V5: -2 is not a size"),
    "V5 numpy size": (with_input(TensorType(T.dtype, (np.int64(2),))), "V5: .* is not a size"),
    "V5 overflow": (with_input(TensorType(T.dtype, (2**32, 2**32))), r"V5: .*2\*\*62"),
    "V5 layout": (
        with_input(tensor(2, 3, layout=Layout((0, 0)))),
        "V5: the layout of .* must order",
    ),
    "V5 block": (with_input(tensor(2, layout=Layout(blocks=((1, 4),)))), "V5: a block of the layo"),
    "V5 symbolic block": (
        with_input(tensor("n", layout=Layout(blocks=((0, 4),)))),
        "V5: size n is not divisible by 4",
    ),
    "V5 unbound": (
        graph([X], [Node("t_view", (X.value,), {"shape": (Dim.symbol("n"),)}, (tensor("n"),))]),
        "V5: no input shape binds the symbol 'n'; in the graph 'g', node %1 = t_view",
    ),
    "V6": (
        graph([X, entry("y", tensor(2, device=Device("gpu")))], [GOOD]),
        "V6: expected the device cpu:0, received .*gpu:0",
    ),
    "V6 body": (loop(with_input(tensor(2, device=Device("gpu")))), "V6: expected the device cpu:0"),
    "V7 list": (graph([X], [relu(X.value, a=[1])]), "V7: the attribute 'a' has the type list"),
    "V7 numpy": (graph([X], [relu(X.value, a=np.float64(1))]), "V7: .* has the type float64"),
    "V8 type": (
        graph([X], [relu(X.value, T)], updates=(StateUpdate(0, Value(tensor(3))),)),
        "V2: the update of 'x'",
    ),
    "V8 unequal": (
        graph([X, entry("y", tensor(3))], [GOOD], updates=(StateUpdate(1, X.value),)),
        "V8: the update of 'y' must have its type",
    ),
    "V8 twice": (
        graph([X], [GOOD], updates=(StateUpdate(0, X.value),) * 2),
        "V8: an update must name an input, each at most once, received 0",
    ),
    "V8 no input": (
        graph([X], [GOOD], updates=(StateUpdate(4, X.value),)),
        "V8: an update must name an input, each at most once, received 4",
    ),
    "V8 body": (
        loop(graph([entry("y")], [], [X.value], updates=(StateUpdate(0, X.value),))),
        "V10|V8",
    ),
    "V9 twice": (
        graph([X, entry("x")], [GOOD]),
        "V9: expected a unique name .* received 'x' twice",
    ),
    "V9 empty": (graph([X, entry("")], [GOOD]), "V9: input 1 has no name"),
    "V9 outputs": (
        graph([X], [GOOD], output_names=("a", "b")),
        "V9: there are 1 outputs and 2 names",
    ),
    "V10": (body_of_outer_value(), "V10: output 0 is a value of a graph around this body; pass it"),
    "V10 node": (
        loop(graph([entry("y")], [relu(X.value)])),
        "V10: operand 0 is a value of a graph around this body.*in the graph 'g'",
    ),
    "V11": (graph([X], [GOOD], []), "V11: a graph must have an output or an update"),
    "V11 body": (loop(graph([entry("y")], [], [])), "V11"),
}


@pytest.mark.parametrize("case", BROKEN, ids=BROKEN)
def test_broken_graphs(case):
    broken, message = BROKEN[case]
    with pytest.raises(InvalidArgumentError, match=message):
        verify(broken)


def test_every_invariant_is_broken_by_a_case():
    numbered = set(re.findall(r"(?m)^ *(V[0-9]+) ", verifier.__doc__))
    assert numbered == {name.split()[0] for name in BROKEN} and len(numbered) == 11


def test_updates_of_a_body_are_refused():
    inner = entry("y")
    body = Graph((inner,), (), (inner.value,), (StateUpdate(0, inner.value),), name="b")
    with pytest.raises(InvalidArgumentError, match="V8: only the top graph has updates"):
        verify(loop(body))


def test_sound_graphs():
    verify(mlp())
    verify(graph([X], [GOOD]))
    verify(with_input(tensor(0, 3)))


def test_symbols_bound_from_outside():
    node = Node("t_view", (X.value,), {"shape": (Dim.symbol("n"),)}, (tensor("n"),))
    verify(graph([X], [node]), symbols=("n",))


def test_symbols_of_the_outer_graph_are_bound_in_a_body():
    inner = entry("y")
    node = Node("t_view", (inner.value,), {"shape": (Dim.symbol("n"),)}, (tensor("n"),))
    body = Graph((inner,), (node,), node.results, name="b")
    outer = Node("t_loop", (X.value,), {"body": body}, (tensor("n"),))
    verify(graph([X, entry("sized", tensor("n"))], [outer]))


def test_a_layout_may_differ_from_the_inferred_one():
    packed = tensor(2, 4, layout=Layout((1, 0)))
    value = Value(tensor(2, 4))
    node = Node("t_view", (value,), {"shape": (2, 4)}, (packed,))
    verify(Graph((GraphInput(value, Role.PARAMETER, "w"),), (node,), node.results))


def test_nodes_are_immutable():
    with pytest.raises(InternalError, match="immutable"):
        GOOD.op = "t_add"
    with pytest.raises(TypeError):
        GOOD.attributes["a"] = 1


@pytest.mark.parametrize("value", [None, [1], {1: 2}, (1, (2,)), np.int32(1), b"", 2**64, object()])
def test_outside_the_closed_set(value):
    assert not is_attribute(value)


@pytest.mark.parametrize(
    "value", [1, 1.5, True, "s", (), (1, Dim.symbol("n")), Dim.symbol("n"), T.dtype, GOOD]
)
def test_inside_the_closed_set(value):
    assert is_attribute(value) == (value is not GOOD)
    assert is_attribute(Constant(np.zeros(2))) and is_attribute(mlp())
