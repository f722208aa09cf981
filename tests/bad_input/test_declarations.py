"""What `spec`, `trace`, `compile` and `jit` say to declarations that can not be meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.core import config
from frame.core.errors import FrameError, InvalidArgumentError, NotFoundError
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph
from frame.ir.parser import parse_graph
from frame.train import SGD

ONE = [frame.spec((3,))]


def _double(x: Any) -> Any:
    return x * 2.0


SPECS: dict[str, tuple[Any, str]] = {
    "negative": (((-1, 3),), "expected a size .* received -1"),
    "fraction": (((1.5, 3),), "expected a size .* received 1.5"),
    "truth": (((True, 3),), "expected a size .* received True"),
    "none": (((None, 3),), "expected a size .* received None"),
    "one beyond": (((2**63,),), "expected a size .* received 9223372036854775808"),
    "rank": (((1,) * 65,), "at most 64 dimensions, as numpy has, received a shape of 65"),
    "product": (((2**40, 2**40),), "more than 2\\*\\*62 elements"),
    "text": (("abc",), "expected a sequence of sizes .* received 'abc'"),
    "number": ((3,), "expected a sequence of sizes .* received 3"),
    "symbol": ((("a b",),), "expected a size such as .* received 'a b'"),
    "long symbol": ((("a" * 100,),), "expected a symbol of 1 to 64 letters.*received 'aaa"),
    "dtype": (((3,), "float33"), "expected one of the dtypes float64.*received 'float33'"),
    "object": (((3,), object), "expected one of the dtypes.*received <class 'object'>"),
}


@pytest.mark.parametrize("name", SPECS)
def test_specs(name: str) -> None:
    arguments, message = SPECS[name]
    with pytest.raises(InvalidArgumentError, match=message):
        frame.spec(*arguments)


NET = nn.Sequential("net", [nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)])
ROWS = [frame.spec(("batch", 6))]


def _train(**changes: Any) -> Any:
    given: dict[str, Any] = {
        "loss": nn.CrossEntropyLoss(),
        "targets": [frame.spec(("batch",), "int64")],
        "optimizer": SGD(),
    }
    return frame.compile(NET, ROWS, **{**given, **changes})


COMPILES: dict[str, tuple[type[FrameError], Callable[[], Any], str]] = {
    "backend": (
        NotFoundError,
        lambda: frame.compile(_double, ONE, backend="nope"),
        "no backend named 'nope'; known backends: cpu",
    ),
    "target": (
        InvalidArgumentError,
        lambda: frame.compile(_double, ONE, target="pentium"),
        "expected a CPU of native, x86-64.*received 'pentium'",
    ),
    "kind of target": (
        InvalidArgumentError,
        lambda: frame.compile(_double, ONE, target=3),  # type: ignore[arg-type]
        "target: expected a name .* received 3",
    ),
    "options": (
        InvalidArgumentError,
        lambda: frame.compile(_double, ONE, options={"fast": 1}),
        "no options, received 'fast'",
    ),
    "pass": (
        NotFoundError,
        lambda: frame.compile(_double, ONE, passes=["nope"]),
        "no pass named 'nope'; known are: canonicalize",
    ),
    "kind of passes": (
        InvalidArgumentError,
        lambda: frame.compile(_double, ONE, passes=3),  # type: ignore[arg-type]
        "expected passes as a list .* received 3",
    ),
    "no model": (
        InvalidArgumentError,
        lambda: frame.compile(None, ONE),  # type: ignore[arg-type]
        "expected a Module, a Graph or a function.*received None",
    ),
    "a text as model": (
        InvalidArgumentError,
        lambda: frame.compile("net", ONE),  # type: ignore[arg-type]
        "expected a Module, a Graph or a function.*received 'net'",
    ),
    "bare spec": (
        InvalidArgumentError,
        lambda: frame.compile(_double, frame.spec((3,))),  # type: ignore[arg-type]
        "inputs must be a list of specs .* received TensorType",
    ),
    "number as input": (
        InvalidArgumentError,
        lambda: frame.compile(_double, [3]),
        "expected a spec such as .* received 3",
    ),
    "number as name": (
        InvalidArgumentError,
        lambda: frame.compile(NET, {3: ROWS[0]}),  # type: ignore[dict-item]
        "expected the name of an input as text, received 3",
    ),
    "too many inputs": (
        InvalidArgumentError,
        lambda: frame.compile(_double, ONE * 2),
        r"'_double' takes 1 arguments \(x\), received 2 specs",
    ),
    "long name": (
        InvalidArgumentError,
        lambda: frame.compile(NET, {"\n" * 4000: ROWS[0]}),
        "name of an input of at most 4096 characters, received 4000",
    ),
    "name of no argument": (
        InvalidArgumentError,
        lambda: frame.compile(_double, {"y": frame.spec((3,))}),
        "'_double' takes the arguments x, received a spec for 'y'",
    ),
    "too few inputs": (
        InvalidArgumentError,
        lambda: frame.compile(lambda x, y: x + y, ONE),
        r"takes 2 arguments \(x, y\), received 1 specs",
    ),
    "nothing returned": (
        InvalidArgumentError,
        lambda: frame.compile(lambda x: None, ONE),
        "must return values of the graph .* received NoneType",
    ),
    "text returned": (
        InvalidArgumentError,
        lambda: frame.compile(lambda x: "abc", ONE),
        "must return values of the graph .* received str",
    ),
    "no outputs": (
        InvalidArgumentError,
        lambda: frame.compile(lambda x: (), ONE),
        "V11: a graph must have an output or an update",
    ),
    "empty graph": (
        InvalidArgumentError,
        lambda: frame.compile(Graph((), (), (), (), "empty")),
        "V11: a graph must have an output or an update",
    ),
    "storage only": (
        InvalidArgumentError,
        lambda: frame.compile(lambda x: x + x, [frame.spec((3,), "int4")]),
        "must be of kind float.* received int4",
    ),
    "product of sizes": (
        InvalidArgumentError,
        lambda: frame.compile(lambda x: ops.expand(x, (2**31,) * 3), [(1, 1, 1)]),
        r"more than 2\*\*62 elements",
    ),
    "rank of a result": (
        InvalidArgumentError,
        lambda: frame.compile(lambda x: ops.reshape(x, (1,) * 62 + (3, 1, 1)), ONE),
        "at most 64 dimensions, as numpy has, received a shape of 65",
    ),
    "width of a layer": (
        InvalidArgumentError,
        lambda: frame.compile(NET, [frame.spec((2, 7))]),
        "in module net.0 .Linear.: matmul of .*: the inner sizes 7 and 6 differ",
    ),
    "window": (
        InvalidArgumentError,
        lambda: frame.compile(nn.Conv2d(1, 1, 9), [(1, 1, 3, 3)]),
        "a window of 9 .* does not fit into a size of 3",
    ),
    "loss alone": (
        InvalidArgumentError,
        lambda: _train(optimizer=None),
        "needs both loss= and optimizer=, received only one",
    ),
    "kind of loss": (
        InvalidArgumentError,
        lambda: _train(loss="mse"),
        r"loss: expected a Module .* received 'mse'",
    ),
    "kind of optimizer": (
        InvalidArgumentError,
        lambda: _train(optimizer="sgd"),
        r"optimizer: expected an optimizer .* received 'sgd'",
    ),
    "no targets": (
        InvalidArgumentError,
        lambda: _train(targets=[]),
        r"CrossEntropyLoss.*takes the inputs \(logits, labels\), received 1",
    ),
    "misspelt size": (
        InvalidArgumentError,
        lambda: _train(sizes={"bach": 3}),
        "names 'bach', the symbols .* are batch",
    ),
    "unknown parameter": (
        NotFoundError,
        lambda: frame.compile(NET, ROWS, params={"a": np.zeros(1)}),
        "no parameter named 'a'; known: net.0.weight",
    ),
    "kind of params": (
        InvalidArgumentError,
        lambda: frame.compile(NET, ROWS, params=3),  # type: ignore[arg-type]
        "expected parameters as a mapping .* received 3",
    ),
    "kind of seed": (
        InvalidArgumentError,
        lambda: frame.compile(NET, ROWS, seed="a"),  # type: ignore[arg-type]
        "expected seed .* received 'a'",
    ),
    "negative seed": (
        InvalidArgumentError,
        lambda: frame.compile(NET, ROWS, seed=-1),
        "expected seed .* received -1",
    ),
    "unknown option of jit": (
        InvalidArgumentError,
        lambda: frame.jit(_double, fast=True),
        "frame.jit takes backend, .* received 'fast'",
    ),
    "jit of no function": (
        InvalidArgumentError,
        lambda: frame.jit(3),
        "compiles a function, received 3",
    ),
    "jit of a list as constant": (
        InvalidArgumentError,
        lambda: frame.jit(lambda x, k: x)(np.ones(2, np.float32), k=[1]),
        "must be hashable; 'k' is a list",
    ),
    "jit of an object": (
        InvalidArgumentError,
        lambda: frame.jit(_double)(object()),
        "expected one of the dtypes .* received dtype",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPILES)
def test_declarations(name: str) -> None:
    error, call, message = COMPILES[name]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("name", "message"),
    [("z80", "expected a CPU of native.* received 'z80'"), ("armv8-a", "can run, received")],
)
def test_frame_cpu_of_another_machine(name: str, message: str) -> None:
    with config.override(FRAME_CPU=name), pytest.raises(InvalidArgumentError, match=message):
        frame.compile(_double, ONE)


def test_code_for_another_cpu_can_be_looked_at_and_not_run() -> None:
    from frame.backends.cpu.target import host_features, named_target

    x = np.ones(3, np.float32)
    for name in ("x86-64-v4", "armv8-a", "armv8.2-a", "x86-64-v2"):
        model = frame.compile(_double, ONE, target=name)
        assert model.source()["assembly"]
        target = named_target(name)
        if set(target.features) <= host_features():
            assert np.array_equal(model(x), x * 2)
            continue
        for _ in range(2):  # from the compiler, then from the cache
            with pytest.raises(InvalidArgumentError, match="this machine does not have"):
                model(x)
            model = frame.compile(_double, ONE, target=name)
    assert np.array_equal(frame.compile(_double, ONE)(x), x * 2)


NAMES = [
    "é ü 漢",
    'a "quoted"',
    "two\nlines",
    "back\\slash",
    "nul\0",
    "\ud800",
    "%x = add",
    "a" * 4000,
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_of_any_characters_compile_and_are_kept(name: str, tmp_path: Any) -> None:
    module = nn.Sequential("net", [nn.Linear(3, 2)])
    for _ in range(2):
        model = frame.compile(module, {name: frame.spec((1, 3))})
        assert model(np.ones((1, 3), np.float32)).shape == (1, 2)
    assert model.entry("infer").loaded.hit
    model.save(tmp_path / "named.frame")
    again = frame.load(tmp_path / "named.frame")
    assert [port.name for port in again.entry("infer").inputs] == [name]


def test_specs_by_name_find_their_arguments() -> None:
    model = frame.compile(lambda x, y: x @ y, {"y": frame.spec((2, 3)), "x": frame.spec((4, 2))})
    assert model(np.ones((4, 2), np.float32), np.ones((2, 3), np.float32)).shape == (4, 3)


def test_two_inputs_of_one_name() -> None:
    with (
        GraphBuilder("twice") as builder,
        pytest.raises(InvalidArgumentError, match="already has an input named 'x'"),
    ):
        for _ in range(2):
            builder.input(frame.spec((1,)), name="x")


def test_two_parameters_of_one_name() -> None:
    @nn.module(weight=nn.param((3, 2), nn.ones()))
    def doubled(scope: Any, x: Any) -> Any:
        return x @ scope.weight

    with pytest.raises(InvalidArgumentError, match="'weight'"):
        frame.compile(doubled, {"weight": frame.spec((1, 3))})


CYCLE = """graph @cycle {
  %0 = input "x" {role=input} : float32[3]
  %1 = add(%0, %2) : float32[3]
  %2 = neg(%1) : float32[3]
  return %2
}
"""


def test_a_text_with_a_cycle_names_its_line() -> None:
    with pytest.raises(InvalidArgumentError, match="line 3.*%2"):
        parse_graph(CYCLE)


def test_unknown_attributes_and_ops() -> None:
    text = CYCLE.replace("add(%0, %2)", "neg(%0) {speed=3}")
    with pytest.raises(InvalidArgumentError, match="line 3.*speed"):
        parse_graph(text)
    with pytest.raises(FrameError, match="line 3.*neq"):
        parse_graph(CYCLE.replace("add(%0, %2)", "neq(%0)"))
    with pytest.raises((InvalidArgumentError, TypeError), match="axi"):
        frame.compile(lambda x: ops.softmax(x, axi=0), ONE)


def test_deep_nests_are_refused_with_the_limit() -> None:
    def nested(depth: int) -> Callable[[Any, Any], Any]:
        def body(carry: Any, x: Any) -> Any:
            if not depth:
                return carry + 1.0, carry
            return ops.scan(nested(depth - 1), carry, (), length=2)[0], carry

        return body

    def build(depth: int) -> Callable[[Any], Any]:
        return lambda x: ops.scan(nested(depth), x, (), length=2)[0]

    assert frame.compile(build(5), [()])(0.0) == 2**6
    frame.compile(build(14), [()])
    for depth in (15, 500):
        with pytest.raises(InvalidArgumentError, match="nested more than 16 graphs deep"):
            frame.trace(build(depth), frame.spec(()))


def test_a_thousand_inputs_in_one_chain() -> None:
    def total(*values: Any) -> Any:
        return sum(values[1:], values[0])

    model = frame.compile(total, [(2,)] * 1000)
    assert model(*[np.ones(2, np.float32)] * 1000).tolist() == [1000, 1000]


def test_no_op_makes_more_dimensions_than_arrays_have() -> None:
    most = frame.spec((1,) * 64)
    x = np.ones((1,) * 64, np.float32)
    assert frame.compile(_double, [most])(x).shape == x.shape
    for function in (
        lambda x: ops.reshape(x, (1,) * 65),
        lambda x: ops.stack([x, x]),
    ):
        with pytest.raises(InvalidArgumentError, match="at most 64 dimensions.*a shape of 65"):
            frame.trace(function, most)
    text = f"graph @g(%x: float32[{', '.join(['1'] * 65)}]) {{\n  return %x\n}}\n"
    with pytest.raises(InvalidArgumentError):
        parse_graph(text)


@nn.module
def Squared(m: Any, x: Any) -> Any:
    return ops.relu(x) @ x  # the line that is wrong


def _in_a_scan(x: Any) -> Any:
    def body(carry: Any, _: Any) -> Any:
        return carry @ x, carry  # the line that is wrong

    return ops.scan(body, x, None, length=2)[0]


def _no_gradient(x: Any) -> Any:
    run = frame.grad(lambda y: ops.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, y[0]))
    return run(x)  # the line that is wrong


TWO_ROWS = [frame.spec((2, 3))]


def test_a_shape_is_no_type() -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected the type .* received \(4, 6\)"):
        nn.build_graph(NET, [(4, 6)])


LINES: dict[str, Callable[[], Any]] = {
    "module": lambda: frame.compile(nn.Sequential([Squared]), TWO_ROWS),
    "trace in a pass of a scan": lambda: frame.trace(_in_a_scan, *TWO_ROWS),
    "gradient": lambda: frame.compile(_no_gradient, ONE),
}


@pytest.mark.parametrize("name", LINES)
def test_the_message_ends_with_the_line_of_the_user(name: str) -> None:
    """Where there is no traceback to look at, on the command line, it is all that there is."""
    with pytest.raises(FrameError) as caught:
        LINES[name]()
    *_, where = str(caught.value).splitlines()
    assert where.startswith(f"at {__file__}:") and where.endswith("# the line that is wrong")


def test_a_layer_of_frame_is_told_with_the_line_that_compiles_it() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        frame.compile(nn.Sequential("net", [nn.Linear(3, 8), nn.Linear(9, 2)]), ONE)
    text, where = str(caught.value).splitlines()
    assert text.startswith("in module net.1 (Linear): matmul") and where.startswith(
        f"at {__file__}"
    )
