"""The code of one node, and what a profile says of the machine's limits."""

from __future__ import annotations

import re

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.core.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from frame.hal.interfaces import KernelTime, Peaks
from frame.hal.source import MAX_CHARACTERS, Source
from frame.ir.printer import number_values
from frame.runtime.profiler import make_profile
from frame.train import SGD

X = np.linspace(-1, 1, 2 * 64, dtype=np.float32).reshape(2, 1, 8, 8)


@pytest.fixture(scope="module")
def model() -> frame.runtime.CompiledModel:
    block = nn.Sequential("block", [nn.Linear(144, 16), nn.GELU()])
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), block]
    net = nn.Sequential("net", [*layers, nn.Linear(16, 10), nn.Softmax()])
    made = frame.compile(
        net,
        [frame.spec(("n", 1, 8, 8))],
        loss=nn.MseLoss(),
        targets=[frame.spec(("n", 10))],
        optimizer=SGD(),
    )
    made.profile(X)
    return made


def _functions(assembly: str) -> dict[str, list[str]]:
    """The instructions of each function, without the numbers of its local labels."""
    found = {}
    for name, body in re.findall(r"^(\w[\w.]*):\n(.*?)^\.Lfunc_end", assembly, re.S | re.M):
        found[name] = [re.sub(r"\.L\w+", "label", line) for line in body.splitlines()]
    return found


def test_every_value_of_the_graph_has_code(model) -> None:
    graph, kernels = model.graph, {row.kernel for row in model.profile(X)}
    for value, number in number_values(graph).items():
        if value in graph.input_values:
            continue
        for name in (number, str(number), f"%{number}", value, value.node):
            source = model.source(name)
            assert list(source) == ["loop", "llvm", "assembly"]
            assert f"%{number}" in source.title and value.node.op in source.title
        assert any(kernel in source.title for kernel in kernels)


def test_the_code_of_a_kernel_is_what_runs(model) -> None:
    whole = _functions(model.source()["assembly"])
    for row in model.profile(X):
        source = model.source(row)
        assert source["assembly"] == model.source(row.kernel)["assembly"]
        functions = _functions(source["assembly"])
        assert row.kernel in functions and sum(map(len, functions.values())) > 20
        assert all(whole[name] == lines for name, lines in functions.items())
        # Every label that it names is there: its constants, and the functions that it calls.
        labels = set(re.findall(r"^([\w.$]+):", source["assembly"], re.M))
        read = set(re.findall(r"(\.LCPI\d+_\d+|callq\s+[\w.]+\.body)", source["assembly"]))
        assert {name.split()[-1] for name in read} <= labels
        assert f"kernel {row.kernel} {{" in source["loop"]
        assert f"void @{row.kernel}(ptr %args" in source["llvm"]


def test_a_module_stands_for_all_inside_it(model) -> None:
    rows = {row.module: row.kernel for row in model.profile(X)}
    inside = model.source("net.block")
    assert rows["net.block.0, net.block.1"] in inside.title and "net.block" in inside.title
    assert all(kernel in model.source("net").title for kernel in rows.values())
    # The flattening of net.3 is a view, the statistics of net.1 went into weights of net.0.
    assert "merged into" in model.source("net.3").title
    assert rows["net.0, net.1, net.2"] in model.source("net.1").title


def test_the_load_program_has_code_too(model) -> None:
    """What a normalisation makes of its statistics is computed once, when weights change."""
    number = next(
        number
        for value, number in number_values(model.graph).items()
        if value.node is not None and value.node.op == "batch_norm_infer"
    )
    kernels = {row.kernel for row in model.profile(X)}
    named = model.source(number).title.partition(": ")[2].split(", ")
    assert set(named) - kernels and set(named) & kernels


@pytest.mark.parametrize("part", ["loss", "net.block.0", "net"])
def test_a_training_step_has_its_own_code(model, part: str) -> None:
    source = model.source(part, entry="train_step")
    assert "kernel" in source["loop"]
    assert part == "loss" or source["loop"] != model.source(part)["loop"]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("net.9", r"expected a value \(%0 to %\d+\).*received 'net.9'; nearest: .*net\.6"),
        ("nte.block", "nearest: net.block"),
        ("train_step", r"source\(node, entry=...\)"),
        ("", "a module path, received ''"),
        ("%400", r"%0 to %\d+, received %400"),
        (-1, "received %-1"),
        ("%0", "%0 is an input"),
    ],
)
def test_an_unknown_node_is_told_with_what_is_near(model, node, expected: str) -> None:
    with pytest.raises(NotFoundError, match=expected):
        model.source(node)


@pytest.mark.parametrize("node", [1.5, True, ["net"], b"net"])
def test_what_can_not_be_a_node_is_refused(model, node) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a value of the graph"):
        model.source(node)


def test_nodes_of_another_graph_are_refused(model) -> None:
    other = frame.compile(lambda x: ops.exp(x), [frame.spec((3,))]).graph
    for node in (other.nodes[0], other.outputs[0]):
        with pytest.raises(NotFoundError, match="one of another graph"):
            model.source(node)


def test_code_comes_after_a_start_from_the_cache(tmp_path) -> None:
    with frame.core.config.override(FRAME_CACHE_DIR=str(tmp_path)):
        made = [frame.compile(lambda x: ops.exp(x) * 3.5, [frame.spec((6, 6))]) for _ in range(2)]
        texts = []
        for each in made:
            frame.runtime.loading._in_use.clear()
            texts.append(dict(each.source(1)))
        assert made[1].entry("infer").loaded.hit and texts[0] == texts[1]
        row = made[1].profile(np.ones((6, 6), np.float32)).rows[0]
        assert row.flops > 0 and row.roofline > 0


def test_nodes_in_a_loop_have_code() -> None:
    net = frame.compile(nn.Sequential("net", [nn.LSTM(3, 4)]), [frame.spec((2, 5, 3))])
    assert "kernel" in net.source("net.0")["loop"]
    scans = [node for node in net.graph.nodes if node.op == "scan"]
    assert all("kernel" in net.source(node)["loop"] for node in scans)


def test_a_backend_that_compiles_a_piece_whole_says_so(model, monkeypatch) -> None:
    from frame.backends.cpu.executable import CpuExecutable

    monkeypatch.delattr(CpuExecutable, "kernels")
    with pytest.raises(UnimplementedError, match=r"compiles a piece as a whole: model.source\(\)"):
        model.source("net.0")


# --- the text -------------------------------------------------------------------------------------


def test_a_source_makes_its_texts_when_they_are_read() -> None:
    made = []
    source = Source("net <1>", {"loop": lambda: made.append("loop") or "a < b", "llvm": str})
    assert "loop" in source and "llvm" in source and "assembly" not in source
    assert list(source) == ["loop", "llvm"] and len(source) == 2 and made == []
    assert repr(source) == "<Source of net <1>: loop, llvm>" and made == []
    assert source["loop"] == source["loop"] == "a < b" and made == ["loop"]
    text = str(source)
    assert text.startswith("net <1>\n") and "--- loop ---\na < b" in text
    page = source._repr_html_()
    assert "a &lt; b" in page and "net &lt;1&gt;" in page and "<1>" not in page
    with pytest.raises(KeyError):
        source["assembly"]


def test_the_page_of_a_long_source_is_bounded() -> None:
    page = Source("long", {"llvm": lambda: "x" * (MAX_CHARACTERS + 5)})._repr_html_()
    assert "5 more characters; source[&#x27;llvm&#x27;]" in page and len(page) < MAX_CHARACTERS * 2


# --- the roofline ---------------------------------------------------------------------------------

PEAKS = Peaks(100e9, ((1 << 16, 200e9), (1 << 20, 50e9), (0, 10e9)))


@pytest.mark.parametrize(
    ("flops", "size", "width", "seconds"),
    [
        (100, 0, 4, 1e-9),  # the multiply-add peak
        (100, 0, 8, 2e-9),  # half as many float64 fit a register
        (100, 0, 2, 1e-9),  # half floats are computed with as float32
        (0, 1 << 16, 4, (1 << 16) / 200e9),  # fits the first level
        (0, 1 << 20, 4, (1 << 20) / 50e9),
        (0, 1 << 21, 4, (1 << 21) / 10e9),
        (10**9, 1 << 20, 4, 1e-2),  # the slower of the two
    ],
)
def test_the_roofline_is_the_slower_of_work_and_traffic(flops, size, width, seconds) -> None:
    assert PEAKS.seconds(flops, size, width) == pytest.approx(seconds)


def test_a_row_tells_its_share_of_the_roofline() -> None:
    graph = frame.trace(lambda x: ops.exp(x), (3,))
    rows = [
        KernelTime("fast", (), 2e-9, 100, 0),
        KernelTime("host", (), 1e-9),
        KernelTime("still", (), 0.0, 5, 5),
    ]
    profile = make_profile(rows, graph, peaks=PEAKS)
    assert profile.rows[0].roofline == pytest.approx(0.5)
    assert np.isnan([row.roofline for row in profile.rows[1:]]).all()
    assert str(profile).splitlines()[0].split()[-1] == "roofline"
    assert [line.split()[-1] for line in str(profile).splitlines()[1:4]] == ["50%", "-", "-"]
    assert [row["roofline"] for row in profile.to_data()["rows"]] == [0.5, None, None]
    assert np.isnan(make_profile(rows, graph).rows[0].roofline)  # a device of unknown limits


def test_float64_has_its_own_peak() -> None:
    for kind, width in (("float32", 4), ("float64", 8), ("bfloat16", 4)):
        model = frame.compile(lambda x: x @ x, [frame.spec((8, 8), kind)])
        x = np.ones((8, 8), frame.core.dtype(kind).numpy)
        [time] = [time for time in model.entry("infer").profile(x) if time.flops]
        assert (time.width, time.flops) == (width, 2 * 8**3)
