"""The pass manager, the list of passes and its edits, and compile_graph."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from frame import ops
from frame.compiler import pass_manager
from frame.compiler.pass_manager import (
    Pass,
    PassManager,
    Recorder,
    Repeat,
    pass_text,
)
from frame.compiler.passes.constant_folding import ConstantFolding
from frame.compiler.passes.memory_planning import MemoryPlanning
from frame.compiler.pipeline import (
    Pipeline,
    compile_graph,
    find_pass,
    make_pipeline,
    simplify_graph,
    standard_passes,
)
from frame.core.dtypes import float64
from frame.core.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from frame.core.shapes import Dim
from frame.hal.interfaces import Capabilities, GroupInfo
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, Role
from frame.ops.interpreter import interpret
from tests.compiler.support import (
    CAPABILITIES,
    TARGET,
    WHOLE,
    arrays_for,
    assert_same,
    build,
    compiled,
    context,
    packed_group_info,
    recorded,
    run_compiled,
    tensor,
)

STANDARD = (
    "canonicalize",
    "shape_inference",
    "constant_folding",
    "common_subexpression_elimination",
    "dead_node_elimination",
    "batch_blocks",
    "layout_assignment",
    "split",
    "operator_fusion",
    "rematerialisation",
    "memory_planning",
    "backend_lowering",
)


def mlp() -> Graph:
    def body(x, w, bias):
        hidden = ops.gelu(x @ w + bias)
        y = ops.softmax(ops.layer_norm(hidden, bias, bias))
        return y * 1.0, ops.argmax(y, axis=1)

    weights = (tensor(8, 16), Role.PARAMETER), (tensor(16), Role.PARAMETER)
    return build(body, tensor("batch", 8), *weights)


@dataclass(frozen=True)
class SinToCos:
    """A pass of a user: every sin becomes a cos, `times` times in a row."""

    name: ClassVar[str] = "sin_to_cos"
    times: int = 1
    label: str = "x"

    def run(self, graph, context):
        with Rewriter(graph) as rewriter:
            for node in graph.nodes:
                if node.op != "sin":
                    rewriter.copy(node)
                    continue
                rewriter.at(node)
                value = rewriter[node.operands[0]]
                for _ in range(self.times):
                    value = ops.cos(value)
                context.count("sin", self.times)
                rewriter.replace(node.results[0], value)
            return rewriter.finish()


def sine() -> Graph:
    return build(lambda x: ops.sin(x) * 1.0, tensor(4))


# --- compile_graph --------------------------------------------------------------------------------


def test_mlp_becomes_two_pieces_that_compute_the_same():
    graph = mlp()
    result = compiled(graph, group_info=packed_group_info)
    assert [node.op for node in result.load.graph.nodes] == ["group"]
    assert [node.attributes["anchor"] for node in result.run.graph.nodes] == [
        "contraction",
        "reduction",
    ]
    assert [str(source) for source in result.run_sources] == ["input 0", "input 2", "derived 0"]
    assert result.load_inputs == (1,)
    arrays = arrays_for(graph)
    assert_same(interpret(graph, arrays), run_compiled(result, arrays))


def test_a_graph_of_constants_alone_has_a_load_program_without_inputs():
    graph = build(lambda x: x @ ops.full((4, 4), 3.0), tensor("batch", 4))
    result = compiled(graph, group_info=packed_group_info)
    assert result.load is not None and result.load_inputs == ()
    arrays = arrays_for(graph)
    assert_same(interpret(graph, arrays), run_compiled(result, arrays))


def test_the_pieces_have_plans_and_signatures():
    result = compiled(mlp(), group_info=packed_group_info)
    assert result.run.plan is not None and result.load.plan is not None
    assert [port.name for port in result.run.signature.inputs] == ["x0", "x2", "derived0"]
    assert result.run.signature.inputs[2].role is Role.DERIVED
    assert result.load.signature.outputs[0].type == result.run.signature.inputs[2].type
    assert result.run.signature.symbols == ("batch",)


def test_constraints_of_symbols_come_from_the_declared_graph():
    """The slice is folded away; that batch must be 3 at least still holds."""

    def body(x):
        batch = Dim.symbol("batch")
        part = ops.slice(x, (0,), (batch - 3,), (1,))
        return ops.sum(part) * 0.0 + ops.sum(x), x

    graph = build(body, tensor("batch", dtype=float64))
    declared = compiled(graph).run.signature.constraints
    assert [str(constraint.size) for constraint in declared] == ["batch - 3"]
    dead = build(lambda x: (body(x), x)[1], tensor("batch"))
    kept = compiled(dead).run
    assert not any(node.op == "slice" for node in kept.graph.nodes)
    assert [str(constraint.size) for constraint in kept.signature.constraints] == ["batch - 3"]


def test_a_target_of_whole_graphs_gets_no_groups_and_no_plan():
    result = compiled(mlp(), capabilities=WHOLE)
    assert "group" not in {node.op for node in result.run.graph.nodes}
    assert result.run.plan is None
    arrays = arrays_for(mlp())
    assert_same(interpret(mlp(), arrays), run_compiled(result, arrays))


def test_simplified_graphs_are_left_alone_by_compile_graph():
    graph = simplify_graph(mlp(), TARGET, CAPABILITIES)
    _, recorder = recorded(graph)
    changed = {record.name for record in recorder.records if record.changed}
    assert changed == {"operator_fusion"}


def test_a_simplified_graph_goes_on_with_the_passes_that_are_left():
    """A pass of a user that is not idempotent runs once over the two calls."""

    def body(x):
        return ops.sin(ops.sum(x) + ops.sum(ops.slice(x, (0,), (Dim.symbol("batch") - 3,), (1,))))

    @dataclass(frozen=True)
    class Another:
        name: ClassVar[str] = "another"

        def run(self, graph, context):
            with Rewriter(graph) as rewriter:
                for node in graph.nodes:
                    results = rewriter.copy(node)
                    if node.op == "sin":
                        rewriter.at(node)
                        rewriter.replace(node.results[0], ops.sin(results[0]))
                return rewriter.finish()

    graph, passes = build(body, tensor("batch")), [Another(), "without layout_assignment"]
    simple = simplify_graph(graph, TARGET, CAPABILITIES, passes)
    result = compiled(simple, passes=passes, declared=graph)
    text = str(result.run.graph)
    assert text.count("sin(") == 2
    assert [str(each.size) for each in result.run.signature.constraints] == ["batch - 3"]


def test_no_op_for_a_target_is_an_error_with_its_nodes():
    few = replace(CAPABILITIES, native=CAPABILITIES.native - {"erf"})
    with pytest.raises(UnimplementedError, match="does not run erf") as caught:
        compiled(mlp(), capabilities=few)
    assert str(caught.value).startswith("backend_lowering: ")
    assert "test_pipeline.py" in str(caught.value), "the user's line"
    assert [node.op for node in caught.value.nodes] == ["erf"]


def test_no_schedule_and_no_dtype_are_errors():
    few = replace(CAPABILITIES, anchors=CAPABILITIES.anchors - {"contraction"})
    with pytest.raises(UnimplementedError, match="no schedule for 'contraction'") as caught:
        compiled(mlp(), capabilities=few)
    assert [node.op for node in caught.value.nodes] == ["matmul"]
    halves = replace(CAPABILITIES, dtypes=frozenset({"float16"}))
    with pytest.raises(UnimplementedError, match="does not compute with float32"):
        compiled(mlp(), capabilities=halves)


def test_an_invalid_graph_is_refused_before_the_first_pass():
    graph = mlp()
    with pytest.raises(InvalidArgumentError, match="^V2"):
        compiled(replace(graph, nodes=graph.nodes[::-1]))
    with pytest.raises(InvalidArgumentError, match="^V11"):
        compiled(replace(graph, outputs=(), output_names=()))


# --- the pass manager -----------------------------------------------------------------------------


def test_unchanged_graphs_are_the_same_object_and_end_the_repetition():
    _, recorder = recorded(sine())
    simplifying = [record for record in recorder.records if record.name in STANDARD[:5]]
    assert [record.name for record in simplifying[:5]] == list(STANDARD[:5])
    # The last round ends when every pass in turn has left the graph alone.
    last = max(i for i, record in enumerate(simplifying) if record.changed)
    assert len(simplifying) - last == 6


def test_records_hold_text_time_and_rewrites():
    graph = sine()
    recorder = Recorder()
    around = context(instruments=(recorder,))
    PassManager([SinToCos(times=2)]).run(graph, around)
    (record,) = recorder.records
    assert record.name == "sin_to_cos" and record.changed
    assert "sin(" in record.text_before and "sin(" not in record.text_after
    assert record.rewrites == {"sin": 2}
    assert record.seconds >= 0 and record.verify_seconds > 0
    assert recorder.rewrites() == {"sin": 2} and set(recorder.seconds()) == {"sin_to_cos"}


@dataclass(frozen=True)
class Spoiler:
    name: ClassVar[str] = "spoiler"
    kind: str = "order"

    def run(self, graph, context):
        if self.kind == "order":
            return replace(graph, nodes=graph.nodes[::-1])
        if self.kind == "outputs":
            return replace(graph, outputs=graph.outputs * 2, output_names=())
        if self.kind == "inputs":
            return build(lambda x: x * 2.0, tensor(5))
        if self.kind == "nothing":
            return None
        if self.kind == "unimplemented":
            raise UnimplementedError("no such thing", nodes=graph.nodes[:1])
        raise ZeroDivisionError("a bug")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("order", "^spoiler: V2: "),
        ("outputs", r"^spoiler: expected a graph with the inputs, outputs"),
        ("inputs", r"^spoiler: .*float32\[5\]"),
        ("nothing", "^spoiler: expected a Graph, received NoneType"),
    ],
)
def test_what_a_pass_returns_is_verified(kind, message):
    with pytest.raises(InvalidArgumentError, match=message):
        PassManager([Spoiler(kind)]).run(mlp(), context())


@dataclass(frozen=True)
class Breaking:
    """Does what another pass does, and then puts the nodes of the graph out of their order."""

    inner: Pass

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def changes_inputs(self) -> bool:
        return getattr(self.inner, "changes_inputs", False)

    def run(self, graph, context):
        result = self.inner.run(graph, context)
        return replace(result, nodes=result.nodes[::-1]) if len(result.nodes) > 1 else result


@pytest.mark.parametrize("name", [n for n in STANDARD if n != "split"])
def test_a_standard_pass_that_breaks_the_graph_is_caught_and_named(name):
    with pytest.raises(InvalidArgumentError, match=rf"^{name}: V\d+: "):
        compiled(mlp(), passes=[Breaking(find_pass(name)())], group_info=packed_group_info)


def test_the_verifier_runs_after_each_pass_that_changed_something(monkeypatch):
    seen = []
    monkeypatch.setattr(pass_manager, "verify", seen.append)
    _, recorder = recorded(mlp(), group_info=packed_group_info)
    changed = [record.after for record in recorder.records if record.changed]
    assert len(changed) >= 4  # the test means something
    left = iter(seen)
    assert all(any(graph is each for each in left) for graph in changed)
    # The rest are the graphs that a list of passes starts with.
    assert len(seen) - len(changed) < len(recorder.records) - len(changed)


def test_errors_of_a_pass_keep_their_class_and_facts_and_name_the_pass_once():
    graph = mlp()
    repeated = Repeat((ConstantFolding(), Spoiler("unimplemented")))
    with pytest.raises(UnimplementedError) as caught:
        PassManager([repeated]).run(graph, context())
    assert str(caught.value) == "spoiler: no such thing"
    assert caught.value.nodes == graph.nodes[:1]
    with pytest.raises(ZeroDivisionError) as bug:
        PassManager([Spoiler("bug")]).run(graph, context())
    assert bug.value.__notes__ == ["in the pass spoiler"]


@dataclass(frozen=True)
class Swap:
    """Swaps the operands of additions: two of it never come to an end."""

    name: ClassVar[str] = "swap"

    def run(self, graph, context):
        with Rewriter(graph) as rewriter:
            for node in graph.nodes:
                rewriter.at(node)
                if node.op == "add":
                    left, right = (rewriter[v] for v in node.operands)
                    rewriter.replace(node.results[0], ops.add(right, left))
                else:
                    rewriter.copy(node)
            return rewriter.finish()


def test_passes_that_never_come_to_an_end_are_an_error():
    with pytest.raises(InvalidArgumentError, match="swap still changed the graph after 50 rounds"):
        PassManager([Repeat((Swap(),))]).run(
            build(lambda x, y: x + y, tensor(3), tensor(3)), context()
        )


# --- the list of passes ---------------------------------------------------------------------------


def test_the_standard_order():
    assert make_pipeline().names == STANDARD
    assert Pipeline(standard_passes()) == make_pipeline(None)


def test_texts_name_every_option():
    text = make_pipeline(["constant_folding{limit=10}"]).text()
    assert "repeat(canonicalize{batch_norm=true, hoist=true}, shape_inference, " in text
    assert "constant_folding{limit=10, work=16777216}" in text
    assert pass_text(SinToCos(3, "y")) == "sin_to_cos{times=3, label=y}"


def test_a_pass_of_a_standard_name_takes_its_place():
    changed = make_pipeline([ConstantFolding(limit=1)])
    assert changed.names == STANDARD and "limit=1," in changed.text()
    assert changed == make_pipeline("constant_folding{limit=1}")


def test_other_passes_come_first_or_where_the_text_says():
    assert make_pipeline([SinToCos()]).names[0] == "sin_to_cos"
    placed = make_pipeline().insert_after("constant_folding", SinToCos())
    assert placed.names.index("sin_to_cos") == 3
    assert make_pipeline(placed) is placed
    before = make_pipeline().insert_before("operator_fusion", SinToCos())
    assert before.names.index("sin_to_cos") == STANDARD.index("operator_fusion")
    gone = make_pipeline(["without layout_assignment"])
    assert gone.names == tuple(n for n in STANDARD if n != "layout_assignment")
    moved = make_pipeline(["before operator_fusion: dead_node_elimination"])
    assert moved.names.count("dead_node_elimination") == 2
    replaced = make_pipeline(["replace memory_planning: memory_planning{check=false}"])
    assert MemoryPlanning(check=False) in replaced.passes


def test_a_custom_pass_changes_what_is_compiled():
    graph = sine()
    result = compiled(graph, passes=[SinToCos()])
    body = result.run.graph.nodes[0].attributes["body"]
    assert [node.op for node in body.nodes] == ["cos"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("constant_folding{limit=much}", "limit of the pass constant_folding must be of type int"),
        ("constant_folding{size=3}", "has the options limit, work, received 'size=3'"),
        ("shape_inference{x=1}", r"has the options \(none\)"),
        ("memory_planning{check=1}", "must be of type bool, received '1'"),
        ("constant folding", "expected a pass as"),
        ("constant_folding{limit=3", "expected a pass as"),
        (3, "passes must be frozen dataclasses"),
    ],
)
def test_edits_that_can_not_be_read(edit, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make_pipeline([edit])


@pytest.mark.parametrize("edit", ["no_such_pass", "before no_such_pass: split", "without nothing"])
def test_names_that_do_not_exist(edit):
    with pytest.raises(NotFoundError, match="there is no pass named"):
        make_pipeline([edit])


def test_a_list_without_lowering_is_refused():
    with pytest.raises(InvalidArgumentError, match="must end with backend_lowering"):
        compiled(mlp(), passes=["without backend_lowering"])


def test_passes_of_others_are_found_by_their_entry_point_when_asked_for(monkeypatch):
    point = importlib.metadata.EntryPoint(
        "sin_to_cos", "tests.compiler.test_pipeline:SinToCos", "frame.passes"
    )
    asked = []

    def entry_points(group):
        asked.append(group)
        return [point] if group == "frame.passes" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert find_pass("split").name == "split" and asked == []
    found = make_pipeline(["after canonicalize: sin_to_cos{times=2, label=left}"])
    assert found.names[1] == "sin_to_cos" and asked == ["frame.passes"]
    assert "sin_to_cos{times=2, label=left}" in found.text()


def test_standard_passes_are_passes():
    for each in standard_passes():
        assert isinstance(each, Pass)


def test_group_info_is_asked_for_groups_and_control_flow_in_bodies_too():
    seen = []

    def group_info(node, target):
        assert target is TARGET
        seen.append(node.op)
        return GroupInfo(workspaces=(640,) if node.op == "scan" else ())

    def body(x, start):
        return ops.scan(lambda c, row: (ops.tanh(c + row), None), start, x)[0]

    result = compile_graph(build(body, tensor(5, 3), tensor(3)), TARGET, CAPABILITIES, group_info)
    assert sorted(seen) == ["group", "scan"]
    assert 640 in [slot.size for slot in result.run.plan.slots]


def test_capabilities_may_be_empty():
    """A target that names nothing refuses nothing: it has no groups, and no list of ops."""
    result = compiled(mlp(), capabilities=Capabilities(frozenset()))
    assert result.run.plan is None
