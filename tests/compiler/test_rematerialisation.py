"""Rematerialisation: the same bits from less memory, and no more of it than is asked for."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

import frame
from frame import nn
from frame.compiler.optimizers import Ema, LossScale, Recipe, build_training_graph
from frame.compiler.passes.early_updates import with_early_updates
from frame.compiler.passes.forward import Forward, root_of
from frame.compiler.passes.fusion import OperatorFusion
from frame.compiler.passes.memory_planning import MemoryPlanning
from frame.compiler.passes.recompute import recomputed
from frame.compiler.passes.rematerialisation import Rematerialisation, arena_size
from frame.compiler.passes.segments import choices
from frame.compiler.passes.units import inside
from frame.compiler.pipeline import simplify_graph
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Graph, Role
from frame.ir.verify import verify
from frame.ops.interpreter import interpret
from frame.runtime.training import graph_with_loss
from frame.train import SGD, ConstantLR, CrossEntropyLoss, DeepLearningTask
from tests.compiler.support import CAPABILITIES, TARGET, WHOLE, arrays_for, assert_same, context


def mlp(width: int = 32, blocks: int = 4) -> nn.Module:
    """Return blocks that keep several values each: normalisation, GELU, dropout."""

    def block() -> nn.Module:
        norm = nn.LayerNorm(width)
        return nn.Sequential([nn.Linear(width, width), norm, nn.GELU(), nn.Dropout(0.1)])

    return nn.Sequential("net", [*(block() for _ in range(blocks)), nn.Linear(width, 10)])


def cnn() -> nn.Module:
    """Return residual blocks with running statistics, behind a stem."""

    def block() -> nn.Module:
        convolution = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        return nn.Residual(nn.Sequential([convolution, nn.BatchNorm2d(4), nn.ReLU()]))

    blocks = [block() for _ in range(4)]
    layers = [nn.Conv2d(2, 4, 3, padding=1), *blocks, nn.Flatten(), nn.Linear(144, 10)]
    return nn.Sequential("net", layers)


def recurrent() -> nn.Module:
    """Return an LSTM over a GRU, whose loops keep the states of every step."""
    layers = [nn.GRU(4, 8), nn.LSTM(8, 8, sequence=False), nn.Linear(8, 10)]
    return nn.Sequential("net", layers)


NETS = {
    "mlp": (mlp, (24, 32)),
    "cnn": (cnn, (8, 2, 6, 6)),
    "recurrent": (recurrent, (6, 20, 4)),
}


def model(name: str, passes=None, batch: object = None, **options):
    """Return a compiled network with its training step."""
    make, shape = NETS[name]
    rows = shape[0] if batch is None else batch
    return frame.compile(
        make(),
        [frame.spec((rows, *shape[1:]))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec((rows,), "int64")],
        optimizer=SGD(momentum=0.9),
        passes=passes,
        **options,
    )


def trained(compiled) -> dict[str, bytes]:
    """Return everything that three steps leave behind, as bytes."""
    inputs = compiled.declaration("train_step").graph.inputs
    shape = next(e.value.shape for e in inputs if e.role is Role.INPUT)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for _ in range(3):
        compiled.train_step(x, np.arange(len(x)) % 10, learning_rate=0.1)
    return {name: compiled.store[name].tobytes() for name in compiled.store}


def arena(compiled) -> int:
    """Return the bytes of the arena of the training step."""
    return compiled.memory("train_step").arena_size


@functools.cache
def plain(name: str) -> tuple[dict[str, bytes], int]:
    """Return the weights and the arena of a network without the pass."""
    compiled = model(name)
    return trained(compiled), arena(compiled)


@pytest.mark.parametrize(
    ("name", "pattern", "share"),
    [("mlp", "net.*", 0.8), ("cnn", "net.[1-4]", 0.95), ("recurrent", "net.[01]", 0.95)],
)
def test_a_module_is_computed_again_with_the_same_bits(name, pattern, share: float) -> None:
    weights, before = plain(name)
    again = model(name, [Rematerialisation(modules=pattern)])
    assert arena(again) < share * before
    assert trained(again) == weights


def test_a_budget_is_met_with_the_same_bits() -> None:
    weights, before = plain("mlp")
    again = model("mlp", [f"rematerialisation{{budget={before * 2 // 3}}}"])
    assert arena(again) <= before * 2 // 3
    assert trained(again) == weights


def test_a_budget_needs_numbers() -> None:
    with pytest.raises(InvalidArgumentError, match="numbers for the sizes rows of .*drop_last"):
        model("mlp", [Rematerialisation(budget=1000)], batch="rows")


# --- graphs of groups, for a target of the imagination --------------------------------------------


PLAIN = Recipe(SGD(momentum=0.9))


@functools.cache
def fused(name: str, rows: int = 0, recipe: Recipe = PLAIN) -> Graph:
    """Return the groups of a training step."""
    make, shape = NETS[name]
    shape = (rows or shape[0], *shape[1:])
    inputs, targets = {"x": frame.spec(shape)}, [frame.spec(shape[:1], "int64")]
    whole = graph_with_loss(make(), nn.CrossEntropyLoss(), inputs, targets, "train")
    graph = build_training_graph(whole, recipe)
    simple = simplify_graph(graph, TARGET, CAPABILITIES)
    return OperatorFusion().run(simple, context())


@functools.cache
def results(name: str, graph: Graph) -> list[np.ndarray]:
    """Return what a graph of groups gives in the interpreter."""
    arrays = arrays_for(graph)
    position = [entry.name for entry in graph.inputs].index("target")
    arrays[position] = np.arange(len(arrays[position])) % 10
    return interpret(graph, arrays)


def sound(name: str, graph: Graph) -> None:
    """Check that a graph obeys every rule, can be planned, and gives what the first one gives."""
    verify(graph)
    MemoryPlanning(check=True).run(graph, context())
    assert_same(results(name, fused(name)), results(name, graph), exact=True)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("seed", range(3))
def test_any_choice_gives_the_same(name: str, seed: int) -> None:
    forward = Forward(with_early_updates(Forward(fused(name))))
    roots = [root for _, root in forward.made()]
    draws = np.random.default_rng(seed).random(len(roots))
    share = (0.3, 0.6, 1.0)[seed]
    chosen = [root for root, draw in zip(roots, draws, strict=True) if draw < share]
    again = recomputed(forward, chosen)
    assert len(again.nodes) > len(fused(name).nodes)
    sound(name, again)


@pytest.mark.parametrize("name", NETS)
def test_a_state_is_written_after_all_that_reads_it(name: str) -> None:
    graph = with_early_updates(Forward(fused(name)))
    assert set(graph.nodes) == set(fused(name).nodes) and graph.nodes != fused(name).nodes
    sound(name, graph)
    position = {node: index for index, node in enumerate(graph.nodes)}
    for update in graph.updates:
        state, writer = graph.inputs[update.input_index].value, root_of(update.value).node
        readers = [node for node in graph.nodes if state in map(root_of, node.operands)]
        assert writer is None or all(position[each] <= position[writer] for each in readers)


@pytest.mark.parametrize("name", NETS)
def test_the_choices_go_from_nothing_to_less_memory(name: str) -> None:
    forward = Forward(with_early_updates(Forward(fused(name))))
    found = list(choices(forward))
    assert found[0] == frozenset() and len(found) == len(set(found)) > 3
    sizes = [arena_size(recomputed(forward, chosen), context()) for chosen in found]
    assert min(sizes) < 0.85 * sizes[0]


@pytest.mark.parametrize(
    "options",
    [{}, {"scaling": LossScale()}, {"clip_norm": 1.0}, {"accumulate": 2}, {"average": Ema(0.9)}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_what_waits_for_all_gradients_keeps_no_activation(options: dict) -> None:
    graph = fused("mlp", 512, Recipe(SGD(momentum=0.9), **options))
    again = Rematerialisation(modules="net.*").run(graph, context())
    assert arena_size(again, context()) < 0.62 * arena_size(graph, context())


def test_the_least_possible_is_named_and_is_possible() -> None:
    graph = fused("mlp")
    with pytest.raises(InvalidArgumentError, match="raise the budget") as caught:
        Rematerialisation(budget=1).run(graph, context())
    least, before = re.findall(r"[\d,]{4,}", str(caught.value))
    least = int(least.replace(",", ""))
    made = Rematerialisation(budget=least).run(graph, context())
    assert arena_size(made, context()) == least < int(before.replace(",", ""))
    with pytest.raises(InvalidArgumentError, match=f"at most {least - 1:,} bytes"):
        Rematerialisation(budget=least - 1).run(graph, context())


def test_nothing_more_than_the_budget_asks_for() -> None:
    graph = Rematerialisation().run(fused("mlp"), context())
    whole = arena_size(graph, context())
    assert Rematerialisation(budget=whole).run(graph, context()) is graph
    counts = []
    for budget in (whole * 9 // 10, whole * 2 // 3):
        asked = context()
        Rematerialisation(budget=budget).run(graph, asked)
        counts.append(asked.counts["recomputed"])
    assert 0 < counts[0] < counts[1]


def test_what_it_leaves_alone() -> None:
    graph = Rematerialisation().run(fused("mlp"), context())
    assert Rematerialisation().run(graph, context()) is graph
    types = {"x": frame.spec((2, 32))}, [frame.spec((2,), "int64")]
    forward = graph_with_loss(mlp(), nn.CrossEntropyLoss(), *types, "train")
    assert Rematerialisation(modules="no.*", budget=1).run(forward, context()) is forward


def test_the_inside_of_a_module_is_what_nobody_else_reads() -> None:
    forward = Forward(fused("mlp"))
    one, all_ = inside(forward, ["net.1"]), inside(forward, ["net.*"])
    assert one and one < all_
    paths = {forward.graph.location(root.node).module.split(".")[1] for root in one}
    assert paths == {"1"}
    kept = forward.residuals - all_
    assert len(kept) <= 2 + 2 * 4  # what enters a module, and the loss


def test_errors_name_what_there_is() -> None:
    message = r"no module matches the pattern 'body\.\*'; there are .*net\.0"
    with pytest.raises(InvalidArgumentError, match=message):
        Rematerialisation(modules="net.* body.*").run(fused("mlp"), context())
    with pytest.raises(InvalidArgumentError, match="whose memory frame plans .* imaginary"):
        Rematerialisation(budget=9).run(fused("mlp"), context(capabilities=WHOLE))


def test_a_task_takes_modules_or_a_budget() -> None:
    x, y = np.zeros((24, 32), np.float32), np.arange(24) % 10
    task = (
        DeepLearningTask()
        .model(mlp())
        .data((x, y), batch_size=12)
        .loss(CrossEntropyLoss())
        .scheduler(ConstantLR(base_lr=0.1))
    )
    with pytest.raises(InvalidArgumentError, match="no module matches the pattern 'x'"):
        task.remat("x").compile()
    with pytest.raises(InvalidArgumentError, match="at most 9 bytes"):
        task.remat(budget=9).compile()
    for wrong in (lambda: task.remat(), lambda: task.remat("a b"), lambda: task.remat(budget=-1)):
        with pytest.raises(InvalidArgumentError, match="remat"):
            wrong()
